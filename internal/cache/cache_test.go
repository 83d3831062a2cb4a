package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// sample returns a request in which everything is set that a model can see.
func sample() *infer.Request {
	return &infer.Request{
		Model: "m", Version: "1", ID: "a",
		Inputs: []tensor.Tensor{
			{Name: "P", Type: tensor.FP32, Shape: []int64{2, 3}, Data: make([]byte, 24)},
			{Name: "Q", Type: tensor.Bytes, Shape: []int64{2, 1}, Data: []byte{1, 0, 0, 0, 'x', 1, 0, 0, 0, 'y'}},
		},
		Outputs:     []string{"A", "B"},
		Parameters:  []infer.Parameter{{Name: "color", Value: "red"}, {Name: "n", Value: int64(1)}},
		Correlation: 7, CorrelationName: "s", Flags: infer.SequenceStart,
	}
}

func TestEveryChangeOfARequestChangesItsKey(t *testing.T) {
	keys := map[Key]string{KeyOf([]uint64{1}, nil, sample()): "unchanged"}
	is := func(what string, key Key) {
		t.Helper()
		if other, ok := keys[key]; ok {
			t.Errorf("%s has the key of: %s", what, other)
		}
		keys[key] = what
	}
	change := func(what string, f func(r *infer.Request)) {
		t.Helper()
		r := sample()
		f(r)
		is(what, KeyOf([]uint64{1}, nil, r))
	}
	is("another version", KeyOf([]uint64{2}, nil, sample()))
	is("another member", KeyOf([]uint64{1, 1}, nil, sample()))
	is("another caller", KeyOf([]uint64{1}, []string{"anna"}, sample()))
	is("two callers", KeyOf([]uint64{1}, []string{"an", "na"}, sample()))
	for in := range sample().Inputs {
		for at := range sample().Inputs[in].Data {
			for bit := range 8 {
				change(fmt.Sprintf("bit %d of byte %d of input %d", bit, at, in), func(r *infer.Request) { r.Inputs[in].Data[at] ^= 1 << bit })
			}
		}
		change(fmt.Sprintf("name of input %d", in), func(r *infer.Request) { r.Inputs[in].Name += "2" })
		change(fmt.Sprintf("type of input %d", in), func(r *infer.Request) { r.Inputs[in].Type = tensor.Int32 })
		change(fmt.Sprintf("order of the shape of input %d", in), func(r *infer.Request) { slices.Reverse(r.Inputs[in].Shape) })
		change(fmt.Sprintf("rank of input %d", in), func(r *infer.Request) { r.Inputs[in].Shape = append(r.Inputs[in].Shape, 1) })
		change(fmt.Sprintf("without input %d", in), func(r *infer.Request) { r.Inputs = slices.Delete(r.Inputs, in, in+1) })
	}
	change("a byte moves to the next input", func(r *infer.Request) {
		p, q := &r.Inputs[0], &r.Inputs[1]
		q.Data = append([]byte{p.Data[23]}, q.Data...)
		p.Data = p.Data[:23]
	})
	change("one output", func(r *infer.Request) { r.Outputs = r.Outputs[:1] })
	change("names of outputs run together", func(r *infer.Request) { r.Outputs = []string{"AB"} })
	change("no outputs", func(r *infer.Request) { r.Outputs = nil })
	change("value of a parameter", func(r *infer.Request) { r.Parameters[0].Value = "blue" })
	change("name of a parameter", func(r *infer.Request) { r.Parameters[0].Name = "colour" })
	for _, value := range []any{uint64(1), float64(1), true, false, "1"} {
		change(fmt.Sprintf("parameter n is %T %v", value, value), func(r *infer.Request) { r.Parameters[1].Value = value })
	}
	change("without parameters", func(r *infer.Request) { r.Parameters = nil })
	change("sequence", func(r *infer.Request) { r.Correlation = 8 })
	change("name of the sequence", func(r *infer.Request) { r.CorrelationName = "" })
	change("flags", func(r *infer.Request) { r.Flags = 0 })

	// A field that is added to a request must be in the key, or be listed here.
	for field := range reflect.TypeFor[infer.Request]().Fields() {
		known := []string{
			"Inputs", "Outputs", "Parameters", "Correlation", "CorrelationName", "Flags", // in the key
			"Model", "Version", "Pinned", "Caller", // version and callers, which KeyOf is given
			"ID", "Client", "Priority", "Timeout", "Deadline", "Tenant", "Weight", "Trace", // not for the answer
			"Convert", "Memory", "Waiter", "Queued", "AcceptStream", // how it is answered
			"Rows", "Shape", "PadGroup", "Elements", // follow from the inputs
		}
		if !slices.Contains(known, field.Name) {
			t.Errorf("infer.Request.%s is neither in the key nor known to be left out", field.Name)
		}
	}
}

func TestWhatAModelDoesNotSeeIsNotInTheKey(t *testing.T) {
	r := sample()
	r.ID, r.Priority, r.Timeout, r.Client = "b", 2, 5, 9
	slices.Reverse(r.Parameters)
	if KeyOf([]uint64{1}, nil, r) != KeyOf([]uint64{1}, nil, sample()) {
		t.Error("an equal request has another key")
	}
}

