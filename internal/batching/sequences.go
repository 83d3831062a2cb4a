package batching

import "time"

// A Correlation identifies a sequence: by a number or by a name, and by whose it is. The zero
// Correlation identifies none. A number and the name with the same digits are different.
type Correlation struct {
	Number uint64
	Name   string
	Caller string // different callers may use the same number or name; "" means that callers are unknown
}

// SequenceConfig configures how sequences are kept apart.
type SequenceConfig struct {
	// Slots is the number of sequences that an instance has at the same time, at least 1.
	Slots int

	// MaxIdle is how long a sequence keeps its slot without a request. Zero means
	// forever.
	MaxIdle time.Duration

	// Iterative means that each request is a sequence of its own, which it starts. If the
	// caller sets Again of a request in a batch before that is Done, the request is not
	// delivered but queued again at once, for the same slot, without Start. Otherwise its
	// sequence ends with the batch.
	Iterative bool
}

// Sequences is a [Core] for a model whose requests belong to sequences. A sequence gets a
// slot of one instance when it starts, and has it until it ends: all its requests run
// there, one at a time, in the order of arrival. Sequences that find no free slot wait for
// one, in the order in which they started.
//
// It is a state machine in front of the core, which sees a request only when it is the
// next of its sequence, bound to the instance of that. So the core's batches contain at
// most one request of each sequence, and its policy decides when they run.
//
// A request that leaves without having run leaves a gap. The later requests of its sequence
// are answered then, too, and the sequence ends once the earlier ones have run. A request
// whose client leaves while it runs does not end the sequence, unless that is iterative.
type Sequences struct {
	core *Core
	cfg  SequenceConfig
	most Bound // limits the waiting requests

	live      map[Correlation]*Sequence // sequences that take more requests
	backlog   sequenceList              // sequences without a slot, by start
	idle      sequenceList              // sequences with a slot and without requests, by when they became idle
	instances []*slots                  // by number, from 1
	pending   Bound                     // requests that the core does not have
	alarms    alarms                    // of pending requests
	order     uint64
	closing   bool

	// Set only during a Step.
	now     Time
	out     *Actions
	inner   Actions // of one step of the core
	observe func(Time, Event, *Actions)
}

// slots are those of one instance.
type slots struct {
	serves  bool
	held    []*Sequence // by slot; nil if it is free
	free    int
	running []*Sequence // those with a request in the running batch
}

// A Sequence is a sequence of requests. Only the exported fields are for the caller of Step.
type Sequence struct {
	// State is for the caller. It must be used only while a request of the sequence runs.
	State any
	// StateShape is added to the shape of the sequence's next request: sequences whose states
	// have different shapes do not share a batch. The caller may set it before the batch is
	// Done. A request that starts the sequence again sets it to 0.
	StateShape uint64

	id         Correlation
	instance   int // 0 while the sequence waits for a slot
	slot       int
	ended      bool // it takes no more requests
	busy       bool // the core has a request of it
	running    bool // that is in a batch
	pending    list // requests that the core does not have, in the order of arrival
	idleSince  Time
	list       *sequenceList // that it is in; nil if none
	prev, next *Sequence
}

// Sequence returns the sequence of an item in a batch. It is nil for items of a [Core].
func (it *Item) Sequence() *Sequence { return it.seq }

// LeaveSequence makes the item one without a sequence. The caller must own it.
func (it *Item) LeaveSequence() { it.seq = nil }

// Slot returns the slot of the sequence on its instance, from 0.
func (q *Sequence) Slot() int { return q.slot }

// NewSequences returns a core for sequences, without instances. Levels, Predictor, Objective
// and KeepOrder of cfg are not used: requests of a sequence have an order already, and a
// refused one would leave a gap.
func NewSequences(cfg Config, seq SequenceConfig) *Sequences {
	most := cfg.Shared
	cfg.Levels, cfg.DefaultLevel = []Level{{UseSharedBound: true}}, 1
	cfg.Shared, cfg.Predictor, cfg.Objective, cfg.KeepOrder = Bound{}, nil, 0, false
	return &Sequences{core: New(cfg), cfg: seq, most: most, live: map[Correlation]*Sequence{}}
}

// Waiting returns the number of queued requests.
func (s *Sequences) Waiting() int { return s.core.Waiting() + s.pending.Requests }

