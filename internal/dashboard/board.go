package dashboard

import (
	"encoding/json"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A model is what an event says of one version. Counts are since it was loaded.
type model struct {
	Name      string            `json:"name"`
	Version   string            `json:"version"`
	State     string            `json:"state"`
	Reason    string            `json:"reason,omitempty"`
	Serving   bool              `json:"serving"`
	Instances int               `json:"instances"`
	Alive     int               `json:"alive"`
	Restarts  uint64            `json:"restarts"`
	Queue     int               `json:"queue"` // requests that wait now
	Memory    int64             `json:"memory_bytes"`
	Objective time.Duration     `json:"objective_ns,omitempty"`
	Late      uint64            `json:"late"`
	Success   uint64            `json:"success"`
	Failed    map[string]uint64 `json:"failed"` // by code
	Rows      uint64            `json:"rows"`   // of the requests that succeeded
	Batches   uint64            `json:"batches"`
	BatchRows uint64            `json:"batch_rows"` // of all batches
	Sizes     []uint64          `json:"sizes"`      // batches of up to 1, 2, 4, ... rows
	Closed    map[string]uint64 `json:"closed"`     // batches by close reason
	Latency   []uint64          `json:"latency"`    // requests that succeeded by time, in the buckets of hello
	QueueTime []uint64          `json:"queue_time"` // requests of batches, the same
	Compute   []uint64          `json:"compute"`    // runs of the engine, the same
}

// A summary is what an event says of the server.
type summary struct {
	At        int64             `json:"at"`        // Unix time in milliseconds
	Accepting bool              `json:"accepting"` // it has started, and does not stop
	Draining  bool              `json:"draining"`
	InFlight  int               `json:"in_flight"`
	Unknown   map[string]uint64 `json:"unknown"` // requests for models that do not serve, by code
	Budget    int64             `json:"budget_bytes,omitempty"`
	Used      int64             `json:"budget_used_bytes"`
	Tenants   []tenant          `json:"tenants,omitempty"`

	// Names has all versions in their order, if one was added or removed. It is empty, and not
	// nil, if there are none any more.
	Names  []string          `json:"names,omitzero"`
	Models []json.RawMessage `json:"models"` // those that changed
}

type tenant struct {
	Name     string            `json:"name"`
	Admitted uint64            `json:"admitted"`
	Refused  map[string]uint64 `json:"refused"` // by limit
	InFlight int               `json:"in_flight"`
}

// A signature changes with what an event says of a version.
type signature struct {
	state, reason                         string
	serving                               bool
	instances, alive, queue               int
	success, failed, restarts, runs, late uint64
	memory                                int64
	objective                             time.Duration
}

// An entry is an encoded model.
type entry struct {
	signature signature
	text      json.RawMessage
	changed   uint64 // number of the edition in which it changed
}

// A board holds what all viewers see, so that each figure is read and encoded once for all of
// them. It is empty without viewers.
type board struct {
	mu      sync.Mutex // guards the following
	viewers int
	callers map[string]int // viewers of each caller; has no entries of 0
	edition uint64         // number of the last refresh
	at      time.Time
	names   []string // nil before the first refresh
	renamed uint64   // edition in which names changed
	entries map[string]*entry
	base    summary // without names and models
}

// enter and leave count viewers. The last one takes the memory with it. enter returns an error if
// its caller has its share of the viewers, or no more are allowed.
func (b *board) enter(caller string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch own := b.callers[caller]; {
	case own >= maxOfCaller:
		return infer.Errorf(infer.Overloaded, "%d dashboards of your account or address are open, and no more are allowed; close one", own)
	case b.viewers >= maxViewers:
		return infer.Errorf(infer.Overloaded, "%d dashboards are open, and no more are allowed; retry later", b.viewers)
	case own > 0 && b.viewers >= maxViewers-keptFree:
		return infer.Errorf(infer.Overloaded, "%d dashboards are open, and the rest is for callers without one; close another one first", b.viewers)
	}
	if b.viewers++; b.entries == nil {
		b.entries, b.callers = map[string]*entry{}, map[string]int{}
	}
	b.callers[caller]++
	return nil
}

func (b *board) leave(caller string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.callers[caller]--; b.callers[caller] == 0 {
		delete(b.callers, caller)
	}
	if b.viewers--; b.viewers == 0 {
		b.entries, b.callers, b.names, b.base, b.at = nil, nil, nil, summary{}, time.Time{}
	}
}

// callerOf returns whom a request counts for: its principals, or the address it comes from. All
// addresses of an IPv6 network count as one, because a client can have all of them.
func callerOf(r *http.Request) string {
	if c := access.CallerOf(r.Context()); c != nil && len(c.Principals) > 0 {
		return "principal " + c.Name()
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address, bits := at.Addr().Unmap(), 64
	if address.Is4() {
		bits = 32
	}
	network, _ := address.WithZone("").Prefix(bits) // fails only for more bits than an address has
	return network.String()
}

// since returns an event with what has changed since an edition, and the edition that it is of.
// Figures may be older than now by up to age.
func (d *Dashboard) since(edition uint64, now time.Time, age time.Duration) (event []byte, current uint64, err error) {
	b := &d.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.at) > age {
		if err := d.refreshLocked(now); err != nil {
			return nil, 0, err
		}
	}
	s := b.base
	if b.renamed > edition {
		s.Names = b.names
	}
	s.Models = []json.RawMessage{}
	for _, name := range b.names {
		if e := b.entries[name]; e.changed > edition {
			s.Models = append(s.Models, e.text)
		}
	}
	event, err = json.Marshal(s)
	return event, b.edition, err
}

func (d *Dashboard) refreshLocked(now time.Time) error {
	b := &d.board
	b.edition++
	b.at = now
	b.base = d.summary(now)
	names := []string{}
	for _, l := range d.src.Live() {
		name := l.Name + "/" + l.Version
		names = append(names, name)
		sig := sign(&l)
		e := b.entries[name]
		if e != nil && e.signature == sig {
			continue
		}
		text, err := json.Marshal(describe(&l))
		if err != nil {
			return err
		}
		b.entries[name] = &entry{signature: sig, text: text, changed: b.edition}
	}
	if b.names == nil || !slices.Equal(names, b.names) {
		b.names, b.renamed = names, b.edition
		kept := make(map[string]*entry, len(names))
		for _, name := range names {
			kept[name] = b.entries[name]
		}
		b.entries = kept
	}
	return nil
}

func (d *Dashboard) summary(now time.Time) summary {
	s := summary{At: now.UnixMilli(), Accepting: d.src.Accepting(), Draining: d.src.Unready(), InFlight: d.src.InFlight(), Unknown: map[string]uint64{}}
	for code, n := range d.src.UnknownModel() {
		if n > 0 {
			s.Unknown[label(infer.Code(code))] = n
		}
	}
	if d.opts.Budget != nil {
		state := d.opts.Budget.State()
		s.Budget, s.Used = state.Total, state.Used
	}
	if d.opts.Tenants != nil {
		for _, u := range d.opts.Tenants.Usage() {
			t := tenant{Name: u.Tenant, Admitted: u.Requests, Refused: map[string]uint64{}, InFlight: u.InFlight}
			for limit, n := range u.Refused {
				t.Refused[access.Limit(limit).String()] = n
			}
			s.Tenants = append(s.Tenants, t)
		}
	}
	return s
}

func sign(l *server.Live) signature {
	s := signature{state: l.State, reason: l.Reason, serving: l.Figures != nil, instances: l.Instances}
	if f := l.Figures; f != nil {
		s.alive, s.queue, s.restarts, s.runs, s.late = f.AliveInstances, f.Waiting, f.Stats.Restarts, f.Stats.Runs, f.Stats.Late
		s.success, s.failed = f.Stats.Success.Count, f.Stats.Fail.Count
		s.memory, s.objective = f.Memory, f.Stats.Objective
	}
	return s
}

func describe(l *server.Live) *model {
	m := &model{Name: l.Name, Version: l.Version, State: l.State, Reason: l.Reason, Instances: l.Instances, Failed: map[string]uint64{}, Closed: map[string]uint64{}}
	f := l.Figures
	if f == nil {
		return m
	}
	s := &f.Stats
	m.Serving, m.Alive, m.Restarts, m.Queue, m.Memory = true, f.AliveInstances, s.Restarts, f.Waiting, f.Memory
	m.Objective, m.Late, m.Success, m.Rows = s.Objective, s.Late, s.Success.Count, s.Rows
	m.BatchRows, m.Sizes = s.BatchSizes.Total, s.BatchSizes.Buckets
	m.Latency, m.QueueTime, m.Compute = s.RequestTimes.Buckets[:], s.QueueTimes.Buckets[:], s.EngineTimes.Buckets[:]
	for code, n := range s.Failed {
		if n > 0 {
			m.Failed[label(infer.Code(code))] = n
		}
	}
	for reason, n := range s.CloseReasons {
		if m.Batches += n; n > 0 {
			m.Closed[batching.Reason(reason).String()] = n
		}
	}
	return m
}

// label returns the name that a code has in the metrics.
func label(code infer.Code) string { return strings.ReplaceAll(code.String(), " ", "_") }

// bounds returns the upper bounds of the buckets of times, in milliseconds. The last bucket has
// none, and gets twice the one before.
func bounds() (all []float64) {
	for i := range stats.NumBounds {
		all = append(all, float64(stats.BucketBound(i))/1e6)
	}
	return append(all, math.Ldexp(all[len(all)-1], 1))
}
