// Package client calls inference servers that speak KServe v2, such as Shoal and
// Triton, over HTTP or gRPC.
//
// [NewHTTP] and [NewGRPC] return a [Client]. Both offer the same methods and return the
// same values and errors; only [Client.Stream] needs gRPC, and only [Client.Explain]
// needs HTTP.
//
//	c, err := client.NewGRPC("localhost:8001", client.Options{})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	resp, err := c.Infer(ctx, &client.Request{
//		Model:  "add_sub",
//		Inputs: []client.Tensor{client.NewTensor("INPUT0", []float32{1, 2, 3, 4}, 1, 4)},
//	})
//	if err != nil {
//		return err
//	}
//	sums, err := client.Values[float32](resp.Output("OUTPUT0"))
//
// Tensors travel as binary data: over HTTP with the binary tensor data extension, and
// over gRPC as raw contents. A response that has its data as JSON or as typed contents
// is understood, too.
//
// # Errors
//
// Every error is an [*Error], whose [Code] says what a program can do about it:
//
//	if errors.Is(err, client.Overloaded) {
//		// send less
//	}
//
// The two exceptions are the [io.EOF] with which a [Stream] ends, and the errors of the
// functions for tensors, which have no code.
//
// # Retries
//
// By default a call is sent once. [Options.Retry] has the client send a call again that
// the server was too busy for, or not ready for, after the time that the server asks for.
//
// # Deadlines
//
// A call ends when its context does. Over gRPC the server knows the deadline of the
// context, and does not run a request that would be late. Over HTTP there is no such
// thing: set [Request.Timeout], which the server counts from when it receives the request.
package client
