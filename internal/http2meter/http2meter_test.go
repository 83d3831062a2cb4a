package http2meter

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/shoal-serving/shoal/internal/budget"
)

// A wire is a connection whose client has sent all that it will send.
type wire struct {
	net.Conn
	in     *bytes.Reader
	pieces *rand.Rand // sizes of what Read returns
	out    bytes.Buffer
}

func (w *wire) Read(p []byte) (int, error) {
	return w.in.Read(p[:min(len(p), 1+w.pieces.IntN(40))])
}
func (w *wire) Write(p []byte) (int, error)      { return w.out.Write(p) }
func (w *wire) Close() error                     { return nil }
func (w *wire) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

func newWire(sent []byte, seed uint64) *wire {
	return &wire{in: bytes.NewReader(append([]byte(clientPreface), sent...)), pieces: rand.New(rand.NewPCG(seed, 0))}
}

// framed returns the frames that write writes.
func framed(t testing.TB, write func(*http2.Framer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(http2.NewFramer(&b, nil)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// call begins stream 1 and sends data on it.
func call(t testing.TB, data ...[]byte) []byte {
	return framed(t, func(f *http2.Framer) error {
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: true})
		for _, d := range data {
			err = errors.Join(err, f.WriteData(1, false, d))
		}
		return err
	})
}

// message returns the first part of a message of so many bytes.
func message(size, part int) []byte {
	return append([]byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}, make([]byte, part)...)
}

func TestWhatIsReadIsWhatWasSent(t *testing.T) {
	sent := call(t, message(100, 50), make([]byte, 50), message(7, 7))
	for seed := range uint64(50) {
		got, err := io.ReadAll((&Meter{}).Conn(newWire(sent, seed)))
		if err != nil || !bytes.Equal(got, append([]byte(clientPreface), sent...)) {
			t.Fatalf("seed %d: %d bytes, %v, want %d", seed, len(got), err, len(sent))
		}
	}
}

func TestAMessageIsChargedUntilItIsComplete(t *testing.T) {
	for _, test := range []struct {
		name string
		data [][]byte
		want int64
	}{
		{"nothing", nil, 0},
		{"a part of a prefix", [][]byte{{0, 0}}, 2 + frameOverhead},
		{"one frame", [][]byte{message(100, 100)}, 0},
		{"a part", [][]byte{message(5000, 2000)}, 2048 + frameOverhead},
		{"two parts", [][]byte{message(5000, 2000), make([]byte, 100)}, 2048 + 100 + 2*frameOverhead},
		{"all parts", [][]byte{message(5000, 2000), make([]byte, 3000)}, 0},
		{"the next one", [][]byte{message(5000, 2000), append(make([]byte, 3000), message(9, 1)...)}, 4096 + frameOverhead},
		{"two in a frame", [][]byte{append(message(3, 3), message(4, 4)...)}, heldStep}, // the second one
		{"empty ones", [][]byte{message(0, 0), message(0, 0)}, heldStep},
		{"one byte each", slices.Collect(slices.Chunk(message(100, 20), 1)), 25 * (1 + frameOverhead)},
	} {
		for seed := range uint64(10) {
			all := budget.New(1 << 20)
			c := (&Meter{Budget: all}).Conn(newWire(call(t, test.data...), seed))
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Fatal(err)
			}
			if got := all.State().Used; got != test.want {
				t.Fatalf("%s, seed %d: %d bytes are charged, want %d", test.name, seed, got, test.want)
			}
			_ = c.Close()
			if got := all.State().Used; got != 0 {
				t.Fatalf("%s: %d bytes are charged after the connection was closed", test.name, got)
			}
		}
	}
}

func TestPaddingIsNotPartOfAMessage(t *testing.T) {
	sent := append(call(t), framed(t, func(f *http2.Framer) error {
		return errors.Join(f.WriteDataPadded(1, false, message(10, 4), make([]byte, 60)), f.WriteDataPadded(1, false, make([]byte, 6), make([]byte, 9)))
	})...)
	for seed := range uint64(20) {
		all := budget.New(1 << 20)
		c := (&Meter{Budget: all}).Conn(newWire(sent, seed))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Fatal(err)
		}
		if got := all.State(); got.Used != 0 || got.Peak == 0 {
			t.Errorf("seed %d: %+v, want a message that is complete after two frames", seed, got)
		}
	}
}

