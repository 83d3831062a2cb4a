package kservelocal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

// serve serves a socket until the test ends, and returns its path.
func serve(t *testing.T, backend *kservetest.Server, opts Options) (*Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dir", "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := New(backend, backend, opts)
	done := make(chan error, 1) // so that Serve does not block
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-done); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return s, path
}

// A client sends and receives frames.
type client struct {
	t      *testing.T
	socket *net.UnixConn
	memory []byte
}

func dial(t *testing.T, path string) *client {
	t.Helper()
	socket, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, socket: socket}
	t.Cleanup(c.leave)
	return c
}

func (c *client) leave() {
	_ = c.socket.Close()
	memfd.Unmap(c.memory)
	c.memory = nil
}

// greet sends HELLO, and shares memory number 1.
func (c *client) greet(size int) *client {
	c.t.Helper()
	c.send(frame{kind: kindHello, a: protocol})
	if f, _ := c.receive(); f.kind != kindWelcome || f.a != protocol || f.b != maxCalls {
		c.t.Fatalf("welcomed with %+v", f)
	}
	c.memory = c.share(1, size)
	return c
}

func (c *client) share(number uint32, size int) []byte {
	c.t.Helper()
	b, fd, err := memfd.New(size)
	if err == nil {
		f := frame{kind: kindMemory, number: number, a: uint64(size)}
		err = memfd.Pass(c.socket, f.append(nil), fd)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// pretend shares memory that is smaller than the frame says.
func (c *client) pretend(size uint64) {
	c.t.Helper()
	b, fd, err := memfd.New(4096)
	memfd.Unmap(b)
	f := frame{kind: kindMemory, number: 2, a: size}
	if err := errors.Join(err, memfd.Pass(c.socket, f.append(nil), fd)); err != nil {
		c.t.Error(err)
	}
}

func (c *client) send(f frame) {
	c.t.Helper()
	if _, err := c.socket.Write(f.append(nil)); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next frame and its descriptors, or the zero frame if the server has
// closed the connection.
func (c *client) receive() (frame, []int) {
	c.t.Helper()
	message, control := make([]byte, maxFrame), make([]byte, 64)
	_ = c.socket.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, oob, _, _, err := c.socket.ReadMsgUnix(message, control)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		c.t.Fatal(err)
	}
	if n <= 0 {
		return frame{}, nil
	}
	f := frame{
		kind: kind(binary.LittleEndian.Uint16(message)), flags: binary.LittleEndian.Uint16(message[2:]), number: binary.LittleEndian.Uint32(message[4:]),
		a: binary.LittleEndian.Uint64(message[8:]), b: binary.LittleEndian.Uint64(message[16:]), rest: message[frameSize:n],
	}
	return f, memfd.Descriptors(control[:oob])
}

func (c *client) failure() (infer.Code, string) {
	c.t.Helper()
	f, _ := c.receive()
	if f.kind != kindFailed {
		c.t.Fatalf("answered with %+v, want a failure", f)
	}
	return infer.Code(f.a), string(f.rest)
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// An ask is an INFER frame with one input.
type ask struct {
	number, memory uint32
	flags          uint16
	room           span
	timeout        time.Duration
	model, input   string
	kind           tensor.Type // FP32 unless given
	data           span
	shape          []int64
}

func (a ask) frame() frame {
	b := binary.LittleEndian.AppendUint64(nil, uint64(a.timeout.Microseconds()))
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = appendText(appendText(b, a.model), "")
	b = binary.LittleEndian.AppendUint32(b, 1)
	b = binary.LittleEndian.AppendUint32(appendText(b, a.input), uint32(cmp.Or(a.kind, tensor.FP32)))
	b = binary.LittleEndian.AppendUint64(b, a.data.offset)
	b = binary.LittleEndian.AppendUint64(b, a.data.length)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(a.shape)))
	for _, d := range a.shape {
		b = binary.LittleEndian.AppendUint64(b, uint64(d))
	}
	b = binary.LittleEndian.AppendUint32(b, 0)
	return frame{kind: kindInfer, flags: a.flags, number: a.number, a: uint64(a.memory), b: a.room.offset, c: a.room.length, rest: b}
}

// identity calls the model of that name, with a row at offset 0 and room after it.
func identity(number uint32) ask {
	return ask{number: number, memory: 1, room: span{64, 64}, model: "identity", input: "INPUT", data: span{0, 64}, shape: []int64{1, 16}}
}

// outputs decodes the table of an ANSWER.
func outputs(t *testing.T, f frame) (all []tensor.Tensor, places []span) {
	t.Helper()
	limits := kserve.Limits{}.WithDefaults()
	r := reader{memfd.NewReader(f.rest), &limits}
	for range r.count(limits.CheckOutputs, 28) {
		var x tensor.Tensor
		var p span
		r.input(&x, &p)
		all, places = append(all, x), append(places, p)
	}
	if f.kind != kindAnswer || r.End() != nil {
		t.Fatalf("answered with %+v %q: %v", f, f.rest, r.Err)
	}
	return all, places
}

func TestOutputsAreWrittenToTheRoom(t *testing.T) {
	_, path := serve(t, kservetest.New(t, kservetest.Recorded...), Options{})
	c := dial(t, path).greet(4096)
	for number := uint32(1); number < 4; number++ {
		row := bytes.Repeat([]byte{byte(number)}, 64)
		copy(c.memory, row)
		c.send(identity(number).frame())
		f, _ := c.receive()
		all, places := outputs(t, f)
		if f.number != number || len(all) != 1 || all[0].Name != "OUTPUT" || places[0] != (span{64, 64}) || !bytes.Equal(c.memory[64:128], row) {
			t.Errorf("call %d: answered with %+v %+v at %v", number, f, all, places)
		}
	}
}

func TestOutputsWithoutRoomComeInMemoryOfTheirOwn(t *testing.T) {
	_, path := serve(t, kservetest.New(t, kservetest.Recorded...), Options{})
	c := dial(t, path).greet(4096)
	copy(c.memory, "what went in")
	a := identity(7)
	a.room.length = 63
	c.send(a.frame())
	f, fds := c.receive()
	_, places := outputs(t, f)
	if f.flags != withMemory || len(fds) != 1 || places[0] != (span{0, 64}) {
		t.Fatalf("answered with %+v at %v, %d descriptors", f, places, len(fds))
	}
	b, err := memfd.Map(fds[0], int(f.a))
	memfd.CloseAll(fds)
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Unmap(b)
	if !bytes.HasPrefix(b, []byte("what went in")) {
		t.Errorf("the output is %q", b[:64])
	}
}

// The client of a call that is not answered waits for ever.
func TestACallWhoseMemoryCannotBePassedFails(t *testing.T) {
	s, path := serve(t, kservetest.New(t, kservetest.Recorded...), Options{})
	c := newConnection(s, dial(t, path).socket, 1)
	_ = c.socket.SetWriteDeadline(time.Unix(1, 0))
	resp := &infer.Response{Outputs: []tensor.Tensor{{Name: "OUTPUT", Type: tensor.FP32, Shape: []int64{1}, Data: make([]byte, 4)}}}
	if err := c.answer(1, resp, nil, 0); infer.CodeOf(err) != infer.Internal || !strings.Contains(fmt.Sprint(err), "could not be passed") {
		t.Errorf("error %v, want an internal one that says that the memory could not be passed", err)
	}
}

func TestARequestThatIsWrongFailsAlone(t *testing.T) {
	_, path := serve(t, kservetest.New(t, kservetest.Recorded...), Options{Limits: kserve.Limits{Body: 1000, Text: 100}})
	c := dial(t, path).greet(4096)
	for _, tt := range []struct {
		change func(*ask)
		code   infer.Code
		says   string
	}{
		{func(a *ask) { a.model = "nobody" }, infer.NotFound, "Request for unknown model: 'nobody' is not found"},
		{func(a *ask) { a.shape = []int64{1, 17} }, infer.Invalid, "shape"},
		{func(a *ask) { a.shape = []int64{1, -1} }, infer.Invalid, "shape"},
		{func(a *ask) { a.data.length = 60 }, infer.Invalid, "60"},
		{func(a *ask) { a.data = span{4090, 64} }, infer.Invalid, "input 'INPUT' of 64 bytes at offset 4090 is not within the shared memory of 4096 bytes"},
		{func(a *ask) { a.data.offset = 1<<64 - 32 }, infer.Invalid, "is not within the shared memory"},
		{func(a *ask) { a.data.length = 1<<64 - 1 }, infer.Invalid, "is not within the shared memory"},
		{func(a *ask) { a.data.length = 2000 }, infer.Invalid, "limit of body bytes exceeded"},
		{func(a *ask) { a.shape = make([]int64, 9) }, infer.Invalid, "limit of dimensions exceeded: found at least 9, allowed are 8"},
		{func(a *ask) { a.model = strings.Repeat("x", 101) }, infer.Invalid, "limit of bytes of a text exceeded: found at least 101, allowed are 100"},
	} {
		a := identity(1)
		tt.change(&a)
		c.send(a.frame())
		if code, says := c.failure(); code != tt.code || !strings.Contains(says, tt.says) {
			t.Errorf("told %v %q, want %v and %q", code, says, tt.code, tt.says)
		}
	}
	c.send(identity(1).frame())
	if f, _ := c.receive(); f.kind != kindAnswer {
		t.Errorf("after all of these answered with %+v %s", f, f.rest)
	}
}

func TestABreachOfTheProtocolEndsTheConnection(t *testing.T) {
	_, path := serve(t, kservetest.New(t, kservetest.Recorded...), Options{})
	table := identity(1).frame()
	for says, breach := range map[string]func(c *client){
		"a frame of 5 bytes": func(c *client) {
			if _, err := c.socket.Write([]byte("hello")); err != nil {
				c.t.Error(err)
			}
		},
		"a frame of kind 99":              func(c *client) { c.send(frame{kind: 99}) },
		"a frame of kind 17":              func(c *client) { c.send(frame{kind: kindAnswer}) },
		"speaks version 7":                func(c *client) { c.send(frame{kind: kindHello, a: 7}) },
		"with 37 bytes":                   func(c *client) { c.send(frame{kind: kindFree, number: 1, rest: []byte("texts")}) },
		"the number 0":                    func(c *client) { c.send(frame{kind: kindInfer, rest: table.rest}) },
		"with 0 descriptors":              func(c *client) { c.send(frame{kind: kindMemory, number: 2, a: 4096}) },
		"memory 1 again":                  func(c *client) { memfd.Unmap(c.share(1, 4096)) },
		"FREE of memory 5":                func(c *client) { c.send(frame{kind: kindFree, number: 5}) },
		"a call with memory 9":            func(c *client) { a := identity(1); a.memory = 9; c.send(a.frame()) },
		"room of 64 bytes at offset 4090": func(c *client) { a := identity(1); a.room.offset = 4090; c.send(a.frame()) },
		"a table that ends":               func(c *client) { f := identity(1).frame(); f.rest = f.rest[:len(f.rest)-1]; c.send(f) },
		"of which":                        func(c *client) { f := identity(1).frame(); f.rest = append(f.rest, 0); c.send(f) },
		"memory that is not sealed": func(c *client) {
			fd, err := unix.MemfdCreate("soft", unix.MFD_CLOEXEC)
			if err == nil {
				f := frame{kind: kindMemory, number: 2, a: 4096}
				err = errors.Join(unix.Ftruncate(fd, 4096), memfd.Pass(c.socket, f.append(nil), fd))
			}
			if err != nil {
				c.t.Error(err)
			}
		},
		"announced as 1048576":        func(c *client) { c.pretend(1 << 20) },
		"expected at most 1073741824": func(c *client) { c.pretend(1 << 62) },
	} {
		t.Run(says, func(t *testing.T) {
			c := dial(t, path).greet(4096)
			breach(c)
			if code, text := c.failure(); code != infer.Invalid || !strings.Contains(text, says) {
				t.Errorf("told %v %q, want %q", code, text, says)
			}
			if f, _ := c.receive(); f.kind != 0 {
				t.Errorf("the connection goes on with %+v", f)
			}
		})
	}
	t.Run("not greeted", func(t *testing.T) {
		c := dial(t, path)
		c.send(frame{kind: kindCancel, number: 1})
		if _, text := c.failure(); !strings.Contains(text, "expected HELLO first") {
			t.Errorf("told %q", text)
		}
	})
}

func TestMemoryCannotBeSharedWithoutEnd(t *testing.T) {
	s, path := serve(t, kservetest.New(t, kservetest.Recorded...), Options{})
	c := dial(t, path).greet(4096)
	for n := range uint32(maxCalls) {
		memfd.Unmap(c.share(n+2, 4096))
	}
	if _, text := c.failure(); !strings.Contains(text, "in 256 memories, expected at most") {
		t.Errorf("told %q", text)
	}
	await(t, "the memory of who was cut off", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.memories == 0 })
}

