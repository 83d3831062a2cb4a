package batchingtest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Referee checks one core. It trusts the caller to report only possible events: an
// instance takes when it is awake, and a turn is granted when it was requested.
//
// For the policies [batching.None] and [batching.Triton] it knows when a batch is due and
// which size it must have. For other policies it checks only what holds for all, and, if
// the policy has a method Longest, that no request is held longer than that while no
// batch runs.
type Referee struct {
	cfg  batching.Config
	rule rule // nil if the policy has no known rule

	patience patience      // nil if the policy does not limit how long it holds
	idle     batching.Time // since when requests wait while no batch runs; negative if that is not the case

	now       batching.Time
	requests  map[*batching.Item]*request
	open      []*request // accepted and unanswered requests, by arrival
	queue     []*request // the waiting ones, in the order in which they must run
	joins     int        // number of times that a request was queued
	instances []*instance
	batches   uint64 // highest batch number

	tenants []*tenants      // by level
	races   map[rivals]race // what tenants got while both wait
	bound   bool            // some request was bound to an instance

	paddedUntil uint64        // predictions assume padding until this batch
	closing     bool          // batches are not held any longer
	closed      bool          // no more requests are accepted
	lastEnd     batching.Time // when the last batch ended

	turns          int // turns granted and not used yet
	asked          bool
	granted, given int // turns granted, and turns yielded

	// Set only during a Check.
	event     batching.Event
	newcomer  *request           // the arriving request
	refusals  []batching.Verdict // required verdicts for it; empty if it must be accepted
	mayRefuse bool               // it may be refused as late, but need not
	displaces *request           // request that must leave the full queue for it
	leaver    *request           // request whose client canceled it
	ended     *instance          // instance whose batch ended, until its turn is yielded
}

type request struct {
	item    *batching.Item
	state   state
	level   int
	arrived batching.Time
	expires batching.Time // when its timeout in the queue expires
	asked   batching.Time // when its requested timeout ends, in the queue or while it runs
	due     batching.Time // when it should be answered
	late    bool
	start   uint64    // in the virtual time of its level
	left    bool      // its time was over, and it does not count any longer
	joined  int       // position in the order of all that were queued
	on      *instance // instance that runs it
}

type state int

const (
	arriving state = iota // and must be refused
	waiting
	running
	ready // its batch has ended
	delivered
	answered
)

type instance struct {
	number  int
	state   instanceState
	leaving bool
	broken  bool // down, and cannot be started

	lent    []*batching.Item // the batch, in the core's memory
	batch   []*request
	serial  uint64 // of the batch
	began   batching.Time
	stopped bool
}

type instanceState int

const (
	away instanceState = iota
	awake
	parked
	busy
)

// New returns a referee for a new core with the given configuration.
func New(cfg batching.Config) *Referee {
	if len(cfg.Levels) == 0 {
		cfg.Levels, cfg.DefaultLevel = []batching.Level{{}}, 1
	}
	return &Referee{cfg: cfg, rule: ruleOf(cfg.Policy), patience: patienceOf(cfg.Policy), idle: -1, requests: map[*batching.Item]*request{}, races: map[rivals]race{}}
}

// Check checks one step: an event, and the actions of the core. The error describes the
// violated guarantee; the referee must not be used after an error.
func (r *Referee) Check(now batching.Time, ev batching.Event, out *batching.Actions) error {
	r.now, r.event = now, ev
	r.newcomer, r.refusals, r.mayRefuse, r.displaces, r.leaver, r.ended = nil, r.refusals[:0], false, nil, nil, nil
	r.expireShares()
	breach := r.happens()
	for i := 0; breach == "" && i < len(out.List); i++ {
		breach = r.action(&out.List[i])
	}
	if breach == "" {
		breach = r.owed()
	}
	if breach == "" {
		breach = r.wake(out.Wake)
	}
	if breach == "" && r.patience != nil {
		breach = r.held(out.Wake)
	}
	if breach != "" {
		return fmt.Errorf("at %v, on %s: %s", now, kinds[ev.Kind], breach)
	}
	return nil
}

var kinds = [...]string{"Wake", "Arrive", "Cancel", "Up", "Take", "Done", "Down", "Broken", "Turn", "Close"}

// Waiting returns the number of queued requests.
func (r *Referee) Waiting() int { return len(r.queue) }

// Running returns the number of running batches.
func (r *Referee) Running() int { return r.count(busy) }

// Finish reports what is unfinished when all work should be done.
func (r *Referee) Finish() error {
	switch {
	case len(r.open) > 0:
		return fmt.Errorf("%v was never answered", r.open[0])
	case r.granted != r.given:
		return fmt.Errorf("%d turns were granted, but %d were given back", r.granted, r.given)
	}
	return nil
}

func (q *request) String() string { return fmt.Sprintf("request %v", q.item.Owner) }

func (q *request) deadline() batching.Time {
	if q.item.Deadline == 0 {
		return q.asked
	}
	return min(q.asked, q.item.Deadline)
}

// over reports whether the request must have left the queue by now.
func (q *request) over(now batching.Time) bool { return min(q.expires, q.deadline()) <= now }

func (q *request) isOpen() bool { return q.state == waiting || q.state == running || q.state == ready }

// inOrder compares two waiting requests: by level, then on time before late, then by the
// shares of their tenants, then by the order of queueing.
func inOrder(a, b *request) int {
	return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.behind(), b.behind()), cmp.Compare(a.start, b.start), cmp.Compare(a.joined, b.joined))
}

