//go:build e2e && linux

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/http2meter/http2test"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// memoryBudget is that of the servers under attack.
const memoryBudget = 256 << 20

// An attack takes much memory for little work. It goes on until ctx ends.
type attack struct {
	name   string
	under  []string // a program that runs the server
	run    func(ctx context.Context, t *testing.T, s *servertest.Server)
	denied bool // all of it is refused, so that the server need not grow
}

func attacks() []attack {
	connections, announced := servertest.StrictOr(60, 20), servertest.StrictOr(2000, 300)
	return []attack{
		{name: "HTTP bodies whose last byte does not come", run: func(ctx context.Context, t *testing.T, s *servertest.Server) {
			withhold(ctx, t, s, connections, 60<<20)
		}},
		{name: "HTTP bodies that are only announced", denied: true, run: func(ctx context.Context, t *testing.T, s *servertest.Server) {
			withhold(ctx, t, s, announced, 0)
		}},
		{name: "the same with 6 GB of address space", denied: true, under: []string{"prlimit", "--as=6000000000"}, run: func(ctx context.Context, t *testing.T, s *servertest.Server) {
			withhold(ctx, t, s, 150, 0)
		}},
		{name: "HTTP answers that nobody reads", run: unreadAnswers},
		{name: "gRPC messages whose last byte does not come", run: withholdStreams},
		{name: "compressed gRPC messages", run: compressedMessages},
		{name: "gRPC calls without a message", run: callsWithoutMessage},
		{name: "JSON that is small as text", denied: true, run: zerosInJSON},
	}
}

// TestRequestsStayWithinTheMemoryBudget attacks a fresh server in each way that takes much
// memory for little work. It grows by at most 1.3 times its budget, and answers others. On a
// busy machine Go's collector is sometimes late, and the server grows by more. If the tests are
// strict, attacks are as large as those that once took gigabytes, and what needs a quiet machine
// is judged, too.
func TestRequestsStayWithinTheMemoryBudget(t *testing.T) {
	const mostGrowth = 1.3
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			if !*servertest.Strict {
				servertest.Hold(t, "growth, times the budget", 0, mostGrowth, func() float64 { return a.effect(t).growth })
				return
			}
			samples := servertest.Samples(t, "attacks")
			gate := func(name string) string { return "attacks: " + a.name + ": " + name }
			growth, charged, slower := gate("growth, times the budget"), gate("charged, of the growth"), gate("p99 of others, times before")
			elsewhere := gate("p99 of others while another server is attacked, times before")
			for len(samples.Of(elsewhere)) < measure.MinSamples {
				e := a.effect(t)
				servertest.Add(t, samples, growth, e.growth)
				servertest.Add(t, samples, charged, e.charged)
				servertest.Add(t, samples, slower, e.slower)
				servertest.Add(t, samples, elsewhere, a.elsewhere(t))
			}
			servertest.Judge(t, growth, measure.AtMost(mostGrowth), samples.Of(growth))
			if !a.denied {
				servertest.Judge(t, charged, measure.Between(0.8, 1.2), samples.Of(charged))
			}
			servertest.Judge(t, slower, measure.AtMost(2), samples.Of(slower))
			servertest.Judge(t, elsewhere, measure.Nothing(), samples.Of(elsewhere)) // what the cores make of it
		})
	}
}

// start starts a server to be attacked, with a model that takes much and one for others.
func (a attack) start(t *testing.T) *servertest.Server {
	t.Helper()
	return servertest.StartUnder(t, a.under, servertest.Repository(t, map[string]string{
		"m": large, "other": servertest.Config(time.Millisecond, "1", ""),
	}), fmt.Sprintf("--memory-budget=%d", memoryBudget))
}

// begin begins the attack on a server. end ends it and waits.
func (a attack) begin(t *testing.T, s *servertest.Server) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	attackers.Go(func() { a.run(ctx, t, s) })
	return func() {
		cancel()
		attackers.Wait()
	}
}

// An effect is what an attack did to a server: by how much it grew at the most, times its budget; how
// much of what it had grown by was charged in the end; and the p99 of others, times that before.
type effect struct{ growth, charged, slower float64 }

