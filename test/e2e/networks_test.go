//go:build e2e && linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

const (
	mediumRow  = 16 << 10 // elements
	mediumSize = 4 * mediumRow

	networkControls = 4 // answers that each client gets before the fault
	networkRequests = 6 // of each client, with the fault

	// networkLimits is how long the server may hold what belongs to a client that it cannot
	// reach: the longest of the limits in networkFlags.
	networkLimits = 4 * time.Second
)

// networkFlags make the time limits of the server short. A gRPC connection is closed when a ping is
// not answered, before its --idle-timeout-secs.
var networkFlags = []string{
	"--log-verbose=0", "--header-timeout-secs=2", "--body-timeout-secs=2", "--idle-timeout-secs=4",
	"--grpc-keepalive-time=1000", "--grpc-keepalive-timeout=2000",
}

// A network is a fault between clients and the server.
type network struct {
	name   string
	toxics []servertest.Toxic
	later  []servertest.Toxic // while the first requests are being sent, after half of their deadline
	small  bool               // requests of some bytes, not of mediumSize

	// cut has no request answered. Otherwise all are, and each takes at least the given time.
	cut   bool
	least time.Duration

	// silent loses what clients say at their end, too: the server is not told that they are gone.
	silent bool

	// drains is how long the network still carries what was sent before the clients were gone.
	drains time.Duration
}

// networks returns the faults for requests with a deadline.
func networks(deadline time.Duration) []network {
	const up, down = servertest.Upstream, servertest.Downstream
	both := func(kind string, attributes map[string]int) []servertest.Toxic {
		return []servertest.Toxic{{Kind: kind, Stream: up, Attributes: attributes}, {Kind: kind, Stream: down, Attributes: attributes}}
	}
	one := func(kind, direction, attribute string, value int) []servertest.Toxic {
		return []servertest.Toxic{{Kind: kind, Stream: direction, Attributes: map[string]int{attribute: value}}}
	}
	const tooSlow = 4 // deadlines for a medium request
	trickle := one("bandwidth", up, "rate", int(mediumSize/1024/(tooSlow*deadline).Seconds()))
	sliced := map[string]int{"average_size": 1, "size_variation": 0, "delay": 200} // in bytes and µs
	return []network{
		{name: "cut towards the server", toxics: one("timeout", up, "timeout", 0), cut: true, silent: true},
		{name: "cut towards the clients", toxics: one("timeout", down, "timeout", 0), cut: true},
		{name: "reset in a request", toxics: one("reset_peer", up, "timeout", 1), cut: true},
		{name: "reset in an answer", toxics: one("reset_peer", down, "timeout", 1), cut: true},
		{name: "one byte per packet to the server", toxics: []servertest.Toxic{{Kind: "slicer", Stream: up, Attributes: sliced}}, small: true, least: 20 * time.Millisecond},
		{name: "one byte per packet to the clients", toxics: []servertest.Toxic{{Kind: "slicer", Stream: down, Attributes: sliced}}, small: true, least: 15 * time.Millisecond},
		{name: "slow", toxics: slices.Concat(both("latency", map[string]int{"latency": 20}), both("bandwidth", map[string]int{"rate": 2000})), least: 80 * time.Millisecond},
		{name: "closed in a request", toxics: one("limit_data", up, "bytes", mediumSize/2), cut: true},
		{name: "closed in an answer", toxics: one("limit_data", down, "bytes", mediumSize/2), cut: true},
		{name: "too slow for the deadline", toxics: trickle, cut: true, drains: 2 * tooSlow * deadline},
		{name: "cut in a request", toxics: trickle, later: one("timeout", up, "timeout", 0), cut: true, silent: true},
	}
}

