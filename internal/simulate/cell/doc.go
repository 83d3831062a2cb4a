// Package cell runs a cell in virtual time: nodes, proxies, and the placement of models.
//
// Each node is a [simulate.World] with the batching core and the policies of the server.
// Placement is that of package placement, at the pace at which nodes report. Only what Shoal
// does not decide is modeled here: the balancers of Envoy, which know no more than the
// requests that their own proxy has in flight; the network; and the failures of [Event].
//
// A run is deterministic: the same [Config] gives the same [Result], including its hash.
package cell
