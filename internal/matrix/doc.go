// Package matrix compares the automatic policy with the best that a person could
// have set by hand.
//
// A [Cell] is one model on one device under one kind of traffic. For each cell the
// oracle tries every static setting of a grid and keeps the best for each metric:
// nobody could tune better with these settings, and nobody would, since the best
// one differs from cell to cell. The automatic policy has no settings, and gets the same
// requests. [Judge] holds what came of it against the gates.
//
// Everything here is a function of the cell and a seed. The command in test/matrix
// runs it on all cores and keeps the results in files.
package matrix
