// Package render draws the report of a simulation: as text for a terminal, or as a
// self-contained SVG. The figures come from package simulate, which also writes them as
// JSON.
package render
