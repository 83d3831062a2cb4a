// Package stats counts what one loaded version of a model does: requests, runs of its
// engine, how long each step took, and why batches closed. The statistics of the protocols
// and the metrics are both computed from a [Snapshot].
//
// The package knows neither how requests are run nor how a figure is named in a protocol:
// the scheduler and the server report events, and the protocols name the figures.
package stats

import (
	"iter"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
)

// Counters are the counters of one loaded version. Their methods may be called
// concurrently, and do not allocate once each batch size has occurred.
type Counters struct {
	// Objective is the longest time of a request that does not count as late. It must be
	// set before the first event; 0 means that no request is late.
	Objective time.Duration

	requests [shards]shard
	used     atomic.Uint32 // bit i is set before requests[i] first counts
	restarts atomic.Uint64

	latencies atomic.Pointer[latencies] // nil unless someone has asked for them
	exemplars exemplars

	watched atomic.Pointer[watched] // the last batches; nil unless there are viewers
	watchMu sync.Mutex              // guards the following
	viewers int                     // open watches

	mu           sync.Mutex // guards the following
	runs         uint64
	probes       uint64
	lastRun      time.Time
	sizes        map[int]*Size
	closeReasons [batching.NumReasons]uint64
	batchRows    SizeHistogram
	queueTimes   DurationHistogram
	engineTimes  DurationHistogram
}

// A shard counts a part of the requests. Thousands of callers may be answered at once, and
// a goroutine that is preempted while it holds a lock must not block the others, so a
// goroutine that finds a shard locked uses the next one.
type shard struct {
	mu sync.Mutex // guards the following
	requests
	_ [64]byte // padding, so that shards do not share a cache line
}

const shards = 8

// requests are the counters of answered requests.
type requests struct {
	// What Totals reads is in the first cache lines.
	success Sum
	rows    uint64 // of the successful requests that the model ran
	failed  [infer.NumCodes]uint64

	failedNanos                 uint64
	times                       [NumBounds + 1]uint64 // of the successful requests, as in DurationHistogram
	late                        uint64                // of the successful requests
	queue, input, infer, output uint64                // nanoseconds of the successful requests
	hits, misses                Sum                   // see CacheHit and CacheMiss
}

// lockShard locks a shard that is free, and returns it. took is how long something took: its
// nanoseconds spread the requests over the shards.
func (c *Counters) lockShard(took time.Duration) *shard {
	for i := uint32(took); ; i++ {
		if s := &c.requests[i%shards]; s.mu.TryLock() {
			if bit := uint32(1) << (i % shards); c.used.Load()&bit == 0 {
				c.used.Or(bit)
			}
			return s
		}
	}
}

// usedShards returns the shards that have counted requests. Pages of thousands of models, of which
// many are idle, read no others.
func (c *Counters) usedShards() iter.Seq[*shard] {
	return func(yield func(*shard) bool) {
		for used := c.used.Load(); used != 0; used &= used - 1 {
			if !yield(&c.requests[bits.TrailingZeros32(used)]) {
				return
			}
		}
	}
}

// New returns counters for a model whose batches have at most maxRows rows.
func New(maxRows int) *Counters {
	c := &Counters{sizes: map[int]*Size{}}
	c.batchRows.Buckets = make([]uint64, rowsBucket(maxRows)+1)
	return c
}

// A Run is one call of the engine.
type Run struct {
	Rows   int
	Input  time.Duration // joining the rows
	Infer  time.Duration // the engine
	Output time.Duration // splitting the outputs
	Ended  time.Time

	// Retry means that a batch, or a part of it, is run again after a failure. The batch
	// was counted at its first run, so the fields below are ignored.
	Retry       bool
	CloseReason batching.Reason // why the batch closed
	QueueTimes  []time.Duration // queue times of its requests
}

// Ran counts a run, whether it failed or not.
func (c *Counters) Ran(r *Run) {
	c.mu.Lock()
	c.ranLocked(r)
	c.mu.Unlock()
}

