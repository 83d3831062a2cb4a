package hunt

import (
	"math/rand/v2"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// A Batch is a batch that has ended.
type Batch struct {
	At       batching.Time
	Rows     int
	Requests int
	Reason   batching.Reason
	Work     time.Duration // how long its requests would take one by one
	Total    time.Duration // work of all batches that have ended by then
}

// Automatic returns a new automatic policy for the run.
func (r *Run) Automatic() *automatic.Policy {
	return automatic.New(automatic.Options{MaxRows: r.MaxRows, Instances: r.Instances})
}

// Greedy returns the policy of the comparison: it runs all that waits as soon as an
// instance is free.
func (r *Run) Greedy() batching.Policy { return batching.Triton{MaxRows: r.MaxRows} }

// With returns the batches of the run with a policy. Requests, think times and noise are
// drawn by chance; runs with the same number draw the same.
func (r *Run) With(policy batching.Policy, number uint64) []Batch {
	w := simulate.NewWorld(r.Slowdown, 0)
	w.ChangeSpeed(r.Speed)
	p := &play{Run: r, world: w, chance: rand.New(rand.NewPCG(r.Seed, 2*number+1)), noise: rand.New(rand.NewPCG(r.Seed, 2*number+2)), running: make([]Batch, r.Instances+1)}
	w.Trace = p.trace
	p.model = w.Add("", batching.Config{MaxRows: r.MaxRows, Policy: policy, OvertakeOtherShapes: true}, p.takes)
	for n := range r.Instances {
		p.model.Up(n + 1)
	}
	for i := range r.Levels {
		l := &r.Levels[i]
		w.At(l.At, func() { p.begin(l) })
	}
	if tunable, ok := policy.(batching.Tunable); ok {
		for i := range r.Calibration {
			c := &r.Calibration[i]
			w.At(c.At, func() {
				if c.Replace {
					tunable.Recalibrated(c.Profile)
				} else {
					tunable.Calibrated(c.Profile)
				}
			})
		}
	}
	w.Run(r.End)
	return p.ended
}

// play is a run in progress.
type play struct {
	*Run
	world   *simulate.World
	model   *simulate.Model
	level   *Level
	clients []*client
	chance  *rand.Rand // of requests
	noise   *rand.Rand
	running []Batch // by instance
	ended   []Batch
	total   time.Duration
}

// A client sends a request, waits for the answer, thinks, and sends the next, while the
// level has that many clients.
type client struct {
	item   batching.Item
	number int
	active bool
	send   func()
}

// begin changes the traffic.
func (p *play) begin(l *Level) {
	p.level = l
	for len(p.clients) < l.Clients {
		c := &client{number: len(p.clients)}
		c.send = func() { p.send(c) }
		p.clients = append(p.clients, c)
	}
	for _, c := range p.clients[:l.Clients] {
		if !c.active {
			c.active = true
			p.world.At(p.world.Now()+p.think(), c.send)
		}
	}
}

func (p *play) think() time.Duration {
	return p.Think[0] + time.Duration(p.chance.Float64()*float64(p.Think[1]-p.Think[0]))
}

func (p *play) send(c *client) {
	if c.number >= p.level.Clients {
		c.active = false
		return
	}
	shape := p.level.Shapes[p.chance.IntN(len(p.level.Shapes))]
	c.item = batching.Item{Rows: p.Rows[p.chance.IntN(len(p.Rows))], Shape: uint64(shape), Elements: p.Shapes[shape].Elements, Owner: c}
	p.model.Arrive(&c.item)
}

func (p *play) takes(items []*batching.Item) time.Duration {
	rows := 0
	for _, it := range items {
		rows += it.Rows
	}
	return time.Duration(float64(p.Shapes[items[0].Shape].Curve.Takes(rows)) * p.Noise.Factor(p.noise))
}

func (p *play) trace(o simulate.Occurrence) {
	switch a := o.Action; {
	case o.Ended:
		b := p.running[a.Instance]
		p.total += b.Work
		b.At, b.Total = o.At, p.total
		p.ended = append(p.ended, b)
	case a.Kind == batching.Run:
		b := Batch{Requests: len(a.Items), Reason: a.Reason}
		for _, it := range a.Items {
			b.Rows += it.Rows
			b.Work += p.Shapes[it.Shape].Curve.Takes(it.Rows)
		}
		p.running[a.Instance] = b
	case a.Kind == batching.Deliver:
		p.world.At(o.At+p.think(), a.Item.Owner.(*client).send)
	}
}
