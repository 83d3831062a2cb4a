//go:build e2e && linux

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

var (
	misbehaving     = flag.Duration("misbehaving", 8*time.Second, "how long clients misbehave")
	misbehavingSeed = flag.Uint64("misbehaving-seed", 0, "the seed of what they do; 0 means a new one")
)

// TestClientsThatMisbehaveHarmNobody has clients misbehave at random, in each of the ways of
// misbehaviours and over each of protocols, while healthy clients ask an ONNX, a Python and
// two simulated models. Every answer to a healthy client is right. In the end the server
// still answers, and holds nothing of the clients that are gone.
func TestClientsThatMisbehaveHarmNobody(t *testing.T) {
	onnxtest.Library(t)
	seed := *misbehavingSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-misbehaving-seed %d", seed)
	s := servertest.Start(t, misbehavingRepository(t), "--log-verbose=0")
	w := newMisbehavingWorld(t, s)
	w.askAll() // so that what is opened for the first requests is open
	w.closeWeb()
	descriptors, workers := w.settled(), servertest.Children(s.Cmd.Process.Pid)

	w.run(*misbehaving, seed)

	w.askAll()
	servertest.Eventually(t, fmt.Sprintf("%d open descriptors, as before the clients came,", descriptors), func() bool { return w.descriptors() <= descriptors })
	if got := servertest.Children(s.Cmd.Process.Pid); !slices.Equal(got, workers) {
		t.Errorf("the workers are %v, and were %v", got, workers)
	}
	w.checkCounts(slices.Collect(maps.Keys(w.happened))...)
	t.Logf("%d answers to healthy clients are right", w.right.Load())
	if w.right.Load() < 100 {
		t.Error("which shows little")
	}
	if strings.Contains(s.Log(), "panic") {
		t.Errorf("the server has recovered from a panic:\n%s", s.Log())
	}
	w.checkGoroutines()
}

// misbehavingRepository has the models of leavingRepository, and one whose requests and
// answers do not fit into the buffers of a connection.
func misbehavingRepository(t *testing.T) string {
	t.Helper()
	dir := leavingRepository(t)
	config := strings.ReplaceAll(servertest.Config(time.Millisecond, "2", "dynamic_batching { }"), "dims: [ 4 ]", fmt.Sprintf("dims: [ %d ]", largeRow))
	servertest.AddModel(t, dir, "large", servertest.ONNXModel{Config: config})
	return dir
}

const largeRow = 1 << 20 // elements

// A knownRequest is a request whose answer is known.
type knownRequest struct {
	*client.Request
	want []byte
}

func (q knownRequest) size() int {
	n := 0
	for _, in := range q.Inputs {
		n += len(in.Data)
	}
	return n
}

var errWrongAnswer = errors.New("wrong answer")

// check says what is wrong with an answer. ONNX Runtime may add up in another order when
// other rows are in the batch.
func (q knownRequest) check(answer *client.Response) error {
	if len(answer.Outputs) != 1 || len(answer.Outputs[0].Data) != len(q.want) {
		return fmt.Errorf("%w: %d outputs, want one of %d bytes", errWrongAnswer, len(answer.Outputs), len(q.want))
	}
	if bytes.Equal(answer.Outputs[0].Data, q.want) {
		return nil
	}
	at := func(b []byte, i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[i:])) }
	for i := 0; i < len(q.want); i += 4 {
		got, want := at(answer.Outputs[0].Data, i), at(q.want, i)
		if !(math.Abs(float64(got-want)) <= 1e-3) { // NaN is wrong, too
			return fmt.Errorf("%w: element %d is %v, want %v", errWrongAnswer, i/4, got, want)
		}
	}
	return nil
}

// knownRequests returns eight requests for each small model and two for the
// large one, each with another answer. The
// Python model and the simulated ones answer with their input, and the ONNX model with what
// it answers while no other client asks.
func knownRequests(t *testing.T, s *servertest.Server) (all []knownRequest) {
	t.Helper()
	for i := range 8 {
		elements := map[string]int{"sim": 4, "m": 4, "large": largeRow}
		for _, model := range slices.Sorted(maps.Keys(elements)) { // in this order, or a seed would not repeat a run
			if model == "large" && i >= 2 {
				continue
			}
			values := make([]float32, elements[model])
			for j := range values {
				values[j] = float32(1000*i + j%997)
			}
			data := servertest.Floats(values...)
			all = append(all, knownRequest{&client.Request{Model: model, Inputs: []client.Tensor{
				{Name: "INPUT", Type: tensor.FP32, Shape: []int64{1, int64(elements[model])}, Data: data},
			}}, data})
		}
		spin := servertest.Spin("spin", 1000) // some milliseconds
		spin.Inputs[0].Data = servertest.Floats(slices.Repeat([]float32{float32(i) / 8}, 64)...)
		answer, err := s.Web().Infer(t.Context(), spin)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, knownRequest{spin, answer.Outputs[0].Data})
	}
	return all
}

