// Package cell decides for many nodes that serve as one: which node loads and unloads what,
// and where proxies send the requests of each model.
//
// [Core] is a state machine: Step(now, event) → actions. Events are what an operator wants,
// the nodes' status pages, and what became of orders; actions are orders to nodes, routes for
// proxies, and a state to keep on disk. It has no goroutine, clock or lock. Package
// cell/control carries its actions out.
//
// The state on disk is a convenience. What is true is what the nodes report, and a cell that
// lost its state rebuilds it from their pages, without unloading anything.
package cell
