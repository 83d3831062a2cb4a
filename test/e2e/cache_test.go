//go:build e2e

package e2e

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestCachedAnswersAreRight has eight threads ask a model that answers with its input, some requests
// often and some seldom. A cache for a part of them answers most, and none wrong. Then all ask for one
// answer, for the time of a hit at the server.
func TestCachedAnswersAreRight(t *testing.T) {
	const threads, different = 8, 4000
	requests := servertest.StrictOr(1_000_000, 20_000)
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"m": servertest.Config(0, "1", "dynamic_batching { }\nresponse_cache { enable: true }"),
	}), "--cache-config", "local,size=500000") // some 1,400 responses
	each := func(n int, value func(chance *rand.Rand) int) {
		var all sync.WaitGroup
		for thread := range threads {
			all.Go(func() {
				chance, c := rand.New(rand.NewPCG(1, uint64(thread))), s.Client()
				for range n / threads {
					v := float32(value(chance))
					req := servertest.SmallRequest("m", 1)
					req.Inputs[0].Data = servertest.Floats(v, 1, 2, 3)
					resp, err := c.Infer(t.Context(), req)
					if err != nil {
						t.Error(err)
						return
					}
					if got := resp.Outputs[0].Data; !bytes.Equal(got, req.Inputs[0].Data) {
						t.Errorf("asked with %x, answered %x", req.Inputs[0].Data, got)
						return
					}
				}
			})
		}
		all.Wait()
	}
	each(requests, func(chance *rand.Rand) int { return int(chance.ExpFloat64()*different/8) % different })
	counted := statisticsOf(t, s, "m")
	t.Logf("of %d requests %d from the cache, %d put there", requests, counted.CacheHit.Count, counted.CacheMiss.Count)
	if hits, misses := int(counted.CacheHit.Count), int(counted.CacheMiss.Count); hits < requests/4 || misses < different/2 || hits+misses > requests {
		t.Errorf("of %d requests %d from the cache, %d put there: want many of both", requests, hits, misses)
	}
	servertest.Contains(t, "metrics", s.MetricsPage(), `nv_cache_num_hits_per_model{model="m",version="1"} `, "shoal_cache_evictions_total ")

	each(threads, func(*rand.Rand) int { return different }) // it is in the cache from now on
	servertest.Hold(t, "µs of a hit at the server", 0, servertest.StrictOr(200.0, 5000), func() float64 {
		before := statisticsOf(t, s, "m")
		each(servertest.StrictOr(20_000, 1000), func(*rand.Rand) int { return different })
		after := statisticsOf(t, s, "m")
		if after.CacheMiss != before.CacheMiss {
			t.Errorf("misses %+v, before %+v", after.CacheMiss, before.CacheMiss)
		}
		hits := client.Total{Count: after.Success.Count - before.Success.Count, Time: after.Success.Time - before.Success.Time}
		return hits.Mean().Seconds() * 1e6
	})
}

func statisticsOf(t *testing.T, s *servertest.Server, model string) client.Statistics {
	t.Helper()
	all, err := s.Web().Statistics(t.Context(), model, "")
	if err != nil || len(all) != 1 {
		t.Fatalf("statistics: %v %v", all, err)
	}
	return all[0]
}
