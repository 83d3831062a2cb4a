// Package cache keeps responses, so that a request that equals an earlier one is answered without
// running its model.
//
// Two requests are equal if nothing differs that the model can see, except the request's ID: the
// loaded version, names, types, shapes and bytes of the inputs, the requested outputs, parameters,
// and the sequence. A key is a SHA-256 of all that, so that no client can make a request that gets
// another one's answer.
package cache

import (
	"container/list"
	"slices"
	"sync"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A Cache holds responses up to a number of bytes, and forgets those that were not used for the
// longest time. Its methods may be called concurrently.
type Cache struct {
	size int64

	mu      sync.Mutex // guards the following
	used    int64
	byKey   map[Key]*list.Element
	recent  *list.List // of *entry; the one used last is at the front
	evicted uint64
}

// An entry is a response. It is never modified, because responses to several clients share its
// memory.
type entry struct {
	key        Key
	bytes      int64
	outputs    []tensor.Tensor
	parameters []infer.Parameter
}

// New returns an empty cache that holds responses up to size bytes together.
func New(size int64) *Cache {
	return &Cache{size: size, byKey: map[Key]*list.Element{}, recent: list.New()}
}

// State is what a cache holds.
type State struct {
	Size, Used int64 // bytes
	Entries    int
	Evicted    uint64 // responses that were forgotten to make room
}

// State returns what the cache holds. A nil Cache holds nothing.
func (c *Cache) State() State {
	if c == nil {
		return State{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return State{c.size, c.used, c.recent.Len(), c.evicted}
}

// Get fills in the outputs and the parameters of resp, and reports whether there is a response to
// the key. The data of the outputs belong to the cache: they must not be modified, and may be used
// for as long as anyone likes.
func (c *Cache) Get(key Key, resp *infer.Response) bool {
	c.mu.Lock()
	e, ok := c.byKey[key]
	if !ok {
		c.mu.Unlock()
		return false
	}
	c.recent.MoveToFront(e)
	hit := e.Value.(*entry)
	c.mu.Unlock()

	resp.Outputs, resp.Shapes, resp.Memory = resp.Outputs[:0], resp.Shapes[:0], nil
	for _, out := range hit.outputs {
		n := len(resp.Shapes)
		resp.Shapes = append(resp.Shapes, out.Shape...)
		out.Shape = resp.Shapes[n:len(resp.Shapes):len(resp.Shapes)]
		resp.Outputs = append(resp.Outputs, out)
	}
	resp.Parameters = slices.Clone(hit.parameters)
	return true
}

// An Outcome is what became of a response that was put into the cache.
type Outcome int

// Outcomes of [Cache.Put].
const (
	Kept     Outcome = iota
	Known            // an equal request was answered meanwhile
	TooLarge         // for the cache, even if it were empty
)

// Put keeps a copy of a response. Room for it is made by forgetting others.
func (c *Cache) Put(key Key, resp *infer.Response) Outcome {
	bytes := sizeOf(resp)
	if bytes > c.size {
		return TooLarge
	}
	e := &entry{key: key, bytes: bytes, outputs: copyOf(resp.Outputs), parameters: slices.Clone(resp.Parameters)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byKey[key]; ok {
		return Known
	}
	for c.used+bytes > c.size {
		c.forgetOldest()
		c.evicted++
	}
	c.byKey[key] = c.recent.PushFront(e)
	c.used += bytes
	return Kept
}

// Forget removes a response, if there is one.
func (c *Cache) Forget(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byKey[key]; ok {
		c.remove(e)
	}
}

// forgetOldest removes the response that was not used for the longest time. The caller holds the
// lock.
func (c *Cache) forgetOldest() { c.remove(c.recent.Back()) }

func (c *Cache) remove(at *list.Element) {
	e := c.recent.Remove(at).(*entry)
	delete(c.byKey, e.key)
	c.used -= e.bytes
}

// overhead is about what an entry takes besides its data: itself, its key twice, its place in the
// map and in the list.
const overhead = 256

// sizeOf returns the memory of an entry, approximately.
func sizeOf(resp *infer.Response) int64 {
	const each = 64 // of a tensor or a parameter, without what it points to
	n := int64(overhead)
	for i := range resp.Outputs {
		out := &resp.Outputs[i]
		n += each + int64(len(out.Name)+8*len(out.Shape)+len(out.Data))
	}
	for _, p := range resp.Parameters {
		n += each + int64(len(p.Name))
		if text, ok := p.Value.(string); ok {
			n += int64(len(text))
		}
	}
	return n
}

// copyOf returns tensors with memory of their own.
func copyOf(tensors []tensor.Tensor) []tensor.Tensor {
	all := make([]tensor.Tensor, len(tensors))
	for i, t := range tensors {
		// Not slices.Clone, which rounds the capacity up: that memory would not be counted.
		data := make([]byte, len(t.Data))
		copy(data, t.Data)
		all[i] = tensor.Tensor{Name: t.Name, Type: t.Type, Shape: slices.Clone(t.Shape), Data: data}
	}
	return all
}
