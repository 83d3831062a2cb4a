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
	// maxInFlight bounds the requests of an open loop that wait for their answers.
	// Those beyond it are sent later, which their latencies show.
	maxInFlight = 10_000
	// lateness is how much later than due a request may be sent before it counts as
	// late.
	lateness = time.Millisecond
	// patience is how long a server may take for an answer where no window ends.
	patience = time.Minute
)

// A Load is a load on a server: a closed loop with a number of concurrent requests, or
// requests that are sent when they are due, whether earlier ones are answered or not.
type Load struct {
	Concurrency int // 0 means that requests are due
	Rate        float64
	Poisson     bool            // at random distances, and not at equal ones
	Burst       int             // requests that are due at once; 0 means 1
	Intervals   []time.Duration // distances, over and over, in place of a rate
	Seed        uint64          // of chance
	Plan        bool            // as each target's own plan says, once, in place of a rate
	Count       int             // requests to send; 0 means that windows end a load
	Repeat      int             // which time it is that this load is put on, from 1; 0 means the only one
}

// String returns what the load is, such as "Concurrency: 4".
func (l Load) String() string {
	if l.Plan {
		return "As planned"
	}
	return Level{Concurrency: l.Concurrency, Rate: l.Rate}.load()
}

// finite reports whether the load ends by itself. Then it is one window.
func (l Load) finite() bool { return l.Plan || l.Count > 0 }

// schedule returns when requests are due that are not planned.
func (l Load) schedule() Schedule {
	if l.Intervals != nil {
		return Repeating(l.Intervals)
	}
	burst := max(1, l.Burst)
	s := Constant(l.Rate / float64(burst))
	if l.Poisson {
		s = Poisson(l.Rate/float64(burst), l.Seed)
	}
	if burst > 1 {
		s = Bursts(s, burst)
	}
	return s
}

// A Target is a model under load.
type Target struct {
	Model  string
	Caller Caller // prepared
	// Rows of each request that the caller prepared, at least one. Without a plan
	// they are sent one after the other, and again from the first.
	Rows []int
	Plan []Planned // by time; for loads that are put on as planned
}

// A Bench measures models under one load after another.
type Bench struct {
	Targets   []Target      // each has every load, at the same time
	Pacer     *pacer.Pacer  // wakes senders when requests are due
	WarmUp    int           // requests before the first load, one after the other; 0 means 1
	Interval  time.Duration // of a window; 0 means 5 seconds
	Requests  int           // answers that end a window, in place of the interval; 0 means that the interval does
	MaxTrials int           // windows, in which a load has to become stable; 0 means 10
	Rule      Rule
	Progress  func(Progress) // called every second; may be nil
}

// Run measures each load, and calls done with the result, once for each target. When ctx
// ends, Run returns nil; done has been called for what was measured by then.
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

// warmUp makes a connection, and what else a first request pays for. It is no
// failure if ctx ends.
func (b *Bench) warmUp(ctx context.Context, t Target) error {
	for n := range max(1, b.WarmUp) {
		each, cancel := context.WithTimeout(ctx, patience)
		err := t.Caller.Infer(each, n%len(t.Rows))
		cancel()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the first request failed: %w", err)
		}
	}
	return nil
}

// measure holds the load from the first window to the last.
func (b *Bench) measure(ctx context.Context, l Load) ([]Level, error) {
	requests, abandon := context.WithCancel(ctx)
	defer abandon()
	sending, stop := context.WithCancel(requests)
	defer stop()
	m := &measurement{Bench: b, load: l, sent: make(chan struct{})}
	for _, t := range b.Targets {
		m.drivers = append(m.drivers, &driver{Target: t, load: l, pacer: b.Pacer, before: b.statistics(ctx, t)})
	}
	began := time.Now()
	var running sync.WaitGroup
	for _, d := range m.drivers {
		d.begin(began, b.Requests)
		running.Go(func() { d.drive(requests, sending) })
	}
	go func() { // ended by running, which is waited for below
		running.Wait()
		close(m.sent)
	}()
	var err error
	m.whileTelling(func() { err = m.observe(ctx) })
	timelines := m.end(time.Now())
	stop()
	// Requests that are still in the server would disturb the next load. Do not wait for
	// a server that stalls.
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

// A measurement is one load while it is put on.
type measurement struct {
	*Bench
	load    Load
	drivers []*driver     // one for each target
	sent    chan struct{} // closed when all have sent all and are answered
	window  atomic.Int32  // which is open, from 0
}

// A counted window is one with what the server had counted at both its ends.
type counted struct {
	*Window
	before, after reported
}

// reported is the statistics of a server, or the error of the request for them.
type reported struct {
	Statistics
	err error
}

// observe cuts windows until they are stable, there are enough, the load ends by
// itself, or ctx ends.
func (m *measurement) observe(ctx context.Context) error {
	trials := m.trials(m.load)
	tick := time.NewTicker(m.interval())
	defer tick.Stop()
	for n := range trials {
		if err := m.wait(ctx, tick.C); err != nil {
			return err
		}
		now := time.Now()
		stable := true
		for _, d := range m.drivers {
			w := d.cut(now)
			if err := answered(w, n+1 == trials); err != nil && ctx.Err() == nil {
				return m.named(d, err)
			}
			after := m.statistics(ctx, d.Target)
			d.windows = append(d.windows, counted{w, d.before, after})
			d.before = after
			stable = stable && m.Rule.Stable(plainWindows(d.windows))
		}
		m.window.Add(1)
		if stable || ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// named adds the model's name if there are several.
func (m *measurement) named(d *driver, err error) error {
	if len(m.drivers) == 1 {
		return err
	}
	return fmt.Errorf("%s: %w", d.Model, err)
}

// wait returns when the window is over.
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
			return nil // with fewer
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// untilSent waits for a load that ends by itself, as long as it gets anywhere.
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
			return fmt.Errorf("%d requests wait, and for %v none was sent or answered", waiting, patience)
		}
		before = calls
	}
}

