package servertest

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/tensor"
)

// BlackLine asks the text recogniser for a black picture.
func BlackLine(model string) *client.Request { return SeedRequest(model, 1) }

// Vector asks the perceptron of the tests.
func Vector(model string) *client.Request {
	return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 32*4)}}}
}

// Int64s returns values as tensors have them.
func Int64s(values ...int64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// Spin asks for steps of the model that takes as many as it is told.
func Spin(model string, steps int64) *client.Request {
	return &client.Request{Model: model, Inputs: []client.Tensor{
		{Name: "x", Type: tensor.FP32, Shape: []int64{1, 64}, Data: make([]byte, 64*4)},
		{Name: "steps", Type: tensor.Int64, Shape: []int64{1, 1}, Data: Int64s(steps)},
	}}
}

// SeedRequest asks a model of the seed device's shapes.
func SeedRequest(model string, rows int) *client.Request {
	return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "input.1", Type: tensor.FP32, Shape: []int64{int64(rows), 1, 32, 100}, Data: make([]byte, rows*32*100*4)}}}
}

// Floats returns values as tensors have them.
func Floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// SmallRequest asks a model of [Config]; each row holds its own number.
func SmallRequest(model string, rows int) *client.Request {
	var data []byte
	for i := range rows {
		data = append(data, Floats(float32(i), float32(i), float32(i), float32(i))...)
	}
	return &client.Request{Model: model, Inputs: []client.Tensor{{Name: "INPUT", Type: tensor.FP32, Shape: []int64{int64(rows), 4}, Data: data}}}
}

// Ask sends rows of one number to a small model over gRPC.
func Ask(ctx context.Context, c *client.Client, model string, rows int) error {
	_, err := c.Infer(ctx, SmallRequest(model, rows))
	return err
}
