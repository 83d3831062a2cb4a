package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/pacer"
)

const (
	// maxInFlight is the maximum number of requests in flight in an open loop. Further
	// requests are sent later, and the delay is part of their latency.
	maxInFlight = 10_000
	// lateness is the tolerance for sending: a request that is sent later than this after
	// its due time counts as late.
	lateness = time.Millisecond
	// patience is the time without progress after which a finite load is aborted.
	patience = time.Minute
)

// A Load is either a closed loop with a number of concurrent requests, or an open loop, in
// which requests are sent at their due times regardless of earlier answers.
type Load struct {
	Concurrency int // of a closed loop; 0 means an open loop
	Rate        float64
	Poisson     bool            // random intervals instead of equal ones
	Burst       int             // requests with the same due time; 0 means 1
	Intervals   []time.Duration // repeated intervals, instead of a rate
	Seed        uint64          // of random intervals, which differ between targets
	Plan        bool            // run the plan of each target once, instead of a rate
	Count       int             // requests to send; 0 means until the windows are stable
	Repeat      int             // number of this repetition, from 1; 0 means that the load runs once
}

// String describes the load, such as "Concurrency: 4".
func (l Load) String() string {
	if l.Plan {
		return "As planned"
	}
	return Level{Concurrency: l.Concurrency, Rate: l.Rate}.load()
}

// of returns the load of a target. With the same random intervals for all of them, the requests
// of several models would arrive together. The first target has the seed of the load.
func (l Load) of(target int) Load {
	const apart = 0x9e3779b97f4a7c15 // far from the seeds that users choose, which are small
	l.Seed += uint64(target) * apart
	return l
}

// finite reports whether the load has a fixed number of requests. It is then measured as
// one window.
func (l Load) finite() bool { return l.Plan || l.Count > 0 }

// schedule returns the due times of an open loop without a plan.
func (l Load) schedule() Schedule {
	if l.Intervals != nil {
		return repeating(l.Intervals)
	}
	burst := max(1, l.Burst)
	s := constant(l.Rate / float64(burst))
	if l.Poisson {
		s = Poisson(l.Rate/float64(burst), l.Seed)
	}
	if burst > 1 {
		s = bursts(s, burst)
	}
	return s
}

// A Target is a model under load.
type Target struct {
	Model  string
	Caller Caller // after Prepare
	// Rows of each prepared request, of which there is at least one. Without a plan the
	// requests are sent in turn.
	Rows []int
	Plan []Planned // sorted by time; for loads with Plan

	// Sequences puts the requests into sequences. Nil means that they are independent.
	Sequences *Sequences
}

// A Bench measures models under a sequence of loads.
type Bench struct {
	Targets   []Target      // each load runs on all of them at the same time
	Pacer     *pacer.Pacer  // wakes senders at due times
	WarmUp    int           // number of sequential requests before the first load; 0 means 1
	Interval  time.Duration // length of a window; 0 means 5 seconds
	Requests  int           // number of answers that ends a window, instead of Interval; 0 means to use Interval
	MaxTrials int           // maximum number of windows of a load; 0 means 10
	Rule      Rule
	Progress  func(Progress) // called every second; may be nil
}

// Run measures each load, and calls done with the result for each target. When ctx ends,
// Run calls done with the results so far and returns nil.
func (b *Bench) Run(ctx context.Context, loads []Load, done func(Level)) error {
	for _, t := range b.Targets {
		if err := b.warmUp(ctx, t); err != nil {
			return err
		}
	}
	for i := 0; i < len(loads) && ctx.Err() == nil; i++ {
		levels, err := b.measure(ctx, loads[i])
		if err != nil {
			return err
		}
		for _, level := range levels {
			done(level)
		}
	}
	return nil
}

// warmUp sends the first requests, so that the cost of connecting is not measured. It
// returns nil if ctx ends.
func (b *Bench) warmUp(ctx context.Context, t Target) error {
	send := t.Caller.Infer
	if t.Sequences != nil {
		all, err := newSequencer(*t.Sequences, t.Caller)
		if err != nil {
			return err
		}
		f := &flow{sequencer: all}
		defer f.end(ctx)
		send = f.infer
	}
	for n := range max(1, b.WarmUp) {
		each, cancel := context.WithTimeout(ctx, patience)
		err := send(each, n%len(t.Rows))
		cancel()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the first request failed: %w", err)
		}
	}
	return nil
}