// answered says what is wrong with a window in which nothing was.
func answered(w *Window, last bool) error {
	switch {
	case w.Requests() > 0:
		return nil
	case w.Failed > 0:
		return fmt.Errorf("all %d requests of a window failed, the first with: %w", w.Failed, w.Err)
	case last:
		return errors.New("nothing was answered in the last window: the measurement interval has to be longer than a request takes")
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

// statistics asks even when ctx has ended, for the sake of what was measured.
func (b *Bench) statistics(ctx context.Context, t Target) reported {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.interval())
	defer cancel()
	s, err := t.Caller.Statistics(ctx)
	return reported{s, err}
}

func (b *Bench) interval() time.Duration {
	if b.Interval == 0 {
		return 5 * time.Second
	}
	return b.Interval
}

// trials returns how many windows a load has at most.
func (b *Bench) trials(l Load) int {
	switch {
	case l.finite():
		return 1
	case b.MaxTrials == 0:
		return 10
	}
	return b.MaxTrials
}

// end returns the seconds of each target until now.
func (m *measurement) end(now time.Time) [][]Second {
	var all [][]Second
	for _, d := range m.drivers {
		all = append(all, d.end(now))
	}
	return all
}

// A driver puts a load on one target.
type driver struct {
	Target
	load    Load
	pacer   *pacer.Pacer
	before  reported // at the begin of the window that is open
	windows []counted
	calls   atomic.Int64 // that have begun or ended
	next    atomic.Int64 // how many requests have been sent, in a closed loop

	recorder
}

// A job is a request that is due.
type job struct {
	request int // which of those that the caller prepared
	due     time.Time
}

// drive sends requests until sending ends or the load does, and returns when all
// are answered or requests has ended.
func (d *driver) drive(requests, sending context.Context) {
	var clients sync.WaitGroup
	defer clients.Wait()
	if d.load.Concurrency == 0 {
		d.open(requests, sending, &clients)
		return
	}
	for range d.load.Concurrency {
		clients.Go(func() {
			for sending.Err() == nil {
				n := int(d.next.Add(1) - 1)
				if d.load.Count > 0 && n >= d.load.Count {
					return
				}
				d.call(requests, job{request: n % len(d.Rows)})
			}
		})
	}
}

// open sends each request when it is due. A client that is answered takes the
// next one; there are as many clients as have waited at a time.
func (d *driver) open(requests, sending context.Context, clients *sync.WaitGroup) {
	jobs := make(chan job) // without room: a job goes to a client that waits for it
	defer close(jobs)
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
				d.call(requests, j)
				for j := range jobs {
					d.call(requests, j)
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

// call sends one request. Its latency counts from when it was due: a server that
// stalls makes those late that should have been sent meanwhile, and that is what
// their clients would see. A request that is not due at a time is so now.
func (d *driver) call(ctx context.Context, j job) {
	a := answer{rows: d.Rows[j.request], due: j.due, sent: time.Now()}
	if j.due.IsZero() {
		a.due = a.sent
	}
	d.calls.Add(1)
	d.waiting.Add(1)
	a.err = d.Caller.Infer(ctx, j.request)
	a.ended = time.Now()
	d.waiting.Add(-1)
	d.calls.Add(1)
	if ctx.Err() != nil {
		return // it was given up, not answered
	}
	d.record(a, !j.due.IsZero())
}
