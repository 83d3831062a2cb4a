package cell

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

const never = batching.Never

// Limits of retries, of each proxy and model, as a cell sets them in Envoy (internal/cell/xds).
const (
	maxRetries  = 2
	retryShare  = 0.1 // of the requests in flight
	minInFlight = 64  // retries that are allowed in any case
)

// An outcome is what a proxy gets from a node.
type outcome uint8

const (
	answered outcome = iota
	refused          // the node is busy
	broken           // the connection failed
)

// A request is one request of a client, on its way or at a node.
type request struct {
	item    batching.Item
	to      *copyOf
	tried   [maxRetries]*copyOf // by earlier tries
	model   int32
	proxy   int16
	tries   int8
	outcome outcome
	replied bool
	rows    int
	number  uint64
	sent    Time // by the client
}

func (r *request) with(o outcome) *request {
	r.outcome = o
	return r
}

func sortRequests(all []*request) {
	slices.SortFunc(all, func(x, y *request) int { return cmp.Compare(x.number, y.number) })
}

// A cell is a run in progress.
type cell struct {
	cfg    Config
	now    Time
	chance *rand.Rand

	nodes    []*node
	order    *order
	routes   []route
	toNode   fifo
	toProxy  fifo
	free     []*request
	number   uint64
	arrivals alias
	rates    []float64 // by model, as clients send
	load     float64
	arrival  Time // of the next request
	recorded int
	retrying map[int64]int // retries in flight by proxy and model
	proxies  []int16       // that are alive
	turns    []uint16      // of round robin, by model and proxy
	ejects   bool          // a proxy has ejected a copy
	kills    bool

	asked   []uint32 // rows of first tries that reached nodes since the last report, by model
	control control
	agenda  []agendum // by time
	figures figures
}

// An agendum is something that the run does at a time.
type agendum struct {
	at Time
	do func()
}