// effect attacks a fresh server.
func (a attack) effect(t *testing.T) effect {
	t.Helper()
	s := a.start(t)
	defer s.Kill()
	c := s.Client()
	duration := servertest.StrictOr(5*time.Second, 3*time.Second)
	before := askFor(t, s, duration/2)
	idle := s.Resident() << 10
	w := watch(s)
	end := a.begin(t, s)
	during := askFor(t, s, duration)
	held, charged := s.Resident()<<10-idle, int(figure(t, s, "shoal_memory_budget_used_bytes"))
	grown, most := w.end()
	grown -= idle
	end()
	t.Logf("idle %d MiB; grew by up to %d MiB, %.2f times the budget, and by %d MiB in the end; charged then %d MiB, %.2f times the latter, and at most %d MiB; %.0f charges refused; p99 of others %v before, %v during",
		idle>>20, grown>>20, float64(grown)/memoryBudget, held>>20, charged>>20, float64(charged)/float64(held), most>>20, figure(t, s, "shoal_memory_budget_rejections_total"), before, during)
	if most == 0 && figure(t, s, "shoal_memory_budget_rejections_total") == 0 {
		t.Error("nothing was charged or refused: the attack did not reach the server")
	}
	if most > memoryBudget {
		t.Errorf("charged %d MiB of %d MiB", most>>20, memoryBudget>>20)
	}
	// The server has the memory back as soon as it notices that the connections are closed.
	servertest.Eventually(t, "an answer of the attacked model", func() bool { return askLarge(t.Context(), c, 1<<20) == nil })
	servertest.Eventually(t, "the end of all charges", func() bool { return figure(t, s, "shoal_memory_budget_used_bytes") == 0 })
	return effect{float64(grown) / memoryBudget, float64(charged) / float64(held), float64(during) / float64(before)}
}

// elsewhere attacks one server while others ask another one, and returns the p99 of the latter, times
// that before: the machine is the same, and the server is not.
func (a attack) elsewhere(t *testing.T) float64 {
	t.Helper()
	attacked, s := a.start(t), a.start(t)
	defer attacked.Kill()
	defer s.Kill()
	duration := servertest.StrictOr(5*time.Second, 3*time.Second)
	before := askFor(t, s, duration/2)
	end := a.begin(t, attacked)
	defer end()
	return float64(askFor(t, s, duration)) / float64(before)
}

// large is a model that answers with its input, of any length.
const large = `backend: "simulated"
input [ { name: "INPUT" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_UINT8 dims: [ -1 ] } ]
parameters { key: "fixed_us" value { string_value: "100" } }
`

func largeRequest(data []byte) *client.Request {
	return &client.Request{Model: "m", Inputs: []client.Tensor{{Name: "INPUT", Type: tensor.Uint8, Shape: []int64{int64(len(data))}, Data: data}}}
}

func askLarge(ctx context.Context, c *client.Client, size int) error {
	_, err := c.Infer(ctx, largeRequest(make([]byte, size)))
	return err
}

// askFor asks the other model for a while, from a process of its own, and returns the p99 of its
// latency.
func askFor(t *testing.T, s *servertest.Server, d time.Duration) time.Duration {
	t.Helper()
	rate := servertest.StrictOr(300.0, 100)
	_, report := servertest.RunBench(t, s, "grpc", "-m", "other", "--request-rate-range", fmt.Sprint(rate), "--request-count", fmt.Sprint(int(rate*d.Seconds())))
	client := report.Levels[0].Client
	at := slices.IndexFunc(client.Percentiles, func(p bench.Percentile) bool { return p.Percent == 99 })
	if client.Failed > 0 || client.Requests == 0 || at < 0 {
		t.Fatalf("others: %+v", client)
	}
	return client.Percentiles[at].Latency
}

// A watcher notes the peaks of a server's memory and of its charges.
type watcher struct {
	stop               chan struct{}
	done               sync.WaitGroup
	resident, budgeted int
}

func watch(s *servertest.Server) *watcher {
	w := &watcher{stop: make(chan struct{})}
	w.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
			w.resident = max(w.resident, s.Resident()<<10)
			if n%25 == 0 { // the page leaves garbage, which would be measured, too
				w.budgeted = max(w.budgeted, int(figure(s.T, s, "shoal_memory_budget_used_bytes")))
			}
		}
	})
	return w
}

func (w *watcher) end() (resident, charged int) {
	close(w.stop)
	w.done.Wait()
	return w.resident, w.budgeted
}

// figure returns the value of a metric without labels.
func figure(t testing.TB, s *servertest.Server, name string) float64 {
	t.Helper()
	resp, err := servertest.HTTPClient.Get(s.Metrics + "/metrics")
	if err != nil {
		t.Error(err)
		return 0
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if err != nil || m == nil {
		t.Errorf("%s is missing: %v", name, err)
		return 0
	}
	value, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Error(err)
	}
	return value
}

// withhold opens connections that announce a body of 60 MiB, and send so much of it.
func withhold(ctx context.Context, t *testing.T, s *servertest.Server, connections, bytes int) {
	part := []byte(strings.Repeat(" ", 1<<20))
	var senders sync.WaitGroup
	defer senders.Wait()
	for range connections {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
		if err != nil {
			t.Error(err)
			return
		}
		senders.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			_, err := fmt.Fprintf(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", 60<<20+1)
			for sent := 0; sent < bytes && err == nil; sent += len(part) {
				_, err = c.Write(part) // an error is a refusal
			}
			_, _ = c.Read(part[:1]) // until the test ends, or the server answers
		})
	}
	senders.Wait()
	<-ctx.Done()
}