type misbehavingWorld struct {
	t        *testing.T
	s        *servertest.Server
	requests []knownRequest
	happened map[string]*atomic.Int64 // by misbehaviour and protocol
	right    atomic.Int64             // answers to healthy clients

	// excuses reports whether an error is what the test has caused on purpose, of a request that was
	// sent at some time. Nil excuses none.
	excuses func(q knownRequest, sent time.Time, err error) bool
}

func (w *misbehavingWorld) excused(q knownRequest, sent time.Time, err error) bool {
	return w.excuses != nil && !errors.Is(err, errWrongAnswer) && w.excuses(q, sent, err)
}

func newMisbehavingWorld(t *testing.T, s *servertest.Server) *misbehavingWorld {
	w := &misbehavingWorld{t: t, s: s, requests: knownRequests(t, s), happened: map[string]*atomic.Int64{}}
	for _, m := range misbehaviours {
		for _, protocol := range protocols {
			w.happened[m.name+" over "+protocol] = &atomic.Int64{}
		}
	}
	return w
}

// checkCounts logs how often each thing happened, and fails if one of those that must happen
// never did.
func (w *misbehavingWorld) checkCounts(must ...string) {
	w.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(w.happened)) {
		n := w.happened[name].Load()
		w.t.Logf("%5d times: %s", n, name)
		if n == 0 && slices.Contains(must, name) {
			w.t.Errorf("this never happened: %s", name)
		}
	}
}

// protocols are what clients speak.
var protocols = []string{"HTTP", "gRPC", "a gRPC stream"}

// dial returns a client that opens connections with open.
func (w *misbehavingWorld) dial(protocol string, open func(ctx context.Context, network, address string) (net.Conn, error)) *client.Client {
	opts := client.Options{DialContext: open}
	c, err := client.NewGRPC(w.s.GRPC, opts)
	if protocol == "HTTP" {
		c, err = client.NewHTTP(w.s.HTTP, opts)
	}
	if err != nil {
		panic(err) // the address is that of the server
	}
	return c
}

