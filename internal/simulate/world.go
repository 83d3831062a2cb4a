package simulate

import (
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// A World is one device in virtual time with the models that share it. It runs the same
// [batching.Core] as the server, but steps from event to event where the scheduler uses
// goroutines and timers.
//
// Events at the same instant happen in this order: batches end, then planned functions
// run in the order in which they were planned, then timers fire. A called instance takes
// at the same instant, but after all planned functions.
type World struct {
	// Trace, if not nil, is called for everything that happens. It must use At to cause
	// further events, because the current step is not finished.
	Trace func(Occurrence)

	now     batching.Time
	device  device.Device
	arbiter batching.Arbiter
	models  []*Model
	plans   plans
	planned uint64 // number of plans ever made
	jobs    []job  // running batches
	nextJob int
	granted []*batching.Share // granted turns that are not passed on yet
	soonest batching.Time     // no model wakes before; it may be earlier than the first that does
	takers  int               // idle instances that will take, of all models
}

// An Occurrence is one thing that happened in a world.
type Occurrence struct {
	At     batching.Time
	Model  *Model
	Action batching.Action // an action of the core; Run, Deliver and Reject are the ones of interest
	Ended  bool            // the batch of Action.Instance ended; the other fields of Action are empty
}

// A Model is one model of a world.
type Model struct {
	Name string
	// Takes returns how long a batch takes without parallel batches. It must be set before
	// the first arrival.
	Takes func(items []*batching.Item) time.Duration

	world *World
	core  *batching.Core
	share batching.Share
	turns bool
	out   batching.Actions
	wake  batching.Time
	idle  []int // instances that were called or have completed a batch, and will take
}

type job struct {
	id       int // of the device
	model    *Model
	instance int
}

// NewWorld returns an empty world. slowdown is that of [device.Device]; slots is the
// number of batches of models that take turns that may run in parallel.
func NewWorld(slowdown []float64, slots int) *World {
	return &World{
		device:  device.Device{Slowdown: slowdown},
		arbiter: batching.Arbiter{Slots: slots},
		soonest: batching.Never,
	}
}

// ChangeSpeed sets the changes of the device's speed, sorted by time, before the first batch.
func (w *World) ChangeSpeed(changes []device.Change) { w.device.Speed = changes }

// Now returns the virtual time.
func (w *World) Now() batching.Time { return w.now }

// Add adds a model without instances.
func (w *World) Add(name string, cfg batching.Config, takes func([]*batching.Item) time.Duration) *Model {
	m := &Model{Name: name, Takes: takes, world: w, core: batching.New(cfg), turns: cfg.TakeTurns, wake: batching.Never}
	m.share.Owner = m
	w.models = append(w.models, m)
	return m
}

// At plans a call of f at the given time, which must not have passed.
func (w *World) At(t batching.Time, f func()) {
	w.planned++
	w.plans.push(plan{t, w.planned, f})
}

// Arrive submits an item now.
func (m *Model) Arrive(it *batching.Item) { m.step(batching.Event{Kind: batching.Arrive, Item: it}) }

// Cancel cancels an item now.
func (m *Model) Cancel(it *batching.Item) { m.step(batching.Event{Kind: batching.Cancel, Item: it}) }

// Up adds an instance now.
func (m *Model) Up(instance int) {
	m.step(batching.Event{Kind: batching.Up, Instance: instance})
	m.ready(instance)
}

// ready makes an instance take at the end of the current instant.
func (m *Model) ready(instance int) {
	m.idle = append(m.idle, instance)
	m.world.takers++
}

// Down removes an instance once it has completed its batch.
func (m *Model) Down(instance int) { m.step(batching.Event{Kind: batching.Down, Instance: instance}) }

// Break reports that an instance that is down cannot be started.
func (m *Model) Break(instance int) {
	m.step(batching.Event{Kind: batching.Broken, Instance: instance})
}

// Close reports that no more requests will arrive.
func (m *Model) Close() { m.step(batching.Event{Kind: batching.Close}) }

// Run advances the time until no events are left, or until the given time.
func (w *World) Run(until batching.Time) {
	for {
		t := w.Next()
		if t > until || t == batching.Never {
			break
		}
		w.now = t
		w.instant()
	}
	if until != batching.Never {
		w.now = until
	}
}

// Next returns a time before which nothing happens; [batching.Never] if nothing will.
func (w *World) Next() batching.Time {
	if w.takers > 0 {
		return w.now
	}
	_, t := w.device.Next()
	if len(w.plans) > 0 {
		t = min(t, w.plans[0].at)
	}
	return min(t, w.soonest)
}

// instant handles the events of the current time.
func (w *World) instant() {
	for id, t := w.device.Next(); t <= w.now; id, t = w.device.Next() {
		w.end(id)
	}
	for len(w.plans) > 0 && w.plans[0].at <= w.now {
		w.plans.pop().f()
	}
	if w.soonest <= w.now {
		w.fireTimers()
	}
	for i := 0; w.takers > 0 && i < len(w.models); i++ {
		for m := w.models[i]; len(m.idle) > 0; {
			instance := m.idle[0]
			m.idle = m.idle[:copy(m.idle, m.idle[1:])]
			w.takers--
			m.step(batching.Event{Kind: batching.Take, Instance: instance})
		}
	}
}

// fireTimers wakes the models whose time has come, and finds the next.
func (w *World) fireTimers() {
	for _, m := range w.models {
		if m.wake <= w.now {
			m.step(batching.Event{Kind: batching.Wake})
		}
	}
	w.soonest = batching.Never
	for _, m := range w.models {
		w.soonest = min(w.soonest, m.wake)
	}
}

func (w *World) end(id int) {
	i := slices.IndexFunc(w.jobs, func(j job) bool { return j.id == id })
	j := w.jobs[i]
	w.jobs = slices.Delete(w.jobs, i, i+1)
	w.device.End(w.now, id)
	if !j.model.turns {
		w.granted = w.arbiter.Ended(w.now, &j.model.share, w.granted)
	}
	j.model.trace(Occurrence{Ended: true, Action: batching.Action{Instance: j.instance}})
	j.model.ready(j.instance)
	j.model.step(batching.Event{Kind: batching.Done, Instance: j.instance})
}

func (m *Model) step(ev batching.Event) {
	m.core.Step(m.world.now, ev, &m.out)
	m.wake = m.out.Wake
	m.world.soonest = min(m.world.soonest, m.wake)
	for _, a := range m.out.List {
		m.carryOut(a)
	}
	m.world.passOnTurns()
}

func (m *Model) carryOut(a batching.Action) {
	w := m.world
	switch a.Kind {
	case batching.Run:
		w.nextJob++
		w.jobs = append(w.jobs, job{w.nextJob, m, a.Instance})
		w.device.Start(w.now, w.nextJob, m.Takes(a.Items))
		if !m.turns {
			w.arbiter.Began(&m.share)
		}
	case batching.Unpark:
		m.ready(a.Instance)
	case batching.Ask:
		m.share.Due = a.Due
		w.granted = w.arbiter.Ask(w.now, &m.share, w.granted)
	case batching.Yield:
		w.granted = w.arbiter.Yield(w.now, &m.share, a.Ran, w.granted)
	case batching.Stop:
		w.stop(m, a.Instance)
	case batching.Deliver, batching.Reject, batching.Leave:
	}
	m.trace(Occurrence{Action: a})
}

// stop ends a batch immediately, because no client waits for it any more.
func (w *World) stop(m *Model, instance int) {
	for _, j := range w.jobs {
		if j.model == m && j.instance == instance {
			w.At(w.now, func() {
				if slices.Contains(w.jobs, j) {
					w.end(j.id)
				}
			})
			return
		}
	}
}

// passOnTurns reports granted turns to the models. It is separate from carrying out
// actions, because a model may be granted the turn that it has just requested.
func (w *World) passOnTurns() {
	for len(w.granted) > 0 {
		m := w.granted[0].Owner.(*Model)
		w.granted = w.granted[:copy(w.granted, w.granted[1:])]
		m.step(batching.Event{Kind: batching.Turn})
	}
}

func (m *Model) trace(o Occurrence) {
	if m.world.Trace != nil {
		o.At, o.Model = m.world.now, m
		m.world.Trace(o)
	}
}

// plans is a heap of planned functions, by time and then by order of planning.
type plans []plan

type plan struct {
	at     batching.Time
	number uint64
	f      func()
}

func (p plans) before(i, j int) bool {
	return p[i].at < p[j].at || p[i].at == p[j].at && p[i].number < p[j].number
}

// push and pop are those of container/heap without its allocation for each plan: they are
// most of the cost of a simulated request.
func (p *plans) push(x plan) {
	*p = append(*p, x)
	h := *p
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.before(i, parent) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (p *plans) pop() plan {
	h := *p
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = plan{}
	h = h[:last]
	*p = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h.before(child+1, child) {
			child++
		}
		if !h.before(child, i) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	return first
}
