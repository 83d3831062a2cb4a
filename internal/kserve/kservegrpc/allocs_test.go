//go:build !race

// Under the race detector, pools drop items on purpose, so allocations cannot be measured.

package kservegrpc

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/tensor"
)

// Tensors are not part of a request's heap allocations.
func TestARequestTakesFewAllocations(t *testing.T) {
	c := newCodec(kserve.Limits{})
	data, err := proto.Marshal(typical())
	if err != nil {
		t.Fatal(err)
	}
	received := append(make([]byte, 0, len(data)+1), data...)
	message := mem.BufferSlice{mem.NewBuffer(&received, &ledger{})}
	output := tensor.Tensor{Name: "OUTPUT", Type: tensor.FP32, Shape: []int64{1, 1000}, Data: make([]byte, 4000)}
	allocs := testing.AllocsPerRun(100, func() {
		in := &request{}
		if err := c.Unmarshal(message, in); err != nil || in.err != nil {
			t.Error(err, in.err)
		}
		req, err := in.decode(c.limits)
		if err != nil {
			t.Error(err)
		}
		req.Memory = in.memory
		in.release()
		resp := kserve.GetResponse()
		resp.Memory, resp.Outputs = buf.Get(4000), append(resp.Outputs, output)
		out, err := c.Marshal(&answer{model: "m", version: "1", id: in.GetId(), response: resp})
		if err != nil {
			t.Error(err)
		}
		out.Free()
	})
	// The message, its name and id, the input, its name and shape, two slices; the request and
	// its inputs; the memory, its list and its release function; the response and its list.
	const want = 15
	if allocs > want {
		t.Errorf("%v allocations, want %d at the most", allocs, want)
	}
	in := &request{}
	defer in.release()
	if took := allocated(func() { in.read(message, c.limits, nil) }); took > 8<<10 {
		t.Errorf("%d bytes for a message of %d", took, len(data))
	}
}
