package stats

import (
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/trace"
)

// An Exemplar is a request that was traced, and one of its times.
type Exemplar struct {
	Trace trace.ID
	Took  time.Duration
	At    time.Time // when it was answered
}

// Exemplars are the last traced requests, by the buckets of the histograms in which they are
// counted. Buckets without one have nil.
type Exemplars struct {
	Request, Queue, Engine [NumBounds + 1]*Exemplar
}

type exemplars struct {
	request, queue, engine [NumBounds + 1]atomic.Pointer[Exemplar]
}

// Exemplify records a traced request that was answered with outputs. total is the time from its
// arrival to its response.
func (c *Counters) Exemplify(total time.Duration, t *infer.Timeline, id trace.ID) {
	now := time.Now()
	for _, one := range []struct {
		of   *[NumBounds + 1]atomic.Pointer[Exemplar]
		took time.Duration
	}{{&c.exemplars.request, total}, {&c.exemplars.queue, t.Taken.Sub(t.Queued)}, {&c.exemplars.engine, t.RunEnded.Sub(t.RunStarted)}} {
		one.of[durationBucket(one.took)].Store(&Exemplar{id, one.took, now})
	}
}

// Exemplars returns the last traced requests.
func (c *Counters) Exemplars() (all Exemplars) {
	e := &c.exemplars
	for i := range e.request {
		all.Request[i], all.Queue[i], all.Engine[i] = e.request[i].Load(), e.queue[i].Load(), e.engine[i].Load()
	}
	return all
}
