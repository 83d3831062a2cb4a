package server

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/cache"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// startCached starts a server with a cache, and model cached besides echo.
func startCached(t *testing.T, size int64) *Server {
	t.Helper()
	s := startWith(t, Options{Log: slog.New(slog.DiscardHandler), Cache: cache.New(size)})
	load(t, s, servable.Source{Model: "cached", Number: 1, Dir: t.TempDir()}, strings.Replace(config, `label_filename: "labels.txt"`, "", 1)+"response_cache { enable: true }")
	return s
}

// ask sends a request to a model, and returns the value of its first element.
func ask(t *testing.T, s *Server, model string, value float32, change func(*infer.Request)) float32 {
	t.Helper()
	req := request()
	req.Model, req.Inputs[1].Data = model, tensor.Data([]float32{value, 2, 3, 4})
	if change != nil {
		change(req)
	}
	var resp infer.Response
	if err := s.Infer(t.Context(), req, &resp); err != nil {
		t.Fatal(err)
	}
	defer resp.Release()
	values, err := tensor.View[float32](&resp.Outputs[0])
	if err != nil {
		t.Fatal(err)
	}
	return values[0]
}

func counted(t *testing.T, s *Server, model string) stats.Snapshot {
	t.Helper()
	for _, v := range s.Versions(model) {
		return v.Stats.Snapshot()
	}
	t.Fatalf("no version of %s", model)
	return stats.Snapshot{}
}

func TestAnEqualRequestIsAnsweredWithoutTheModel(t *testing.T) {
	s := startCached(t, 1<<20)
	for _, value := range []float32{1, 1, 7, 1, 7} {
		if got := ask(t, s, "cached", value, nil); got != value {
			t.Errorf("asked with %v, answered %v", value, got)
		}
	}
	n := counted(t, s, "cached")
	if n.Runs != 2 || n.Rows != 4 || n.Success.Count != 5 || n.Queue.Count != 5 || n.Infer.Count != 2 || n.CacheHits.Count != 3 || n.CacheMisses.Count != 2 {
		t.Errorf("%d runs, %d rows, %d answered, %d queued, %d inferred, %d hits, %d misses", n.Runs, n.Rows, n.Success.Count, n.Queue.Count, n.Infer.Count, n.CacheHits.Count, n.CacheMisses.Count)
	}
}

func TestOnlyModelsThatAskForItAreCached(t *testing.T) {
	s := startCached(t, 1<<20)
	ask(t, s, "echo", 1, nil)
	ask(t, s, "echo", 1, nil)
	if n := counted(t, s, "echo"); n.Runs != 2 || n.CacheHits.Count+n.CacheMisses.Count != 0 {
		t.Errorf("%d runs, %d hits, %d misses", n.Runs, n.CacheHits.Count, n.CacheMisses.Count)
	}
}