func TestMemoryIsFreedWhileACallWillWriteToIt(t *testing.T) {
	release := make(chan struct{})
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(context.Context, *infer.Request) error { <-release; return nil }
	_, path := serve(t, backend, Options{})
	c := dial(t, path).greet(4096)
	copy(c.memory, "kept")
	c.send(identity(1).frame())
	c.send(frame{kind: kindFree, number: 1})
	c.send(frame{kind: kindModel, number: 2, rest: []byte("identity")}) // answered after the frames before it were read
	if f, _ := c.receive(); f.kind != kindDescription {
		t.Fatalf("answered with %+v", f)
	}
	close(release)
	if f, _ := c.receive(); f.kind != kindAnswer || !bytes.HasPrefix(c.memory[64:], []byte("kept")) {
		t.Errorf("answered with %+v and %q", f, c.memory[64:68])
	}
}

func TestWhatMayBeAnIndexCannotChangeWhileItIsUsed(t *testing.T) {
	shared := make(chan []byte, 1) // so that the handler does not block
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(context.Context, *infer.Request) error {
		copy(<-shared, "late")
		return nil
	}
	_, path := serve(t, backend, Options{})
	c := dial(t, path).greet(4096)
	for kind, want := range map[tensor.Type]string{tensor.Int64: "soon", tensor.Int32: "soon", tensor.Bool: "soon", tensor.FP32: "late", tensor.Uint8: "late"} {
		copy(c.memory, "soon")
		shared <- c.memory
		a := identity(1)
		a.model, a.kind, a.shape = "alltypes", kind, []int64{64 / int64(kind.Size())}
		c.send(a.frame())
		if f, _ := c.receive(); f.kind != kindAnswer || string(c.memory[64:68]) != want {
			t.Errorf("%v: answered with %+v %s and %q, want %q", kind, f, f.rest, c.memory[64:68], want)
		}
	}
}

