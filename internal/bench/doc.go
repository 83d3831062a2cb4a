// Package bench measures models of any KServe v2 server under load. It reports the
// throughput and latency that clients see, and the times that the server reports.
//
// [Window], [Summary], [Rule] and the schedules compute the figures; they use neither clock
// nor network. A [Caller] sends requests to the server, and [Bench.Run] drives it. Models with
// several responses per request are not supported yet.
//
// Metadata and statistics come through the public client, package client. Inference requests
// use their own wire code: they are encoded before the measurement, and only the end of an
// answer is read. The public client encodes each request and decodes each answer, which
// takes CPU time from a server on the same machine: with 16 clients it used 5.8 times as
// much over HTTP and 1.5 times over gRPC for a request of 12.8 KB, 2.9 and 2.1 times for one
// of 600 KB, and reached 0.36 to 0.80 of the throughput.
package bench
