package server

import (
	"reflect"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

func TestTheConfigurationInEffectIsGiven(t *testing.T) {
	s := start(t)
	c, err := s.Config("echo", "")
	if err != nil {
		t.Fatal(err)
	}
	if c.GetName() != "echo" || c.GetMaxBatchSize() != 4 || c.GetInstanceGroup()[0].GetCount() != 1 {
		t.Errorf("configuration %v", c)
	}
	if _, err := s.Config("echo", "1"); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("version 1: %v", err)
	}
}

func TestLoadedVersionsAreListed(t *testing.T) {
	s := start(t)
	if got, want := s.Index(false), []kserve.IndexEntry{{Name: "echo", Version: "3", State: "READY"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("index %v, want %v", got, want)
	}
}

func TestStatisticsAreOfTheVersionsThatAreNamed(t *testing.T) {
	s := start(t)
	for _, named := range [][2]string{{"", ""}, {"echo", ""}, {"echo", "3"}} {
		stats, err := s.Statistics(named[0], named[1])
		if err != nil || len(stats) != 1 || stats[0].GetName() != "echo" || stats[0].GetVersion() != "3" {
			t.Errorf("%q: %v, %v", named, stats, err)
		}
	}
	for named, want := range map[[2]string]string{
		{"nosuch", ""}: "requested model 'nosuch' is not available",
		{"echo", "7"}:  "requested model version is not available for model 'echo'",
	} {
		if stats, err := s.Statistics(named[0], named[1]); infer.CodeOf(err) != infer.Invalid || err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", named, stats, err, want)
		}
	}
}

func TestModelsAreNotForModelsToLoad(t *testing.T) {
	s := start(t)
	if err := s.LoadModel(t.Context(), "echo", "", nil); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("load: %v", err)
	}
	if err := s.LoadModel(t.Context(), "echo", "", map[string][]byte{"../model.py": nil}); infer.CodeOf(err) != infer.Invalid {
		t.Errorf("load with a file outside: %v", err)
	}
	if err := s.UnloadModel(t.Context(), "echo"); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("unload: %v", err)
	}
}

func TestModelsAreNotForClientsToLoad(t *testing.T) {
	s := start(t)
	if err := s.Load(t.Context(), "echo", kserve.LoadOptions{}); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("load: %v", err)
	}
	if err := s.Unload(t.Context(), "echo", kserve.UnloadOptions{}); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("unload: %v", err)
	}
}
