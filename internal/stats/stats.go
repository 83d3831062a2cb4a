// Package stats counts what one loaded version of a model does: requests, runs of
// its engine, how long each step of them took, and why things went as they did. The
// protocol's statistics and the metrics are both made from a [Snapshot].
//
// It only counts. Whoever reports says what happened; what a figure is called
// outside is for whoever reads.
package stats

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
)

// Counters belong to one loaded version, and start at 0 with it. Their methods may
// be called concurrently, and allocate nothing once each batch size has been seen.
type Counters struct {
	// Objective is how long a request may take to count as answered in time. It is
	// set before anything is counted; 0 means any time.
	Objective time.Duration

	requests [shards]shard

	mu      sync.Mutex // guards the following
	runs    uint64
	tried   uint64
	last    time.Time
	sizes   map[int]*Size
	closed  [batching.Reasons]uint64
	batches Rows
	waits   Durations
	took    Durations
}

// A shard has a part of the requests. Thousands of callers may be answered at once,
// and one that is interrupted while it counts shall not hold up the others: whoever
// finds a shard in use takes the next one.
type shard struct {
	mu sync.Mutex // guards the following
	requests
	_ [64]byte // so that two cores do not share a cache line
}

const shards = 8

// requests are the figures of requests that have been answered.
type requests struct {
	success                     Sum
	late                        uint64 // of those
	queue, input, infer, output uint64 // nanoseconds of those
	rows                        uint64
	failed                      [infer.Codes]uint64
	failedNanos                 uint64
}

// lock returns a shard, locked.
func (c *Counters) lock() *shard {
	for i := rand.Uint32(); ; i++ {
		if s := &c.requests[i%shards]; s.mu.TryLock() {
			return s
		}
	}
}

// New returns counters for a model whose batches have so many rows at most.
func New(maxRows int) *Counters {
	c := &Counters{sizes: map[int]*Size{}}
	c.batches.Buckets = make([]uint64, rowsBucket(maxRows)+1)
	return c
}

// A Run is one call of the engine.
type Run struct {
	Rows   int
	Input  time.Duration // joining the rows
	Infer  time.Duration // the engine
	Output time.Duration // splitting the outputs
	Ended  time.Time

	// Again says that this is a part of a batch which failed as a whole. It was
	// counted as a batch then, so what follows is not looked at.
	Again bool
	Why   batching.Reason // the batch closed
	Waits []time.Duration // of its requests, in the queue
}

// Ran counts a run, whether it failed or not.
func (c *Counters) Ran(r *Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs++
	c.last = r.Ended
	c.sizeLocked(r.Rows).add(r)
	c.took.add(r.Infer)
	if r.Again {
		return
	}
	c.closed[r.Why]++
	c.batches.add(r.Rows)
	for _, w := range r.Waits {
		c.waits.add(w)
	}
}

// Tried counts a step of calibration. What ran for it is counted nowhere.
func (c *Counters) Tried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried++
}

func (c *Counters) sizeLocked(rows int) *Size {
	s := c.sizes[rows]
	if s == nil {
		s = &Size{Rows: rows}
		c.sizes[rows] = s
	}
	return s
}

// Succeeded counts a request that was answered with outputs, total after it came.
func (c *Counters) Succeeded(rows int, total time.Duration, t *infer.Timeline) {
	s := c.lock()
	s.success.add(total)
	if c.Objective > 0 && total > c.Objective {
		s.late++
	}
	s.rows += uint64(rows)
	s.queue += uint64(t.Taken.Sub(t.Queued))
	s.input += uint64(t.Run.Sub(t.Taken))
	s.infer += uint64(t.Ran.Sub(t.Run))
	s.output += uint64(t.Split.Sub(t.Ran))
	s.mu.Unlock()
}

// Failed counts a request that was answered with an error, total after it came.
func (c *Counters) Failed(code infer.Code, total time.Duration) {
	s := c.lock()
	s.failed[code]++
	s.failedNanos += uint64(total)
	s.mu.Unlock()
}

