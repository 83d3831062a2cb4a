package simulate

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
)

// varied returns the parameter that the setting varies, and the number of its values.
func (set *Setting) varied() (name string, points int) {
	points = 1
	for _, t := range set.Traffic {
		if len(t.Clients) > points {
			name, points = "clients", len(t.Clients)
		}
		if len(t.Rate) > points {
			name, points = "rate", len(t.Rate)
		}
	}
	return name, points
}

// at returns the traffic of one point. Only loads with a list of values differ between
// points.
func (t Traffic) at(point int) Traffic {
	if len(t.Clients) > 1 {
		t.Clients = t.Clients[point : point+1]
	}
	if len(t.Rate) > 1 {
		t.Rate = t.Rate[point : point+1]
	}
	return t
}

// number returns the traffic's value of the varied parameter, or zero.
func (t Traffic) number(varied string) float64 {
	switch {
	case varied == "clients" && len(t.Clients) == 1:
		return float64(t.Clients[0])
	case varied == "rate" && len(t.Rate) == 1:
		return t.Rate[0]
	}
	return 0
}

// runPoint runs one setting at one point of the varied parameter.
func (s *Scenario) runPoint(set Setting, varied string, point int) (*Run, error) {
	return s.runTrial(newTrial(set), set, varied, point)
}

// runTrial adds models and requests to the trial, and runs it.
func (s *Scenario) runTrial(t *trial, set Setting, varied string, point int) (*Run, error) {
	t.run.Began = s.began(set)
	for _, m := range set.Models {
		t.add(m)
	}
	for i := range s.Arrivals {
		t.arrive(&s.Arrivals[i])
	}
	t.replay(s.Recorded)
	for i, traffic := range set.Traffic {
		listed := max(len(traffic.Clients), len(traffic.Rate)) > 1
		traffic = traffic.at(point)
		if listed || t.run.Point == 0 {
			t.run.Point = traffic.number(varied)
		}
		t.send(traffic, i)
	}
	return t.finish()
}

// began returns when the requests of a setting begin. A recording may have begun long before
// its first request; loads and listed arrivals count from zero.
func (s *Scenario) began(set Setting) batching.Time {
	if len(s.Recorded) == 0 || len(s.Arrivals) > 0 || len(set.Traffic) > 0 {
		return 0
	}
	return s.Recorded[0].At
}

// An Answer is a request that was answered with a result.
type Answer struct {
	Arrived, Began, At batching.Time
	Batch              uint64 // number of its batch, from 1, counted separately for each model
}

// Measure runs one setting of the scenario, at the first point of the varied parameter,
// and calls each for every answer. The summary has no latencies; the callback can collect
// them.
func (s *Scenario) Measure(set Setting, each func(Answer)) (Summary, error) {
	t := newTrial(set)
	t.each = each
	run, err := s.runTrial(t, set, "", 0)
	if err != nil {
		return Summary{}, err
	}
	return run.Total, nil
}

// Limits of what a run keeps for its timeline. The sums cover all.
const (
	keptBatches  = 512
	keptRequests = 4096
)

// A trial is a run in progress.
type trial struct {
	world    *World
	models   []*Model
	lane     map[*Model]int // lane of the model's first instance
	tallies  map[*Model]*tally
	working  []working // by lane
	free     []*request
	clients  int // number of clients of all loads
	sent     int // number of requests of open loops and recordings
	numbers  uint64
	each     func(Answer) // if not nil, called for each answer instead of recording its times
	learners []learner
	run      *Run
	err      error
}

// A learner is a model with an automatic policy.
type learner struct {
	model  string
	policy *automatic.Policy
}

// working is the current batch of a lane.
type working struct {
	began batching.Time
	index int // index into the run's batches; -1 if it is not kept
	items []*batching.Item
}

// A request is a request in flight. A generated request is reused once it is answered and
// its batch has ended.
type request struct {
	item      batching.Item
	model     *Model
	client    *client // the client of a closed loop; nil in an open loop
	number    uint64  // by order of arrival
	batch     uint64
	arrived   batching.Time
	began     batching.Time
	ended     batching.Time
	index     int  // index into the run's requests; -1 if it is not kept
	generated bool // by a load or a recording
	runs      bool
	answered  bool
}

func newTrial(set Setting) *trial {
	t := &trial{
		world:   NewWorld(set.Slowdown, set.Slots),
		lane:    map[*Model]int{},
		tallies: map[*Model]*tally{},
		run:     &Run{Setting: set.Name},
	}
	t.world.Trace = t.trace
	return t
}

