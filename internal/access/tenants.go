package access

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits are what the requests of a tenant may use together. Zeros mean no limit.
type Limits struct {
	// Weight is the tenant's share of the queue of a model, relative to other tenants that
	// wait there. Zero means 1.
	Weight int `yaml:"weight"`
	// RequestsPerSecond is the rate of requests. As many as are allowed in a second, and at
	// least one, may come at once.
	RequestsPerSecond float64 `yaml:"requests_per_second"`
	// Concurrency is the number of requests in flight.
	Concurrency int `yaml:"concurrency"`
	// Bytes is the size of the inputs of the requests in flight.
	Bytes int64 `yaml:"bytes"`
}

// maxWeight keeps the shares of the core exact to 1 %.
const maxWeight = 1000

// Validate returns an error if the limits cannot be used.
func (l Limits) Validate() error {
	switch {
	case l.Weight < 0 || l.Weight > maxWeight:
		return fmt.Errorf("weight: found %d, expected 1 to %d", l.Weight, maxWeight)
	case l.RequestsPerSecond < 0 || math.IsNaN(l.RequestsPerSecond) || math.IsInf(l.RequestsPerSecond, 0):
		return fmt.Errorf("requests_per_second: found %v, expected a positive number", l.RequestsPerSecond)
	case l.Concurrency < 0:
		return fmt.Errorf("concurrency: found %d, expected a positive number", l.Concurrency)
	case l.Bytes < 0:
		return fmt.Errorf("bytes: found %d, expected a positive number", l.Bytes)
	}
	return nil
}

// A Limit is one that a request would exceed. It is a metric label.
type Limit uint8

// The limits.
const (
	Rate Limit = iota
	Concurrency
	Bytes
	numLimits
)

var limitNames = [numLimits]string{"rate", "concurrency", "bytes"}

func (l Limit) String() string { return limitNames[l] }

// A LimitError is the error of a request that exceeds a limit of its tenant.
type LimitError struct {
	Tenant     string
	Limit      Limit
	RetryAfter time.Duration // zero if that is when another request ends
}

var limitTexts = [numLimits]string{"more requests per second than it may", "more requests in flight than it may", "more bytes in flight than it may"}

func (e *LimitError) Error() string {
	return fmt.Sprintf("tenant '%s' sends %s", e.Tenant, limitTexts[e.Limit])
}

const (
	// maxTenants is the number of tenants that have shares, limits and metrics of their own.
	// Tokens name tenants, so that there could be any number.
	maxTenants = 100
	// OtherTenants is the name of the tenant that all further ones are.
	OtherTenants = "other"
	// AnyTenant is the name of the limits of tenants without their own.
	AnyTenant = "*"
)

// Tenants are those that share a server. Its methods may be called concurrently. A nil
// *Tenants has none.
type Tenants struct {
	byName atomic.Pointer[map[string]*Tenant] // replaced as a whole

	mu     sync.Mutex // guards the following, and replacing byName
	all    []*Tenant  // by number
	limits map[string]Limits
}

// A Tenant is what shares a server with others. It has a number for the batching core; 0 is
// for callers without a tenant.
type Tenant struct {
	Name   string
	Number int

	limits atomic.Pointer[Limits]

	mu       sync.Mutex // guards the following
	meter    meter
	requests uint64
	refused  [numLimits]uint64
}

// NewTenants returns tenants without limits.
func NewTenants() *Tenants {
	t := &Tenants{}
	t.byName.Store(&map[string]*Tenant{})
	t.add("")
	return t
}

// Configure replaces all limits. What tenants have in flight counts against the new ones.
func (t *Tenants) Configure(limits map[string]Limits) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	for _, tenant := range t.all {
		tenant.limits.Store(t.limitsOf(tenant.Name))
	}
	names := make([]string, 0, len(limits))
	for name := range limits {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names { // before tokens name others
		if name != AnyTenant && name != OtherTenants {
			t.addLocked(name, true)
		}
	}
}

