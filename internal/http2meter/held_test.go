package http2meter

import (
	"errors"
	"io"
	"slices"
	"testing"

	"golang.org/x/net/http2"

	"github.com/shoal-serving/shoal/internal/budget"
)

// TestMessagesThatAreNotReadAreCharged has a client that sends whole messages on a stream, and a
// server that says what it has read by extending the window.
func TestMessagesThatAreNotReadAreCharged(t *testing.T) {
	const quarter = defaultWindow / 4
	large, tiny := message(10_000, 10_000), message(0, 0)
	step := func(memory int64) int64 { return (memory + heldStep - 1) / heldStep * heldStep }
	perLarge, perTiny := memoryOf(len(large)), memoryOf(len(tiny))
	for _, test := range []struct {
		name string
		data [][]byte
		read []uint32
		want int64
	}{
		{"one message", [][]byte{large}, nil, 0},
		{"one message in two frames", [][]byte{message(10_000, 5000), make([]byte, 5000)}, nil, 0},
		{"one message and its end", [][]byte{large, nil}, nil, 0},
		{"a second one", [][]byte{large, tiny}, nil, heldStep},
		{"a second one in the same frame", [][]byte{append(slices.Clone(tiny), large...)}, nil, step(perLarge)},
		{"many", [][]byte{tiny, large, large, large, large, large}, nil, step(5 * perLarge)},
		{"tiny ones, each in a frame", slices.Repeat([][]byte{tiny}, 1001), nil, step(1000 * perTiny)},
		{"some of them are read", [][]byte{tiny, large, large, large, large, large}, []uint32{2 * quarter}, step((5*10_005 + 5 - 2*quarter) * (perLarge<<10/10_005 + 1) >> 10)},
		{"all are read", [][]byte{tiny, large, large, large, large}, []uint32{5 + 4*10_005}, 0},
		{"more is allowed than was sent", [][]byte{tiny, large, large}, []uint32{1 << 20}, 0},
	} {
		for seed := range uint64(5) {
			all := budget.New(4 << 20)
			w := newWire(call(t, test.data...), seed)
			c := (&Meter{Budget: all}).Conn(w)
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Fatal(err)
			}
			for _, n := range test.read {
				if _, err := c.Write(framed(t, func(f *http2.Framer) error { return f.WriteWindowUpdate(1, n) })); err != nil {
					t.Fatal(err)
				}
			}
			if got := all.State().Used; got != test.want {
				t.Errorf("%s, seed %d: %d bytes are charged, want %d", test.name, seed, got, test.want)
			}
			_ = c.Close()
			if got := all.State().Used; got != 0 {
				t.Fatalf("%s: %d bytes are charged after the connection was closed", test.name, got)
			}
		}
	}
}

// TestAllThatAConnectionHoldsIsWithinItsShare has a client that fills the windows of 256 streams with
// messages that nobody reads.
func TestAllThatAConnectionHoldsIsWithinItsShare(t *testing.T) {
	const streams = 256
	all := budget.New(16 << 20)
	sent := framed(t, func(f *http2.Framer) error {
		var err error
		for i := range uint32(streams) {
			id := 2*i + 1
			err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82}, EndHeaders: true}))
			for range 6 {
				err = errors.Join(err, f.WriteData(id, false, message(10_000, 10_000)))
			}
		}
		return err
	})
	m := &Meter{Budget: all}
	c := m.Conn(newWire(sent, 0))
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	// Each stream holds 5 messages: 50 KB in 80 KiB of memory.
	const calls = (streams - freeCalls) * callOverhead
	if got := all.State(); got.Used > got.Total/2+calls || got.Used < got.Total/2 {
		t.Errorf("%d KiB are charged, want about the share of a connection, %d KiB, and its calls", got.Used>>10, got.Total>>11)
	}
	if got := m.State().OverBudget; got < streams/2 {
		t.Errorf("%d streams were refused, want more than half", got)
	}
	_ = c.Close()
	if got := all.State().Used; got != 0 {
		t.Errorf("%d bytes are charged after the end", got)
	}
}