func (t *trial) add(set ModelSetting) {
	if set.Automatic {
		opt := automatic.Options{MaxRows: set.Config.MaxRows, Instances: set.Instances, Objective: set.Objective}
		if set.Calibrated {
			opt.Profile = Calibrated(set.Curve, t.world.device.Slowdown, opt.MaxRows, opt.Instances)
		}
		policy := automatic.New(opt)
		set.Config.Policy = policy
		t.learners = append(t.learners, learner{set.Name, policy})
	}
	if set.Admission {
		set.Config.Predictor, set.Config.Objective = batching.PredictorFor(set.Config.Policy), set.Objective
	}
	m := t.world.Add(set.Name, set.Config, t.takes(set))
	t.models = append(t.models, m)
	t.lane[m] = len(t.run.Lanes)
	t.tallies[m] = newTally()
	t.tallies[m].objective = set.Objective
	for i := range set.Instances {
		m.Up(i + 1)
		t.run.Lanes = append(t.run.Lanes, Lane{Model: set.Name, Instance: i + 1, MaxRows: set.Config.MaxRows})
		t.working = append(t.working, working{})
	}
}

// takes returns the function for the duration of the model's batches. Random numbers of a
// batch depend on the number of its first request, so settings that form the same batch
// see it take the same time.
func (t *trial) takes(set ModelSetting) func([]*batching.Item) time.Duration {
	source := rand.NewPCG(0, 0)
	chance := rand.New(source)
	varies := set.Noise != device.Noise{} || len(set.Drift) > 0 || set.Lengths != Range{}
	return func(items []*batching.Item) time.Duration {
		rows, elements := 0, int64(0)
		for _, it := range items {
			rows += it.Rows
			elements = max(elements, it.Elements)
		}
		alone := set.Curve.Takes(rows) + time.Duration(int64(rows)*elements)*set.PerElement
		if !varies {
			return alone
		}
		if set.Lengths != (Range{}) {
			longest := 0.0
			for _, it := range items {
				source.Seed(set.Seed, it.Owner.(*request).number<<1)
				longest = max(longest, set.Lengths.From+(set.Lengths.To-set.Lengths.From)*chance.Float64())
			}
			alone = set.Curve.Fixed + time.Duration(longest*float64(alone-set.Curve.Fixed))
		}
		source.Seed(set.Seed, items[0].Owner.(*request).number<<1|1)
		return time.Duration(float64(alone) * set.Noise.Factor(chance) * device.TimesAt(set.Drift, t.world.Now()))
	}
}

// arrive plans a request with a fixed time of arrival.
func (t *trial) arrive(a *Arrival) {
	r := &request{model: t.models[a.Model]}
	r.item = batching.Item{
		Rows: a.Rows, Shape: a.Shape, Priority: a.Priority, Timeout: a.Timeout, Deadline: a.Deadline, Owner: r,
	}
	t.world.At(a.At, func() { t.submit(r, a.ID) })
	if a.CancelAt > 0 {
		t.world.At(a.CancelAt, func() { r.model.Cancel(&r.item) })
	}
}

// replay sends the requests of a recording. Each plans the next, so that a long recording
// takes little memory.
func (t *trial) replay(left []Arrival) {
	var send func()
	plan := func() {
		if len(left) > 0 {
			t.world.At(left[0].At, send)
		}
	}
	send = func() {
		a := &left[0]
		left = left[1:]
		r := t.acquire()
		r.model, r.client = t.models[a.Model], nil
		r.item.Rows, r.item.Shape, r.item.Priority, r.item.Timeout, r.item.Deadline, r.item.Owner = a.Rows, 0, a.Priority, 0, 0, r
		t.sent++
		t.submit(r, "")
		plan()
	}
	plan()
}

func (t *trial) submit(r *request, name string) {
	r.arrived = t.world.Now()
	r.number = t.numbers
	t.numbers++
	r.runs, r.answered, r.index = false, false, -1
	if name == "" && t.each == nil && len(t.run.Batches) < keptBatches && len(t.run.Requests) < keptRequests {
		name = t.nameOf(r)
	}
	if name != "" {
		r.index = len(t.run.Requests)
		t.run.Requests = append(t.run.Requests, Request{
			ID: name, Model: r.model.Name, Rows: r.item.Rows, Arrived: r.arrived, Batch: -1,
		})
	}
	t.tallies[r.model].requests++
	r.model.Arrive(&r.item)
}

// nameOf returns the number of the client, which appears repeatedly, or else the number
// of the request.
func (t *trial) nameOf(r *request) string {
	if r.client != nil {
		return strconv.Itoa(r.client.number)
	}
	return strconv.Itoa(t.sent)
}

// trace records what happens in the world.
func (t *trial) trace(o Occurrence) {
	switch a := o.Action; {
	case o.Ended:
		t.ended(o)
	case a.Kind == batching.Run:
		t.began(o)
	case a.Kind == batching.Deliver:
		t.answered(o, a.Item.Owner.(*request))
	case a.Kind == batching.Reject:
		t.refused(o, a.Item.Owner.(*request))
	}
}