// Running returns the number of running batches.
func (s *Sequences) Running() int { return s.core.Running() }

// Idle returns the number of instances that can take a batch.
func (s *Sequences) Idle() int { return s.core.Idle() }

// Live returns the number of sequences that have a slot, and of those that wait for one.
func (s *Sequences) Live() (active, waiting int) {
	for _, in := range s.instances {
		if in.serves {
			active += s.cfg.Slots - in.free
		}
	}
	return active, s.backlog.size
}

// Slots returns the number of slots of all instances that serve.
func (s *Sequences) Slots() (all int) {
	for _, in := range s.instances {
		if in.serves {
			all += s.cfg.Slots
		}
	}
	return all
}

// Step is [Core.Step].
func (s *Sequences) Step(now Time, ev Event, out *Actions) {
	out.List = out.List[:0]
	s.now, s.out = now, out
	s.expire()
	switch ev.Kind {
	case Arrive:
		s.stepCore(Event{Kind: Wake})
		s.arrive(ev.Item)
	case Cancel:
		s.stepCore(Event{Kind: Wake}) // it may give the item a slot, or answer it
		if ev.Item.state == pending {
			s.breakAt(ev.Item, Cancelled, Discontinued)
		} else {
			s.stepCore(ev)
		}
	case Up:
		s.stepCore(ev)
		s.up(ev.Instance)
	case Down:
		s.down(ev.Instance) // before the core answers the items that it has
		s.stepCore(ev)
		s.answerIfUnservable()
	case Broken:
		s.stepCore(ev)
		s.answerIfUnservable()
	case Done:
		s.stepCore(ev)
		s.done(ev.Instance)
	case Close:
		s.stepCore(Event{Kind: Wake})
		s.closing = true
		for s.idle.first != nil {
			s.end(s.idle.first)
		}
		s.stepCore(Event{Kind: Flush}) // requests that are pending cannot join those before them
	case Wake, Take, Turn, Flush:
		s.stepCore(ev)
	}
	if s.closing && !s.core.closed && s.pending.Requests == 0 && (!s.cfg.Iterative || len(s.live) == 0) {
		s.stepCore(Event{Kind: Close}) // not before, because the core still has to accept the pending ones, and those that run again
	}
	out.Wake = min(s.inner.Wake, s.alarms.next(), s.nextIdle())
	s.out = nil
}

// stepCore steps the core, and takes note of its actions.
func (s *Sequences) stepCore(ev Event) {
	s.core.Step(s.now, ev, &s.inner)
	if s.observe != nil {
		s.observe(s.now, ev, &s.inner)
	}
	from := len(s.out.List)
	for _, a := range s.inner.List {
		switch {
		case a.Kind == Deliver && a.Item.Again:
			s.requeue(a.Item)
		case a.Kind == Stop && !s.cfg.Iterative: // the state would miss a request, and the sequence goes on
		default:
			s.out.List = append(s.out.List, a)
		}
	}
	to := len(s.out.List) // steps below append more, and take note of them
	for i := from; i < to; i++ {
		switch a := &s.out.List[i]; a.Kind {
		case Run:
			s.ran(s.instances[a.Instance-1], a.Items)
		case Reject:
			if seq := a.Item.seq; !seq.running {
				s.breakAfter(seq)
			}
		case Unpark, Deliver, Stop, Leave, Ask, Yield:
		}
	}
}

// ran notes that a batch has begun. The slot of a sequence whose last request is in it is
// free: the instance runs one batch at a time, so that the next sequence begins after it.
func (s *Sequences) ran(in *slots, items []*Item) {
	freed := false
	for _, it := range items {
		in.running = append(in.running, it.seq)
		it.seq.running = true
		it.Again = false
		if it.End && in.serves {
			in.held[it.seq.slot] = nil
			in.free++
			freed = true
		}
	}
	if freed {
		s.fillSlots()
	}
}