// A Snapshot is what has been counted up to a moment.
type Snapshot struct {
	// Requests that were answered with outputs, and from their coming to their
	// answer. The four after it are parts of that time: requests that share a batch
	// each have the whole time of the batch.
	Success                     Sum
	Queue, Input, Infer, Output Sum
	Rows                        uint64 // of those requests

	// Those of them that took longer than Objective, if that is not 0.
	Objective time.Duration
	Late      uint64

	// Requests that were answered with an error, in all and by code.
	Fail   Sum
	Failed [infer.Codes]uint64

	Tried uint64    // steps of calibration
	Runs  uint64    // calls of the engine, with those that failed and those of parts of a batch that did
	Last  time.Time // when the last run ended; zero if there was none
	Sizes []Size    // runs by their number of rows, ascending
	Took  Durations // of the engine, for each run

	// Batches that ran. One that failed and was run again in parts counts once.
	Batches Rows
	Closed  [batching.Reasons]uint64 // by reason
	Waits   Durations                // in the queue, for each request of those batches
}

// A Sum is how often something happened and how long it took in all.
type Sum struct {
	Count uint64
	Nanos uint64
}

// A Size has the runs with one number of rows. Each run's time is in it once,
// however many requests shared it.
type Size struct {
	Rows                 int
	Input, Infer, Output Sum
}

func (s *Size) add(r *Run) {
	s.Input.add(r.Input)
	s.Infer.add(r.Infer)
	s.Output.add(r.Output)
}

func (s *Sum) add(d time.Duration) {
	s.Count++
	s.Nanos += uint64(d)
}

// Snapshot returns what has been counted so far. A request's figures are all in it
// or not at all, and so are a run's; a run is counted before its requests.
func (c *Counters) Snapshot() Snapshot {
	s := Snapshot{Objective: c.Objective}
	for i := range c.requests {
		c.requests[i].addTo(&s)
	}
	n := s.Success.Count
	s.Queue.Count, s.Input.Count, s.Infer.Count, s.Output.Count = n, n, n, n
	for _, n := range s.Failed {
		s.Fail.Count += n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Tried, s.Runs, s.Last, s.Closed, s.Waits, s.Took = c.tried, c.runs, c.last, c.closed, c.waits, c.took
	s.Batches = Rows{Buckets: slices.Clone(c.batches.Buckets), Total: c.batches.Total}
	for _, size := range c.sizes {
		s.Sizes = append(s.Sizes, *size)
	}
	slices.SortFunc(s.Sizes, func(a, b Size) int { return a.Rows - b.Rows })
	return s
}

func (sh *shard) addTo(s *Snapshot) {
	sh.mu.Lock()
	r := sh.requests
	sh.mu.Unlock()
	s.Success.Count += r.success.Count
	s.Success.Nanos += r.success.Nanos
	s.Late += r.late
	s.Rows += r.rows
	s.Queue.Nanos += r.queue
	s.Input.Nanos += r.input
	s.Infer.Nanos += r.infer
	s.Output.Nanos += r.output
	for code, n := range r.failed {
		s.Failed[code] += n
	}
	s.Fail.Nanos += r.failedNanos
}

// Durations are a histogram. Bucket i has what took no longer than Bound(i) and
// longer than the bound before; the last one has what took longer than all bounds.
type Durations struct {
	Buckets [Bounds + 1]uint64
	Nanos   uint64 // of all
}

// Bounds is how many buckets of durations have a bound.
const Bounds = 21

const firstBound = 50 * time.Microsecond

// Bound returns the longest duration of a bucket: 50 µs for the first one, and twice
// the one before for the others, up to 52 s.
func Bound(bucket int) time.Duration { return firstBound << bucket }

func (d *Durations) add(t time.Duration) {
	d.Buckets[min(bits.Len64(uint64((max(t, 1)-1)/firstBound)), Bounds)]++
	d.Nanos += uint64(t)
}

// Rows are a histogram of batch sizes. Bucket i has batches of up to 2^i rows; the
// last one has the largest that the model takes.
type Rows struct {
	Buckets []uint64
	Total   uint64 // rows of all batches
}

func rowsBucket(rows int) int { return bits.Len(uint(max(rows, 1) - 1)) }

func (r *Rows) add(rows int) {
	r.Buckets[min(rowsBucket(rows), len(r.Buckets)-1)]++
	r.Total += uint64(rows)
}
