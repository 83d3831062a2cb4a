package http2meter

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/shoal-serving/shoal/internal/budget"
)

// TestCallsThatGRPCWaitsForAreRefusedWhenTheServerStops has a call for each state in which one can
// be. They are reset at the end of the grace, and those with a message when nothing is in flight.
func TestCallsThatGRPCWaitsForAreRefusedWhenTheServerStops(t *testing.T) {
	const grace = time.Second
	calls := framed(t, func(f *http2.Framer) error {
		var err error
		for id := range uint32(6) {
			err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*id + 1, BlockFragment: []byte{0x82}, EndHeaders: true}))
		}
		return errors.Join(err,
			// Nothing is sent on stream 1.
			f.WriteData(3, false, message(100, 50)),
			f.WriteData(5, false, message(100, 100)),
			f.WriteData(7, true, message(100, 100)),
			f.WriteData(9, false, message(100, 100)), // is being answered
			f.WriteData(11, false, message(100, 50)), // arrives in time
		)
	})
	rest := framed(t, func(f *http2.Framer) error { return f.WriteData(11, true, make([]byte, 50)) })
	late := framed(t, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 13, BlockFragment: []byte{0x82}, EndHeaders: true})
	})
	answer := framed(t, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 9, BlockFragment: []byte{0x88}, EndHeaders: true})
	})
	synctest.Test(t, func(t *testing.T) {
		m := &Meter{}
		raw, client := net.Pipe()
		server := m.Conn(raw)
		read, sent := make(chan []byte, 1), make(chan []byte, 1)
		go func() { all, _ := io.ReadAll(server); read <- all }()
		go func() { all, _ := io.ReadAll(client); sent <- all }()
		_, _ = client.Write(append([]byte(clientPreface), calls...))
		_, _ = server.Write(answer)
		m.Refuse(grace, false)
		want := func(after time.Duration, refused uint64) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := m.State(); got != (State{Refused: refused}) {
				t.Errorf("counted %+v, want %d refused calls", got, refused)
			}
		}
		_, _ = client.Write(rest)
		want(grace-1, 0)
		want(1, 2) // 1 and 3
		_, _ = client.Write(late)
		want(grace-1, 2)
		want(1, 3) // 13
		m.Refuse(grace, true)
		m.Refuse(grace, false) // a server that is idle calls it both ways at once, in any order
		want(grace-1, 3)
		want(1, 4) // 5
		want(time.Hour, 4)
		_ = client.Close()
		_ = server.Close()
		for name, got := range map[string][]byte{"grpc": <-read, "the client": <-sent} {
			for _, id := range []uint32{1, 3, 5, 13} {
				if n := bytes.Count(got, appendReset(nil, id, refusedStream)); n != 1 {
					t.Errorf("%s got %d resets of stream %d, want 1", name, n, id)
				}
			}
		}
	})
}

// When the last request has left, its answer may have to be encoded and sent.
func TestAnswersHaveAGraceAfterTheLastRequest(t *testing.T) {
	const grace = time.Second
	data := framed(t, func(f *http2.Framer) error { return f.WriteData(1, false, message(100, 100)) })
	for _, idle := range []time.Duration{0, grace / 2, grace - 1, grace, grace + 1, 10 * grace} {
		synctest.Test(t, func(t *testing.T) {
			m := &Meter{}
			server, client := pipe(t, m)
			go func() { _, _ = io.Copy(io.Discard, client) }()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			_, _ = client.Write(slices.Concat([]byte(clientPreface), call(t), data))
			m.Refuse(grace, false)
			time.Sleep(idle)
			m.Refuse(grace, true)
			time.Sleep(grace - 1)
			synctest.Wait()
			if got := m.State(); got != (State{}) {
				t.Errorf("idle after %v: counted %+v just before the end of the grace, want nothing", idle, got)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if got := m.State(); got != (State{Refused: 1}) {
				t.Errorf("idle after %v: counted %+v after the grace, want a refused call", idle, got)
			}
		})
	}
}

// grpc does not answer a stream that the client began before it knew that none may follow.
func TestStreamsThatGRPCIgnoresAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Meter{Budget: budget.New(1 << 20)}
		server, client := flow(t, m)
		begin := func(ids ...uint32) {
			_, _ = client.Write(framed(t, func(f *http2.Framer) (err error) {
				for _, id := range ids {
					err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82}, EndHeaders: true}))
				}
				return err
			}))
			synctest.Wait()
		}
		left := func(last uint32) (streams int, charged int64) {
			_, _ = server.Write(framed(t, func(f *http2.Framer) error { return f.WriteGoAway(last, http2.ErrCodeNo, []byte("bye")) }))
			c := server.(*conn)
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.streams), m.Budget.State().Used
		}
		_, _ = client.Write([]byte(clientPreface))
		begin(1, 3, 5, 7, 9, 11)
		if streams, charged := left(math.MaxInt32); streams != 6 || charged != 2*callOverhead {
			t.Errorf("when grpc announces that it goes away, %d streams and %d bytes, want 6 and %d", streams, charged, 2*callOverhead)
		}
		if streams, charged := left(5); streams != 3 || charged != 0 {
			t.Errorf("after the last stream was named, %d streams and %d bytes, want 3 and 0", streams, charged)
		}
		begin(13)
		if streams, _ := left(5); streams != 3 {
			t.Errorf("%d streams after one that comes too late, want 3", streams)
		}
	})
}