// waiting returns a backend that counts calls, and those of clients that left: it waits for that.
func waiting(t *testing.T, inside, left *atomic.Int32) *kservetest.Server {
	t.Helper()
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		inside.Add(1)
		<-ctx.Done()
		left.Add(1)
		return ctx.Err()
	}
	return backend
}

func TestWhoLeavesIsNotComputedFor(t *testing.T) {
	var inside, left atomic.Int32
	s, path := serve(t, waiting(t, &inside, &left), Options{})
	before := buf.Live()
	c := dial(t, path).greet(1 << 20)
	for n := range uint32(3) {
		c.send(identity(n + 1).frame())
	}
	await(t, "the calls to run", func() bool { return inside.Load() == 3 })

	c.send(frame{kind: kindCancel, number: 2})
	if code, _ := c.failure(); code != infer.Cancelled || left.Load() != 1 {
		t.Errorf("told %v, %d calls have ended, want the one that was cancelled", code, left.Load())
	}
	c.leave()
	await(t, "the client to be forgotten", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return left.Load() == 3 && len(s.connections) == 0 && s.memories == 0 && buf.Live() == before
	})
}

func TestWhoLeavesIsNoticedAlsoIfItSaidThatItWouldWait(t *testing.T) {
	var inside, left atomic.Int32
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		switch inside.Add(1) {
		case 1: // as quick as most
		case 2, 3:
			time.Sleep(3 * handoffDelay)
		default:
			<-ctx.Done()
			left.Add(1)
			return ctx.Err()
		}
		return nil
	}
	s, path := serve(t, backend, Options{})
	c := dial(t, path).greet(1 << 20)
	a := identity(1)
	a.flags = noOtherFrame
	for a.number = range uint32(4) {
		a.number++
		c.send(a.frame())
		if a.number == 4 {
			break
		}
		if f, _ := c.receive(); f.kind != kindAnswer || f.number != a.number {
			t.Errorf("call %d: answered with %+v", a.number, f)
		}
	}
	await(t, "the last call to run", func() bool { return inside.Load() == 4 })
	c.leave()
	awaitForgotten(t, s, &left, 1)
}

