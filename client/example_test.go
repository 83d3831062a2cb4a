package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shoal-serving/shoal/client"
)

func ExampleNewHTTP() {
	server := startServer() // for the example; usually a server runs at http://localhost:8000
	defer server.Close()

	c, err := client.NewHTTP(server.URL, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	row := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	resp, err := c.Infer(context.Background(), &client.Request{
		Model:  "identity",
		Inputs: []client.Tensor{client.NewTensor("INPUT", row, 1, 16)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	values, err := client.Values[float32](resp.Output("OUTPUT"))
	fmt.Println(values[:4], err)
	// Output: [1 2 3 4] <nil>
}

func ExampleNewGRPC() {
	server := startServer() // for the example; usually a server runs at localhost:8001
	defer server.Close()

	c, err := client.NewGRPC(server.Target, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	// Over gRPC the server knows the deadline, and does not run what would be late.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	resp, err := c.Infer(ctx, &client.Request{
		Model:  "strings",
		Inputs: []client.Tensor{client.NewStrings("IN_STRING", []string{"a school", "of fish"})},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	words, err := client.Strings(resp.Output("OUT_STRING"))
	fmt.Printf("%q %v\n", words, err)
	// Output: ["a school" "of fish"] <nil>
}

func ExampleClient_Stream() {
	server := startDecoupledServer()
	defer server.Close()

	c, err := client.NewGRPC(server.Target, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	stream, err := c.Stream(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Close()
	err = stream.Send(&client.Request{
		Model:  "repeat",
		ID:     "first",
		Inputs: []client.Tensor{client.NewTensor("COUNT", []int32{3})},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := stream.CloseSend(); err != nil { // no more requests
		fmt.Println(err)
		return
	}
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			fmt.Println("end of the stream")
			return
		case resp == nil:
			fmt.Println("the stream failed:", err)
			return
		case err != nil:
			fmt.Println("request", resp.ID, "failed:", err)
		case len(resp.Outputs) == 0:
			fmt.Println("request", resp.ID, "is done:", resp.Final)
		default:
			n, err := client.Values[int32](resp.Output("INDEX"))
			fmt.Println(resp.ID, n, err)
		}
	}
	// Output:
	// first [0] <nil>
	// first [1] <nil>
	// first [2] <nil>
	// request first is done: true
	// end of the stream
}

func ExampleClient_Metadata() {
	server := startServer()
	defer server.Close()

	c, err := client.NewHTTP(server.URL, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	meta, err := c.Metadata(context.Background(), "identity", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, in := range meta.Inputs {
		fmt.Println(in.Name, in.Type, in.Shape)
	}
	// Output: INPUT FP32 [-1 16]
}

func ExampleError() {
	server := startBusyServer()
	defer server.Close()

	c, err := client.NewGRPC(server.Target, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Infer(context.Background(), &client.Request{
		Model:  "identity",
		Inputs: []client.Tensor{client.NewTensor("INPUT", make([]float32, 16), 1, 16)},
	})
	var e *client.Error
	switch {
	case errors.Is(err, client.Overloaded) && errors.As(err, &e):
		fmt.Println("try again in", e.RetryAfter)
	case errors.Is(err, client.NotFound):
		fmt.Println("the model is not loaded")
	default:
		fmt.Println(err)
	}
	// Output: try again in 2s
}

func ExampleRetry() {
	server := startBusyServer()
	defer server.Close()

	// A call is sent up to three times, as long as that takes no more than a second. This
	// server asks for two seconds, so the call fails at once.
	c, err := client.NewHTTP(server.URL, client.Options{Retry: client.Retry{Budget: time.Second, Max: 2}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Infer(context.Background(), &client.Request{
		Model:  "identity",
		Inputs: []client.Tensor{client.NewTensor("INPUT", make([]float32, 16), 1, 16)},
	})
	fmt.Println(err)
	// Output: Exceeds maximum queue size (429 Too Many Requests)
}
