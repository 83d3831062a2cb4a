package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/pacer"
)

const (
	// maxInFlight bounds the requests of an open loop that wait for their answers.
	// Those beyond it are sent later, which their latencies show.
	maxInFlight = 10_000
	// lateness is how much later than due a request may be sent before it counts as
	// late.
	lateness = time.Millisecond
	// patience is how long a server may take for an answer while nothing is measured.
	patience = time.Minute
)

// A Load is what is put on a server: so many requests at a time, each sent when
// one was answered, or so many a second, whether they are answered or not.
type Load struct {
	Concurrency int     // 0 means that there is a rate
	Rate        float64 // requests a second
	Poisson     bool    // at random distances, and not at equal ones
	Seed        uint64  // of chance
}

func (l Load) schedule() Schedule {
	if l.Poisson {
		return Poisson(l.Rate, l.Seed)
	}
	return Constant(l.Rate)
}

// A Bench measures a model under one load after another.
type Bench struct {
	Caller    Caller        // prepared
	Pacer     *pacer.Pacer  // wakes who sends at a rate
	Rows      int           // of a request
	Interval  time.Duration // of a window; 0 means 5 seconds
	MaxTrials int           // windows, in which a load has to become stable; 0 means 10
	Rule      Rule
}

// Run measures under each load and tells done of it. When ctx ends, it returns
// with what was measured until then, and without an error.
func (b *Bench) Run(ctx context.Context, loads []Load, done func(Level)) error {
	// It also makes the connection, and what else a first request pays for.
	first, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.Caller.Infer(first); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the first request failed: %w", err)
	}
	for _, l := range loads {
		if ctx.Err() != nil {
			return nil
		}
		level, err := b.measure(ctx, l)
		if err != nil {
			return err
		}
		done(level)
	}
	return nil
}

// measure holds the load from the first window to the last.
func (b *Bench) measure(ctx context.Context, l Load) (Level, error) {
	requests, abandon := context.WithCancel(ctx)
	defer abandon()
	sending, stop := context.WithCancel(requests)
	defer stop()
	before := b.statistics(ctx)
	began := time.Now()
	r := &recorder{began: began, window: NewWindow(), opened: began}
	var running sync.WaitGroup
	running.Go(func() { b.drive(requests, sending, l, r) })
	windows, err := b.observe(ctx, r, before)
	timeline := r.end(time.Now())
	stop()
	// Who waits in the server now would be in the way of the next load. A server
	// that stalls is not waited for.
	end := time.AfterFunc(b.interval(), abandon)
	running.Wait()
	end.Stop()
	if err != nil {
		return Level{}, err
	}
	return b.level(l, windows, timeline, ctx.Err() != nil), nil
}

// A counted window is one with what the server had counted at both its ends, or
// nil if it does not count.
type counted struct {
	*Window
	before, after *Statistics
}

// observe cuts windows until they are stable, there are enough, or ctx ends.
func (b *Bench) observe(ctx context.Context, r *recorder, before *Statistics) ([]counted, error) {
	var all []counted
	trials := b.MaxTrials
	if trials == 0 {
		trials = 10
	}
	tick := time.NewTicker(b.interval())
	defer tick.Stop()
	for len(all) < trials && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		w := r.cut(time.Now())
		if w.Requests() == 0 && ctx.Err() == nil {
			if w.Failed > 0 {
				return nil, fmt.Errorf("all %d requests of a window failed, the first with: %w", w.Failed, w.Err)
			}
			if len(all)+1 == trials {
				return nil, errors.New("nothing was answered in the last window: the measurement interval has to be longer than a request takes")
			}
		}
		after := b.statistics(ctx)
		all = append(all, counted{w, before, after})
		before = after
		if b.Rule.Stable(plainWindows(all)) {
			break
		}
	}
	return all, nil
}

func plainWindows(all []counted) []*Window {
	var windows []*Window
	for _, w := range all {
		windows = append(windows, w.Window)
	}
	return windows
}

// statistics returns nil if the server has none to tell. It asks even when ctx
// has ended, for the sake of what was measured.
func (b *Bench) statistics(ctx context.Context) *Statistics {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.interval())
	defer cancel()
	s, err := b.Caller.Statistics(ctx)
	if err != nil {
		return nil // an extension that not all servers have
	}
	return &s
}

func (b *Bench) interval() time.Duration {
	if b.Interval == 0 {
		return 5 * time.Second
	}
	return b.Interval
}

// drive sends requests until sending ends, and returns when all are answered or
// requests has ended.
func (b *Bench) drive(requests, sending context.Context, l Load, r *recorder) {
	var clients sync.WaitGroup
	defer clients.Wait()
	for range l.Concurrency {
		clients.Go(func() {
			for sending.Err() == nil {
				b.call(requests, r, time.Now())
			}
		})
	}
	if l.Concurrency > 0 {
		return
	}
	began := time.Now()
	places := make(chan struct{}, maxInFlight) // holds one for each request that waits
	for at := range l.schedule() {
		due := began.Add(at)
		if time.Until(due) > 0 && b.Pacer.Sleep(sending, due) != nil {
			return
		}
		select {
		case places <- struct{}{}:
		case <-sending.Done():
			return
		}
		if sending.Err() != nil {
			return
		}
		clients.Go(func() {
			b.call(requests, r, due)
			<-places
		})
	}
}

// call sends one request. Its latency counts from when it was due: a server that
// stalls makes those late that should have been sent meanwhile, and that is what
// their clients would see.
func (b *Bench) call(ctx context.Context, r *recorder, due time.Time) {
	sent := time.Now()
	err := b.Caller.Infer(ctx)
	ended := time.Now()
	if ctx.Err() != nil {
		return // it was given up, not answered
	}
	r.record(ended, ended.Sub(due), sent.Sub(due) > lateness, err)
}

// A recorder collects what is answered in the window that is open.
type recorder struct {
	began time.Time // of the load

	mu       sync.Mutex // guards the following
	window   *Window
	opened   time.Time // when the window was
	timeline timeline
}

func (r *recorder) record(now time.Time, latency time.Duration, late bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Another one that ended later may have been here before.
	second := r.timeline.at(now.Sub(r.began))
	if late {
		r.window.Late++
	}
	if err != nil {
		r.window.Fail(err)
		second.Fail(err)
		return
	}
	r.window.Answer(latency)
	second.Answer(latency)
}

// cut closes the window and opens the next. The caller owns the closed one.
func (r *recorder) cut(now time.Time) *Window {
	next := NewWindow()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.window
	w.Took = now.Sub(r.opened)
	r.window, r.opened = next, now
	return w
}

// end returns the seconds until now. What is answered later is in none.
func (r *recorder) end(now time.Time) []Second {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.timeline.end(now.Sub(r.began)))
}
