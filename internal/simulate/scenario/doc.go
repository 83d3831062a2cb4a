// Package scenario reads the input of `shoal simulate`: YAML files that describe models,
// requests and the settings to compare, and recordings of arrivals that they refer to. It
// reports every mistake of a file with its line, and leaves running the scenario to
// package simulate.
package scenario