func (s *Sequences) arrive(it *Item) {
	seq := s.live[it.Correlation]
	it.arrived, it.level, it.Instance, it.seq = s.now, 0, 0, nil
	end := Never
	if it.Deadline != 0 {
		end = it.Deadline
	}
	switch {
	case s.closing:
		s.reject(it, Closed)
		return
	case it.Rows != 1:
		s.reject(it, TooLarge)
		return
	case seq == nil && !it.Start:
		s.reject(it, NoStart)
		return
	case end <= s.now:
		s.reject(it, Expired)
		return
	case s.core.unservable():
		s.reject(it, NoInstance)
		return
	case s.full(it):
		s.reject(it, QueueFull)
		return
	}
	if seq == nil {
		seq = &Sequence{id: it.Correlation}
		s.live[it.Correlation] = seq
		s.backlog.push(seq)
	}
	it.seq = seq
	s.hold(it)
	if it.End {
		s.forget(seq)
	}
	if seq.instance == 0 {
		if it.Timeout > 0 && it.Timeout < Never-s.now {
			end = min(end, s.now+it.Timeout)
		}
		s.alarms.set(it, end)
		s.fillSlots()
		return
	}
	s.alarms.set(it, end)
	s.idle.remove(seq)
	s.advance(seq)
}

// hold makes it the last pending request of its sequence.
func (s *Sequences) hold(it *Item) {
	it.seq.pending.push(it)
	it.state = pending
	s.order++
	it.sequence = s.order
	s.pending.Requests++
	s.pending.Bytes += it.Bytes
}

// requeue holds a request that has run, and has to run again. The queue has room for it: its
// client was let in already. A sequence that has ended has lost its instance.
func (s *Sequences) requeue(it *Item) {
	if it.seq.ended {
		s.reject(it, Unbound)
		return
	}
	it.Start = false
	s.hold(it) // done lets it advance
}

func (s *Sequences) reject(it *Item, v Verdict) {
	it.state = answered
	s.out.List = append(s.out.List, Action{Kind: Reject, Item: it, Verdict: v})
}

// full reports whether the queue has no room for it.
func (s *Sequences) full(it *Item) bool {
	requests, bytes := s.pending.Requests+s.core.shared.Requests, s.pending.Bytes+s.core.shared.Bytes
	return s.most.Requests > 0 && requests >= s.most.Requests || s.most.Bytes > 0 && requests > 0 && bytes+it.Bytes > s.most.Bytes
}

// forget makes the sequence take no more requests. Its id may start another one.
func (s *Sequences) forget(seq *Sequence) {
	if !seq.ended {
		seq.ended = true
		delete(s.live, seq.id)
	}
}

// fillSlots gives free slots to the sequences that wait longest.
func (s *Sequences) fillSlots() {
	for s.backlog.first != nil {
		number, slot := s.freeSlot()
		if number == 0 {
			return
		}
		seq := s.backlog.first
		s.backlog.remove(seq)
		seq.instance, seq.slot = number, slot
		in := s.instances[number-1]
		in.held[slot] = seq
		in.free--
		for it := seq.pending.first; it != nil; it = it.next { // a client's timeout is for the backlog
			end := Never
			if it.Deadline != 0 {
				end = it.Deadline
			}
			s.alarms.set(it, end)
		}
		s.advance(seq)
	}
}

// freeSlot returns the free slot with the lowest number, so that sequences are spread over
// the instances; instance 0 means that there is none.
func (s *Sequences) freeSlot() (instance, slot int) {
	slot = s.cfg.Slots
	for i, in := range s.instances {
		if !in.serves || in.free == 0 {
			continue
		}
		for k, held := range in.held[:slot] {
			if held == nil {
				instance, slot = i+1, k
				break
			}
		}
	}
	return instance, slot
}

// advance gives the next request of a sequence that has a slot to the core, unless the
// core has one of it. A sequence that has ended and has no more requests gives up its slot.
func (s *Sequences) advance(seq *Sequence) {
	switch {
	case seq.busy:
	case seq.pending.first != nil:
		it := seq.pending.first
		s.take(it)
		seq.busy = true
		it.Instance = seq.instance
		if it.Start {
			seq.StateShape = 0
		}
		if seq.StateShape != 0 {
			const prime = 1099511628211
			it.Shape = (it.Shape ^ seq.StateShape) * prime
		}
		s.stepCore(Event{Kind: Arrive, Item: it})
	case seq.ended || s.closing:
		s.end(seq)
	default:
		seq.idleSince = s.now
		s.idle.push(seq)
	}
}

// take removes a pending request from its sequence.
func (s *Sequences) take(it *Item) {
	it.seq.pending.remove(it)
	s.alarms.set(it, Never)
	s.pending.Requests--
	s.pending.Bytes -= it.Bytes
	it.state = absent
}

