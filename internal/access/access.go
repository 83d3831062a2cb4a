// Package access decides what a caller may do, and records what callers change.
//
// It knows no protocol and no credential: package identity determines the caller, and
// attaches the [Caller] to the context of the request. The server asks a [Gate] before it
// acts, so that there is one place that decides, below every protocol.
package access

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A Role is a set of actions.
type Role uint8

// The roles.
const (
	Infer Role = iota + 1 // run models, and read what is needed to call them
	Read                  // read everything, and change nothing
	Admin                 // everything
)

var roleNames = map[string]Role{"infer": Infer, "read": Read, "admin": Admin}

func (r Role) String() string {
	for name, role := range roleNames {
		if role == r {
			return name
		}
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Role) UnmarshalText(text []byte) error {
	role, ok := roleNames[string(text)]
	if !ok {
		return fmt.Errorf("found role %q, expected infer, read or admin", text)
	}
	*r = role
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// An Action is what a caller wants to do.
type Action uint8

// The actions. Those below Observe concern one model.
const (
	Run       Action = iota // run a model
	Describe                // read the metadata, the configuration or the readiness of a model
	Inspect                 // read the statistics of a model, or why it runs as it does
	Manage                  // load, unload or scale a model
	Observe                 // read about the server as a whole: its metrics, its settings
	Configure               // change the settings of the server
)

var actionNames = [...]string{"run", "describe", "inspect", "manage", "observe", "configure"}

func (a Action) String() string { return actionNames[a] }

// allowed are the roles that may do each action.
var allowed = [...][]Role{
	Run:       {Infer, Admin},
	Describe:  {Infer, Read, Admin},
	Inspect:   {Read, Admin},
	Manage:    {Admin},
	Observe:   {Read, Admin},
	Configure: {Admin},
}

// A Grant gives a role on models.
type Grant struct {
	Role Role `json:"role" yaml:"role"`
	// Models are patterns of [path.Match]. None means all models. Only a grant on all models
	// covers the server as a whole.
	Models []string `json:"models,omitempty" yaml:"models"`
}

// Validate returns an error if the grant cannot be used.
func (g Grant) Validate() error {
	if g.Role == 0 {
		return errors.New("a grant has no role; expected infer, read or admin")
	}
	for _, pattern := range g.Models {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("models: pattern %q is malformed", pattern)
		}
	}
	return nil
}

func (g Grant) covers(action Action, model string) bool {
	return slices.Contains(allowed[action], g.Role) && g.onModel(action, model)
}

func (g Grant) onModel(action Action, model string) bool {
	if len(g.Models) == 0 {
		return true
	}
	for _, pattern := range g.Models {
		if pattern == "*" {
			return true
		}
		// Validate has rejected malformed patterns.
		if ok, _ := path.Match(pattern, model); ok && action < Observe {
			return true
		}
	}
	return false
}

// A Principal is someone with rights. It is not modified after it was created.
type Principal struct {
	Name   string // for people: in the log and the audit log
	Tenant string // whose share of the server it uses; "" means none
	Grants []Grant
}

// May reports whether the principal may do the action. Model is "" for actions on the
// server as a whole.
func (p *Principal) May(action Action, model string) bool {
	for _, g := range p.Grants {
		if g.covers(action, model) {
			return true
		}
	}
	return false
}

// A Caller is whom a request is made for. Most have one principal. A batch of a Python
// model, which may call other models, is run for the principals of all its requests, and
// may do only what all of them may.
type Caller struct {
	Principals []*Principal
	Address    string // from where, such as 192.0.2.1:50000; "" if unknown
}

// Self is the server itself, and programs of the user that runs it, which use the local
// socket.
var Self = &Caller{Principals: []*Principal{{Name: "server", Grants: []Grant{{Role: Admin}}}}}

// May reports whether every principal may do the action.
func (c *Caller) May(action Action, model string) bool {
	for _, p := range c.Principals {
		if !p.May(action, model) {
			return false
		}
	}
	return len(c.Principals) > 0
}

// Name returns the names of the principals, for people.
func (c *Caller) Name() string {
	if c == nil || len(c.Principals) == 0 {
		return "anonymous"
	}
	names := make([]string, len(c.Principals))
	for i, p := range c.Principals {
		names[i] = p.Name
	}
	return strings.Join(names, ", ")
}

// Tenant returns the tenant of the first principal; "" if there is none.
func (c *Caller) Tenant() string {
	if c == nil || len(c.Principals) == 0 {
		return ""
	}
	return c.Principals[0].Tenant
}

// Join returns a caller for the principals of all the given callers. It returns nil, which
// may do nothing, if one of them is nil.
func Join(callers ...*Caller) *Caller {
	if len(callers) == 1 {
		return callers[0]
	}
	joined := &Caller{}
	seen := map[*Principal]bool{}
	for _, c := range callers {
		if c == nil {
			return nil
		}
		for _, p := range c.Principals {
			if !seen[p] {
				seen[p] = true
				joined.Principals = append(joined.Principals, p)
			}
		}
	}
	return joined
}

type callerKey struct{}

// WithCaller returns a context of requests that are made for c.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

type renewalKey struct{}

// WithRenewal returns a context of a stream whose requests determine their caller again, by renew.
func WithRenewal(ctx context.Context, renew func() (*Caller, error)) context.Context {
	return context.WithValue(ctx, renewalKey{}, renew)
}

// Renew returns ctx with the caller as it is now: a stream may outlive its credentials, and the
// rights that they gave. The error is that of [WithRenewal]'s function; ctx may be without one.
func Renew(ctx context.Context) (context.Context, error) {
	renew, ok := ctx.Value(renewalKey{}).(func() (*Caller, error))
	if !ok {
		return ctx, nil
	}
	caller, err := renew()
	if err != nil {
		return ctx, err
	}
	return WithCaller(ctx, caller), nil
}

// CallerOf returns the caller of a context, or nil if it has none.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}
