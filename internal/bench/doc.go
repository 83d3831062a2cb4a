// Package bench puts a load on models of any server that speaks KServe v2, and
// reports what their clients saw and where the server says that the time went.
//
// What is measured is decided in [Window], [Summary], [Rule], [Closed] and the
// schedules, which know neither clocks nor networks. A [Caller] speaks to the
// server, and [Bench.Run] drives it. Sequences, and models that answer a request
// more than once, are not in it.
package bench