// A client could open any number of calls on any number of connections.
func TestACallBeyondTheBudgetIsReset(t *testing.T) {
	all := budget.New(2 * callOverhead) // calls get half, besides those that are free
	calls := func(f *http2.Framer) error {
		for id := uint32(3); id <= 2*freeCalls+5; id += 2 {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true}); err != nil {
				return err
			}
		}
		return nil
	}
	w := newWire(append(call(t), framed(t, calls)...), 0)
	m := &Meter{Budget: all}
	c := m.Conn(w)
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(nil); err != nil { // waits for the frames that are written in the background
		t.Fatal(err)
	}
	if want := appendReset(appendReset(nil, 2*freeCalls+3, enhanceYourCalm), 2*freeCalls+5, enhanceYourCalm); !bytes.Equal(w.out.Bytes(), want) || m.State().OverBudget != 2 {
		t.Errorf("the client was sent %x, want %x; counted %+v", w.out.Bytes(), want, m.State())
	}
	if got := all.State().Used; got != callOverhead {
		t.Errorf("%d bytes are charged, want those of one call", got)
	}
	_ = c.Close()
	if got := all.State().Used; got != 0 {
		t.Errorf("%d bytes are charged after the connection was closed", got)
	}
}

// TestAMessageBeyondTheBudgetIsReset also shows that other streams go on: what follows in the
// connection is read as it was sent.
func TestAMessageBeyondTheBudgetIsReset(t *testing.T) {
	sent := call(t, message(100_000, 6000), make([]byte, 6000), make([]byte, 6000))
	after := framed(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{1}) })
	reset := appendReset(nil, 1, enhanceYourCalm)
	for seed := range uint64(20) {
		all := budget.New(30_000) // a connection gets half
		w := newWire(append(slices.Clone(sent), after...), seed)
		m := &Meter{Budget: all}
		c := m.Conn(w)
		got, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(got, reset)
		if at < 0 || !bytes.Equal(slices.Delete(got, at, at+len(reset)), append([]byte(clientPreface), append(slices.Clone(sent), after...)...)) {
			t.Fatalf("seed %d: grpc does not read what was sent and a reset", seed)
		}
		if _, err := c.Write(nil); err != nil { // waits for the frame that is written in the background
			t.Fatal(err)
		}
		if !bytes.Equal(w.out.Bytes(), reset) {
			t.Fatalf("seed %d: the client was sent %x, want a reset", seed, w.out.Bytes())
		}
		if got := all.State().Used; got != 0 {
			t.Errorf("seed %d: %d bytes are charged after the reset", seed, got)
		}
		if got := m.State(); got != (State{OverBudget: 1}) {
			t.Errorf("seed %d: counted %+v", seed, got)
		}
	}
}

