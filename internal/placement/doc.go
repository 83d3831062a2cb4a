// Package placement decides which nodes of a cell hold which models, and which of the copies serve.
//
// [Config.Plan] makes a plan from the previous one, the reports of the nodes, the wanted models and
// the time. [Steps] returns the loads and unloads that lead from what the nodes hold to the plan,
// and [Routes] the copies that proxies may send requests to. All three are pure: they have no
// goroutine, clock or random source, and equal arguments give equal results, byte for byte. A loop
// that talks to nodes and proxies, and the simulator, carry the results out.
//
// # Few copies are active
//
// A balancer that spreads the requests of a model over all of its copies destroys batches.
// So a plan has only as many active copies of a model as its rate and its measured curve
// need, and any balancer chooses among those. The other copies are spares: they are loaded,
// and take over when active copies are lost.
//
// # What it leaves out
//
// A node decides by itself how it loads a model, and which one it evicts if a client asks
// for a model that is not planned on it.
package placement