// ask sends a request and returns the answer. On a stream it sends it twice before it reads, and closes its side
// at once if halfClose is true.
func ask(ctx context.Context, c *client.Client, protocol string, q knownRequest, halfClose bool) (*client.Response, error) {
	if protocol != "a gRPC stream" {
		return c.Infer(ctx, q.Request)
	}
	stream, err := c.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if err := errors.Join(stream.Send(q.Request), stream.Send(q.Request)); err != nil {
		return nil, err
	}
	if halfClose {
		_ = stream.CloseSend() // Recv returns the error of a stream that has ended
	}
	first, err := stream.Recv()
	if err == nil {
		err = q.check(first)
	}
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// askAll sends each request over each protocol, on new connections.
func (w *misbehavingWorld) askAll() {
	w.t.Helper()
	for _, protocol := range protocols {
		c := w.dial(protocol, nil)
		for _, q := range w.requests {
			w.askHealthy(c, protocol, q)
		}
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
	}
}

// askHealthy sends a request, and checks the answer.
func (w *misbehavingWorld) askHealthy(c *client.Client, protocol string, q knownRequest) {
	ctx, cancel := context.WithCancel(w.t.Context()) // no deadline, which would be sent to the server
	defer cancel()
	defer time.AfterFunc(time.Minute, cancel).Stop()
	sent := time.Now()
	answer, err := ask(ctx, c, protocol, q, false)
	if err == nil {
		err = q.check(answer)
	}
	if err != nil && w.excused(q, sent, err) {
		return
	}
	if err != nil {
		w.t.Errorf("a healthy client over %s: %s: %v\n%s", protocol, q.Model, err, w.s.Log())
		return
	}
	w.right.Add(1)
}

// run has clients misbehave beside healthy ones.
func (w *misbehavingWorld) run(length time.Duration, seed uint64) {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	defer time.AfterFunc(length, cancel).Stop()
	var clients sync.WaitGroup
	for i, protocol := range slices.Repeat(protocols, 2) {
		chance := rand.New(rand.NewPCG(seed, uint64(i)))
		clients.Go(func() {
			c := w.dial(protocol, nil)
			for ctx.Err() == nil && !w.t.Failed() {
				w.askHealthy(c, protocol, w.requests[chance.IntN(len(w.requests))])
			}
			_ = c.Close() // nothing is sent any more
		})
	}
	for i := range 8 {
		chance := rand.New(rand.NewPCG(seed, uint64(100+i)))
		clients.Go(func() {
			for ctx.Err() == nil && !w.t.Failed() {
				w.misbehave(ctx, chance)
			}
		})
	}
	clients.Wait()
}

// A misbehaviour is one way in which a client misbehaves.
type misbehaviour struct {
	name  string
	right bool // the answer must be right all the same
	plan  func(chance *rand.Rand, size int) plan
}

// A plan is what a client does in one visit. Sizes are in bytes, and 0 means never.
type plan struct {
	stays      time.Duration // before the client gives up
	cancels    bool          // giving up is what is planned
	times      int           // how often it asks; 0 means once
	piece      int           // how much is sent at once, with a pause before each
	pause      time.Duration
	writes     int // how much is sent before cut, halfClose or garbage
	reads      int // how much is received before the connection is cut
	cut        bool
	reset      bool // cutting is a reset, and not the end of the connection
	halfClose  bool
	garbage    bool // what follows is random
	reconnects int  // connections that are opened and closed before, with nothing sent
}

// somewhere returns a place in a message of size bytes and what is around it.
func somewhere(chance *rand.Rand, size int) int {
	const around = 400 // headers, and the frames that begin a connection of HTTP/2
	if chance.IntN(2) == 0 {
		return 1 + chance.IntN(around)
	}
	return 1 + chance.IntN(size+around)
}

func millis(chance *rand.Rand, most int) time.Duration {
	return time.Duration(1 + chance.Int64N(int64(most)*int64(time.Millisecond)))
}

// patience is how long a client waits that has sent what need not be answered.
const patience = 300 * time.Millisecond

var misbehaviours = []misbehaviour{
	{"cancel", false, func(r *rand.Rand, _ int) plan { return plan{stays: millis(r, 20), cancels: true, times: 8} }},
	{"send slowly", true, func(r *rand.Rand, size int) plan {
		return plan{piece: 1 + (size+400)/(3+r.IntN(20)), pause: millis(r, 3)}
	}},
	{"half-close", false, func(r *rand.Rand, size int) plan {
		return plan{writes: somewhere(r, size), halfClose: true, stays: patience}
	}},
	{"disconnect in a request", false, func(r *rand.Rand, size int) plan {
		return plan{writes: somewhere(r, size), cut: true, reset: r.IntN(2) == 0, stays: patience}
	}},
	{"disconnect in an answer", false, func(r *rand.Rand, size int) plan {
		return plan{reads: somewhere(r, size), cut: true, reset: r.IntN(2) == 0, stays: patience}
	}},
	{"reconnect", true, func(r *rand.Rand, _ int) plan { return plan{reconnects: 1 + r.IntN(4)} }},
	{"send garbage", false, func(r *rand.Rand, size int) plan {
		return plan{writes: somewhere(r, size), garbage: true, stays: patience}
	}},
}

// misbehave is one visit of a client that misbehaves.
func (w *misbehavingWorld) misbehave(ctx context.Context, chance *rand.Rand) {
	m, protocol := misbehaviours[chance.IntN(len(misbehaviours))], protocols[chance.IntN(len(protocols))]
	q := w.requests[chance.IntN(len(w.requests))]
	p := m.plan(chance, q.size())
	if p.garbage && q.Model == "spin" {
		return // which could be asked for steps without end
	}
	var done atomic.Bool // what was planned has happened
	open := func(ctx context.Context, network, address string) (net.Conn, error) {
		return openFaulty(ctx, network, address, p, rand.New(rand.NewPCG(chance.Uint64(), 0)), &done)
	}
	c := w.dial(protocol, open)
	defer func() { _ = c.Close() }() // some connections are broken
	for range max(1, p.times) {
		sent := time.Now()
		visit, leave := context.WithCancel(context.WithoutCancel(ctx))
		timer := time.AfterFunc(cmp.Or(p.stays, time.Minute), leave)
		answer, err := ask(visit, c, protocol, q, p.halfClose)
		if err == nil && !p.garbage {
			err = q.check(answer)
		}
		timer.Stop()
		left := visit.Err() != nil
		leave()
		switch {
		case m.right && err != nil && w.excused(q, sent, err):
		case m.right && err != nil, errors.Is(err, errWrongAnswer) && !p.garbage:
			w.t.Errorf("a client that does this: %s over %s: %s: %v\n%s", m.name, protocol, q.Model, err, w.s.Log())
		case m.right, done.Load(), p.cancels && left:
			w.happened[m.name+" over "+protocol].Add(1)
		}
	}
}

// A faultyConn is a connection of a client that misbehaves. One goroutine reads and one
// writes.
type faultyConn struct {
	*net.TCPConn
	plan         plan
	chance       *rand.Rand
	wrote, taken int
	done         *atomic.Bool
}

func openFaulty(ctx context.Context, network, address string, p plan, chance *rand.Rand, done *atomic.Bool) (net.Conn, error) {
	var d net.Dialer
	for range p.reconnects {
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		_ = c.Close() // nothing was sent
	}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	if p.reads > 0 {
		_ = tcp.SetReadBuffer(4 << 10) // so that the server is still writing
	}
	return &faultyConn{TCPConn: tcp, plan: p, chance: chance, done: done}, nil
}

func (c *faultyConn) Write(b []byte) (written int, err error) {
	for written < len(b) && err == nil {
		next := b[written:]
		if c.plan.piece > 0 {
			time.Sleep(c.plan.pause)
			next = next[:min(len(next), c.plan.piece)]
		}
		if left := c.plan.writes - c.wrote; left > 0 {
			next = next[:min(len(next), left)]
		} else if c.plan.garbage {
			next = slices.Clone(next)
			for i := range next {
				next[i] = byte(c.chance.Uint32())
			}
			c.done.Store(true)
		}
		var n int
		n, err = c.TCPConn.Write(next)
		written += n
		c.wrote += n
		if n > 0 && c.wrote == c.plan.writes {
			c.act()
		}
	}
	return written, err
}

func (c *faultyConn) Read(b []byte) (int, error) {
	if c.plan.reads == 0 {
		return c.TCPConn.Read(b)
	}
	if c.taken == c.plan.reads {
		time.Sleep(time.Millisecond) // the server fills the buffers
		c.act()
	}
	n, err := c.TCPConn.Read(b[:min(len(b), c.plan.reads-c.taken)])
	c.taken += n
	return n, err
}

// act does what was planned for this place in a message.
func (c *faultyConn) act() {
	switch {
	case c.plan.garbage:
		return // Write does it
	case c.plan.halfClose:
		_ = c.CloseWrite() // fails only if the server has closed the connection
	case c.plan.cut:
		if c.plan.reset {
			_ = c.SetLinger(0)
		}
		_ = c.Close() // later calls report it
	}
	c.done.Store(true)
}

// closeWeb closes the connections of the test's own clients.
func (w *misbehavingWorld) closeWeb() {
	servertest.HTTPClient.CloseIdleConnections() // of the page of metrics
	if err := w.s.Web().Close(); err != nil {
		w.t.Fatal(err)
	}
}

// descriptors returns how many the server has open.
func (w *misbehavingWorld) descriptors() int {
	all, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(w.s.Cmd.Process.Pid), "fd"))
	if err != nil {
		w.t.Fatalf("%v: the server ended\n%s", err, w.s.Log())
	}
	return len(all)
}