// TestManyRefusedCallsInOneReadAreCopiedOnce has a client whose calls are all refused, and arrive
// together. For each of them the rest of what was read used to be copied twice.
func TestManyRefusedCallsInOneReadAreCopiedOnce(t *testing.T) {
	const calls = 2000
	sent := append([]byte(clientPreface), framed(t, func(f *http2.Framer) error {
		var err error
		for i := range uint32(calls) {
			err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: []byte{0x82}, EndHeaders: true}), f.WriteData(2*i+1, false, message(100, 20)))
		}
		return err
	})...)
	m := &Meter{Budget: budget.New(2)}
	c := m.Conn(&inOneRead{wire: newWire(nil, 0), sent: sent})
	got, p := 0, make([]byte, 128<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for {
		n, err := c.Read(p)
		got += n
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if want := len(sent) + calls*len(appendReset(nil, 1, enhanceYourCalm)); got != want || m.State().OverBudget != calls {
		t.Errorf("grpc reads %d bytes, %+v, want %d with %d resets", got, m.State(), want, calls)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 10<<20 {
		t.Errorf("%d bytes were allocated for %d", took, len(sent))
	}
}

// inOneRead is a connection whose client has sent all at once.
type inOneRead struct {
	*wire
	sent []byte
}

func (r *inOneRead) Read(p []byte) (int, error) {
	n := copy(p, r.sent)
	if r.sent = r.sent[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestAResetIsNotSentWithinAFrame has grpc write a frame in two pieces.
func TestAResetIsNotSentWithinAFrame(t *testing.T) {
	w := newWire(call(t, message(100_000, 6000)), 0)
	c := (&Meter{Budget: budget.New(100)}).Conn(w)
	ping := framed(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{1}) })
	_, _ = c.Write(ping[:3])
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(nil); err != nil || !bytes.Equal(w.out.Bytes(), ping[:3]) {
		t.Fatalf("%x was sent within a frame", w.out.Bytes())
	}
	_, _ = c.Write(ping[3:])
	if want := appendReset(slices.Clone(ping), 1, enhanceYourCalm); !bytes.Equal(w.out.Bytes(), want) {
		t.Errorf("%x was sent, want %x", w.out.Bytes(), want)
	}
}

// pipe returns both ends of a metered connection. They are closed at the end of the test.
func pipe(t *testing.T, m *Meter) (server, client net.Conn) {
	t.Helper()
	raw, client := net.Pipe()
	server = m.Conn(raw)
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), client.Close()); err != nil {
			t.Error(err)
		}
	})
	return server, client
}

// flow is pipe with both ends read.
func flow(t *testing.T, m *Meter) (server, client net.Conn) {
	t.Helper()
	near, far := pipe(t, m)
	for _, end := range []net.Conn{near, far} {
		go func() { _, _ = io.Copy(io.Discard, end) }()
	}
	return near, far
}

// TestTheDeadlineOfGRPCEndsARead has a client that sends nothing. grpc gives it a deadline for the
// start of the connection.
func TestTheDeadlineOfGRPCEndsARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pipe(t, &Meter{})
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want %v", err, os.ErrDeadlineExceeded)
		}
	})
}

// TestAStallInterruptsARead shows that grpc sees the reset of a stream whose client is silent, and
// reads on.
func TestAStallInterruptsARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Meter{}
		c, client := pipe(t, m)
		sent := append([]byte(clientPreface), call(t, message(100_000, 10))...)
		ping := framed(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{1}) })
		go func() {
			_, _ = client.Write(sent)
			time.Sleep(time.Hour)
			_, _ = client.Write(ping)
		}()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		want := append(appendReset(sent, 1, enhanceYourCalm), ping...)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("grpc reads %x, %v, want %x", got, err, want)
		}
		if got := m.State(); got != (State{Stalled: 1}) {
			t.Errorf("counted %+v", got)
		}
	})
}

// TestACallThatDoesNotEndIsStalled has calls with a whole message. grpc keeps the message of a method with
// one until the call ends, whatever else the client sends.
func TestACallThatDoesNotEndIsStalled(t *testing.T) {
	end := framed(t, func(f *http2.Framer) error { return f.WriteData(1, true, nil) })
	headers := call(t)[:9+1] // of an answer
	next := framed(t, func(f *http2.Framer) error { return f.WriteData(1, false, message(1<<20, minProgress)) })
	for _, test := range []struct {
		name       string
		sent, more []byte // at the start, and after a third of the time
		answer     []byte
		want       uint64
	}{
		{name: "a message alone", sent: call(t, message(100, 100)), want: 1},
		{name: "in parts", sent: call(t, message(100, 50), make([]byte, 50)), want: 1},
		{name: "and a part of another", sent: call(t, message(100, 100)), more: next, want: 1},
		{name: "with its end", sent: slices.Concat(call(t, message(100, 100)), end)},
		{name: "with its end later", sent: call(t, message(100, 100)), more: end},
		{name: "with a header of the answer", sent: call(t, message(100, 100)), answer: headers},
		{name: "no message", sent: call(t)},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &Meter{}
			c, client := flow(t, m)
			_, _ = client.Write(append([]byte(clientPreface), test.sent...))
			time.Sleep(defaultStall / 3)
			_, _ = client.Write(test.more)
			_, _ = c.Write(test.answer)
			time.Sleep(defaultStall/3*2 - 1)
			if got := m.State(); got != (State{}) {
				t.Errorf("%s: counted %+v before the end of its time", test.name, got)
			}
			time.Sleep(defaultStall)
			if got := m.State(); got != (State{Stalled: test.want}) {
				t.Errorf("%s: counted %+v, want %d that stalled", test.name, got, test.want)
			}
		})
	}
}