func (q *request) behind() int {
	if q.late {
		return 1
	}
	return 0
}

func (r *Referee) join(q *request) {
	r.joins++
	q.joined = r.joins
	r.addShare(q)
	i, _ := slices.BinarySearchFunc(r.queue, q, inOrder)
	r.queue = slices.Insert(r.queue, i, q)
}

func without(list []*request, q *request) []*request {
	i := slices.Index(list, q)
	return slices.Delete(list, i, i+1)
}

func (r *Referee) instance(number int) *instance {
	for len(r.instances) < number {
		r.instances = append(r.instances, &instance{number: len(r.instances) + 1})
	}
	return r.instances[number-1]
}

func (r *Referee) count(s instanceState) (n int) {
	for _, in := range r.instances {
		if in.state == s {
			n++
		}
	}
	return n
}

// serves reports whether the instance is up and not leaving.
func (in *instance) serves() bool { return in.state != away && !in.leaving }

// unservable reports whether no instance is up and at least one is broken.
func (r *Referee) unservable() bool {
	return !slices.ContainsFunc(r.instances, (*instance).serves) &&
		slices.ContainsFunc(r.instances, func(in *instance) bool { return in.broken })
}

// happens applies the event.
func (r *Referee) happens() (breach string) {
	switch ev := r.event; ev.Kind {
	case batching.Wake:
	case batching.Arrive:
		r.arrive(ev.Item)
	case batching.Cancel:
		if q := r.requests[ev.Item]; q != nil && q.isOpen() {
			r.leaver = q
		}
	case batching.Up:
		in := r.instance(ev.Instance)
		in.state, in.leaving, in.broken = awake, false, false
	case batching.Take:
		if in := r.instance(ev.Instance); !in.leaving {
			in.state = parked // unless it gets a batch
		}
	case batching.Done:
		return r.end(r.instance(ev.Instance))
	case batching.Down:
		in := r.instance(ev.Instance)
		in.leaving, in.broken = true, false
	case batching.Broken:
		r.instance(ev.Instance).broken = true
	case batching.Turn:
		r.asked = false
		r.turns++
		r.granted++
	case batching.Flush:
		r.closing = true
	case batching.Close:
		r.closing, r.closed = true, true
	}
	return ""
}

func (r *Referee) arrive(it *batching.Item) {
	q := &request{item: it, level: r.cfg.DefaultLevel - 1, arrived: r.now, expires: batching.Never, asked: batching.Never}
	if it.Priority >= 1 && it.Priority <= uint64(len(r.cfg.Levels)) {
		q.level = int(it.Priority) - 1
	}
	r.requests[it], r.newcomer = q, q
	level := r.cfg.Levels[q.level]
	if level.TimeoutIsDeadline && it.Timeout > 0 {
		q.asked = r.now + it.Timeout
	}
	r.refusals = r.refusalsOf(q, level)
	certain := false
	if len(r.refusals) == 0 {
		certain, r.mayRefuse = r.foresee(q)
	}
	if certain {
		r.refusals = append(r.refusals, batching.Late)
	}
	if len(r.refusals) > 0 {
		r.displaces = nil
		return
	}
	if v := r.displaces; v != nil {
		r.leaveShare(v, false)
		r.interrupt(v)
		v.left = true
	}
	r.bound = r.bound || it.Instance != 0
	if level.Timeout > 0 {
		q.expires = r.now + level.Timeout
		if level.AllowOverride && it.Timeout > 0 {
			q.expires = min(q.expires, r.now+it.Timeout)
		}
	}
	q.state = waiting
	r.open = append(r.open, q)
	r.join(q)
}

func (r *Referee) refusalsOf(q *request, level batching.Level) []batching.Verdict {
	list := r.refusals[:0]
	if r.closed {
		list = append(list, batching.Closed)
	}
	if q.item.Rows < 1 || r.cfg.MaxRows > 0 && q.item.Rows > r.cfg.MaxRows {
		list = append(list, batching.TooLarge)
	}
	if q.deadline() <= r.now {
		list = append(list, batching.Expired)
	}
	if q.item.Instance != 0 && !r.instance(q.item.Instance).serves() {
		list = append(list, batching.Unbound)
	}
	if r.unservable() {
		list = append(list, batching.NoInstance)
	}
	if r.full(q, level) {
		if r.displaces = r.displaced(q, level); r.displaces == nil {
			list = append(list, batching.QueueFull)
		}
	}
	return list
}

// full compares the number of requests ahead of q with the bound of its level.
func (r *Referee) full(q *request, level batching.Level) bool {
	ahead, bytes := 0, q.item.Bytes
	for _, other := range r.queue {
		same := other.level == q.level || level.UseSharedBound && r.cfg.Levels[other.level].UseSharedBound
		if same && !other.over(r.now) {
			ahead++
			bytes += other.item.Bytes
		}
	}
	if !level.UseSharedBound {
		return level.MaxQueue > 0 && ahead >= level.MaxQueue
	}
	most := r.cfg.Shared
	return most.Requests > 0 && ahead >= most.Requests || most.Bytes > 0 && ahead > 0 && bytes > most.Bytes
}

func (r *Referee) end(in *instance) (breach string) {
	for i, q := range in.batch {
		if in.lent[i] != q.item {
			return fmt.Sprintf("the batch of instance %d was changed while it ran", in.number)
		}
		if q.isOpen() {
			q.state = ready
		}
		q.on = nil
	}
	in.state, r.ended, r.lastEnd = awake, in, r.now
	return ""
}
