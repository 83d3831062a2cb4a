package server

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/servable"
)

func TestTheConfigurationInEffectIsGiven(t *testing.T) {
	s := start(t)
	c, err := s.Config(t.Context(), "echo", "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "echo" || c.MaxBatchSize != 4 || c.Effective().GetInstanceGroup()[0].GetCount() != 1 {
		t.Errorf("configuration %v", c)
	}
	if _, err := s.Config(t.Context(), "echo", "1"); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("version 1: %v", err)
	}
}

func TestLoadedVersionsAreListed(t *testing.T) {
	s := start(t)
	if got, want := s.Index(false), []catalog.IndexEntry{{Name: "echo", Version: "3", State: "READY"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("index %v, want %v", got, want)
	}
}

func TestStatisticsAreOfTheVersionsThatAreNamed(t *testing.T) {
	s := start(t)
	for _, named := range [][2]string{{"", ""}, {"echo", ""}, {"echo", "3"}} {
		if stats, _ := s.Statistics(t.Context(), named[0], named[1]); len(stats) != 1 || stats[0].Model != "echo" || stats[0].Version != "3" {
			t.Errorf("%q: %v", named, stats)
		}
	}
	for named, want := range map[[2]string]string{
		{"nosuch", ""}:  "requested model 'nosuch' is not available",
		{"nosuch", "7"}: "requested model 'nosuch' is not available",
		{"echo", "7"}:   "requested model version is not available for model 'echo'",
	} {
		if stats, err := kserve.Statistics(t.Context(), s, named[0], named[1]); infer.CodeOf(err) != infer.Invalid || err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", named, stats, err, want)
		}
	}
}

// The first of two loads finds nothing, and the model would be forgotten while the second
// one waits for its turn.
func TestALoadThatWaitedForOneThatFailedIsRemembered(t *testing.T) {
	s := start(t)
	first, _ := s.takeTurn("a")
	done := make(chan error, 1)
	go func() { done <- s.Load("a", "the test", also(servable.Source{Model: "a", Number: 1}, queued)) }()
	time.Sleep(10 * time.Millisecond) // the second one waits by now, or comes later: it ends the same
	s.forget(first)
	<-first.turn
	if err := <-done; err != nil || len(s.Versions("a")) != 1 {
		t.Fatalf("%v; %d versions serve", err, len(s.Versions("a")))
	}
	if s.Unload("a"); len(s.Versions("a")) != 0 {
		t.Error("it serves after it was unloaded")
	}
}

func TestANameBelongsToOneSource(t *testing.T) {
	s := start(t)
	err := s.Load("echo", "another", also(servable.Source{Model: "echo", Number: 9}, queued))
	if want := "model 'echo' is in the test and in another, expected one of them"; infer.CodeOf(err) != infer.Invalid || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	s.Unload("echo")
	if err := s.Load("echo", "another", also(servable.Source{Model: "echo", Number: 9}, queued)); err != nil || s.Owner("echo") != "another" {
		t.Errorf("after it was unloaded: %v, of %q", err, s.Owner("echo"))
	}
}

func TestAVersionIsFoundByItsNumberAndByItsLabel(t *testing.T) {
	s := start(t)
	load(t, s, servable.Source{Model: "m", Number: 1, Label: "1.0"}, queued)
	load(t, s, servable.Source{Model: "m", Number: 2, Label: "1.1"}, queued)
	check := func(version string, want int64) {
		t.Helper()
		if v, err := s.Find("m", version); err != nil || v.Number() != want {
			t.Errorf("%q: %+v, %v, want %d", version, v, err, want)
		}
	}
	check("", 2)
	check("1", 1)
	check("1.1", 2)
	s.SetDefault("m", 1)
	check("", 1)
	if _, err := s.Find("m", "1.2"); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("1.2: %v", err)
	}
}

func TestTheErrorForAnUnknownModelNamesTheOneThatWasMeant(t *testing.T) {
	s, stop := serve(t, &enginetest.Echo{})
	defer stop()
	load(t, s, servable.Source{Model: "resnet50", Number: 1}, queued)
	for name, want := range map[string]string{"resnet51": "did you mean 'resnet50'?", "gpt": "the server has m, resnet50"} {
		_, err := s.Find(name, "")
		e, ok := errors.AsType[*infer.Error](err)
		if !ok || e.Hint != want || kserve.TritonError(err, nil).Error() != "Request for unknown model: '"+name+"' is not found" {
			t.Errorf("%s: %v, want the hint %q", name, err, want)
		}
	}
}
