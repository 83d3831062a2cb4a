package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// ErrUnauthenticated is the error of callers without credentials.
var ErrUnauthenticated = errors.New("authentication is required: send an API key or a token in the Authorization header, or use a client certificate")

// A DeniedError is the error of a caller that may not do what it wants.
type DeniedError struct {
	Caller string
	Action Action
	Model  string // "" for the server as a whole
}

func (e *DeniedError) Error() string {
	if e.Model == "" {
		return fmt.Sprintf("%s may not %s this server", e.Caller, e.Action)
	}
	return fmt.Sprintf("%s may not %s model '%s'", e.Caller, e.Action, e.Model)
}

// ErrNotAdminPort is the error of a change that comes over another port than that for
// changes.
var ErrNotAdminPort = errors.New("this port does not accept changes; use the one of --admin-address")

type adminPortKey struct{}

// OnAdminPort returns a context of requests that come over the port for changes.
func OnAdminPort(ctx context.Context) context.Context {
	return context.WithValue(ctx, adminPortKey{}, true)
}

// A Gate decides what callers may do. A nil Gate lets everyone do everything: no method of
// authentication is configured. Its methods may be called concurrently.
type Gate struct {
	// Audit records changes. Nil means that they are not recorded.
	Audit *Audit
	// Tenants limits what callers use. Nil means that there are no tenants.
	Tenants *Tenants
	// AdminPort makes the gate deny changes that do not come over the admin port, see
	// [OnAdminPort], whoever makes them. The server itself is exempt.
	AdminPort bool
	// Open lets callers without a principal do everything, for a server that only records
	// changes.
	Open bool

	refused  atomic.Uint64
	refusals limiter

	mu      sync.Mutex          // guards the following
	denials map[string]*limiter // by the name of the caller, or otherCallers
}

// Of refused requests, and of the denied changes of each caller, maxRefusals are recorded at
// once, and refusalRate in a second after that. A client that may change nothing must not be
// able to make older records disappear: to replace them all takes it at least half a day.
const (
	maxRefusals = 100
	refusalRate = 10
)

// maxDenied is the number of callers whose denied changes are limited each by itself. Beyond
// that callers share the limiter otherCallers: there may be a caller for every token.
const (
	maxDenied    = 1000
	otherCallers = ""
)

// Refused records that a request was refused because its caller could not be authenticated.
// If there are many, only some are recorded, with the number of those that were omitted.
// from is the address of the client.
func (g *Gate) Refused(from, what string, err error) {
	g.refused.Add(1)
	if g.Audit == nil {
		return
	}
	now := time.Now()
	omitted, ok := g.refusals.allow(now)
	if !ok {
		return
	}
	r := newRecord(now, &Caller{Address: from}, Change{What: what}, true, err)
	r.Omitted = omitted
	g.Audit.write(r)
}

// Refusals returns the number of requests that were refused because their callers could not
// be authenticated.
func (g *Gate) Refusals() uint64 {
	if g == nil {
		return 0
	}
	return g.refused.Load()
}

// A limiter allows maxRefusals at once and refusalRate in a second, and counts the others.
type limiter struct {
	mu      sync.Mutex // guards the following
	used    float64    // of maxRefusals
	last    time.Time
	omitted uint64 // since the last that was allowed
}

// allow reports whether another is allowed, and how many were not since the last one.
func (l *limiter) allow(now time.Time) (omitted uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = max(0, l.used-refusalRate*now.Sub(l.last).Seconds())
	l.last = now
	if l.used+1 > maxRefusals {
		l.omitted++
		return 0, false
	}
	l.used++
	omitted, l.omitted = l.omitted, 0
	return omitted, true
}

// idle reports whether the limiter allows as many as a new one.
func (l *limiter) idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used <= refusalRate*now.Sub(l.last).Seconds()
}

// denialsOf returns the limiter for the denied changes of a caller.
func (g *Gate) denialsOf(now time.Time, caller string) *limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.denials == nil {
		g.denials = map[string]*limiter{}
	}
	if g.denials[caller] == nil && len(g.denials) >= maxDenied {
		maps.DeleteFunc(g.denials, func(_ string, l *limiter) bool { return l.idle(now) })
		if len(g.denials) >= maxDenied {
			caller = otherCallers
		}
	}
	l := g.denials[caller]
	if l == nil {
		l = &limiter{}
		g.denials[caller] = l
	}
	return l
}

// Required reports whether callers must be authenticated.
func (g *Gate) Required() bool { return g != nil && !g.Open }

// Check returns an error if the caller of ctx may not do the action: [ErrUnauthenticated]
// or a [*DeniedError]. Model is "" for the server as a whole.
func (g *Gate) Check(ctx context.Context, action Action, model string) error {
	if !g.Required() {
		return nil
	}
	return check(CallerOf(ctx), action, model)
}

// CheckCaller is Check for a caller that is not in a context.
func (g *Gate) CheckCaller(c *Caller, action Action, model string) error {
	if !g.Required() {
		return nil
	}
	return check(c, action, model)
}

func check(c *Caller, action Action, model string) error {
	switch {
	case c == nil || len(c.Principals) == 0:
		return ErrUnauthenticated
	case !c.May(action, model):
		return &DeniedError{Caller: c.Name(), Action: action, Model: model}
	}
	return nil
}

// A Change is something that a caller wants to change.
type Change struct {
	Action Action // Manage or Configure
	What   string // what is changed, such as "load"
	Model  string // "" for the server as a whole
	Detail string // what else is to be known; "" for nothing
}

// Change checks whether the caller of ctx may make a change, makes it with do, and records
// it with its outcome, also if it was denied. If many changes of a caller are denied, only some
// are recorded, with the number of those that were omitted.
func (g *Gate) Change(ctx context.Context, c Change, do func() error) error {
	began := time.Now()
	err := g.Check(ctx, c.Action, c.Model)
	if err == nil && g != nil && g.AdminPort && ctx.Value(adminPortKey{}) == nil && CallerOf(ctx) != Self {
		err = ErrNotAdminPort
	}
	denied := err != nil
	if !denied {
		err = do()
	}
	if g == nil || g.Audit == nil {
		return err
	}
	caller, omitted := CallerOf(ctx), uint64(0)
	if denied {
		var ok bool
		if omitted, ok = g.denialsOf(began, caller.Name()).allow(began); !ok {
			return err
		}
	}
	r := newRecord(began, caller, c, denied, err)
	r.Omitted = omitted
	g.Audit.write(r)
	return err
}