// zerosInJSON sends bodies of zeros, which are four times as large when they are decoded, and their
// last bytes at once.
func zerosInJSON(ctx context.Context, t *testing.T, s *servertest.Server) {
	const clients, elements = 14, 4 << 20
	head := fmt.Sprintf(`{"inputs":[{"name":"INPUT","datatype":"FP64","shape":[%d],"data":[0`, elements)
	body := head + strings.Repeat(",0", elements-1) + "]}]}"
	for ctx.Err() == nil {
		var sent, ended sync.WaitGroup
		complete := make(chan struct{})
		for range clients {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			sent.Add(1)
			ended.Go(func() {
				defer func() { _ = c.Close() }()
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				_, err := fmt.Fprintf(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)-1])
				sent.Done()
				<-complete
				if err == nil {
					_, err = c.Write([]byte(body[len(body)-1:])) // an error is a refusal
				}
				if err == nil {
					_, _ = io.Copy(io.Discard, io.LimitReader(c, 1))
				}
			})
		}
		sent.Wait()
		close(complete)
		ended.Wait()
	}
}

// unreadAnswers asks for answers of 30 MiB over HTTP, and reads none.
func unreadAnswers(ctx context.Context, t *testing.T, s *servertest.Server) {
	const size, clients = 30 << 20, 40
	head := fmt.Sprintf(`{"inputs":[{"name":"INPUT","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],"outputs":[{"name":"OUTPUT","parameters":{"binary_data":true}}]}`, size, size)
	data := make([]byte, size)
	var senders sync.WaitGroup
	defer senders.Wait()
	for range clients {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
		if err != nil {
			t.Error(err)
			return
		}
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		senders.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			_, err := fmt.Fprintf(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s", len(head), len(head)+size, head)
			if err == nil {
				_, _ = c.Write(data) // an error is a refusal
			}
		})
	}
	senders.Wait()
	<-ctx.Done()
}

// withholdStreams begins 40 messages of 60 MiB on one connection, and completes none.
func withholdStreams(ctx context.Context, t *testing.T, s *servertest.Server) {
	message := http2test.Message(encodedRequest(t, make([]byte, 60<<20)))
	c := http2test.Dial(t, s.GRPC)
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	const streams = 40
	for i := range uint32(streams) {
		c.Headers(2*i+1, "ModelInfer")
	}
	var senders sync.WaitGroup
	for i := range uint32(streams) {
		senders.Go(func() { c.Data(2*i+1, message[:len(message)-1], false, time.Minute) })
	}
	senders.Wait()
	if len(c.Resets()) == 0 && ctx.Err() == nil {
		t.Error("no stream was refused")
	}
	<-ctx.Done()
}

// compressedMessages sends messages of 60 MiB that are compressed to a thousandth, which is
// refused, and to an eightieth, which is allowed.
func compressedMessages(ctx context.Context, t *testing.T, s *servertest.Server) {
	// What a model computes is charged when it is there, so that messages of a quarter of the budget
	// can take half of it more.
	size := servertest.StrictOr(60, 24) << 20
	zeros, allowed := make([]byte, size), make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	for at := 0; at+1<<10 < size; at += 80 << 10 {
		_, _ = random.Read(allowed[at : at+1<<10])
	}
	c := http2test.Dial(t, s.GRPC)
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	messages := [][]byte{compressed(t, encodedRequest(t, allowed)), compressed(t, encodedRequest(t, zeros))}
	for i := uint32(0); ctx.Err() == nil && !c.Ended(); i++ {
		stream := 2*i + 1
		c.Headers(stream, "ModelInfer", [2]string{"grpc-encoding", "gzip"})
		c.Data(stream, messages[i%8/7], true, 10*time.Second) // zeros, each eighth time
		for c.Unanswered() > 30 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if i%8 == 7 && c.Status(stream) == "0" {
			t.Errorf("%d MiB of zeros were accepted", size>>20)
		}
	}
	if c.Ended() && ctx.Err() == nil {
		t.Error("the server closed the connection")
	}
}

// callsWithoutMessage begins as many calls as a connection may have, on many connections, and sends
// no message.
func callsWithoutMessage(ctx context.Context, t *testing.T, s *servertest.Server) {
	connections := servertest.StrictOr(80, 10)
	const calls = 256
	for range connections {
		c := http2test.Dial(t, s.GRPC)
		context.AfterFunc(ctx, c.Close)
		for i := range uint32(calls) {
			c.Headers(2*i+1, []string{"ModelInfer", "ModelStreamInfer"}[i%2])
		}
	}
	<-ctx.Done()
}

func encodedRequest(t *testing.T, data []byte) []byte {
	t.Helper()
	encoded, err := proto.Marshal(servertest.RawRequest(largeRequest(data)))
	if err != nil {
		t.Error(err)
	}
	return encoded
}

// compressed returns a message as gRPC sends it compressed.
func compressed(t *testing.T, encoded []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(encoded)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Error(err)
	}
	message := http2test.Message(b.Bytes())
	message[0] = 1
	return message
}
