package batching_test

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/batching/batchingtest"
)

// A game plays a sequence of events against a core, and a referee checks the actions.
// Bytes determine all random choices: the configuration, the next event, and the time
// before it. So each game is also an input of the fuzzer, and can be repeated.
//
// The game knows no more than a caller: it learns from the actions which instances are
// awake, which run, and whether a turn was requested.
type game struct {
	chance []byte        // remaining random bytes; when they are used up, every choice is the first
	unit   batching.Time // unit of all times; zero means 1
	masked bool          // the referee does not know the policy
	plain  bool          // no learning policy
	learns bool          // the policy learns

	forgetful bool // the core is not told the tenants

	use func(*game) batching.Policy // if not nil, creates the policy instead of a random choice

	spoil func(*game, batching.Event) // changes the actions before the referee sees them
	note  func(*game, batching.Event) // called after each step

	cfg      batching.Config
	maxRows  int // maximum rows of a request that can be accepted
	tenants  int // number of tenants
	spice    int // optional properties of this game's requests, as bits
	core     *batching.Core
	referee  *batchingtest.Referee
	punctual bool // wakes the core at the requested time; otherwise at any later time
	brisk    bool // lets instances take immediately; otherwise at any later time

	now       batching.Time
	out       batching.Actions
	arrivals  int
	open      []*batching.Item // unanswered items
	lent      []*batching.Item // answered items that are still in a running batch
	free      []*batching.Item // items for reuse
	instances [4]place         // by number, from 1
	joined    int              // instances that the core knows, as bits
	asked     bool
	turns     int // turns that are not used yet
}

// A place is the caller's view of an instance.
type place struct {
	state   placeState
	leaving bool
	batch   []*batching.Item
	lent    []*batching.Item // the batch, in the core's memory
	serial  uint64           // number of the batch
}

type placeState int

const (
	absent placeState = iota
	awake
	parked
	running
)

// play plays the game to its end: until the random bytes are used up, and then until all
// requests are answered.
func (g *game) play() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	g.unit = max(g.unit, 1)
	g.configure()
	for range 1 + g.choose(3) {
		if err := g.join(); err != nil {
			return err
		}
	}
	for len(g.chance) > 0 {
		if err := g.move(); err != nil {
			return err
		}
	}
	return g.drain()
}

func (g *game) choose(n int) int {
	if len(g.chance) == 0 {
		return 0
	}
	c := int(g.chance[0]) % n
	g.chance = g.chance[1:]
	return c
}

func (g *game) time(n int) batching.Time { return batching.Time(g.choose(n)) * g.unit }

// The optional properties of requests. Not every game has all of them, so that some form
// large batches and long queues.
const (
	shapes = 1 << iota
	manyShapes
	priorities
	timeouts
	deadlines
	bound
	cancels
	closes
)

func (g *game) configure() {
	g.maxRows = 1 + g.choose(8)
	g.cfg = batching.Config{MaxRows: g.maxRows}
	if kind := g.choose(9); kind > 0 {
		g.cfg.Policy = g.policy(kind)
	} else if g.choose(2) == 1 {
		g.cfg.MaxRows = 0
	}
	if n := g.choose(4); n > 0 {
		g.cfg.Levels, g.cfg.DefaultLevel = make([]batching.Level, n), 1+g.choose(n)
	}
	for i := range g.cfg.Levels {
		if how := g.choose(32); how > 15 {
			g.cfg.Levels[i] = batching.Level{
				MaxQueue: g.choose(4), Timeout: g.time(16), AllowOverride: how&1 == 1, DelayOnTimeout: how&2 == 2, UseSharedBound: how&4 == 4, TimeoutIsDeadline: how&8 == 8,
			}
		}
	}
	g.cfg.Shared = batching.Bound{Requests: g.choose(8), Bytes: int64(g.choose(32))}
	how := g.choose(256)
	g.cfg.KeepOrder, g.cfg.OvertakeOtherShapes, g.cfg.TakeTurns = how&3 == 3, how&12 == 12, how&48 == 48
	g.punctual, g.brisk = how&64 == 0, how&128 == 0
	g.spice = g.choose(256)
	if p, ok := g.cfg.Policy.(batching.Triton); ok && !g.plain && g.cfg.OvertakeOtherShapes {
		g.cfg.Policy = padder{p}
		g.spice |= shapes // or there would be nothing to pad
	}
	if g.use != nil {
		g.cfg.Policy = g.use(g)
	}
	if g.choose(4) == 1 {
		g.cfg.Predictor, g.cfg.Objective = exactly{g.unit + g.time(8), g.time(3)}, g.time(64)
	}
	g.tenants = max(1, g.choose(6)-1) // 1 in every second game
	if g.masked && g.cfg.Policy != nil {
		g.cfg.Policy = mask{g.cfg.Policy}
	}
	g.core, g.referee = batching.New(g.cfg), batchingtest.New(g.cfg)
}

// A padder lets some requests of other shapes join each batch.
type padder struct{ batching.Triton }

func (p padder) Pad(now batching.Time, items []*batching.Item, host int) (int, batching.Reason) {
	return len(items) - int(now)%(len(items)-host+1), batching.Padded
}