// ValidateTenants returns an error if limits cannot be used.
func ValidateTenants(limits map[string]Limits) error {
	var errs []error
	for name, l := range limits {
		if err := l.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("tenants: %q: %w", name, err))
		}
	}
	if len(limits) > maxTenants {
		errs = append(errs, fmt.Errorf("tenants: found %d, expected at most %d", len(limits), maxTenants))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (t *Tenants) limitsOf(name string) *Limits {
	l, ok := t.limits[name]
	if !ok && name != "" {
		l = t.limits[AnyTenant]
	}
	return &l
}

func (t *Tenants) add(name string) *Tenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addLocked(name, false)
}

// addLocked returns a tenant, which may be new. Beyond maxTenants only those that are listed with
// limits have a place of their own.
func (t *Tenants) addLocked(name string, listed bool) *Tenant {
	known := *t.byName.Load()
	if len(t.all) > maxTenants && known[name] == nil && !listed {
		name = OtherTenants
	}
	if found := known[name]; found != nil {
		return found
	}
	tenant := &Tenant{Name: name, Number: len(t.all)}
	tenant.limits.Store(t.limitsOf(name))
	t.all = append(t.all, tenant)
	more := maps.Clone(known)
	more[name] = tenant
	t.byName.Store(&more)
	return tenant
}

// Of returns the tenant of a caller. The tenants beyond the first 100 are one tenant.
func (t *Tenants) Of(c *Caller) *Tenant {
	name := c.Tenant()
	if found := (*t.byName.Load())[name]; found != nil {
		return found
	}
	return t.add(strings.Clone(name))
}

// Weight returns the tenant's share of a queue.
func (t *Tenant) Weight() int { return t.limits.Load().Weight }

// Begin counts a request with inputs of the given size, which arrives now. It returns a
// [*LimitError] if the tenant may not have another. Otherwise the caller calls End.
func (t *Tenant) Begin(now time.Time, bytes int64) error {
	l := t.limits.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	limit, retry, ok := t.meter.admit(now, l, bytes)
	if !ok {
		t.refused[limit]++
		return &LimitError{Tenant: t.Name, Limit: limit, RetryAfter: retry}
	}
	t.requests++
	return nil
}

// End counts that a request was answered.
func (t *Tenant) End(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meter.inFlight--
	t.meter.bytes -= bytes
}

// A meter is what a tenant uses. It decides, with the time as an argument.
type meter struct {
	inFlight int
	bytes    int64 // in flight
	used     float64
	last     time.Time // when used was computed
}

// admit counts a request if the limits allow it. Otherwise it returns which one does not, and
// when to try again, if that is known.
func (m *meter) admit(now time.Time, l *Limits, bytes int64) (limit Limit, retry time.Duration, ok bool) {
	used := 0.0
	switch {
	case l.Concurrency > 0 && m.inFlight >= l.Concurrency:
		return Concurrency, 0, false
	case l.Bytes > 0 && m.inFlight > 0 && m.bytes+bytes > l.Bytes: // a single request may exceed it
		return Bytes, 0, false
	}
	if l.RequestsPerSecond > 0 {
		used = max(0, m.used-l.RequestsPerSecond*now.Sub(m.last).Seconds())
		if over := used + 1 - max(1, l.RequestsPerSecond); over > 1e-9 {
			return Rate, time.Duration(math.Ceil(over / l.RequestsPerSecond * 1e9)), false
		}
		used++
	}
	m.used, m.last = used, now
	m.inFlight++
	m.bytes += bytes
	return 0, 0, true
}

// Usage is what a tenant has used.
type Usage struct {
	Tenant   string
	InFlight int
	Bytes    int64
	Requests uint64            // that were admitted
	Refused  [numLimits]uint64 // by Limit
}

// Usage returns what each tenant has used.
func (t *Tenants) Usage() []Usage {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	all := slices.Clone(t.all)
	t.mu.Unlock()
	list := make([]Usage, len(all))
	for i, tenant := range all {
		tenant.mu.Lock()
		list[i] = Usage{Tenant: tenant.Name, InFlight: tenant.meter.inFlight, Bytes: tenant.meter.bytes, Requests: tenant.requests, Refused: tenant.refused}
		tenant.mu.Unlock()
	}
	return list
}