func newCell(cfg Config) (*cell, error) {
	cfg.Models = slices.Clone(cfg.Models)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c := &cell{
		cfg: cfg, chance: rand.New(rand.NewPCG(cfg.Seed, 1)), load: 1,
		order: newOrder(len(cfg.Nodes)), routes: make([]route, len(cfg.Models)), rates: make([]float64, len(cfg.Models)),
		retrying: map[int64]int{}, turns: make([]uint16, len(cfg.Models)*cfg.Proxies),
		asked: make([]uint32, len(cfg.Models)), figures: newFigures(&cfg),
	}
	for _, e := range cfg.Events {
		c.kills = c.kills || e.Kind == NodeLost || e.Kind == ZoneLost || e.Kind == Upgrade
	}
	for i := range cfg.Nodes {
		c.nodes = append(c.nodes, c.newNode(i))
	}
	for i := range cfg.Models {
		c.rates[i] = cfg.Models[i].Rate
	}
	for i := range cfg.Proxies {
		c.proxies = append(c.proxies, int16(i))
	}
	for i := range c.turns {
		c.turns[i] = uint16(c.chance.Uint32())
	}
	c.arrivals = newAlias(c.rates)
	c.startControl()
	for _, change := range cfg.Load {
		c.plan(change.At, func() { c.setLoad(change.Times) })
	}
	if err := c.planEvents(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(c.agenda, func(x, y agendum) int { return cmp.Compare(x.at, y.at) })
	c.nextArrival()
	return c, nil
}

// plan adds to the agenda, before the run.
func (c *cell) plan(at Time, do func()) { c.agenda = append(c.agenda, agendum{at, do}) }

// run runs everything in the order of time. What happens at the same time has this order:
// the agenda, nodes, answers, requests at nodes, and requests at proxies.
func (c *cell) run() {
	for {
		first, t := c.order.next()
		next, what := t, 1
		if len(c.agenda) > 0 && c.agenda[0].at <= next {
			next, what = c.agenda[0].at, 0
		}
		if t := c.toProxy.next(); t < next {
			next, what = t, 2
		}
		if t := c.toNode.next(); t < next {
			next, what = t, 3
		}
		if c.arrival < next {
			next, what = c.arrival, 4
		}
		if next > c.cfg.Duration {
			return
		}
		c.now = next
		switch what {
		case 0:
			do := c.agenda[0].do
			c.agenda = c.agenda[1:]
			do()
		case 1:
			c.nodes[first].world.Run(next)
			c.schedule(first)
		case 2:
			c.receive(c.toProxy.pop())
		case 3:
			c.arrive(c.toNode.pop())
		case 4:
			c.request()
		}
	}
}

// nextArrival draws the time of the next request.
func (c *cell) nextArrival() {
	if all := c.cfg.Recorded; len(all) > 0 {
		c.arrival = never
		if c.recorded < len(all) {
			c.arrival = all[c.recorded].At
		}
		return
	}
	rate := c.arrivals.sum * c.load
	if rate <= 0 {
		c.arrival = never // until the load changes
		return
	}
	c.arrival = c.now + time.Duration(math.Ceil(c.chance.ExpFloat64()/rate*float64(time.Second)))
}

func (c *cell) setLoad(times float64) {
	c.load = times
	c.nextArrival()
}

// request is called when a client sends a request to a proxy.
func (c *cell) request() {
	r := &request{}
	if n := len(c.free); n > 0 {
		r = c.free[n-1]
		c.free = c.free[:n-1]
	}
	c.number++
	*r = request{number: c.number, rows: 1, proxy: c.proxies[c.chance.IntN(len(c.proxies))], sent: c.now}
	if len(c.cfg.Recorded) > 0 {
		a := &c.cfg.Recorded[c.recorded]
		r.model, r.rows = int32(a.Model), max(1, a.Rows)
		c.recorded++
	} else {
		r.model = c.arrivals.draw(c.chance)
	}
	c.figures.sent(c.now)
	c.send(r)
	c.nextArrival()
}

// send sends a request to a copy, if there is one.
func (c *cell) send(r *request) {
	to := c.pick(r)
	if to == nil && r.tries == 0 {
		to = c.loadOnDemand(r.model)
	}
	if to == nil {
		c.finish(r, false)
		return
	}
	r.to, r.replied = to, false
	to.inFlight[r.proxy]++
	c.toNode.push(c.now+c.cfg.Network, r)
}

// receive is called when a proxy gets a node's answer.
func (c *cell) receive(r *request) {
	r.to.inFlight[r.proxy]--
	key := int64(r.model)*int64(c.cfg.Proxies) + int64(r.proxy)
	if r.tries > 0 {
		if c.retrying[key]--; c.retrying[key] == 0 {
			delete(c.retrying, key)
		}
	}
	if r.to.observe(r, c.now) {
		c.ejects = true
	}
	switch {
	case r.outcome == answered:
		c.figures.answered(r, c.now, c.now-r.sent <= c.cfg.Models[r.model].Objective || c.cfg.Models[r.model].Objective == 0)
		if r.tries == 0 { // a second try may still be in a batch after its deadline
			c.free = append(c.free, r)
		}
	case r.tries < maxRetries && c.mayRetry(r, key):
		retry := &request{model: r.model, rows: r.rows, proxy: r.proxy, tries: r.tries + 1, tried: r.tried, number: r.number, sent: r.sent}
		retry.tried[r.tries] = r.to
		c.retrying[key]++
		c.figures.retried(c.now)
		c.send(retry)
	default:
		c.finish(r, r.outcome == refused)
	}
}

// mayRetry reports whether the proxy's retry budget for the model has room.
func (c *cell) mayRetry(r *request, key int64) bool {
	n := c.retrying[key]
	if n < minInFlight {
		return true
	}
	inFlight := 0
	for _, to := range c.routes[r.model].active {
		inFlight += int(to.inFlight[r.proxy])
	}
	return float64(n) < retryShare*float64(inFlight)
}

// finish ends a request that is not answered.
func (c *cell) finish(r *request, wasRefused bool) {
	c.figures.failed(r, wasRefused)
	if r.tries > 0 && r.to == nil {
		key := int64(r.model)*int64(c.cfg.Proxies) + int64(r.proxy)
		c.retrying[key]--
	}
}