// A mask hides the type of a policy.
type mask struct{ batching.Policy }

func (g *game) policy(kind int) batching.Policy {
	if kind == 8 && !g.plain {
		g.learns = true
		return g.automatic()
	}
	p := batching.Triton{MaxRows: g.maxRows}
	if kind > 3 {
		p.MaxDelay = g.time(16)
	}
	if kind%2 == 0 {
		for size, bits := 1, g.choose(256); size <= g.maxRows; size++ {
			if bits>>(size-1)&1 == 1 {
				p.Preferred = append(p.Preferred, size)
			}
		}
	}
	return p
}

// automatic returns a learning policy, which may start with some measured sizes.
func (g *game) automatic() batching.Policy {
	opt := automatic.Options{MaxRows: g.maxRows, Instances: 1 + g.choose(4), Objective: g.time(64)}
	for rows := 1; rows <= g.maxRows; rows++ {
		if took := g.time(32); took > 0 {
			opt.Profile.Sizes = append(opt.Profile.Sizes, batching.Timing{Rows: rows, Median: took, Runs: g.choose(6)})
		}
	}
	for n := range g.choose(5) {
		opt.Profile.Slowdown = append(opt.Profile.Slowdown, 1+float64(n*g.choose(5))/4)
	}
	return automatic.New(opt)
}

// move advances the time and sends a random event.
func (g *game) move() error {
	if err := g.pass(); err != nil {
		return err
	}
	switch g.choose(16) {
	case 0, 1, 2, 3, 4:
		return g.arrive()
	case 5:
		if g.spice&cancels != 0 {
			return g.cancel()
		}
		return g.arrive()
	case 6, 7, 8:
		return g.withOne(awake, batching.Take)
	case 9, 10, 11:
		return g.withOne(running, batching.Done)
	case 12:
		return g.join()
	case 13:
		switch g.choose(4) {
		case 0:
			return g.withOne(placeState(1+g.choose(3)), batching.Down)
		case 1:
			return g.breaks()
		}
	case 14:
		return g.turn()
	case 15:
		if g.spice&closes != 0 && g.choose(16) == 0 {
			return g.step(batching.Event{Kind: batching.Close})
		}
	}
	return g.step(batching.Event{Kind: batching.Wake})
}

func (g *game) pass() error {
	to := g.now
	switch g.choose(4) {
	case 1:
		to += g.time(4)
	case 2:
		to += g.time(32)
	case 3:
		if g.out.Wake != batching.Never {
			to = max(to, g.out.Wake)
		}
	}
	for g.punctual && g.out.Wake < to {
		g.now = max(g.now, g.out.Wake)
		if err := g.step(batching.Event{Kind: batching.Wake}); err != nil {
			return err
		}
	}
	g.now = to
	return nil
}

func (g *game) arrive() error {
	it := &batching.Item{}
	if n := len(g.free); n > 0 {
		it, g.free = g.free[n-1], g.free[:n-1]
	}
	g.arrivals++
	it.Owner = g.arrivals
	it.Rows = 1
	it.Shape, it.Priority, it.Timeout, it.Deadline, it.TransportDelay, it.Instance, it.Elements = 0, 0, 0, 0, 0, 0, 0
	has := g.choose(256)
	if has&1 == 1 {
		it.Rows += g.choose(g.maxRows)
	}
	it.Bytes = int64(it.Rows * min(1, g.choose(8))) // inputs without elements have none
	switch has >>= 1; g.spice & has & (shapes | manyShapes) {
	case shapes:
		it.Shape = uint64(g.choose(3))
	case manyShapes:
		it.Shape = uint64(g.choose(48))
	}
	it.Elements = int64(it.Shape * it.Shape)
	it.PadGroup = 1 + it.Shape%2
	if g.spice&has&priorities != 0 {
		it.Priority = uint64(g.choose(len(g.cfg.Levels) + 2))
	}
	if g.spice&has&timeouts != 0 {
		it.Timeout = g.time(16)
	}
	if g.spice&has&deadlines != 0 {
		it.Deadline = max(0, g.now+g.time(64)-2*g.unit)
		it.TransportDelay = g.time(8)
	}
	if g.spice&has&bound != 0 {
		it.Instance = 1 + g.choose(len(g.instances))
	}
	it.Tenant = g.choose(g.tenants)
	it.Weight = 4 * it.Tenant % 3 // 0, 1, 2, 0
	if has == 0 {
		it.Rows = []int{0, g.maxRows + 1}[g.choose(2)]
	}
	g.open = append(g.open, it)
	return g.step(batching.Event{Kind: batching.Arrive, Item: it})
}

// cancel cancels a request, sometimes one that is answered already.
func (g *game) cancel() error {
	from := g.open
	if g.choose(8) == 7 {
		from = slices.Concat(g.free, g.lent)
	}
	if len(from) == 0 {
		return nil
	}
	return g.step(batching.Event{Kind: batching.Cancel, Item: from[g.choose(len(from))]})
}

