package batchingtest

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

// TestTheWeakerCheckAloneSeesUnfairShares serves requests without the check of their order.
func TestTheWeakerCheckAloneSeesUnfairShares(t *testing.T) {
	serve := func(tenants ...int) (breach string) {
		r := New(batching.Config{})
		for _, tenant := range []int{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1} {
			it := &batching.Item{Rows: 1, Tenant: tenant, Weight: 1 + tenant}
			if err := r.Check(0, batching.Event{Kind: batching.Arrive, Item: it}, &batching.Actions{Wake: batching.Never}); err != nil {
				t.Fatal(err)
			}
		}
		for _, tenant := range tenants {
			q := r.tenantsOf(0).shares[tenant].fifo[0]
			if breach = r.serve(q); breach != "" {
				return breach
			}
			r.leaveShare(q, true)
		}
		return ""
	}
	if got := serve(0, 1, 1, 0, 1, 1, 0, 1); got != "" {
		t.Errorf("fair shares are called unfair: %s", got)
	}
	want := "tenant 0 got 4.0 rows for each of its weight while tenant 1 waited, and that got 0.0"
	if got := serve(0, 0, 0, 0); got != want {
		t.Errorf("the check says %q, want %q", got, want)
	}
}