// Clients have a deadline, and reach the server over networks that are slow, or cut in one
// direction, or break off. No client waits for longer than its deadline, every answer is right, and
// clients with another network notice nothing. The server gets rid of what it holds for clients that
// it cannot reach, within its time limits.
func TestNetworksThatAreSlowOrCutHarmNobody(t *testing.T) {
	onnxtest.Library(t)
	toxics := servertest.StartToxiproxy(t)
	dir := leavingRepository(t)
	servertest.AddModel(t, dir, "medium", servertest.ONNXModel{Config: strings.ReplaceAll(
		servertest.Config(4*time.Millisecond, "2", "dynamic_batching { }"), "dims: [ 4 ]", fmt.Sprintf("dims: [ %d ]", mediumRow))})
	s := servertest.Start(t, dir, networkFlags...)
	w := &networkWorld{
		misbehavingWorld: misbehavingWorld{t: t, s: s, requests: knownRequests(t, s)},
		toxics:           toxics, deadline: servertest.StrictOr(500*time.Millisecond, 2*time.Second),
	}
	w.requests = slices.DeleteFunc(w.requests, func(q knownRequest) bool { return q.Model == "large" }) // there is none here
	w.askAll()
	w.closeWeb()
	before := w.settled()

	stop := w.askMeanwhile()
	servertest.Eventually(t, "healthy clients are answered", func() bool { return w.right.Load() > 100 })
	for i, n := range networks(w.deadline) {
		w.try(fmt.Sprint("network", i), n)
	}
	stop()

	w.askAll()
	servertest.Eventually(t, fmt.Sprintf("%d open descriptors, as before the clients came,", before), func() bool { return w.descriptors() <= before })
	for _, gauge := range []string{"nv_inference_pending_request_count", "shoal_memory_budget_used_bytes"} {
		values := regexp.MustCompile(`(?m)^`+gauge+`(?:{.*})? (.*)$`).FindAllStringSubmatch(s.MetricsPage(), -1)
		if len(values) == 0 || slices.ContainsFunc(values, func(v []string) bool { return v[1] != "0" }) {
			t.Errorf("%s is %v, want 0", gauge, values)
		}
	}
	t.Logf("%d answers to healthy clients are right", w.right.Load())
	if w.right.Load() < 1000 {
		t.Error("which shows little")
	}
	if strings.Contains(s.Log(), "panic") {
		t.Errorf("the server has recovered from a panic:\n%s", s.Log())
	}
	w.closeWeb()
	w.settled()
	w.checkGoroutines()
}

type networkWorld struct {
	misbehavingWorld
	toxics   *servertest.Toxiproxy
	deadline time.Duration // of clients behind a network
}

// askMeanwhile has a healthy client of each protocol ask until stop is called.
func (w *networkWorld) askMeanwhile() (stop func()) {
	var done atomic.Bool
	var clients sync.WaitGroup
	for _, protocol := range protocols {
		clients.Go(func() {
			c := w.dial(protocol, nil)
			for i := 0; !done.Load() && !w.t.Failed(); i++ {
				w.askHealthy(c, protocol, w.requests[i%len(w.requests)])
				time.Sleep(time.Millisecond) // others are to be measured
			}
			_ = c.Close() // nothing is sent any more
		})
	}
	stop = func() {
		done.Store(true)
		clients.Wait()
	}
	w.t.Cleanup(stop)
	return stop
}

// Stages of a network.
const (
	sound     = iota // without its fault
	injecting        // between the two
	faulty
)

// A crossing is what came of the requests of one protocol over a network.
type crossing struct {
	controls, asked, answered int
	fastest                   time.Duration // of the controls
	slow                      int           // answers that took at least as long as the fault makes them
	errors                    map[string]int
	longest                   time.Duration // of all
}

