package simulate

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// A World is one device in virtual time with the models that share it. It runs
// the same [batching.Core] as the server: what the scheduler does with goroutines
// and timers is done here by stepping from event to event.
//
// Things that happen at one instant happen in this order: batches end, then what
// was planned for the instant happens in the order in which it was planned, then
// timers fire. An instance that is called takes at once, but only after all that
// was planned for the instant.
type World struct {
	// Trace, if not nil, is told of everything that happens, as it happens. What
	// it wants to happen next it plans with At: the step is not finished yet.
	Trace func(Occurrence)

	now     batching.Time
	device  device.Device
	arbiter batching.Arbiter
	models  []*Model
	plans   plans
	planned uint64 // how many plans were ever made
	jobs    map[int]*job
	nextJob int
	granted []*batching.Share // turns to pass on
}

// An Occurrence is one thing that happened in a world.
type Occurrence struct {
	At     batching.Time
	Model  *Model
	Action batching.Action // what was done; Run, Deliver and Answer tell the story
	Ended  bool            // the batch of Action.Instance ended; Action is otherwise empty
}

// A Model is one model of a world.
type Model struct {
	Name string
	// Takes returns how long a batch takes alone. It must be set before anything
	// arrives.
	Takes func(items []*batching.Item) time.Duration

	world *World
	core  *batching.Core
	share batching.Share
	turns bool
	out   batching.Actions
	wake  batching.Time
	idle  []int // instances that were called or are done, and will take
}

type job struct {
	model    *Model
	instance int
}

// NewWorld returns an empty world. Slowdown is that of [device.Device]; slots is
// how many batches of models that take turns may run at once.
func NewWorld(slowdown []float64, slots int) *World {
	return &World{
		device:  device.Device{Slowdown: slowdown},
		arbiter: batching.Arbiter{Slots: slots},
		jobs:    map[int]*job{},
	}
}

// Now returns the time.
func (w *World) Now() batching.Time { return w.now }

// Add brings a model into the world, without instances.
func (w *World) Add(name string, cfg batching.Config, takes func([]*batching.Item) time.Duration) *Model {
	m := &Model{Name: name, Takes: takes, world: w, core: batching.New(cfg), turns: cfg.TakeTurns, wake: batching.Never}
	m.share.Owner = m
	w.models = append(w.models, m)
	return m
}

// At plans f for a time, which must not have passed.
func (w *World) At(t batching.Time, f func()) {
	w.planned++
	w.plans.push(plan{t, w.planned, f})
}

// Arrive submits an item now.
func (m *Model) Arrive(it *batching.Item) { m.step(batching.Event{Kind: batching.Arrive, Item: it}) }

// Cancel withdraws an item now.
func (m *Model) Cancel(it *batching.Item) { m.step(batching.Event{Kind: batching.Cancel, Item: it}) }

// Up adds an instance now.
func (m *Model) Up(instance int) {
	m.step(batching.Event{Kind: batching.Up, Instance: instance})
	m.idle = append(m.idle, instance)
}

// Down lets an instance leave when it has run its batch.
func (m *Model) Down(instance int) { m.step(batching.Event{Kind: batching.Down, Instance: instance}) }

// Break says that an instance that is down cannot be started.
func (m *Model) Break(instance int) {
	m.step(batching.Event{Kind: batching.Broken, Instance: instance})
}

// Close says that nothing more will arrive.
func (m *Model) Close() { m.step(batching.Event{Kind: batching.Close}) }

// Run lets time pass until nothing is left to happen, or until the given time.
func (w *World) Run(until batching.Time) {
	for {
		t := w.next()
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

// next returns when something happens next.
func (w *World) next() batching.Time {
	_, t := w.device.Next()
	if len(w.plans) > 0 {
		t = min(t, w.plans[0].at)
	}
	for _, m := range w.models {
		if len(m.idle) > 0 {
			return w.now
		}
		t = min(t, m.wake)
	}
	return t
}

// instant does what happens now.
func (w *World) instant() {
	for id, t := w.device.Next(); t <= w.now; id, t = w.device.Next() {
		w.end(id)
	}
	for len(w.plans) > 0 && w.plans[0].at <= w.now {
		w.plans.pop().f()
	}
	for _, m := range w.models {
		if m.wake <= w.now {
			m.step(batching.Event{Kind: batching.Wake})
		}
	}
	for _, m := range w.models {
		for len(m.idle) > 0 {
			instance := m.idle[0]
			m.idle = m.idle[:copy(m.idle, m.idle[1:])]
			m.step(batching.Event{Kind: batching.Take, Instance: instance})
		}
	}
}

func (w *World) end(id int) {
	j := w.jobs[id]
	delete(w.jobs, id)
	w.device.End(w.now, id)
	if !j.model.turns {
		w.granted = w.arbiter.Ended(&j.model.share, w.granted)
	}
	j.model.trace(Occurrence{Ended: true, Action: batching.Action{Instance: j.instance}})
	j.model.idle = append(j.model.idle, j.instance)
	j.model.step(batching.Event{Kind: batching.Done, Instance: j.instance})
}

func (m *Model) step(ev batching.Event) {
	m.core.Step(m.world.now, ev, &m.out)
	m.wake = m.out.Wake
	for _, a := range m.out.List {
		m.carryOut(a)
	}
	m.world.passOnTurns()
}

func (m *Model) carryOut(a batching.Action) {
	w := m.world
	switch a.Do {
	case batching.Run:
		w.nextJob++
		w.jobs[w.nextJob] = &job{m, a.Instance}
		w.device.Start(w.now, w.nextJob, m.Takes(a.Items))
		if !m.turns {
			w.arbiter.Began(&m.share)
		}
	case batching.Call:
		m.idle = append(m.idle, a.Instance)
	case batching.Ask:
		w.granted = w.arbiter.Ask(&m.share, w.granted)
	case batching.Yield:
		w.granted = w.arbiter.Yield(&m.share, a.Ran, w.granted)
	case batching.Stop:
		w.stop(m, a.Instance)
	case batching.Deliver, batching.Answer, batching.Leave:
	}
	m.trace(Occurrence{Action: a})
}

// stop ends a batch that nobody waits for, at this instant.
func (w *World) stop(m *Model, instance int) {
	for id, j := range w.jobs {
		if j.model == m && j.instance == instance {
			w.At(w.now, func() {
				if w.jobs[id] == j {
					w.end(id)
				}
			})
			return
		}
	}
}

// passOnTurns tells the models whose turn it is. That is apart from carrying
// actions out, because a model may be granted the turn that it has just asked for.
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

// plans is a heap of what is to happen, by time and then in the order of
// planning.
type plans []plan

type plan struct {
	at     batching.Time
	number uint64
	f      func()
}

func (p plans) before(i, j int) bool {
	return p[i].at < p[j].at || p[i].at == p[j].at && p[i].number < p[j].number
}

// push and pop are those of package heap, without its allocation for each plan:
// they are most of what a simulated request costs.
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