// awaitForgotten waits until the only client has left, and so have its calls.
func awaitForgotten(t *testing.T, s *Server, left *atomic.Int32, calls int32) {
	t.Helper()
	await(t, "the client to be forgotten", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return left.Load() == calls && len(s.connections) == 0 && s.memories == 0
	})
}

func TestWhoLeavesDuringItsFirstCallIsNoticed(t *testing.T) {
	var inside, left atomic.Int32
	s, path := serve(t, waiting(t, &inside, &left), Options{})
	c := dial(t, path).greet(1 << 20)
	a := identity(1)
	a.flags = noOtherFrame
	c.send(a.frame())
	await(t, "the call to run", func() bool { return inside.Load() == 1 })
	c.leave()
	awaitForgotten(t, s, &left, 1)
}

// One of the two goroutines that read must not run a call while the other one does.
func TestWhoLeavesIsNoticedAlsoIfItSaidThatItWouldWaitAndDidNot(t *testing.T) {
	var inside, left atomic.Int32
	s, path := serve(t, waiting(t, &inside, &left), Options{})
	c := dial(t, path).greet(1 << 20)
	a := identity(1)
	a.flags = noOtherFrame
	for n := range uint32(3) {
		a.number = n + 1
		c.send(a.frame())
		await(t, "the call to run", func() bool { return inside.Load() == int32(n+1) })
	}
	c.leave()
	awaitForgotten(t, s, &left, 3)
}

