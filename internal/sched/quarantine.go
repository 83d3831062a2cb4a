package sched

import (
	"sync"
	"sync/atomic"
	"time"
)

// A quarantine keeps clients whose requests make batches fail out of other clients'
// batches. Each such failure costs the other requests of the batch several runs of
// bisection, so a client that fails maxFailures times runs in batches of its own until
// it has not failed for failureMemory. The zero value is empty. Its methods may be called
// concurrently.
type quarantine struct {
	nonEmpty  atomic.Bool // clients is not empty; lets most requests skip the lock
	mu        sync.Mutex  // guards the following
	clients   map[uint64]*failureRecord
	lastShape uint64 // unique shapes that isolate has handed out
}

type failureRecord struct {
	failures int
	latest   time.Duration // on the scheduler's clock
}

const (
	// maxFailures is the number of failures after which a client is isolated.
	maxFailures = 3
	// failureMemory is how long after its last failure a client is forgotten.
	failureMemory = time.Minute
	// maxFailingClients bounds the map. Further failing clients are not recorded.
	maxFailingClients = 1024
)

// recordFailure records that a request of the client failed by itself. Client 0 stands
// for unknown clients, and is never recorded.
func (q *quarantine) recordFailure(client uint64, now time.Duration) {
	if client == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.clients == nil {
		q.clients = map[uint64]*failureRecord{}
	}
	record := q.clients[client]
	if record == nil {
		q.expire(now)
		if len(q.clients) == maxFailingClients {
			return
		}
		record = &failureRecord{}
		q.clients[client] = record
		q.nonEmpty.Store(true)
	}
	if now-record.latest > failureMemory {
		record.failures = 0
	}
	record.failures++
	record.latest = now
}

// expire removes clients that have not failed for failureMemory. The caller holds the
// lock.
func (q *quarantine) expire(now time.Duration) {
	for client, record := range q.clients {
		if now-record.latest > failureMemory {
			delete(q.clients, client)
		}
	}
	q.nonEmpty.Store(len(q.clients) > 0)
}

// isolate reports whether the client is in quarantine. If so, it returns a unique shape
// for the request: requests of different shapes never share a batch.
func (q *quarantine) isolate(client uint64, now time.Duration) (shape uint64, isolated bool) {
	if !q.nonEmpty.Load() || client == 0 {
		return 0, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	record := q.clients[client]
	switch {
	case record == nil:
		return 0, false
	case now-record.latest > failureMemory:
		q.expire(now)
		return 0, false
	case record.failures < maxFailures:
		return 0, false
	}
	q.lastShape++
	return ^q.lastShape, true // counts down from the largest number; shapes of requests are hashes, and unlikely to be equal
}