func (c *Counters) ranLocked(r *Run) {
	c.runs++
	c.lastRun = r.Ended
	c.sizeLocked(r.Rows).add(r)
	c.engineTimes.add(r.Infer)
	if r.Retry {
		return
	}
	c.closeReasons[r.CloseReason]++
	c.batchRows.add(r.Rows)
	for _, w := range r.QueueTimes {
		c.queueTimes.add(w)
	}
}

// CalibrationStep counts a step of calibration. Its runs are not counted elsewhere.
func (c *Counters) CalibrationStep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probes++
}

// Restarted counts an attempt to restart an instance that had died.
func (c *Counters) Restarted() { c.restarts.Add(1) }

func (c *Counters) sizeLocked(rows int) *Size {
	s := c.sizes[rows]
	if s == nil {
		s = &Size{Rows: rows}
		c.sizes[rows] = s
	}
	return s
}

// Succeeded counts a request that was answered with outputs. total is the time from its
// arrival to its response.
func (c *Counters) Succeeded(rows int, total time.Duration, t *infer.Timeline) {
	s := c.lockShard(total)
	s.succeeded(total, c.Objective)
	s.rows += uint64(rows)
	s.queue += uint64(t.Taken.Sub(t.Queued))
	s.input += uint64(t.RunStarted.Sub(t.Taken))
	s.infer += uint64(t.RunEnded.Sub(t.RunStarted))
	s.output += uint64(t.Split.Sub(t.RunEnded))
	s.mu.Unlock()
	c.countLatency(total)
}

// CacheHit counts a request that was answered from the cache. total is the time from its arrival
// to its response, and lookup the part of it until the response was found.
func (c *Counters) CacheHit(total, lookup time.Duration) {
	s := c.lockShard(total)
	s.succeeded(total, c.Objective)
	s.queue += uint64(lookup) // as in Triton
	s.hits.add(lookup)
	s.mu.Unlock()
	c.countLatency(total)
}

// succeeded counts a successful request by its time.
func (r *requests) succeeded(total, objective time.Duration) {
	r.success.add(total)
	r.times[durationBucket(total)]++
	if objective > 0 && total > objective {
		r.late++
	}
}

// CacheMiss counts a response that was not in the cache before, and the time to look for it and to
// keep it. The request counts as any other.
func (c *Counters) CacheMiss(d time.Duration) {
	s := c.lockShard(d)
	s.misses.add(d)
	s.mu.Unlock()
}

// Failed counts a request that was answered with an error. total is the time from its
// arrival to its response.
func (c *Counters) Failed(code infer.Code, total time.Duration) {
	s := c.lockShard(total)
	s.failed[code]++
	s.failedNanos += uint64(total)
	s.mu.Unlock()
}

// A Snapshot holds the values of [Counters] at one time.
type Snapshot struct {
	// Requests that were answered with outputs, and their time from arrival to response.
	// Queue, Input, Infer and Output are parts of that time. Each request of a batch
	// counts the whole time of the batch.
	Success                     Sum
	Queue, Input, Infer, Output Sum
	Rows                        uint64            // of those requests
	RequestTimes                DurationHistogram // time from arrival to response, per such request

	// CacheHits are those requests that were answered from the cache: they count in Success and
	// Queue only. CacheMisses are responses that were put there.
	CacheHits, CacheMisses Sum

	// Late is the number of those requests that took longer than Objective, if that is
	// not 0.
	Objective time.Duration
	Late      uint64

	// Requests that were answered with an error: all, and by code.
	Fail   Sum
	Failed [infer.NumCodes]uint64

	CalibrationSteps uint64            // steps of calibration
	Restarts         uint64            // attempts to restart instances that had died
	Runs             uint64            // calls of the engine, including failed ones and retries of parts of a batch
	LastRun          time.Time         // end of the last run; zero if there was none
	Sizes            []Size            // runs by their number of rows, ascending
	EngineTimes      DurationHistogram // time in the engine, per run

	// Batches that ran. A batch that failed and was run again in parts counts once.
	BatchSizes   SizeHistogram
	CloseReasons [batching.NumReasons]uint64 // by reason
	QueueTimes   DurationHistogram           // queue time, per request of those batches
}

