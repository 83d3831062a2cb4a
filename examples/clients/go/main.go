// Go asks the digit classifier over gRPC: go run ./go [ADDRESS], in examples/clients
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/shoal-serving/shoal/client"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	pixels, err := read("../image-classifier/three.json")
	if err != nil {
		return err
	}
	address := "localhost:8001"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	c, err := client.NewGRPC(address, client.Options{Retry: client.Retry{Budget: 2 * time.Second}})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := c.Infer(ctx, &client.Request{
		Model:  "digits",
		Inputs: []client.Tensor{client.NewTensor("X", pixels, 1, 64)},
	})
	if errors.Is(err, client.Overloaded) {
		return fmt.Errorf("overloaded, after all retries: %w", err)
	}
	if err != nil {
		return err
	}
	labels, err := client.Values[int64](resp.Output("label"))
	if err != nil {
		return err
	}
	fmt.Println("label", labels[0])
	return nil
}

// read returns the pixels of the image in a JSON file.
func read(file string) ([]float32, error) {
	text, err := os.ReadFile(file)
	var image struct{ X [][]float32 }
	if err := cmp.Or(err, json.Unmarshal(text, &image)); err != nil {
		return nil, err
	}
	return image.X[0], nil
}
