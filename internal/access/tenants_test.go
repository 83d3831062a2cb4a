package access

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func callerOf(tenant string) *Caller {
	return &Caller{Principals: []*Principal{{Name: "x", Tenant: tenant}}}
}

func TestARateAllowsOneSecondsRequestsAtOnce(t *testing.T) {
	var m meter
	now := time.Unix(1000, 0)
	l := &Limits{RequestsPerSecond: 4}
	for range 4 {
		if _, _, ok := m.admit(now, l, 1); !ok {
			t.Fatal("a request within the rate was refused")
		}
	}
	limit, retry, ok := m.admit(now, l, 1)
	if ok || limit != Rate || retry != 250*time.Millisecond {
		t.Fatalf("got %v, %v, %v; want refused by the rate, to be retried after 250 ms", limit, retry, ok)
	}
	if _, _, ok := m.admit(now.Add(249*time.Millisecond), l, 1); ok {
		t.Error("a request was admitted before the time to retry")
	}
	if _, _, ok := m.admit(now.Add(250*time.Millisecond), l, 1); !ok {
		t.Error("a request was refused at the time to retry")
	}
}

func TestASlowRateAllowsSingleRequests(t *testing.T) {
	var m meter
	now := time.Unix(1000, 0)
	l := &Limits{RequestsPerSecond: 0.5}
	if _, _, ok := m.admit(now, l, 1); !ok {
		t.Fatal("the first request was refused")
	}
	if _, retry, ok := m.admit(now, l, 1); ok || retry != 2*time.Second {
		t.Errorf("got %v, %v; want refused for 2 s", retry, ok)
	}
}

func TestRefusedRequestsUseNothing(t *testing.T) {
	tenants := NewTenants()
	tenants.Configure(map[string]Limits{"a": {Concurrency: 2, Bytes: 100}})
	a := tenants.Of(callerOf("a"))
	now := time.Unix(1000, 0)
	begin := func(bytes int64, want error) {
		t.Helper()
		err := a.Begin(now, bytes)
		if fmt.Sprint(err) != fmt.Sprint(want) {
			t.Errorf("Begin(%d) = %v, want %v", bytes, err, want)
		}
	}
	begin(500, nil) // a single request may exceed it
	begin(1, errors.New("tenant 'a' sends more bytes in flight than it may"))
	a.End(500)
	begin(60, nil)
	begin(40, nil)
	begin(0, errors.New("tenant 'a' sends more requests in flight than it may"))
	if got, want := fmt.Sprint(tenants.Usage()[1]), "{a 2 100 3 [0 1 1]}"; got != want {
		t.Errorf("usage is %s, want %s", got, want)
	}
	// Others are not affected.
	if err := tenants.Of(callerOf("b")).Begin(now, 1<<30); err != nil {
		t.Error(err)
	}
	// New limits count what is in flight.
	tenants.Configure(map[string]Limits{"*": {Concurrency: 3}})
	begin(1000, nil)
	begin(0, errors.New("tenant 'a' sends more requests in flight than it may"))
}

// TestFurtherTenantsAreOne: tokens can name any number of tenants, and each would have a
// metric and a share.
func TestFurtherTenantsAreOne(t *testing.T) {
	tenants := NewTenants()
	tenants.Configure(map[string]Limits{"*": {Weight: 3}})
	for i := range 1000 {
		tenant := tenants.Of(callerOf(fmt.Sprint("t", i)))
		want := fmt.Sprint("t", i)
		if i >= maxTenants {
			want = OtherTenants
		}
		if tenant.Name != want || tenant.Weight() != 3 {
			t.Fatalf("tenant %d is %q with weight %d, want %q", i, tenant.Name, tenant.Weight(), want)
		}
	}
	if got := len(tenants.Usage()); got != maxTenants+2 {
		t.Errorf("%d tenants, want %d, those without a tenant, and the others", got, maxTenants)
	}
	tenants.Configure(map[string]Limits{"t500": {Weight: 7}})
	if tenant := tenants.Of(callerOf("t500")); tenant.Name != "t500" || tenant.Weight() != 7 {
		t.Errorf("a tenant that is listed now is %q with weight %d", tenant.Name, tenant.Weight())
	}
}

func TestLimitsOfTenantsAreChecked(t *testing.T) {
	err := ValidateTenants(map[string]Limits{"a": {Weight: 1001}, "b": {RequestsPerSecond: -1}, "c": {Concurrency: -1}, "d": {Bytes: -1}, "e": {Weight: 1000}})
	want := `tenants: "a": weight: found 1001, expected 1 to 1000
tenants: "b": requests_per_second: found -1, expected a positive number
tenants: "c": concurrency: found -1, expected a positive number
tenants: "d": bytes: found -1, expected a positive number`
	if fmt.Sprint(err) != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestAdmittingDoesNotAllocate(t *testing.T) {
	tenants := NewTenants()
	tenants.Configure(map[string]Limits{"a": {RequestsPerSecond: 1e9, Concurrency: 10, Bytes: 1000}})
	c, now := callerOf("a"), time.Unix(1000, 0)
	if n := testing.AllocsPerRun(100, func() {
		a := tenants.Of(c)
		if err := a.Begin(now, 10); err != nil {
			t.Fatal(err)
		}
		a.End(10)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