// withOne sends the event for an instance in the given state, if there is one.
func (g *game) withOne(s placeState, k batching.EventKind) error {
	var numbers []int
	for i, p := range g.instances {
		if p.state == s && (k != batching.Down || !p.leaving) {
			numbers = append(numbers, i+1)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	return g.step(batching.Event{Kind: k, Instance: numbers[g.choose(len(numbers))]})
}

// join adds an instance, if there is room for one.
func (g *game) join() error { return g.withOne(absent, batching.Up) }

// breaks reports that an instance that is down or leaves cannot be started, if there is one.
func (g *game) breaks() error {
	var numbers []int
	for i, p := range g.instances {
		if p.leaving || p.state == absent && g.joined&(1<<i) != 0 {
			numbers = append(numbers, i+1)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	return g.step(batching.Event{Kind: batching.Broken, Instance: numbers[g.choose(len(numbers))]})
}

func (g *game) turn() error {
	if !g.asked {
		return nil
	}
	return g.step(batching.Event{Kind: batching.Turn})
}

// step sends an event to the core, checks the actions, and carries them out.
func (g *game) step(ev batching.Event) error {
	if g.forgetful && ev.Kind == batching.Arrive {
		tenant := ev.Item.Tenant
		ev.Item.Tenant = 0
		g.core.Step(g.now, ev, &g.out)
		ev.Item.Tenant = tenant
	} else {
		g.core.Step(g.now, ev, &g.out)
	}
	if g.spoil != nil {
		g.spoil(g, ev)
	}
	if g.note != nil {
		g.note(g, ev)
	}
	if err := g.referee.Check(g.now, ev, &g.out); err != nil {
		return err
	}
	if got, want := g.core.Waiting(), g.referee.Waiting(); got != want {
		return fmt.Errorf("%d requests wait, but the core says %d", want, got)
	}
	if got, want := g.core.Running(), g.referee.Running(); got != want {
		return fmt.Errorf("%d batches run, but the core says %d", want, got)
	}
	g.happened(ev)
	for _, a := range g.out.List {
		g.carryOut(a)
	}
	for i := range g.instances {
		if g.brisk && g.instances[i].state == awake {
			return g.step(batching.Event{Kind: batching.Take, Instance: i + 1})
		}
	}
	return nil
}

func (g *game) happened(ev batching.Event) {
	switch ev.Kind {
	case batching.Up:
		g.instances[ev.Instance-1] = place{state: awake}
		g.joined |= 1 << (ev.Instance - 1)
	case batching.Take:
		g.instances[ev.Instance-1].state = parked
	case batching.Done:
		p := &g.instances[ev.Instance-1]
		p.state = awake
		if g.cfg.TakeTurns {
			g.turns++ // to be returned
		}
		for _, it := range p.batch {
			if i := slices.Index(g.lent, it); i >= 0 {
				g.lent = slices.Delete(g.lent, i, i+1)
				g.free = append(g.free, it)
			}
		}
		p.batch = p.batch[:0]
	case batching.Down:
		g.instances[ev.Instance-1].leaving = true
	case batching.Turn:
		g.asked = false
		g.turns++
	case batching.Wake, batching.Arrive, batching.Cancel, batching.Broken, batching.Close, batching.Flush:
	}
}

func (g *game) carryOut(a batching.Action) {
	switch a.Kind {
	case batching.Run:
		p := &g.instances[a.Instance-1]
		p.state, p.batch, p.lent, p.serial = running, append(p.batch, a.Items...), a.Items, a.Batch
		if g.cfg.TakeTurns {
			g.turns--
		}
	case batching.Unpark:
		g.instances[a.Instance-1].state = awake
	case batching.Leave:
		g.instances[a.Instance-1] = place{}
	case batching.Deliver, batching.Reject:
		g.letGo(a.Item)
	case batching.Ask:
		g.asked = true
	case batching.Yield:
		g.turns--
	case batching.Stop:
	}
}

// letGo reclaims an item, unless a running batch still holds it.
func (g *game) letGo(it *batching.Item) {
	i := slices.Index(g.open, it)
	g.open = slices.Delete(g.open, i, i+1)
	if g.holds(it) {
		g.lent = append(g.lent, it)
	} else {
		g.free = append(g.free, it)
	}
}

// drain completes all requests, and checks that none is left.
func (g *game) drain() error {
	for range 10_000 {
		var err error
		switch {
		case g.has(awake):
			err = g.withOne(awake, batching.Take)
		case g.asked:
			err = g.turn()
		case g.has(running):
			g.now += g.unit
			err = g.withOne(running, batching.Done)
		case g.core.Waiting() > 0 && !g.has(parked):
			err = g.join()
		case g.out.Wake != batching.Never:
			g.now = max(g.now, g.out.Wake)
			err = g.step(batching.Event{Kind: batching.Wake})
		case len(g.open) > 0:
			return fmt.Errorf("request %v waits, and nothing more will happen", g.open[0].Owner)
		default:
			return g.referee.Finish()
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the game does not come to its end")
}

func (g *game) has(s placeState) bool {
	return slices.ContainsFunc(g.instances[:], func(p place) bool { return p.state == s })
}