// TestAConnectionWhoseClientStoppedWithinAFrameIsClosedWhenTheServerStops has clients that send a part
// of a frame. grpc cannot be given a reset within it.
func TestAConnectionWhoseClientStoppedWithinAFrameIsClosedWhenTheServerStops(t *testing.T) {
	const grace = time.Second
	data := framed(t, func(f *http2.Framer) error { return f.WriteData(1, false, message(100, 100)) })
	other := framed(t, func(f *http2.Framer) error {
		return errors.Join(
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x82}, EndHeaders: true}),
			f.WriteData(3, true, message(100, 100)),
		)
	})
	answer := framed(t, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
	})
	for _, test := range []struct {
		name    string
		sent    []byte
		answers time.Duration // after which stream 3 ends, if it is not 0
		want    time.Duration // 0 means that the connection stays open
	}{
		{"whole frames", slices.Concat(call(t), data), 0, 0},
		{"a part of a payload", slices.Concat(call(t), data[:50]), 0, 2 * grace},
		{"a part of a header", slices.Concat(call(t), data[:headerSize-1]), 0, 2 * grace},
		{"beside a call that runs", slices.Concat(call(t), other, data[:50]), 5*grace + grace/2, 6 * grace},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &Meter{}
			server, client := pipe(t, m)
			go func() { _, _ = io.Copy(io.Discard, client) }()
			var ended time.Duration
			began := time.Now()
			go func() { _, _ = io.Copy(io.Discard, server); ended = time.Since(began) }()
			_, _ = client.Write(append([]byte(clientPreface), test.sent...))
			m.Refuse(grace, true)
			if test.answers > 0 {
				time.Sleep(test.answers)
				_, _ = server.Write(answer)
			}
			time.Sleep(10 * grace)
			synctest.Wait()
			if ended != test.want {
				t.Errorf("%s: the connection ended after %v, want %v; 0 means never", test.name, ended, test.want)
			}
			if got := m.State(); got != (State{Refused: 1}) {
				t.Errorf("%s: counted %+v, want 1 refused call", test.name, got)
			}
		})
	}
}

// TestAConnectionThatHasNotBegunIsClosedWhenTheServerStops has one client that sends nothing, one
// that sends a part of the preface, and one that connects while the server stops.
func TestAConnectionThatHasNotBegunIsClosedWhenTheServerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Second
		m := &Meter{}
		began := time.Now()
		ends := func(want time.Duration, send string) {
			server, client := pipe(t, m)
			go func() { _, _ = io.WriteString(client, send) }()
			go func() {
				if _, err := io.Copy(io.Discard, server); err == nil || time.Since(began) != want {
					t.Errorf("a client that sent %q: %v after %v, want the end of the connection after %v", send, err, time.Since(began), want)
				}
			}()
		}
		ends(grace, "")
		ends(grace, clientPreface[:5])
		synctest.Wait()
		m.Refuse(grace, false)
		time.Sleep(grace / 2)
		ends(grace/2+grace, "")
		time.Sleep(2 * grace)
		synctest.Wait()
	})
}
