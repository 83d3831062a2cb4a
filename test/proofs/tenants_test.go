//go:build e2e && proofs

package proofs

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofATenantThatSendsTenTimesItsShare has two tenants use a device that runs 8 requests in
// 20 ms. Each sends its share, half of 0.9 of that, and then one of them ten times as much: the
// other one's 99th percentile must be about the same. What the device does is compared with both
// sending too much.
func TestProofATenantThatSendsTenTimesItsShare(t *testing.T) {
	const takes, capacity = 20 * time.Millisecond, 8 / 0.020
	keys := filepath.Join(t.TempDir(), "keys.json")
	s := servertest.Listening(t, servertest.Repository(t, map[string]string{
		"m": servertest.Config(takes, "1", "dynamic_batching { max_queue_delay_microseconds: 0 default_queue_policy { max_queue_size: 200 } }"),
	}), "--api-keys="+keys)
	var tenants []*client.Client
	for _, name := range []string{"red", "blue"} {
		_, secret, err := identity.CreateKey(keys, identity.Key{Name: name, Tenant: name, Grants: []access.Grant{{Role: access.Infer}}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		tenants = append(tenants, s.Closing(client.NewGRPC(s.GRPC, client.Options{Token: secret})))
	}
	for _, c := range tenants {
		servertest.Eventually(t, "the key is known", func() bool { return servertest.Ask(t.Context(), c, "m", 1) == nil })
	}

	lasts := servertest.StrictOr(10*time.Second, 2*time.Second)
	type outcome struct {
		p99      time.Duration // of the second tenant
		answered float64       // requests of both, in a second
	}
	// load has the tenants send at even times, so many times their shares.
	load := func(first, second float64) outcome {
		const share = 0.45 * capacity
		var all sync.WaitGroup
		var mu sync.Mutex // guards the following
		var latencies []time.Duration
		answered, refused := 0, 0
		began := time.Now()
		for tenant, rate := range []float64{first * share, second * share} {
			all.Go(func() {
				for n := 0; ; n++ {
					at := time.Duration(float64(n) / rate * 1e9)
					if at > lasts {
						return
					}
					time.Sleep(at - time.Since(began))
					all.Go(func() {
						err := servertest.Ask(t.Context(), tenants[tenant], "m", 1)
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							answered++
						case tenant == 1 && second == 1:
							refused++
						}
						if tenant == 1 {
							latencies = append(latencies, time.Since(began)-at)
						}
					})
				}
			})
		}
		all.Wait()
		if refused > 0 {
			t.Errorf("%d requests of the tenant that keeps to its share were refused", refused)
		}
		slices.Sort(latencies)
		return outcome{latencies[len(latencies)*99/100], float64(answered) / time.Since(began).Seconds()}
	}
	const slower, throughput = "p99 beside a tenant that sends ten times its share, times that beside one that does not", "requests/s, times those when both send too much"
	samples := servertest.Samples(t, "tenants")
	for round := len(samples.Of(slower)); round < servertest.Rounds(); round++ {
		calm, crowded := measure.Pair(round, func() outcome { return load(1, 1) }, func() outcome { return load(10, 1) })
		full := load(5, 5)
		t.Logf("p99 %v and %v; %.1f of %.1f requests/s", calm.p99, crowded.p99, crowded.answered, full.answered)
		servertest.Add(t, samples, slower, crowded.p99.Seconds()/calm.p99.Seconds())
		servertest.Add(t, samples, throughput, crowded.answered/full.answered)
	}
	servertest.Judge(t, slower, measure.AtMost(1.2), samples.Of(slower))
	servertest.Judge(t, throughput, measure.AtLeast(0.98), samples.Of(throughput))
}
