package servertest

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
)

// A Crowd is a closed loop of gRPC clients in the process of the test: each sends a
// request, waits for the answer, and sends it again.
type Crowd struct {
	Clients int
	Sharing int // clients that share a connection; 0 means that each has its own
	Request func(client int) *client.Request
	// Check says what is wrong with an answer; nil means that it must not be an
	// error. It is called by all clients at once.
	Check func(client int, resp *client.Response, err error) error
	// Warm is how long the crowd goes on from the time when each client has had an
	// answer, before anything is measured.
	Warm time.Duration
	// During runs while the crowd does, after that. What is measured is what happens
	// meanwhile.
	During func()
}

// A Tally is what a crowd saw between the begin and the end of what it waited for.
type Tally struct {
	Took      time.Duration
	Latencies []time.Duration // of the requests that were answered meanwhile, ascending
	Client    []int           // how many of them each client sent
	Parts     float64         // of all requests that were under way meanwhile, summed up
}

// PerSecond returns how many requests were answered in a second.
func (t Tally) PerSecond() float64 { return float64(len(t.Latencies)) / t.Took.Seconds() }

// Steady returns how many requests a second were answered. One that was sent before
// or answered after counts by the part of its time that was meanwhile, so that large
// batches do not matter more or less for when they happen to end.
func (t Tally) Steady() float64 { return t.Parts / t.Took.Seconds() }

// P99 returns the latency that 99 % are not above, and the longest there is if nothing was answered.
func (t Tally) P99() time.Duration {
	if len(t.Latencies) == 0 {
		return math.MaxInt64
	}
	return t.Latencies[len(t.Latencies)*99/100]
}

// Run drives the server, and fails the test with the first few answers that are
// wrong.
func (c Crowd) Run(t *testing.T, s *Server) Tally {
	t.Helper()
	type answer struct {
		at      time.Time
		latency time.Duration
	}
	answers := make([][]answer, c.Clients)
	var stop atomic.Bool
	var wrong atomic.Int32
	var running, answered sync.WaitGroup
	var clients []*client.Client
	defer func() { // also if what happens during it ends the test
		stop.Store(true)
		running.Wait()
		for _, c := range clients {
			_ = c.Close() // nothing is sent any more
		}
	}()
	for n := range c.Clients {
		req := c.Request(n)
		if n%max(1, c.Sharing) == 0 {
			c, err := client.NewGRPC(s.GRPC, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, c)
		}
		mine := clients[len(clients)-1]
		answered.Add(1)
		running.Go(func() {
			for i := 0; !stop.Load(); i++ {
				sent := time.Now()
				resp, err := mine.Infer(context.Background(), req)
				answers[n] = append(answers[n], answer{time.Now(), time.Since(sent)})
				if c.Check != nil {
					err = c.Check(n, resp, err)
				}
				if err != nil && wrong.Add(1) <= 3 {
					t.Errorf("client %d, request %d: %v", n, i, err)
				}
				if i == 0 {
					answered.Done()
				}
			}
		})
	}
	answered.Wait()
	time.Sleep(c.Warm)
	began := time.Now()
	c.During()
	ended := time.Now()
	stop.Store(true)
	running.Wait()
	if n := wrong.Load(); n > 3 {
		t.Errorf("%d answers are wrong", n)
	}
	got := Tally{Took: ended.Sub(began), Client: make([]int, c.Clients)}
	for n, all := range answers {
		for _, a := range all {
			first, last := max(0, a.at.Add(-a.latency).Sub(began)), min(got.Took, a.at.Sub(began))
			got.Parts += max(0, last-first).Seconds() / max(a.latency, 1).Seconds()
			if a.at.After(began) && a.at.Before(ended) {
				got.Latencies = append(got.Latencies, a.latency)
				got.Client[n]++
			}
		}
	}
	if len(got.Latencies) == 0 && got.Took > time.Second {
		t.Errorf("nothing was answered in %v", got.Took)
	}
	slices.Sort(got.Latencies)
	return got
}

// For is what a crowd waits for if there is nothing but time to wait for.
func For(d time.Duration) func() { return func() { time.Sleep(d) } }

// A Throughput is what a closed loop of clients got out of a server.
type Throughput struct {
	InfersPerSecond float64
	Latencies       []time.Duration // of all requests, as their clients see them, in the order of the answers
}

// ClosedLoop runs clients that each send a request of two rows, wait for the
// answer, and send the next.
func ClosedLoop(t *testing.T, s *Server, model string, clients int, measure time.Duration) Throughput {
	t.Helper()
	const warm = 200 * time.Millisecond
	type answer struct{ at, latency time.Duration }
	var answers [][]answer
	var done sync.WaitGroup
	var stop atomic.Bool
	began := time.Now()
	for range clients {
		mine := make([]answer, 0, 1<<14)
		answers = append(answers, nil)
		n := len(answers) - 1
		c := s.Client()
		req := SeedRequest(model, 2)
		done.Go(func() {
			for !stop.Load() {
				sent := time.Now()
				if _, err := c.Infer(context.Background(), req); err != nil {
					t.Error(err)
					return
				}
				if now := time.Now(); sent.Sub(began) > warm {
					mine = append(mine, answer{now.Sub(began), now.Sub(sent)})
				}
			}
			answers[n] = mine
		})
	}
	time.Sleep(warm + measure)
	stop.Store(true)
	done.Wait()
	all := slices.Concat(answers...)
	if len(all) == 0 {
		t.Fatal("nothing was answered")
	}
	slices.SortFunc(all, func(a, b answer) int { return cmp.Compare(a.at, b.at) })
	l := Throughput{InfersPerSecond: float64(2*len(all)) / measure.Seconds()}
	for _, a := range all {
		l.Latencies = append(l.Latencies, a.latency)
	}
	return l
}
