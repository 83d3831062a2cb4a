package server

import (
	"context"
	"errors"
	"testing"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
)

// as returns a context of a caller with one grant.
func as(role access.Role, models ...string) context.Context {
	p := &access.Principal{Name: "ann", Grants: []access.Grant{{Role: role, Models: models}}}
	return access.WithCaller(context.Background(), &access.Caller{Principals: []*access.Principal{p}})
}

func TestWithAGateEveryAnswerNeedsARight(t *testing.T) {
	s := New(nil, Options{Access: &access.Gate{}})
	s.MarkStarted()
	calls := map[string]func(context.Context) error{
		"infer": func(ctx context.Context) error {
			return s.Infer(ctx, &infer.Request{Model: "m"}, &infer.Response{})
		},
		"call of a model": func(ctx context.Context) error {
			return s.Call(ctx, &infer.Request{Model: "m"}, &infer.Response{})
		},
		"metadata":   func(ctx context.Context) error { _, err := s.Model(ctx, "m", ""); return err },
		"config":     func(ctx context.Context) error { _, err := s.Config(ctx, "m", ""); return err },
		"explain":    func(ctx context.Context) error { _, err := s.Explain(ctx, "m", ""); return err },
		"statistics": func(ctx context.Context) error { _, err := s.Statistics(ctx, "m", ""); return err },
		"change": func(ctx context.Context) error {
			return s.Change(ctx, access.Change{Action: access.Manage, Model: "m"}, func() error { return nil })
		},
	}
	// What a caller with the right gets: the model does not exist.
	exists := map[string]infer.Code{"statistics": noCode, "change": noCode}
	for _, caller := range []struct {
		name    string
		as      func() context.Context
		allowed []string
		code    infer.Code // of the others
	}{
		{"no caller", context.Background, nil, infer.Unauthenticated},
		{"infer", func() context.Context { return as(access.Infer) }, []string{"infer", "call of a model", "metadata", "config"}, infer.Forbidden},
		{"infer on another model", func() context.Context { return as(access.Infer, "other") }, nil, infer.Forbidden},
		{"read", func() context.Context { return as(access.Read) }, []string{"metadata", "config", "explain", "statistics"}, infer.Forbidden},
		{"admin", func() context.Context { return as(access.Admin) }, []string{"infer", "call of a model", "metadata", "config", "explain", "statistics", "change"}, infer.Forbidden},
		{"the server", func() context.Context { return access.WithCaller(context.Background(), access.Self) }, []string{"infer", "call of a model", "metadata", "config", "explain", "statistics", "change"}, infer.Forbidden},
	} {
		allowed := map[string]bool{}
		for _, name := range caller.allowed {
			allowed[name] = true
		}
		for name, call := range calls {
			want := caller.code
			if allowed[name] {
				want = infer.NotFound
				if code, ok := exists[name]; ok {
					want = code
				}
			}
			if got := codeOrNone(call(caller.as())); got != want {
				t.Errorf("%s, %s: code %v, expected %v", caller.name, name, got, want)
			}
		}
	}
}

const noCode = infer.Code(255)

func codeOrNone(err error) infer.Code {
	if err == nil {
		return noCode
	}
	return infer.CodeOf(err)
}

// A caller with rights for some models must not learn the names of others.
func TestOnlyWithoutAGateDoesAnUnknownModelHaveAHint(t *testing.T) {
	for _, gate := range []*access.Gate{nil, {}} {
		s := New(nil, Options{Access: gate})
		s.MarkStarted()
		_, err := s.Model(as(access.Infer), "m", "")
		if e, ok := errors.AsType[*infer.Error](err); !ok || (e.Hint == "") != gate.Required() {
			t.Errorf("with a gate %v: %+v", gate.Required(), err)
		}
	}
}

func TestCallersSeeTheModelsThatTheyMayKnow(t *testing.T) {
	s := New(nil, Options{Access: &access.Gate{}})
	s.MarkStarted()
	index := []catalog.IndexEntry{{Name: "a1"}, {Name: "b1"}, {Name: "a2"}}
	if got := s.Visible(as(access.Infer, "a*"), index); len(got) != 2 || got[0].Name != "a1" || got[1].Name != "a2" {
		t.Errorf("visible are %v", got)
	}
	if got := s.Visible(context.Background(), index); len(got) != 0 {
		t.Errorf("without a caller: %v", got)
	}
	if got := New(nil, Options{}).Visible(context.Background(), index); len(got) != 3 {
		t.Errorf("without a gate: %v", got)
	}
}

func TestATenantOverItsLimitIsRefusedAndOthersAreNot(t *testing.T) {
	tenants := access.NewTenants()
	tenants.Configure(map[string]access.Limits{"greedy": {RequestsPerSecond: 0.001, Weight: 7}})
	s := New(nil, Options{Access: &access.Gate{Tenants: tenants}})
	s.MarkStarted()
	for _, test := range []struct {
		tenant string
		nested bool
		want   infer.Code // NotFound: it was admitted, and the model does not exist
	}{
		{"greedy", false, infer.NotFound},
		{"greedy", false, infer.Overloaded},
		{"greedy", true, infer.NotFound}, // part of a request that was admitted
		{"other", false, infer.NotFound},
		{"", false, infer.NotFound},
	} {
		ctx := access.WithCaller(context.Background(), &access.Caller{Principals: []*access.Principal{{Tenant: test.tenant, Grants: []access.Grant{{Role: access.Infer}}}}})
		call := s.Infer
		if test.nested {
			call = s.Call
		}
		req := &infer.Request{Model: "m"}
		err := call(ctx, req, &infer.Response{})
		if got := infer.CodeOf(err); got != test.want {
			t.Errorf("tenant %q: %v, code %v, expected %v", test.tenant, err, got, test.want)
		}
		if e := new(infer.Error); test.want == infer.Overloaded && (!errors.As(err, &e) || e.RetryAfter == 0) {
			t.Errorf("%v has no time to retry", err)
		}
		if test.tenant == "greedy" && (req.Tenant == 0 || req.Weight != 7) {
			t.Errorf("the request has tenant %d with weight %d", req.Tenant, req.Weight)
		}
	}
	for _, u := range tenants.Usage() {
		if u.InFlight != 0 {
			t.Errorf("tenant %q has %d requests in flight after all were answered", u.Tenant, u.InFlight)
		}
	}
}
