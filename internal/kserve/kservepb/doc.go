// Package kservepb is the messages and the service of the KServe v2 inference
// protocol. make proto generates it from proto/grpc_service.proto, all but parameter.go.
package kservepb