// end ends a sequence that has no requests, and gives its slot to another one.
func (s *Sequences) end(seq *Sequence) {
	s.forget(seq)
	if seq.list != nil {
		seq.list.remove(seq)
	}
	if seq.instance == 0 {
		return
	}
	if in := s.instances[seq.instance-1]; in.serves && in.held[seq.slot] == seq {
		in.held[seq.slot] = nil
		in.free++
		s.fillSlots()
	}
}

// answer answers a pending request.
func (s *Sequences) answer(it *Item, v Verdict) {
	s.take(it)
	s.reject(it, v)
}

// breakAt answers a pending request, and then the later ones of its sequence, which ends
// once the earlier ones have run.
func (s *Sequences) breakAt(it *Item, v, later Verdict) {
	seq := it.seq
	s.forget(seq)
	for next := it.next; it != nil; {
		s.answer(it, v)
		if it, v = next, later; it != nil {
			next = it.next
		}
	}
	if seq.pending.first == nil && !seq.busy {
		s.end(seq)
	}
}

// breakAfter answers all pending requests of a sequence whose earlier request has left the
// core without having run.
func (s *Sequences) breakAfter(seq *Sequence) {
	seq.busy = false
	s.forget(seq)
	for seq.pending.first != nil {
		s.answer(seq.pending.first, Discontinued)
	}
	s.end(seq)
}

// done lets the sequences of a batch that has ended go on.
func (s *Sequences) done(number int) {
	in := s.instances[number-1]
	for _, seq := range in.running {
		seq.busy, seq.running = false, false
		if s.cfg.Iterative && seq.pending.first == nil {
			s.forget(seq)
		}
	}
	for _, seq := range in.running {
		s.advance(seq)
	}
	clear(in.running)
	in.running = in.running[:0]
}

func (s *Sequences) up(number int) {
	for len(s.instances) < number {
		s.instances = append(s.instances, &slots{})
	}
	s.instances[number-1] = &slots{serves: true, held: make([]*Sequence, s.cfg.Slots), free: s.cfg.Slots}
	s.fillSlots()
}

// down ends the sequences of an instance that leaves: what it knows of them is lost.
func (s *Sequences) down(number int) {
	in := s.instances[number-1]
	in.serves = false
	for _, seq := range in.held {
		if seq == nil {
			continue
		}
		s.forget(seq)
		for seq.pending.first != nil {
			s.answer(seq.pending.first, Unbound)
		}
		if !seq.busy {
			s.end(seq)
		}
	}
}

// answerIfUnservable answers the requests of waiting sequences if no instance can be
// started.
func (s *Sequences) answerIfUnservable() {
	for s.backlog.first != nil && s.core.unservable() {
		s.breakAt(s.backlog.first.pending.first, NoInstance, NoInstance)
	}
}

// expire handles pending requests whose time has passed, and sequences that have been idle
// for too long.
func (s *Sequences) expire() {
	for s.alarms.next() <= s.now {
		it := s.alarms[0]
		if it.Deadline != 0 && it.Deadline <= s.now {
			s.breakAt(it, Expired, Discontinued)
		} else {
			// The sequence waits for a slot, and none of its requests has run.
			s.breakAt(it.seq.pending.first, SequenceTimedOut, SequenceTimedOut)
		}
	}
	for s.nextIdle() <= s.now {
		s.end(s.idle.first)
	}
}

// nextIdle returns when the next sequence has been idle for too long.
func (s *Sequences) nextIdle() Time {
	if s.idle.first == nil || s.cfg.MaxIdle == 0 {
		return Never
	}
	return after(s.idle.first.idleSince, s.cfg.MaxIdle)
}

// sequenceList is an intrusive queue of sequences.
type sequenceList struct {
	first, last *Sequence
	size        int
}

func (l *sequenceList) push(q *Sequence) {
	q.list, q.prev, q.next = l, l.last, nil
	if l.last == nil {
		l.first = q
	} else {
		l.last.next = q
	}
	l.last = q
	l.size++
}

// remove removes a sequence, if it is in the list.
func (l *sequenceList) remove(q *Sequence) {
	if q.list != l {
		return
	}
	if q.prev == nil {
		l.first = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.last = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.list, q.prev, q.next = nil, nil, nil
	l.size--
}