// A Sum is the number of events and their total duration.
type Sum struct {
	Count uint64
	Nanos uint64
}

// A Size sums up the runs with one number of rows. The time of a run counts once, however
// many requests shared it.
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

// Requests returns the number of answered requests. It is much cheaper than a snapshot.
func (c *Counters) Requests() uint64 {
	success, fail, _ := c.answered()
	return success + fail
}

// Totals are those counters of a Snapshot that a page of thousands of models has.
type Totals struct {
	Success, Fail           uint64 // requests
	Rows                    uint64
	QueueTimes, EngineTimes DurationHistogram
}

// Totals returns the current values. It is much cheaper than a snapshot.
func (c *Counters) Totals() (t Totals) {
	t.Success, t.Fail, t.Rows = c.answered()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs > 0 {
		t.QueueTimes, t.EngineTimes = c.queueTimes, c.engineTimes
	}
	return t
}

// answered returns the number of requests that succeeded and failed, and the rows of the former.
func (c *Counters) answered() (success, fail, rows uint64) {
	for sh := range c.usedShards() {
		sh.mu.Lock()
		success += sh.success.Count
		rows += sh.rows
		for _, n := range sh.failed {
			fail += n
		}
		sh.mu.Unlock()
	}
	return success, fail, rows
}

// Snapshot returns the current values. Each request and each run is included either
// completely or not at all. A run is counted before its requests.
func (c *Counters) Snapshot() Snapshot {
	s := Snapshot{Objective: c.Objective}
	for sh := range c.usedShards() {
		sh.addTo(&s)
	}
	n := s.Success.Count
	ran := n - s.CacheHits.Count
	s.Queue.Count, s.Input.Count, s.Infer.Count, s.Output.Count = n, ran, ran, ran
	for _, n := range s.Failed {
		s.Fail.Count += n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Restarts = c.restarts.Load()
	s.CalibrationSteps, s.Runs, s.LastRun, s.CloseReasons, s.QueueTimes, s.EngineTimes = c.probes, c.runs, c.lastRun, c.closeReasons, c.queueTimes, c.engineTimes
	s.BatchSizes = SizeHistogram{Buckets: slices.Clone(c.batchRows.Buckets), Total: c.batchRows.Total}
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
	s.RequestTimes.Nanos += r.success.Nanos
	for i, n := range r.times {
		s.RequestTimes.Buckets[i] += n
	}
	s.CacheHits.Count += r.hits.Count
	s.CacheHits.Nanos += r.hits.Nanos
	s.CacheMisses.Count += r.misses.Count
	s.CacheMisses.Nanos += r.misses.Nanos
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

// DurationHistogram is a histogram of durations. Bucket i counts durations up to
// BucketBound(i) and longer than BucketBound(i-1). The last bucket counts durations longer
// than all bounds.
type DurationHistogram struct {
	Buckets [NumBounds + 1]uint64
	Nanos   uint64 // sum of all durations
}

// NumBounds is the number of buckets of DurationHistogram that have an upper bound.
const NumBounds = 21

const firstBound = 50 * time.Microsecond

// BucketBound returns the upper bound of a bucket: 50 µs for the first one, doubling up to 52 s.
func BucketBound(bucket int) time.Duration { return firstBound << bucket }

func (d *DurationHistogram) add(t time.Duration) {
	d.Buckets[durationBucket(t)]++
	d.Nanos += uint64(t)
}

func durationBucket(t time.Duration) int {
	return min(bits.Len64(uint64((max(t, 1)-1)/firstBound)), NumBounds)
}

// SizeHistogram is a histogram of batch sizes. Bucket i counts batches of up to 2^i rows and more
// than 2^(i-1). The last bucket includes the largest batches that the model takes.
type SizeHistogram struct {
	Buckets []uint64
	Total   uint64 // rows of all batches
}

func rowsBucket(rows int) int { return bits.Len(uint(max(rows, 1) - 1)) }

func (r *SizeHistogram) add(rows int) {
	r.Buckets[min(rowsBucket(rows), len(r.Buckets)-1)]++
	r.Total += uint64(rows)
}