// measure runs one load, from the first window to the last.
func (b *Bench) measure(ctx context.Context, l Load) ([]Level, error) {
	requests, abandon := context.WithCancel(ctx)
	defer abandon()
	sending, stop := context.WithCancel(requests)
	defer stop()
	m := &measurement{Bench: b, load: l, sent: make(chan struct{})}
	for i, t := range b.Targets {
		d := &driver{Target: t, load: l.of(i), pacer: b.Pacer, before: b.statistics(ctx, t)}
		if t.Sequences != nil {
			var err error
			if d.sequencer, err = newSequencer(*t.Sequences, t.Caller); err != nil {
				return nil, err
			}
		}
		m.drivers = append(m.drivers, d)
	}
	began := time.Now()
	var running sync.WaitGroup
	for _, d := range m.drivers {
		d.begin(began, b.Requests)
		running.Go(func() { d.drive(requests, sending) })
	}
	go func() { // ends with running, which is waited for below
		running.Wait()
		close(m.sent)
	}()
	var err error
	m.withProgress(func() { err = m.observe(ctx) })
	timelines := m.end(time.Now())
	stop()
	// Wait for requests in flight, which would disturb the next load, unless the server
	// stalls.
	end := time.AfterFunc(b.interval(), abandon)
	<-m.sent
	end.Stop()
	if err != nil {
		return nil, err
	}
	var levels []Level
	for i, d := range m.drivers {
		level := b.level(l, d, ctx.Err() != nil)
		level.Timeline = timelines[i]
		levels = append(levels, level)
	}
	return levels, nil
}

// A measurement is a load in progress.
type measurement struct {
	*Bench
	load    Load
	drivers []*driver     // one for each target
	sent    chan struct{} // closed when all requests of a finite load are answered
	window  atomic.Int32  // index of the current window
}

// A counted window has the server's statistics at its beginning and end.
type counted struct {
	*Window
	before, after serverStatistics
}

// serverStatistics is the result of a call of Caller.Statistics.
type serverStatistics struct {
	Statistics
	err error
}