// unread returns a server and a client that has not read the answers to its calls: most wait for
// room in the socket.
func unread(t *testing.T, calls int) (*Server, *client) {
	t.Helper()
	var inside atomic.Int32
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(context.Context, *infer.Request) error { inside.Add(1); return nil }
	s, path := serve(t, backend, Options{})
	c := dial(t, path).greet(1 << 20)
	s.mu.Lock()
	for connection := range s.connections {
		_ = connection.socket.SetWriteBuffer(1) // the system takes the least that it allows
	}
	s.mu.Unlock()
	for n := range calls {
		c.send(identity(uint32(n + 1)).frame())
		if (n+1)%64 == 0 { // few enough to run at once
			await(t, "the calls to run", func() bool { return inside.Load() == int32(n+1) })
		}
	}
	return s, c
}

func TestAClientThatNeverReadsCannotCallWithoutEnd(t *testing.T) {
	s, c := unread(t, 2*maxCalls)
	full := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		most := 0
		for connection := range s.connections { // there is one
			connection.mu.Lock()
			most = max(most, connection.unfinished)
			connection.mu.Unlock()
		}
		return most == 2*maxCalls
	}
	// Some answers are in the socket. When as many calls have followed, the server reads no more.
	for n, waits := uint32(2*maxCalls+1), 0; waits == 0 || !full(); n++ {
		_ = c.socket.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		f := identity(n).frame()
		if _, err := c.socket.Write(f.append(nil)); err != nil {
			waits++
		}
		if waits == 20 || n == 10*maxCalls {
			t.Fatal("the number of calls whose answers are not read is not limited")
		}
	}
	answers, failures := 0, 0
	for ends := 0; ends < 2; { // the first is a reset, because the server has not read all frames
		switch f, _ := c.receive(); f.kind {
		case 0:
			ends++
		case kindAnswer:
			answers++
		default:
			const want = "protocol violation: more than 512 calls at once, with those whose answers are not read"
			if failures++; f.kind != kindFailed || f.number != 0 || string(f.rest) != want {
				t.Errorf("told %+v %s, want %q", f, f.rest, want)
			}
		}
	}
	if answers < 2*maxCalls || failures != 1 {
		t.Errorf("%d answers and %d failures, want those of %d calls and one failure", answers, failures, 2*maxCalls)
	}
}

func TestAnswersAreSentBeforeTheServerIsClosed(t *testing.T) {
	const calls = 64
	defer func(d time.Duration) { closeTimeout = d }(closeTimeout)
	closeTimeout = time.Minute
	s, c := unread(t, calls)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	await(t, "the server to begin to close", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.closed
	})
	answers := 0
	for f, _ := c.receive(); f.kind != 0; f, _ = c.receive() {
		answers++
	}
	if err := <-closed; err != nil || answers != calls {
		t.Errorf("%d calls were answered, %v, want %d", answers, err, calls)
	}
}

