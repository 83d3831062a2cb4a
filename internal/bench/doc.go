// Package bench puts a load on models of any server that speaks KServe v2, and
// reports what their clients saw and where the server says that the time went.
//
// What is measured is decided in [Window], [Summary], [Rule], [Closed] and the
// schedules, which know neither clocks nor networks. A [Caller] speaks to the
// server, and [Bench.Run] drives it. Sequences, and models that answer a request
// more than once, are not in it.
//
// What a server says of a model is asked with the public client, package client. Requests to
// the model have wire code of their own: they are encoded before anything is measured, and
// of an answer only its end is read. The public client encodes each request and decodes each
// answer, in CPU time that a server on the same machine lacks: with 16 clients it took 5.8
// times as much of it over HTTP and 1.5 times over gRPC for a request of 12.8 KB, 2.9 and 2.1
// times for one of 600 KB, and had 0.36 to 0.80 of the throughput.
package bench