// observe collects windows until they are stable, the maximum is reached, the load is
// complete, or ctx ends.
func (m *measurement) observe(ctx context.Context) error {
	trials := m.trials(m.load)
	tick := time.NewTicker(m.interval())
	defer tick.Stop()
	for n := range trials {
		if err := m.wait(ctx, tick.C); err != nil {
			return err
		}
		now := time.Now()
		tick.Reset(m.interval())      // the window after one that ended late is as long as others
		for _, d := range m.drivers { // all before statistics, which a busy server may take long for
			d.windows = append(d.windows, counted{Window: d.cut(now), before: d.before})
		}
		stable := true
		for _, d := range m.drivers {
			w := &d.windows[len(d.windows)-1]
			if err := answered(w.Window, n+1 == trials); err != nil && ctx.Err() == nil {
				return m.named(d, err)
			}
			d.before = m.statistics(ctx, d.Target)
			w.after = d.before
			stable = stable && m.Rule.Stable(plainWindows(d.windows))
		}
		m.window.Add(1)
		if stable || ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// named adds the name of the model to an error if there are several models.
func (m *measurement) named(d *driver, err error) error {
	if len(m.drivers) == 1 {
		return err
	}
	return fmt.Errorf("%s: %w", d.Model, err)
}

// wait returns at the end of the window.
func (m *measurement) wait(ctx context.Context, tick <-chan time.Time) error {
	if m.load.finite() {
		return m.untilSent(ctx)
	}
	if m.Requests == 0 {
		select {
		case <-tick:
		case <-ctx.Done():
		}
		return nil
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, d := range m.drivers {
		select {
		case <-d.enough:
		case <-late.C:
			return nil // with fewer answers answers
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// untilSent waits for the end of a finite load, as long as it makes progress.
func (m *measurement) untilSent(ctx context.Context) error {
	look := time.NewTicker(patience)
	defer look.Stop()
	var before int64
	for {
		select {
		case <-m.sent:
			return nil
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		var calls, waiting int64
		for _, d := range m.drivers {
			calls += d.calls.Load()
			waiting += d.waiting.Load()
		}
		if waiting > 0 && calls == before {
			return fmt.Errorf("%d requests are in flight, and none was sent or answered for %v", waiting, patience)
		}
		before = calls
	}
}

// answered returns an error if the window has no successful answer.
func answered(w *Window, last bool) error {
	switch {
	case w.Requests() > 0:
		return nil
	case w.Failed > 0:
		return fmt.Errorf("all %d requests of a window failed, the first with: %w", w.Failed, w.Err)
	case last:
		return errors.New("no request was answered in the last window: use a measurement interval that is longer than a request takes")
	}
	return nil
}

func plainWindows(all []counted) []*Window {
	var windows []*Window
	for _, w := range all {
		windows = append(windows, w.Window)
	}
	return windows
}

// statistics returns the server's statistics, even if ctx has ended: the figures so far
// need them.
func (b *Bench) statistics(ctx context.Context, t Target) serverStatistics {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.interval())
	defer cancel()
	s, err := t.Caller.Statistics(ctx)
	return serverStatistics{s, err}
}

func (b *Bench) interval() time.Duration {
	if b.Interval == 0 {
		return 5 * time.Second
	}
	return b.Interval
}

// trials returns the maximum number of windows of a load.
func (b *Bench) trials(l Load) int {
	switch {
	case l.finite():
		return 1
	case b.MaxTrials == 0:
		return 10
	}
	return b.MaxTrials
}

// end returns the timeline of each target until now.
func (m *measurement) end(now time.Time) [][]Second {
	var all [][]Second
	for _, d := range m.drivers {
		all = append(all, d.end(now))
	}
	return all
}

// A driver runs a load on one target.
type driver struct {
	Target
	load    Load
	pacer   *pacer.Pacer
	before  serverStatistics // at the beginning of the current window
	windows []counted
	calls   atomic.Int64 // number of sends and answers, to detect progress
	next    atomic.Int64 // number of requests sent in a closed loop

	sequencer *sequencer // nil if requests are independent

	recorder
}

// A job is a request with its due time.
type job struct {
	request int // index of the prepared request
	due     time.Time
}

// drive sends requests until sending ends or the load is complete. It returns when all are
// answered or requests has ended.
func (d *driver) drive(requests, sending context.Context) {
	var clients sync.WaitGroup
	defer clients.Wait()
	if d.load.Concurrency == 0 {
		d.open(requests, sending, &clients)
		return
	}
	for range d.load.Concurrency {
		clients.Go(func() {
			send := d.Caller.Infer
			if d.sequencer != nil {
				f := &flow{sequencer: d.sequencer}
				defer f.end(requests)
				send = f.infer
			}
			for sending.Err() == nil {
				n := int(d.next.Add(1) - 1)
				if d.load.Count > 0 && n >= d.load.Count {
					return
				}
				d.call(requests, job{request: n % len(d.Rows)}, send)
			}
		})
	}
}

// openSender returns what sends the requests of an open loop, and what ends its sequences after
// the last one. A request of a sequence waits for a sequence without a request in flight.
func (d *driver) openSender() (send sender, end func(context.Context)) {
	if d.sequencer == nil {
		return d.Caller.Infer, func(context.Context) {}
	}
	free := make(chan *flow, d.sequencer.Number) // as many as there are
	for range d.sequencer.Number {
		free <- &flow{sequencer: d.sequencer}
	}
	send = func(ctx context.Context, request int) error {
		select {
		case f := <-free:
			defer func() { free <- f }()
			return f.infer(ctx, request)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return send, func(ctx context.Context) {
		var ending sync.WaitGroup // all at once, as a server that does not answer costs each its time limit
		for range d.sequencer.Number {
			f := <-free
			ending.Go(func() { f.end(ctx) })
		}
		ending.Wait()
	}
}

// A sender sends a prepared request, and waits for its answer.
type sender = func(ctx context.Context, request int) error

// open sends each request at its due time. An idle client goroutine takes the next
// request; there are as many goroutines as requests were in flight at the same time.
func (d *driver) open(requests, sending context.Context, clients *sync.WaitGroup) {
	jobs := make(chan job) // unbuffered: a job goes to an idle client
	send, end := d.openSender()
	defer func() {
		close(jobs)
		clients.Wait()
		end(requests)
	}()
	began, n := d.began, 0
	for p := range d.plan() {
		j := job{p.Request, began.Add(p.At)}
		if time.Until(j.due) > 0 && d.pacer.Sleep(sending, j.due) != nil || sending.Err() != nil {
			return
		}
		select {
		case jobs <- j:
			continue
		default:
		}
		if n < maxInFlight {
			n++
			clients.Go(func() {
				d.call(requests, j, send)
				for j := range jobs {
					d.call(requests, j, send)
				}
			})
			continue
		}
		select {
		case jobs <- j:
		case <-sending.Done():
			return
		}
	}
}

// plan returns the requests of an open loop.
func (d *driver) plan() Plan {
	if d.load.Plan {
		return slices.Values(d.Plan)
	}
	return func(yield func(Planned) bool) {
		n := 0
		for at := range d.load.schedule() {
			if d.load.Count > 0 && n >= d.load.Count || !yield(Planned{at, n % len(d.Rows)}) {
				return
			}
			n++
		}
	}
}

// call sends one request. Its latency counts from its due time: if the server stalls, the
// requests that should have been sent meanwhile are late, as real clients would see it. A
// request of a closed loop is due now.
func (d *driver) call(ctx context.Context, j job, send sender) {
	a := answer{rows: d.Rows[j.request], due: j.due, sent: time.Now()}
	if j.due.IsZero() {
		a.due = a.sent
	}
	d.calls.Add(1)
	d.waiting.Add(1)
	a.err = send(ctx, j.request)
	a.ended = time.Now()
	d.waiting.Add(-1)
	d.calls.Add(1)
	if ctx.Err() != nil {
		return // the request was canceled
	}
	d.record(a, !j.due.IsZero())
}
