// Package matrix compares the automatic policy with the best static settings, in virtual
// time.
//
// A [Cell] is one model on one device under one kind of traffic. For each cell, [FindBest]
// tries every static setting of a grid and keeps the best for each metric. No user could
// choose better with these settings, and the best one differs from cell to cell. The
// automatic policy has no settings, and receives the same requests. [Judge] compares the
// results with the gates: limits for the ratio between the two.
//
// All results are a function of the cell and a seed. The command in test/matrix/cmd runs
// the cells on all cores and stores the results in files.
package matrix
