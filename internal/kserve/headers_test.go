package kserve_test

import (
	"fmt"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

func TestHeadersThatMatchBecomeParameters(t *testing.T) {
	headers := map[string][]string{
		"Prefix_a": {"1"}, "X-Prefix_c": {"first", "last"}, "Tenant": {"header"}, "Accept": {"*/*"}, "Prefix_bad": {"\xff"}, "Prefix_empty": {}, ":prefix_": {"authority"},
	}
	for _, tt := range []struct{ pattern, want string }{
		{"prefix_", "[{n 1} {tenant body} {prefix_a 1} {prefix_bad \uFFFD} {x-prefix_c last}]"},
		{"^PREFIX_a$", "[{n 1} {tenant body} {prefix_a 1}]"},
		{"(?-i)PREFIX_", "[{n 1} {tenant body}]"},
		{"tenant", "[{n 1} {tenant header}]"}, // not the client's word
	} {
		p, err := kserve.ParseHeaderPattern(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		req := infer.Request{Parameters: []infer.Parameter{{Name: "n", Value: int64(1)}, {Name: "tenant", Value: "body"}}}
		p.Forward(&req, headers)
		if got := fmt.Sprint(req.Parameters); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.pattern, got, tt.want)
		}
	}
}

func TestWithoutAPatternNoHeaderIsForwarded(t *testing.T) {
	var p *kserve.HeaderPattern
	var req infer.Request
	if p.Forward(&req, map[string][]string{"a": {"b"}}); len(req.Parameters) > 0 {
		t.Errorf("%v", req.Parameters)
	}
	if _, err := kserve.ParseHeaderPattern("("); err == nil {
		t.Error("a pattern that is not valid was accepted")
	}
}