func (t *trial) began(o Occurrence) {
	lane := t.lane[o.Model] + o.Action.Instance - 1
	w := &t.working[lane]
	w.began, w.index, w.items = o.At, -1, o.Action.Items
	rows := 0
	for _, it := range w.items {
		r := it.Owner.(*request)
		r.began, r.batch, r.runs = o.At, o.Action.Batch, true
		if r.index >= 0 {
			t.run.Requests[r.index].Began = o.At
		}
		rows += it.Rows
	}
	tally := t.tallies[o.Model]
	tally.batches++
	tally.rows += rows
	tally.closed[o.Action.Reason]++
	if len(t.run.Batches) == keptBatches || t.each != nil {
		return
	}
	w.index = len(t.run.Batches)
	b := Batch{Lane: lane, Began: o.At, Rows: rows, Why: o.Action.Reason.String()}
	for _, it := range w.items {
		if i := it.Owner.(*request).index; i >= 0 {
			b.Requests = append(b.Requests, i)
			t.run.Requests[i].Batch = w.index
		}
	}
	t.run.Batches = append(t.run.Batches, b)
}

func (t *trial) ended(o Occurrence) {
	w := &t.working[t.lane[o.Model]+o.Action.Instance-1]
	t.tallies[o.Model].busy += o.At - w.began
	if w.index >= 0 {
		t.run.Batches[w.index].Ended = o.At
	}
	for _, it := range w.items {
		r := it.Owner.(*request)
		r.ended, r.runs = o.At, false
		if r.index >= 0 {
			t.run.Requests[r.index].Ended = o.At
		}
		if r.answered { // while the batch ran
			t.release(r)
		}
	}
	w.items = nil
}

func (t *trial) answered(o Occurrence, r *request) {
	tally := t.tallies[o.Model]
	tally.delivered += r.item.Rows
	if tally.objective == 0 || o.At-r.arrived <= tally.objective {
		tally.inTime += r.item.Rows
	} else {
		tally.late++
	}
	tally.answered++
	if t.each != nil {
		t.each(Answer{Arrived: r.arrived, Began: r.began, At: o.At, Batch: r.batch})
	} else {
		tally.latency = append(tally.latency, o.At-r.arrived)
		tally.queue = append(tally.queue, r.began-r.arrived)
		tally.compute = append(tally.compute, r.ended-r.began)
	}
	t.completed(o, r)
}

func (t *trial) refused(o Occurrence, r *request) {
	tally := t.tallies[o.Model]
	tally.refused[o.Action.Verdict]++
	tally.refusal = append(tally.refusal, o.At-r.arrived)
	if r.index >= 0 {
		t.run.Requests[r.index].Refusal = o.Action.Verdict.String()
	}
	t.completed(o, r)
}

// completed records that a request is answered, with or without a result.
func (t *trial) completed(o Occurrence, r *request) {
	t.tallies[o.Model].last = o.At
	if r.index >= 0 {
		t.run.Requests[r.index].Answered = o.At
	}
	r.answered = true
	if r.client != nil {
		r.client.answered(o.At, r)
	}
	if !r.runs {
		t.release(r)
	}
}

// release makes a request available for reuse. A request with a fixed time of arrival may
// still be canceled, and is not reused.
func (t *trial) release(r *request) {
	if r.generated {
		t.free = append(t.free, r)
	}
}

// acquire returns an unused request.
func (t *trial) acquire() *request {
	if len(t.free) == 0 {
		return &request{generated: true}
	}
	r := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	return r
}

// A load is traffic in progress.
type load struct {
	Traffic

	trial *trial
	model *Model
	rand  *rand.Rand
	sent  int
	think int     // number of think times used
	due   float64 // time at which the next request or burst of an open loop is due, in nanoseconds
	at    float64 // time of its next request; later than due in a burst, and while the one before has not ended
	tick  func()

	phase    int
	phaseEnd float64 // nanoseconds
}

// send plans the first requests of a load.
func (t *trial) send(traffic Traffic, number int) {
	l := &load{
		Traffic: traffic, trial: t, model: t.models[traffic.Model],
		// All settings get the same random numbers, so that they are comparable.
		rand: rand.New(rand.NewPCG(traffic.Seed, uint64(number))),
	}
	if traffic.Rate != nil {
		l.tick = l.sendAndPlan
		if len(l.Phases) > 0 {
			l.beginPhase()
		}
		l.plan()
		return
	}
	for range traffic.Clients[0] {
		t.clients++
		c := &client{load: l, number: t.clients}
		c.send = c.sendNext
		t.world.At(0, c.send)
	}
}

// ends reports whether the load sends no more requests at the given time.
func (l *load) ends(at batching.Time) bool {
	return l.Requests > 0 && l.sent >= l.Requests || l.Duration > 0 && at >= l.Duration || l.trial.err != nil
}

