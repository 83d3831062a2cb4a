package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// missed is how many times as high the p99 of an open loop has to be as that of a
// closed one for the report to say so.
const missed = 2

// A Span is one request of an open loop, since the begin of the load.
type Span struct {
	Due, Ended time.Duration
}

// A ClosedLoop is what clients that wait for their answers would have seen of the
// server that an open loop has measured.
type ClosedLoop struct {
	Clients int           `json:"clients"`
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	Max     time.Duration `json:"max_ns"`
}

// Closed returns the latencies that the given number of clients, at least one, would have
// seen in a closed loop, in the order of the requests. The clients share the same requests,
// and the server answers at the same moments, oldest first. A client sends a request when it
// is due and the client's previous request is answered, and the latency counts from then. So
// a closed loop hides a stall: each client has one slow request.
func Closed(spans []Span, clients int) []time.Duration {
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

// clients returns how many requests wait at a time when nothing stalls: as many
// as come while one is answered (Little's law), where usual is how long that takes.
func clients(spans []Span, usual time.Duration) int {
	first := slices.MinFunc(spans, func(a, b Span) int { return cmp.Compare(a.Due, b.Due) }).Due
	last := slices.MaxFunc(spans, func(a, b Span) int { return cmp.Compare(a.Due, b.Due) }).Due
	if last <= first {
		return len(spans)
	}
	rate := float64(len(spans)-1) / float64(last-first)
	return max(1, int(math.Ceil(rate*float64(usual)-1e-9)))
}

// closedLoop returns nil if no request was due at a time.
func (w *Window) closedLoop() *ClosedLoop {
	if len(w.spans) == 0 {
		return nil
	}
	// A quarter of the requests are answered as fast as when nothing stalls, even if
	// the server takes most of the time to make up for the stall.
	n := clients(w.spans, w.Latency(25))
	latencies := Closed(w.spans, n)
	slices.Sort(latencies)
	at := func(percent float64) time.Duration {
		return latencies[max(0, int(math.Ceil(percent/100*float64(len(latencies))))-1)]
	}
	return &ClosedLoop{Clients: n, P50: at(50), P99: at(99), Max: at(100)}
}
