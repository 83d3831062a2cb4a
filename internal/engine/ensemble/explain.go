package ensemble

import (
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/explain"
)

// A tally adds up what steps did in successful requests.
type tally struct {
	mu       sync.Mutex // guards the following
	requests uint64
	total    time.Duration // of requests, from the start of the graph to the end of its last step
	steps    []stepTally
}

type stepTally struct {
	runs, critical                    uint64
	total, queue, compute, onCritical time.Duration
}

// stepTimes are the times of a step in one request. A response that came from the cache has
// no times of the member.
type stepTimes struct {
	began, ended   time.Time
	queue, compute time.Duration
}

// add adds a request that has succeeded.
func (t *tally) add(r *run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	for i := range r.times {
		if s, of := &r.times[i], &t.steps[i]; !s.ended.IsZero() {
			of.runs++
			of.total += s.ended.Sub(s.began)
			of.queue += s.queue
			of.compute += s.compute
		}
	}
	last := -1
	for i := range r.times {
		last = r.later(last, i)
	}
	if last >= 0 {
		t.total += r.times[last].ended.Sub(r.began)
	}
	for i := last; i >= 0; i = r.before(i) {
		t.steps[i].critical++
		t.steps[i].onCritical += r.times[i].ended.Sub(r.times[i].began)
	}
}

// before returns the step that step i waited for: the last to make one of its inputs; -1 if
// all of them are inputs of the ensemble.
func (r *run) before(i int) int {
	last := -1
	for _, p := range r.graph.steps[i].inputs {
		last = r.later(last, r.graph.makers[p.tensor])
	}
	return last
}

// later returns the step that ended later; -1 means none.
func (r *run) later(i, k int) int {
	if i < 0 || k >= 0 && r.times[k].ended.After(r.times[i].ended) {
		i = k
	}
	if i >= 0 && r.times[i].ended.IsZero() {
		return -1 // it did not run
	}
	return i
}

// Explain returns what the steps have done so far.
func (m *model) Explain() *explain.Ensemble {
	m.tally.mu.Lock()
	defer m.tally.mu.Unlock()
	t := &m.tally
	e := &explain.Ensemble{Requests: t.requests, Time: mean(t.total, t.requests)}
	between := t.total
	for i, s := range t.steps {
		step := &m.graph.steps[i]
		e.Steps = append(e.Steps, explain.Step{
			Model: step.model, Version: step.version, Requests: s.runs, Time: mean(s.total, s.runs), Queue: mean(s.queue, s.runs), Compute: mean(s.compute, s.runs),
			Critical: s.critical, Share: share(s.onCritical, t.total),
		})
		between -= s.onCritical
	}
	e.Between = share(between, t.total)
	return e
}

func mean(total time.Duration, n uint64) time.Duration { return total / time.Duration(max(n, 1)) }

func share(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