// settled returns how many descriptors the server has open when it has noticed that its
// clients are gone.
func (w *misbehavingWorld) settled() int {
	n := w.descriptors()
	for quiet := 0; quiet < 20; quiet++ {
		time.Sleep(10 * time.Millisecond)
		if now := w.descriptors(); now != n {
			n, quiet = now, 0
		}
	}
	return n
}

// checkGoroutines ends the server with the signal that prints its goroutines, and looks for
// those of a client.
func (w *misbehavingWorld) checkGoroutines() {
	if err := w.s.Cmd.Process.Signal(syscall.SIGQUIT); err != nil || !w.s.EndsWithin(10*time.Second) {
		w.t.Fatalf("SIGQUIT does not end the server: %v", err)
	}
	goroutines := strings.Split(w.s.Log(), "\n\ngoroutine ")
	if len(goroutines) < 10 {
		w.t.Errorf("SIGQUIT prints %d goroutines:\n%s", len(goroutines), w.s.Log())
	}
	for _, stack := range goroutines {
		for _, work := range []string{"net/http.(*conn)", "grpc/internal/transport.", "grpc.(*Server).handle", "kservehttp.(*handler)", "kservegrpc.(*", "sched.(*Scheduler).Submit"} {
			if strings.Contains(stack, work) {
				w.t.Errorf("a goroutine works for a client that is gone:\n%s", stack)
				break
			}
		}
	}
	w.t.Logf("%d goroutines, none of a client", len(goroutines))
}
