package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// missed is the ratio of the p99 of an open loop to that of a closed loop at which the
// report mentions the difference.
const missed = 2

// A Span is the times of one request of an open loop, since the start of the load.
type Span struct {
	Due, Ended time.Duration
}

// A ClosedLoop is the latencies that a closed loop would have measured in place of an open
// loop.
type ClosedLoop struct {
	Clients int           `json:"clients"`
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	Max     time.Duration `json:"max_ns"`
}

// inClosedLoop returns the latencies that the given number of clients, at least one, would have
// seen in a closed loop, in the order of the requests. The clients share the same requests,
// and the server answers at the same moments, oldest first. A client sends a request when it
// is due and the client's previous request is answered, and the latency counts from then. So
// a closed loop hides a stall: each client has one slow request.
func inClosedLoop(spans []Span, clients int) []time.Duration {
	due := make([]time.Duration, len(spans))
	ended := make([]time.Duration, len(spans))
	for i, s := range spans {
		due[i], ended[i] = s.Due, s.Ended
	}
	slices.Sort(due)
	slices.Sort(ended)
	latencies := make([]time.Duration, len(spans))
	for i := range spans {
		sent := due[i]
		if i >= clients {
			sent = max(sent, ended[i-clients])
		}
		latencies[i] = ended[i] - sent
	}
	return latencies
}

// clients returns the number of requests in flight while the server does not stall: the
// number that arrives within a typical latency (Little's law).
func clients(spans []Span, typical time.Duration) int {
	first := slices.MinFunc(spans, func(a, b Span) int { return cmp.Compare(a.Due, b.Due) }).Due
	last := slices.MaxFunc(spans, func(a, b Span) int { return cmp.Compare(a.Due, b.Due) }).Due
	if last <= first {
		return len(spans)
	}
	rate := float64(len(spans)-1) / float64(last-first)
	return max(1, int(math.Ceil(rate*float64(typical)-1e-9)))
}

// closedLoop estimates the figures of a closed loop. It returns nil for windows without
// due times.
func (w *Window) closedLoop() *ClosedLoop {
	if len(w.spans) == 0 {
		return nil
	}
	// The p25 of the latency is typical even if the server spends most of the time on the
	// backlog of a stall.
	n := clients(w.spans, w.Latency(25))
	latencies := inClosedLoop(w.spans, n)
	slices.Sort(latencies)
	at := func(percent float64) time.Duration {
		return latencies[max(0, int(math.Ceil(percent/100*float64(len(latencies))))-1)]
	}
	return &ClosedLoop{Clients: n, P50: at(50), P99: at(99), Max: at(100)}
}
