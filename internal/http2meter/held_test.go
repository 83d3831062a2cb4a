package http2meter

import (
	"bytes"
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
		{"some of them are read", [][]byte{tiny, large, large, large, large, large}, []uint32{2 * quarter}, step(2 * perLarge)},
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

// TestAClientThatStaysBehindIsChargedForWhatIsUnread has clients that always have something unread. The
// charge is that of the frames which the server has not read, in the order in which they were sent.
func TestAClientThatStaysBehindIsChargedForWhatIsUnread(t *testing.T) {
	const quarter = defaultWindow / 4
	large, tiny := message(10_000, 10_000), message(0, 0)
	whole := func(messages ...[]byte) []byte {
		return framed(t, func(f *http2.Framer) error {
			var err error
			for _, m := range messages {
				err = errors.Join(err, f.WriteData(1, false, m))
			}
			return err
		})
	}
	padded := framed(t, func(f *http2.Framer) error { return f.WriteDataPadded(1, false, []byte{0}, make([]byte, 99)) })
	for _, test := range []struct {
		name   string
		first  []byte // frames that are sent once
		then   []byte // frames that are sent again and again
		behind int    // bytes of data that are not read
	}{
		{"large messages", nil, whole(large), 30_000},
		{"after one tiny message", whole(tiny), whole(large), 30_000},
		{"each after a tiny message", nil, whole(tiny, large), 30_000},
		{"after a prefix in its own frame", nil, whole(large[:5], large[5:]), 30_000},
		{"bytes after large messages", whole(large, large, large), whole(slices.Repeat([][]byte{{0}}, 20)...), 10_000},
		{"padded bytes", nil, padded, 300},
	} {
		t.Run(test.name, func(t *testing.T) {
			type sent struct{ data, size int }
			var unread []sent // by the server, the oldest first
			all := budget.New(64 << 20)
			w := &inOneRead{wire: newWire(nil, 0), sent: append([]byte(clientPreface), call(t, tiny)...)}
			c := (&Meter{Budget: all}).Conn(w)
			receive := func(frames []byte) {
				w.sent = frames
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Fatal(err)
				}
				for r := http2.NewFramer(nil, bytes.NewReader(frames)); ; {
					f, err := r.ReadFrame()
					if err != nil {
						return
					}
					unread = append(unread, sent{len(f.(*http2.DataFrame).Data()), int(f.Header().Length)})
				}
			}
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Fatal(err)
			}
			update, behind, most := len(tiny), 0, int64(0) // update is what was read, and the client was not told
			for i := range 3000 {
				before := len(unread)
				if i == 0 {
					receive(test.first)
				}
				receive(test.then)
				for _, f := range unread[before:] {
					update += f.size - f.data // padding is read at once
					behind += f.data
				}
				for len(unread) > 0 && behind-unread[0].data >= test.behind {
					update += unread[0].data
					behind -= unread[0].data
					unread = unread[1:]
				}
				if update >= quarter {
					if _, err := c.Write(framed(t, func(f *http2.Framer) error { return f.WriteWindowUpdate(1, uint32(update)) })); err != nil {
						t.Fatal(err)
					}
					update = 0
				}
				holds := int64(0)
				for _, f := range unread {
					holds += memoryOf(f.size)
				}
				got := all.State().Used
				// The frames of less than a quarter of the window may be read, and count.
				if most = max(most, got); got < holds || update == 0 && got > holds+2*heldStep {
					t.Fatalf("after %d rounds: %d bytes are charged for frames that take %d", i, got, holds)
				}
			}
			t.Logf("at most %d KiB were charged", most>>10)
		})
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