// TestAClientThatTheServerHoldsBackIsNotStalled has a client that has used its window in the middle
// of a message.
func TestAClientThatTheServerHoldsBackIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Meter{}
		c, client := flow(t, m)
		const window, increment = 100_000, 5000
		for piece := range slices.Chunk(framed(t, func(f *http2.Framer) error {
			return errors.Join(f.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
		}), 4) { // grpc may write frames in pieces
			_, _ = c.Write(piece)
		}
		_, _ = client.Write(append([]byte(clientPreface), call(t, message(1<<20, window/2-5), make([]byte, window/2))...))
		time.Sleep(time.Hour + time.Second) // not at the time of a sweep
		if got := m.State(); got != (State{}) {
			t.Fatalf("counted %+v while the client could not send", got)
		}
		for piece := range slices.Chunk(framed(t, func(f *http2.Framer) error { return f.WriteWindowUpdate(1, increment) }), 2) {
			_, _ = c.Write(piece)
		}
		time.Sleep(defaultStall)
		if got := m.State(); got != (State{}) {
			t.Errorf("counted %+v before the client had its time", got)
		}
		time.Sleep(defaultStall)
		if got := m.State(); got != (State{Stalled: 1}) {
			t.Errorf("counted %+v, want a client that could send and did not", got)
		}
	})
}

// TestAClientThatReadsNothingIsStalledAlsoIfItIsHeldBack has a server that does not read because
// its client does not.
func TestAClientThatReadsNothingIsStalledAlsoIfItIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Meter{}
		c, client := flow(t, m)
		_, _ = client.Write(append([]byte(clientPreface), call(t, message(1<<20, defaultWindow-5))...))
		_, _ = c.Write(call(t, make([]byte, defaultWindow))) // headers and data of an answer
		time.Sleep(2 * defaultStall)
		if got := m.State(); got != (State{Stalled: 1}) {
			t.Errorf("counted %+v, want a client that does not read", got)
		}
	})
}

// TestAClientThatAllowsNoAnswerIsStalled has a client whose windows are closed before the first
// frame of an answer, or before the next one.
func TestAClientThatAllowsNoAnswerIsStalled(t *testing.T) {
	none := framed(t, func(f *http2.Framer) error {
		return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	})
	headers := call(t) // of the answer
	for name, late := range map[string]bool{"from the start": false, "later": true} {
		synctest.Test(t, func(t *testing.T) {
			m := &Meter{}
			c, client := flow(t, m)
			request := call(t, message(10, 10))
			if late {
				_, _ = client.Write(append([]byte(clientPreface), request...))
				synctest.Wait()
				_, _ = c.Write(headers)
				time.Sleep(2 * defaultStall)
				if got := m.State(); got != (State{}) {
					t.Errorf("counted %+v while the answer was allowed", got)
				}
				_, _ = client.Write(none)
			} else {
				_, _ = client.Write(append([]byte(clientPreface), append(slices.Clone(none), request...)...))
				synctest.Wait()
				_, _ = c.Write(headers)
			}
			time.Sleep(2 * defaultStall)
			if got := m.State(); got != (State{Stalled: 1}) {
				t.Errorf("%s: counted %+v, want a client that does not read", name, got)
			}
		})
	}
}

// Its windows are wide open, and the kernel's buffers are full.
func TestAConnectionThatIsNotReadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client := pipe(t, &Meter{})
		ping := framed(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{1}) })
		answer := call(t, make([]byte, minTimedWrite))
		go func() { _, _ = io.CopyN(io.Discard, client, int64(len(answer)+len(ping))) }()
		if _, err := c.Write(answer); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * defaultStall)
		if _, err := c.Write(ping); err != nil {
			t.Fatalf("a write after a pause: %v", err)
		}
		began := time.Now()
		if _, err := c.Write(answer); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != defaultStall {
			t.Errorf("%v after %v, want %v after %v", err, time.Since(began), os.ErrDeadlineExceeded, defaultStall)
		}
	})
}