// response returns a response with n bytes that depend on it.
func response(n, seed int) *infer.Response {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(seed + i)
	}
	return &infer.Response{Outputs: []tensor.Tensor{{Name: "OUT", Type: tensor.Uint8, Shape: []int64{1, int64(n)}, Data: data}}, Parameters: []infer.Parameter{{Name: "n", Value: int64(seed)}}}
}

func TestAHitIsACopyOfTheResponse(t *testing.T) {
	c, key, resp := New(1<<20), Key{1}, response(100, 3)
	if c.Get(key, &infer.Response{}) {
		t.Fatal("a hit in an empty cache")
	}
	if got := c.Put(key, resp); got != Kept {
		t.Fatalf("put: %v", got)
	}
	clear(resp.Outputs[0].Data) // the memory is used for another batch
	resp.Outputs[0].Shape[1] = 7
	var first, second infer.Response
	if !c.Get(key, &first) || !c.Get(key, &second) {
		t.Fatal("no hit")
	}
	first.Outputs[0].Shape[0] = 9 // a receiver may reshape what it gets
	want := response(100, 3)
	if got := second.Outputs[0]; !bytes.Equal(got.Data, want.Outputs[0].Data) || !slices.Equal(got.Shape, want.Outputs[0].Shape) || got.Name != "OUT" || got.Type != tensor.Uint8 {
		t.Errorf("hit %+v", got)
	}
	if !slices.Equal(second.Parameters, want.Parameters) {
		t.Errorf("parameters %v", second.Parameters)
	}
}

func TestTheResponseThatWasNotUsedForTheLongestTimeMakesRoom(t *testing.T) {
	each := sizeOf(response(1000, 0))
	c := New(3 * each)
	for i := range byte(3) {
		c.Put(Key{i}, response(1000, int(i)))
	}
	var resp infer.Response
	c.Get(Key{0}, &resp)
	c.Put(Key{3}, response(1000, 3))
	for i, want := range []bool{true, false, true, true} {
		if got := c.Get(Key{byte(i)}, &resp); got != want {
			t.Errorf("response %d in the cache: %v, want %v", i, got, want)
		}
	}
	if got, want := c.State(), (State{Size: 3 * each, Used: 3 * each, Entries: 3, Evicted: 1}); got != want {
		t.Errorf("state %+v, want %+v", got, want)
	}
}

func TestAResponseLargerThanTheCacheEvictsNothing(t *testing.T) {
	c := New(2000)
	c.Put(Key{1}, response(1000, 1))
	if got := c.Put(Key{2}, response(2000, 2)); got != TooLarge {
		t.Errorf("put: %v", got)
	}
	if got := c.Put(Key{1}, response(1000, 9)); got != Known {
		t.Errorf("put again: %v", got)
	}
	var resp infer.Response
	if !c.Get(Key{1}, &resp) || resp.Parameters[0].Value != int64(1) {
		t.Errorf("the first response is gone: %+v", resp)
	}
}

func TestManyThreadsGetNoWrongResponse(t *testing.T) {
	const threads, requests, different = 8, 20_000, 2000
	c := New(different / 4 * sizeOf(response(64, 0))) // a quarter fits, so that responses come and go
	hits := make([]int, threads)
	var all sync.WaitGroup
	for thread := range threads {
		all.Go(func() {
			chance := rand.New(rand.NewPCG(1, uint64(thread)))
			var resp infer.Response
			req := &infer.Request{Inputs: []tensor.Tensor{{Name: "IN", Type: tensor.Uint64, Shape: []int64{1, 1}, Data: make([]byte, 8)}}}
			for range requests {
				n := int(chance.ExpFloat64()*different/4) % different // some are asked for often
				binary.LittleEndian.PutUint64(req.Inputs[0].Data, uint64(n))
				key := KeyOf([]uint64{1}, nil, req)
				if !c.Get(key, &resp) {
					c.Put(key, response(64, n))
					continue
				}
				hits[thread]++
				if want := response(64, n); resp.Parameters[0].Value != int64(n) || !bytes.Equal(resp.Outputs[0].Data, want.Outputs[0].Data) {
					t.Errorf("request %d got %+v", n, resp)
					return
				}
			}
		})
	}
	all.Wait()
	state := c.State()
	if state.Used > state.Size || state.Evicted == 0 || slices.Min(hits) < requests/10 {
		t.Errorf("%+v after %v hits: want hits of all threads, and evictions", state, hits)
	}
}

func BenchmarkHit(b *testing.B) {
	c := New(1 << 20)
	req := &infer.Request{Inputs: []tensor.Tensor{{Name: "IN", Type: tensor.FP32, Shape: []int64{1, 3200}, Data: make([]byte, 12800)}}}
	c.Put(KeyOf([]uint64{1}, nil, req), response(4000, 1))
	var resp infer.Response
	b.ReportAllocs()
	for b.Loop() {
		if !c.Get(KeyOf([]uint64{1}, nil, req), &resp) {
			b.Fatal("no hit")
		}
	}
}
