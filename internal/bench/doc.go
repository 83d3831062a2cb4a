// Package bench puts a load on a model of any server that speaks KServe v2, and
// reports what its clients saw and where the server says that the time went.
//
// What is measured is decided in [Window], [Summary], [Rule] and the schedules,
// which know neither clocks nor networks. A [Caller] speaks to the server, and
// [Bench.Run] drives it. Streams and several models at once are not in it.
package bench
