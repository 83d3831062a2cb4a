package server

import (
	"reflect"
	"testing"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

func TestTheConfigurationInEffectIsGiven(t *testing.T) {
	s := start(t)
	c, err := s.Config("echo", "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "echo" || c.MaxBatchSize != 4 || c.Effective().GetInstanceGroup()[0].GetCount() != 1 {
		t.Errorf("configuration %v", c)
	}
	if _, err := s.Config("echo", "1"); infer.CodeOf(err) != infer.NotFound {
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
		if stats := s.Statistics(named[0], named[1]); len(stats) != 1 || stats[0].Model != "echo" || stats[0].Version != "3" {
			t.Errorf("%q: %v", named, stats)
		}
	}
	for named, want := range map[[2]string]string{
		{"nosuch", ""}:  "requested model 'nosuch' is not available",
		{"nosuch", "7"}: "requested model 'nosuch' is not available",
		{"echo", "7"}:   "requested model version is not available for model 'echo'",
	} {
		if stats, err := kserve.Statistics(s, named[0], named[1]); infer.CodeOf(err) != infer.Invalid || err.Error() != want {
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
	if err := s.Load(t.Context(), "echo", catalog.LoadOptions{}); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("load: %v", err)
	}
	if err := s.Unload(t.Context(), "echo", catalog.UnloadOptions{}); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("unload: %v", err)
	}
}