// request returns the next request of the load.
func (l *load) request(c *client) *request {
	r := l.trial.acquire()
	r.model, r.client = l.model, c
	it := &r.item
	it.Rows, it.Shape, it.Priority, it.Timeout, it.Owner = l.Rows[l.sent%len(l.Rows)], l.Shape, l.Priority, l.Timeout, r
	it.Elements, it.PadGroup = l.Elements, l.PadGroup
	it.Deadline = 0
	if l.Within > 0 {
		it.Deadline = l.trial.world.Now() + l.Within
	}
	l.sent++
	return r
}

// sendAndPlan sends a request of an open loop, and plans the next.
func (l *load) sendAndPlan() {
	l.trial.sent++
	l.trial.submit(l.request(nil), "")
	l.plan()
}

// plan plans the next request of an open loop.
func (l *load) plan() {
	if l.Burst.Size > 1 && l.sent%l.Burst.Size > 0 {
		l.at += float64(l.Burst.Spacing)
	} else {
		l.advance()
		l.at = max(l.at, l.due)
	}
	if at := batching.Time(math.Round(l.at)); !l.ends(at) {
		l.trial.world.At(at, l.tick)
	}
}

// advance moves due to the next request or burst. It counts from when the last one was due and
// not from its end, so that the rate does not depend on how long bursts take.
func (l *load) advance() {
	distance := float64(time.Second) / l.Rate[0] * float64(max(1, l.Burst.Size))
	switch {
	case l.Even:
		l.due = float64(l.sent) * float64(time.Second) / l.Rate[0]
	case l.Ramp.Period > 0:
		// Thinning: generate requests at the highest rate, and skip some.
		high := max(l.Ramp.From, l.Ramp.To)
		for {
			l.due += l.rand.ExpFloat64() * distance / high
			wave := (1 - math.Cos(2*math.Pi*l.due/float64(l.Ramp.Period))) / 2
			if l.rand.Float64()*high < l.Ramp.From+(l.Ramp.To-l.Ramp.From)*wave {
				return
			}
		}
	case len(l.Phases) > 0:
		for {
			due := l.due + l.rand.ExpFloat64()*distance/l.Phases[l.phase].Times
			if due < l.phaseEnd {
				l.due = due
				return
			}
			l.due = l.phaseEnd
			l.phase = (l.phase + 1) % len(l.Phases)
			l.beginPhase()
		}
	default:
		l.due += l.rand.ExpFloat64() * distance
	}
}

// beginPhase sets the end of the phase that begins where the last one ended.
func (l *load) beginPhase() {
	length := float64(l.Phases[l.phase].Lasts)
	if l.Chance {
		length *= l.rand.ExpFloat64()
	}
	l.phaseEnd += length
}

// pause returns the next think time.
func (l *load) pause() time.Duration {
	if len(l.Think) == 0 {
		return 0
	}
	s := l.Think[l.think%len(l.Think)]
	l.think++
	pause := s.From
	if s.To > s.From {
		pause += time.Duration(l.rand.Int64N(int64(s.To-s.From) + 1))
	}
	if l.Spread > 0 {
		pause = time.Duration(float64(pause) * math.Exp(l.Spread*l.rand.NormFloat64()))
	}
	return pause
}

// A client is a client of a closed loop.
type client struct {
	load   *load
	number int // from 1
	send   func()
}

func (c *client) sendNext() {
	if l := c.load; !l.ends(l.trial.world.Now()) {
		l.trial.submit(l.request(c), "")
	}
}

func (c *client) answered(now batching.Time, r *request) {
	l := c.load
	think := l.pause()
	if think == 0 && r.arrived == now && l.Requests == 0 {
		l.trial.err = errors.New("batches and think times of a closed loop take no time, so it never ends: give the load a think time or a number of requests")
	}
	// Plan the next request even without a think time, because the core has not finished
	// this step.
	l.trial.world.At(now+think, c.send)
}

// finish runs the world to its end and returns the result.
func (t *trial) finish() (*Run, error) {
	t.world.Run(batching.Never)
	if t.err != nil {
		return nil, t.err
	}
	all := newTally()
	for _, m := range t.models {
		tally := t.tallies[m]
		all.add(tally)
		if len(t.models) > 1 {
			t.run.Models = append(t.run.Models, ModelSummary{m.Name, tally.summary(t.run.Began)})
		}
	}
	t.run.Total = all.summary(t.run.Began)
	for _, l := range t.learners {
		t.run.Policies = append(t.run.Policies, PolicySummary{l.model, l.policy.Explain()})
	}
	if lost := all.requests - all.answered - all.refusals(); lost != 0 {
		return nil, fmt.Errorf("%d requests were never answered", lost)
	}
	return t.run, nil
}
