package cache

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"sync"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A Key identifies equal requests.
type Key [sha256.Size]byte

// KeyOf returns the key of a request that was checked against the model's configuration, which
// sorts its inputs. versions are the numbers of the loaded versions that answer it, which no others
// have or had. callers are texts about those that may share the answer; none means all.
func KeyOf(versions []uint64, callers []string, req *infer.Request) (key Key) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.hash.Reset()
	w.number(uint64(len(versions)))
	for _, version := range versions {
		w.number(version)
	}
	w.texts(callers)
	w.number(req.Correlation)
	w.text(req.CorrelationName)
	w.number(uint64(req.Flags))
	w.texts(req.Outputs)
	w.parameters(req.Parameters)
	w.number(uint64(len(req.Inputs)))
	for i := range req.Inputs {
		in := &req.Inputs[i]
		w.text(in.Name)
		w.number(uint64(in.Type))
		w.number(uint64(len(in.Shape)))
		for _, d := range in.Shape {
			w.number(uint64(d))
		}
		w.number(uint64(len(in.Data)))
		w.flush()
		w.hash.Write(in.Data)
	}
	w.flush()
	w.hash.Sum(key[:0])
	return key
}

// A writer writes values to a hash so that no two lists of values are written alike: each text
// has its length before it, and each number eight bytes.
type writer struct {
	hash  hash.Hash
	small []byte // values that are not written yet
}

var writers = sync.Pool{New: func() any { return &writer{hash: sha256.New()} }}

// flush writes the values to the hash.
func (w *writer) flush() {
	w.hash.Write(w.small)
	w.small = w.small[:0]
}

func (w *writer) number(n uint64) { w.small = binary.LittleEndian.AppendUint64(w.small, n) }

func (w *writer) text(s string) {
	w.number(uint64(len(s)))
	w.small = append(w.small, s...)
}

func (w *writer) texts(all []string) {
	w.number(uint64(len(all)))
	for _, s := range all {
		w.text(s)
	}
}

// parameters writes parameters in the order of their names: a client's may come in any.
func (w *writer) parameters(all []infer.Parameter) {
	if len(all) > 1 {
		all = slices.SortedStableFunc(slices.Values(all), func(a, b infer.Parameter) int { return cmp.Compare(a.Name, b.Name) })
	}
	w.number(uint64(len(all)))
	for _, p := range all {
		w.text(p.Name)
		w.value(p.Value)
	}
}

// value writes a value behind a number for its type.
func (w *writer) value(v any) {
	switch v := v.(type) {
	case bool:
		w.number(0)
		if v {
			w.number(1)
		} else {
			w.number(0)
		}
	case int64:
		w.number(1)
		w.number(uint64(v))
	case uint64:
		w.number(2)
		w.number(v)
	case float64:
		w.number(3)
		w.number(math.Float64bits(v))
	case string:
		w.number(4)
		w.text(v)
	default:
		panic(fmt.Sprintf("cache: a parameter is a %T, which infer.Parameter does not allow", v))
	}
}