func TestAFirstFrameThatDoesNotEndIsStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Meter{}
		_, client := flow(t, m)
		sent := append([]byte(clientPreface), call(t, message(1000, 1000))...)
		_, _ = client.Write(sent[:len(sent)-1])
		time.Sleep(2 * defaultStall)
		if got := m.State(); got != (State{Stalled: 1}) {
			t.Errorf("counted %+v, want a client that does not go on", got)
		}
	})
}

// A frame between HEADERS and CONTINUATION would end the connection with all its calls.
func TestAResetIsNotReadWithinAHeaderBlock(t *testing.T) {
	sent := call(t, message(100_000, 6000))
	block := framed(t, func(f *http2.Framer) error {
		return errors.Join(f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x82}}), f.WriteContinuation(3, true, []byte{0x84}))
	})
	after := framed(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{1}) })
	for seed := range uint64(20) {
		w := newWire(append(slices.Clone(sent), append(slices.Clone(block), after...)...), seed)
		c := (&Meter{Budget: budget.New(1 << 20)}).Conn(w)
		got, err := io.ReadAll(&resetAfter{Conn: c, after: len(clientPreface) + len(sent) + headerSize + 1})
		want := append([]byte(clientPreface), append(slices.Clone(sent), append(appendReset(slices.Clone(block), 1, enhanceYourCalm), after...)...)...)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("seed %d: grpc reads %x, %v, want %x", seed, got, err, want)
		}
	}
}

// A resetAfter resets stream 1 when the given number of bytes was read.
type resetAfter struct {
	net.Conn
	after int
}

func (r *resetAfter) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p[:min(len(p), max(1, r.after))])
	if r.after -= n; r.after == 0 {
		c := r.Conn.(*conn)
		c.mu.Lock()
		c.resetStream(1, c.streams[1], enhanceYourCalm)
		c.mu.Unlock()
	}
	return n, err
}

func TestATransferStallsWithoutProgress(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	const timeout = 30 * time.Second
	var p progress
	for _, step := range []struct {
		second int
		bytes  int64
		want   bool
	}{
		{100, 10, false},                  // seen for the first time
		{129, 20, false},                  // not yet
		{129, 10 + minProgress, false},    // got on
		{158, 11 + minProgress, false},    // 29 s later
		{159, 9 + 2*minProgress, true},    // a byte is missing
		{160, 10 + 2*minProgress, false},  // and here
		{1000, 11 + 3*minProgress, false}, // not looked at for long, but it got on
	} {
		if got := p.stalled(at(step.second), step.bytes, timeout); got != step.want {
			t.Errorf("at %d s, %d bytes: stalled %v, want %v", step.second, step.bytes, got, step.want)
		}
	}
}

// FuzzConn reads whatever a client sends. grpc reads the same, and resets in addition.
func FuzzConn(f *testing.F) {
	f.Add(call(f, message(100, 50), make([]byte, 50)), uint64(0))
	f.Add(call(f, message(100_000, 6000), make([]byte, 6000)), uint64(1))
	f.Add(framed(f, func(f *http2.Framer) error {
		return errors.Join(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}), f.WriteWindowUpdate(0, 5), f.WriteRSTStream(1, 0))
	}), uint64(2))
	f.Fuzz(func(t *testing.T, sent []byte, seed uint64) {
		want := append([]byte(clientPreface), sent...)
		got, err := io.ReadAll((&Meter{}).Conn(newWire(sent, seed)))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v, want the %d that were sent", len(got), err, len(want))
		}
		m := &Meter{Budget: budget.New(10_000)}
		c := m.Conn(newWire(sent, seed))
		got, err = io.ReadAll(c)
		if resets := int(m.State().OverBudget); err != nil || len(got) != len(want)+resets*len(appendReset(nil, 1, enhanceYourCalm)) {
			t.Fatalf("%d bytes with %d resets, %v; %d were sent", len(got), resets, err, len(want))
		}
		_ = c.Close()
		if used := m.Budget.State().Used; used != 0 {
			t.Fatalf("%d bytes are charged after the connection was closed", used)
		}
	})
}