// reload loads a version of model cached again, as if its files had changed.
func reload(t *testing.T, s *Server, v *servable.Version) {
	t.Helper()
	if err := s.Load("cached", "the test", func(context.Context, []*servable.Version) ([]servable.Source, error) {
		src := v.Source
		src.Fingerprint++
		return []servable.Source{src}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAVersionThatIsLoadedAgainGivesNoOldAnswers(t *testing.T) {
	s := startCached(t, 1<<20)
	ask(t, s, "cached", 1, nil)
	reload(t, s, s.Versions("cached")[0])
	ask(t, s, "cached", 1, nil)
	if n := counted(t, s, "cached"); n.Runs != 1 || n.CacheHits.Count != 0 {
		t.Errorf("%d runs and %d hits of the new version", n.Runs, n.CacheHits.Count)
	}
}

func TestAnEnsembleGivesNoAnswersOfOldMembers(t *testing.T) {
	s := startCached(t, 1<<20)
	ensemble := &servable.Version{ID: 1000, Config: &modelconfig.Config{Steps: []modelconfig.Step{{Model: "cached"}, {Model: "echo", Version: 3}}}}
	first := s.Versions("cached")[0]
	before := s.appendVersions(nil, ensemble, nil)
	if want := []uint64{1000, first.ID, s.Versions("echo")[0].ID}; !slices.Equal(before, want) {
		t.Fatalf("answered by %v, want %v", before, want)
	}
	reload(t, s, first)
	if after := s.appendVersions(nil, ensemble, nil); len(after) != 3 || after[1] == before[1] {
		t.Errorf("answered by %v, and before by %v", after, before)
	}
	if pinned := s.appendVersions(nil, ensemble, pins{{"cached", ""}: first}); !slices.Equal(pinned, before) {
		t.Errorf("with pinned members answered by %v, want %v", pinned, before)
	}
}

func TestAResponseOfAnEnsembleIsNotKeptForMembersThatDidNotGiveIt(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		s := startCached(t, 1<<20)
		member := s.Versions("cached")[0]
		config := &modelconfig.Config{Steps: []modelconfig.Step{{Model: "cached"}}, CacheResponses: true}
		in := &inference{req: request(), version: &servable.Version{ID: 1000, Config: config, Stats: member.Stats}}
		if s.lookUp(in, &infer.Response{}) {
			t.Fatal("the cache has a response before there was one")
		}
		if replaced { // before the ensemble selects its members
			reload(t, s, member)
		}
		s.keep(in, &infer.Response{Outputs: request().Inputs})
		var resp infer.Response
		if kept := s.cache.Get(in.lookup.key, &resp); kept == replaced {
			t.Errorf("kept %t, and its member was replaced %t", kept, replaced)
		}
		resp.Release()
		if n := member.Stats.Snapshot().CacheMisses.Count; n != 1 {
			t.Errorf("%d misses are counted, want 1", n)
		}
	}
}

func TestAResponseThatFailsAfterwardsIsNotKept(t *testing.T) {
	s := startCached(t, 1<<20)
	req := request()
	req.Model, req.Inputs[1].Data = "cached", tensor.Data([]float32{1, 2, 3, 4})
	req.Convert = func(resp *infer.Response, _ bool, _ map[string][]string) error {
		resp.Release()
		return infer.Errorf(infer.Internal, "cannot be converted")
	}
	if err := s.Infer(t.Context(), req, &infer.Response{}); err == nil {
		t.Fatal("the conversion did not fail")
	}
	ask(t, s, "cached", 1, nil)
	if n := counted(t, s, "cached"); n.Runs != 2 || n.CacheHits.Count != 0 {
		t.Errorf("%d runs, %d hits", n.Runs, n.CacheHits.Count)
	}
}

func TestAResponseLargerThanTheCacheIsGivenAndNotKept(t *testing.T) {
	s := startCached(t, 1)
	ask(t, s, "cached", 1, nil)
	ask(t, s, "cached", 1, nil)
	if n := counted(t, s, "cached"); n.Runs != 2 || n.CacheMisses.Count != 2 {
		t.Errorf("%d runs, %d misses", n.Runs, n.CacheMisses.Count)
	}
}

func TestCallersDoNotShareAnswersOfModelsThatMayCallOthers(t *testing.T) {
	caller := func(name string, models ...string) func(*infer.Request) {
		return func(r *infer.Request) {
			r.Caller = &access.Caller{Principals: []*access.Principal{{Name: name, Grants: []access.Grant{{Role: access.Infer, Models: models}}}}}
		}
	}
	s := startCached(t, 1<<20)
	for _, name := range []string{"anna", "ben", "anna"} {
		ask(t, s, "cached", 1, caller(name)) // echo may, for all the server knows
	}
	ask(t, s, "cached", 1, caller("anna", "cached")) // whose rights were changed
	for range 2 {
		ask(t, s, "cached", 1, func(r *infer.Request) {
			caller("anna")(r)
			r.Caller.Principals[0].Tenant = "search" // has a key of the same name
		})
	}
	if n := counted(t, s, "cached"); n.Runs != 4 || n.CacheHits.Count != 2 {
		t.Errorf("%d runs, %d hits", n.Runs, n.CacheHits.Count)
	}
}

func TestARequestFromTheCacheHasItsPlaceInTheOrder(t *testing.T) {
	s := startCached(t, 1<<20)
	for round := range 2 {
		queued := 0
		ask(t, s, "cached", 1, func(r *infer.Request) { r.Queued = func() { queued++ } })
		if queued != 1 {
			t.Errorf("round %d: called %d times when it had its place, want once", round, queued)
		}
	}
}
