package access

import (
	"context"
	"errors"
	"testing"
)

func TestRolesAllowTheirActionsOnTheirModels(t *testing.T) {
	const all = "run describe inspect manage observe configure"
	for _, test := range []struct {
		grant Grant
		model string
		want  string // the allowed actions
	}{
		{Grant{Role: Infer}, "m", "run describe"},
		{Grant{Role: Read}, "m", "describe inspect observe"},
		{Grant{Role: Admin}, "m", all},
		{Grant{Role: Infer, Models: []string{"a*"}}, "abc", "run describe"},
		{Grant{Role: Infer, Models: []string{"a*"}}, "b", ""},
		{Grant{Role: Infer, Models: []string{"a", "b"}}, "b", "run describe"},
		{Grant{Role: Read, Models: []string{"a*"}}, "a", "describe inspect"},
		{Grant{Role: Admin, Models: []string{"a*"}}, "a", "run describe inspect manage"},
		{Grant{Role: Admin, Models: []string{"*"}}, "", all},
		{Grant{Role: Admin, Models: []string{"a*"}}, "", ""},
	} {
		p := &Principal{Grants: []Grant{test.grant}}
		got := ""
		for action := Run; action <= Configure; action++ {
			if p.May(action, test.model) {
				if got != "" {
					got += " "
				}
				got += action.String()
			}
		}
		if got != test.want {
			t.Errorf("%v on %q: allowed %q, expected %q", test.grant, test.model, got, test.want)
		}
	}
}

func TestACallerMayDoOnlyWhatAllItsPrincipalsMay(t *testing.T) {
	a := &Caller{Principals: []*Principal{{Name: "a", Grants: []Grant{{Role: Infer, Models: []string{"x", "y"}}}}}}
	b := &Caller{Principals: []*Principal{{Name: "b", Grants: []Grant{{Role: Infer, Models: []string{"y", "z"}}}}}}
	both := Join(a, b, a)
	if both.May(Run, "x") || !both.May(Run, "y") || both.May(Run, "z") {
		t.Errorf("the joined caller may run x %v, y %v, z %v", both.May(Run, "x"), both.May(Run, "y"), both.May(Run, "z"))
	}
	if both.Name() != "a, b" {
		t.Errorf("name is %q, expected each principal once", both.Name())
	}
	if Join(a, nil) != nil || (&Caller{}).May(Run, "y") {
		t.Error("a caller without a principal may do something")
	}
}

func TestAGateAsksWhoCalls(t *testing.T) {
	ctx := context.Background()
	reader := WithCaller(ctx, &Caller{Principals: []*Principal{{Name: "ann", Grants: []Grant{{Role: Read}}}}})
	var none *Gate
	for _, open := range []*Gate{none, {Open: true}} {
		if err := open.Check(ctx, Configure, ""); err != nil || open.Required() {
			t.Errorf("a gate without authentication: %v", err)
		}
	}
	gate := &Gate{}
	if err := gate.Check(ctx, Describe, "m"); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("without a caller: %v", err)
	}
	if err := gate.CheckCaller(nil, Describe, "m"); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("without a caller: %v", err)
	}
	if err := gate.Check(reader, Describe, "m"); err != nil {
		t.Errorf("a reader reads: %v", err)
	}
	err := gate.Check(reader, Run, "m")
	if _, ok := errors.AsType[*DeniedError](err); !ok || err.Error() != "ann may not run model 'm'" {
		t.Errorf("a reader runs a model: %v", err)
	}
	if err := gate.Check(reader, Configure, ""); err == nil || err.Error() != "ann may not configure this server" {
		t.Errorf("a reader changes settings: %v", err)
	}
	if err := gate.Check(WithCaller(ctx, Self), Configure, ""); err != nil {
		t.Errorf("the server itself: %v", err)
	}
}

func TestInvalidGrantsAreRejected(t *testing.T) {
	for _, g := range []Grant{{}, {Role: Infer, Models: []string{"[a"}}, {Role: Infer, Models: []string{""}}} {
		if g.Validate() == nil {
			t.Errorf("%v is accepted", g)
		}
	}
	var r Role
	if r.UnmarshalText([]byte("root")) == nil || r.UnmarshalText([]byte("admin")) != nil || r != Admin {
		t.Error("names of roles")
	}
}

func TestChangesComeOverTheAdminPort(t *testing.T) {
	admin := &Caller{Principals: []*Principal{{Name: "ann", Grants: []Grant{{Role: Admin}}}}}
	for name, tt := range map[string]struct {
		gate   *Gate
		caller *Caller
		there  bool // over the admin port
		want   error
	}{
		"another port":        {&Gate{AdminPort: true}, admin, false, ErrNotAdminPort},
		"the port":            {&Gate{AdminPort: true}, admin, true, nil},
		"the server itself":   {&Gate{AdminPort: true}, Self, false, nil},
		"no such port":        {&Gate{}, admin, false, nil},
		"everyone, elsewhere": {&Gate{AdminPort: true, Open: true}, nil, false, ErrNotAdminPort},
		"everyone, there":     {&Gate{AdminPort: true, Open: true}, nil, true, nil},
	} {
		ctx := t.Context()
		if tt.caller != nil {
			ctx = WithCaller(ctx, tt.caller)
		}
		if tt.there {
			ctx = OnAdminPort(ctx)
		}
		made := false
		err := tt.gate.Change(ctx, Change{Action: Manage, What: "load", Model: "m"}, func() error { made = true; return nil })
		if !errors.Is(err, tt.want) || made != (tt.want == nil) {
			t.Errorf("%s: %v, and the change was made: %v", name, err, made)
		}
	}
}