// try has two clients of each protocol ask over a network, before and after its fault is injected.
// It returns when the server holds nothing of them.
func (w *networkWorld) try(id string, n network) {
	w.t.Helper()
	held := w.settled() // with the connections of healthy clients
	addresses := map[string]string{}
	for _, protocol := range []string{"HTTP", "gRPC"} {
		addresses[protocol] = w.toxics.Forward(id+protocol, strings.TrimPrefix(w.s.At(protocol), "http://"))
	}
	q := w.medium()
	if n.small {
		q = w.requests[slices.IndexFunc(w.requests, func(q knownRequest) bool { return q.Model == "sim" })]
	}
	var stage atomic.Int32
	var mu sync.Mutex // guards the following
	var abandoned []net.Conn
	got := map[string]*crossing{}

	open := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil || !n.silent {
			return c, err
		}
		mu.Lock()
		defer mu.Unlock()
		abandoned = append(abandoned, c)
		return abandonedConn{c}, nil
	}
	var clients, warm sync.WaitGroup
	for _, protocol := range slices.Repeat(protocols, 2) {
		got[protocol] = &crossing{fastest: time.Hour, errors: map[string]int{}}
		warm.Add(1)
		clients.Go(func() {
			var c *client.Client
			for i, controls, asked := 0, 0, 0; asked < networkRequests && w.t.Context().Err() == nil; i++ {
				if i%2 == 0 { // so that the fault meets connections that are open, and such that are not
					if c != nil {
						_ = c.Close() // its connections may be broken
					}
					c = networkClient(protocol, addresses, open)
				}
				began, at := time.Now(), stage.Load()
				ctx, cancel := context.WithTimeout(w.t.Context(), w.deadline)
				answer, err := ask(ctx, c, protocol, q, false)
				cancel()
				took, then := time.Since(began), stage.Load()
				if err == nil {
					err = q.check(answer)
				}
				if errors.Is(err, errWrongAnswer) {
					w.t.Errorf("%s, over %s: %v", n.name, protocol, err)
				}
				mu.Lock()
				g := got[protocol]
				g.longest = max(g.longest, took)
				switch {
				case then == sound:
					g.controls, g.fastest = g.controls+1, min(g.fastest, took)
					if err != nil {
						w.t.Errorf("%s, over %s before the fault: %v", n.name, protocol, err)
					}
				case at == faulty:
					asked++
					g.asked++
					if err == nil {
						g.answered++
					} else {
						g.errors[client.CodeOf(err).String()]++
					}
					if err == nil && took >= n.least {
						g.slow++
					}
				}
				mu.Unlock()
				if controls++; controls == networkControls {
					warm.Done()
				}
			}
			_ = c.Close()
		})
	}
	warm.Wait()
	stage.Store(injecting)
	inject := func(toxics []servertest.Toxic) {
		for protocol := range addresses {
			for _, toxic := range toxics {
				w.toxics.Inject(id+protocol, toxic)
			}
		}
	}
	inject(n.toxics)
	stage.Store(faulty)
	if n.later != nil {
		time.Sleep(w.deadline / 2)
		inject(n.later)
	}
	clients.Wait()
	left := time.Now()

	for _, protocol := range protocols {
		g := got[protocol]
		what := fmt.Sprintf("%d failed: %v", g.asked-g.answered, g.errors)
		if !n.cut {
			what = fmt.Sprintf("%d were answered, %d of them after %v or more", g.answered, g.slow, n.least)
		}
		w.t.Logf("%s, over %s: without the fault all %d requests were answered, the fastest after %v; with it of %d requests %s; none took longer than %v", n.name, protocol,
			g.controls, g.fastest.Round(time.Millisecond), g.asked, what, g.longest.Round(time.Millisecond))
		switch {
		case g.controls < networkControls || g.asked < 2*networkRequests:
			w.t.Error("which is too few")
		case n.cut && g.answered > 0:
			w.t.Errorf("%s: %d requests were answered although the network was cut", n.name, g.answered)
		case !n.cut && g.answered < g.asked:
			w.t.Errorf("%s: %d requests were not answered", n.name, g.asked-g.answered)
		case !n.cut && (2*g.slow < g.asked || g.fastest >= n.least):
			w.t.Errorf("%s: the network was not slow, or also before", n.name)
		}
		if g.longest-w.deadline > servertest.StrictOr(100*time.Millisecond, 5*time.Second) {
			w.t.Errorf("%s: a client over %s waited for %v, and its deadline was %v", n.name, protocol, g.longest, w.deadline)
		}
	}

	// The proxy forwards still, and the fault is in it still.
	servertest.Eventually(w.t, fmt.Sprintf("%s: %d open descriptors, as before its clients came,", n.name, held), func() bool { return w.descriptors() <= held })
	released := time.Since(left)
	w.t.Logf("%s: the server holds nothing of them after %v", n.name, released.Round(time.Millisecond))
	if *servertest.Strict && released > networkLimits+n.drains+time.Second {
		w.t.Errorf("%s: its limits are %v, and the network needed up to %v", n.name, networkLimits, n.drains)
	}
	mu.Lock() // a client may have opened one in advance
	defer mu.Unlock()
	if n.silent && len(abandoned) < 2*len(protocols) {
		w.t.Errorf("%s: %d connections were left open, want one of each client", n.name, len(abandoned))
	}
	for _, c := range abandoned {
		_ = c.Close() // some have been closed by the server
	}
	for protocol := range addresses {
		w.toxics.Remove(id + protocol)
	}
}

// medium returns a request of which a part may be lost.
func (w *networkWorld) medium() knownRequest {
	values := make([]float32, mediumRow)
	for i := range values {
		values[i] = float32(i)
	}
	data := servertest.Floats(values...)
	return knownRequest{&client.Request{Model: "medium", Inputs: []client.Tensor{
		{Name: "INPUT", Type: tensor.FP32, Shape: []int64{1, mediumRow}, Data: data},
	}}, data}
}

// networkClient returns a client that reaches the server through a proxy.
func networkClient(protocol string, addresses map[string]string, open func(ctx context.Context, network, address string) (net.Conn, error)) *client.Client {
	opts := client.Options{DialContext: open}
	c, err := client.NewGRPC(addresses["gRPC"], opts)
	if protocol == "HTTP" {
		c, err = client.NewHTTP(addresses["HTTP"], opts)
	}
	if err != nil {
		panic(err) // the address is that of a proxy
	}
	return c
}

// An abandonedConn is a connection whose end the network loses.
type abandonedConn struct{ net.Conn }

// Close ends reads and writes, and tells the server nothing.
func (c abandonedConn) Close() error { return c.SetDeadline(time.Now()) }