func TestAServerIsClosedAlsoIfAClientDoesNotRead(t *testing.T) {
	s, _ := unread(t, 64)
	if err := s.Close(); err != nil { // the test is over when it returns
		t.Error(err)
	}
}

func TestADeadlineIsTheCalls(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(ctx context.Context, _ *infer.Request) error { <-ctx.Done(); return ctx.Err() }
	_, path := serve(t, backend, Options{})
	c := dial(t, path).greet(4096)
	a := identity(1)
	a.timeout = time.Millisecond
	c.send(a.frame())
	if code, _ := c.failure(); code != infer.Deadline {
		t.Errorf("told %v, want %v", code, infer.Deadline)
	}
}

func TestAPanicCostsOneCall(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Before = func(context.Context, *infer.Request) error { panic("a defect") }
	_, path := serve(t, backend, Options{})
	c := dial(t, path).greet(4096)
	for n := range uint32(2) {
		c.send(identity(n + 1).frame())
		if code, text := c.failure(); code != infer.Internal || text != "internal error" {
			t.Errorf("told %v %q", code, text)
		}
	}
}

func TestAModelIsDescribed(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	_, path := serve(t, backend, Options{})
	c := dial(t, path).greet(4096)
	const want = `{"name":"identity","versions":["1"],"platform":"python","inputs":[{"name":"INPUT","datatype":"FP32","shape":[-1,16]}],` +
		`"outputs":[{"name":"OUTPUT","datatype":"FP32","shape":[-1,16]}]}`
	for _, asked := range []frame{{rest: []byte("identity")}, {rest: []byte("identity"), a: 8}, {rest: []byte("identity1"), a: 8}} {
		asked.kind, asked.number = kindModel, 3
		c.send(asked)
		if f, _ := c.receive(); f.kind != kindDescription || f.number != 3 || string(f.rest) != want {
			t.Errorf("%s described as %+v %s", asked.rest, f, f.rest)
		}
	}
	c.send(frame{kind: kindModel, number: 3, rest: []byte("identity7"), a: 8})
	if f, _ := c.receive(); f.kind != kindFailed || infer.Code(f.a) != infer.NotFound {
		t.Errorf("version 7, which does not exist: %+v %s", f, f.rest)
	}
	for _, loading := range []bool{true, false} {
		backend.NotReady.Store(loading)
		c.send(frame{kind: kindModel, number: 4, rest: []byte("nobody")})
		if f, _ := c.receive(); f.kind != kindFailed || infer.Code(f.a) != infer.NotFound || (f.flags == stillLoading) != loading {
			t.Errorf("while loading is %v: told %+v %s", loading, f, f.rest)
		}
	}
}

func TestTheSocketIsItsUsersAlone(t *testing.T) {
	_, path := serve(t, kservetest.New(t), Options{})
	about, err := os.Stat(path)
	if err != nil || about.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, want 0600: %v", about.Mode(), err)
	}
	if about, err := os.Stat(filepath.Dir(path)); err != nil || about.Mode().Perm() != 0o700 {
		t.Errorf("its directory's mode is %v, want 0700: %v", about.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another server listens on") {
		t.Errorf("a second server was told %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "is a file, and not a socket") {
		t.Errorf("in place of a file: %v", err)
	}
}

func TestASocketThatWasLeftBehindIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	l, err = Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("a socket is left behind")
	}
}

func TestAServerThatNobodyUsesIsLeft(t *testing.T) {
	const after = 20 * time.Millisecond
	var unused atomic.Int32
	_, path := serve(t, kservetest.New(t), Options{UnusedAfter: after, Unused: func() { unused.Add(1) }})
	await(t, "the server to be left in the beginning", func() bool { return unused.Load() == 1 })
	c := dial(t, path).greet(4096)
	time.Sleep(5 * after)
	if unused.Load() != 1 {
		t.Error("it was left while somebody was there")
	}
	c.leave()
	await(t, "the server to be left in the end", func() bool { return unused.Load() == 2 })
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 2000 {
		if is() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("waited in vain for %s", what)
}
