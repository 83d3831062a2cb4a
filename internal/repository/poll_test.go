package repository

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/ensemble"
	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
)

func TestAChangeIsLoadedWhenItIsTheSameTwice(t *testing.T) {
	type check struct {
		exists bool
		now    fingerprint
		want   verdict
	}
	for name, checks := range map[string][]check{
		"unchanged":                   {{true, 1, leave}, {true, 1, leave}},
		"changed once":                {{true, 2, settle}, {true, 2, reload}, {true, 2, leave}},
		"still written":               {{true, 2, settle}, {true, 3, settle}, {true, 4, settle}, {true, 4, reload}, {true, 4, leave}},
		"changed back":                {{true, 2, settle}, {true, 1, leave}},
		"removed":                     {{false, 0, settle}, {false, 0, unload}},
		"replaced by another":         {{false, 0, settle}, {true, 2, settle}, {true, 2, reload}},
		"away for a moment":           {{false, 0, settle}, {true, 1, leave}},
		"removed and added unchanged": {{false, 0, settle}, {false, 0, unload}, {true, 1, leave}},
	} {
		p := pollState{tried: 1, seen: 1}
		for i, c := range checks {
			if got := p.judge(c.exists, c.now); got != c.want {
				t.Errorf("%s, check %d: %d, want %d", name, i+1, got, c.want)
			}
		}
	}
}

// polling starts a repository that polls every 15 seconds of fake time.
func polling(t *testing.T, d disk, eng *tracked, log *slog.Logger) *running {
	t.Helper()
	p := pacer.NewPortable()
	ensembles := &ensemble.Engine{Log: log}
	r := setup{
		Paths: []string{d.dir}, Mode: Poll, Pacer: p, Cores: 3, Log: log,
		Runners: map[string]servable.Runner{"echo": {Engine: eng}, ensemble.Name: {Engine: ensembles, Instances: 1}},
	}.open()
	ensembles.Members = r.Server
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil || eng.open != 0 {
			t.Errorf("close: %v; %d models are still open", err, eng.open)
		}
		p.Close()
	})
	return r
}

func TestAPollBetweenTwoWritesLoadsNothing(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		eng := &tracked{}
		r := polling(t, d, eng, slog.New(slog.DiscardHandler))
		began := time.Now()
		at := func(after time.Duration, want ...int64) {
			t.Helper()
			time.Sleep(time.Until(began.Add(after)))
			synctest.Wait()
			if got := serving(r, "a"); !slices.Equal(got, want) {
				t.Errorf("after %v versions %v serve, want %v", after, got, want)
			}
		}
		at(14*time.Second, 1)
		d.write(map[string]string{"a/2/": ""})
		at(15*time.Second, 1) // the poll has seen version 2
		d.write(map[string]string{"a/2/weights": "half"})
		at(16*time.Second, 1) // and now it has changed again
		d.write(map[string]string{"a/2/weights": "all of it"})
		at(17*time.Second, 1)
		at(18*time.Second, 2) // it has settled
		if len(eng.sources) != 2 {
			t.Errorf("%d loads, want 2", len(eng.sources))
		}
		d.remove("a")
		at(33*time.Second, 2)
		at(34 * time.Second)
	})
}

func TestAPollDoesNotUnloadTheModelOfAnotherSource(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1").model("b", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		r := polling(t, d, &tracked{}, slog.New(slog.DiscardHandler))
		r.Server.Unload("b") // so that another source may have the name
		other := servable.Source{Model: "b", Number: 9, Config: func() (*modelconfig.Config, error) {
			return modelconfig.Parse("config.pbtxt", []byte(`name: "b"`+echoConfig))
		}}
		if err := r.Server.Load("b", "another source", func(context.Context, []*servable.Version) ([]servable.Source, error) {
			return []servable.Source{other}, nil
		}); err != nil {
			t.Fatal(err)
		}
		d.remove("b")
		time.Sleep(4 * DefaultPoll)
		if got := serving(r, "b"); !slices.Equal(got, []int64{9}) {
			t.Errorf("versions %v of the other source serve, want 9", got)
		}
	})
}

func TestARepositoryThatCannotBeReadIsLoggedOnce(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	var log logtest.Log // polls go on while the test reads
	synctest.Test(t, func(t *testing.T) {
		r := polling(t, d, &tracked{}, slog.New(slog.NewTextHandler(&log, nil)))
		away := filepath.Join(t.TempDir(), "away")
		if err := os.Rename(d.dir, away); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "cannot be read"); n != 1 || !slices.Equal(serving(r, "a"), []int64{1}) {
			t.Errorf("logged %d times, and %v serve:\n%s", n, serving(r, "a"), log.String())
		}
		if err := os.Rename(away, d.dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "can be read again"); n != 1 || !slices.Equal(serving(r, "a"), []int64{1}) {
			t.Errorf("logged %d times, and %v serve:\n%s", n, serving(r, "a"), log.String())
		}
	})
}

func TestAnEntryThatCannotBeReadKeepsNoOtherModelBack(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1").model("b", echoConfig, "1")
	link := func(name string) {
		t.Helper()
		if err := os.Symlink(name, filepath.Join(d.dir, name)); err != nil { // to itself
			t.Fatal(err)
		}
	}
	link("c")
	if r, err := start(t, d, &tracked{}, setup{}); err == nil || !strings.Contains(err.Error(), "too many levels of symbolic links") || !r.ModelReady("a", "") || !r.ModelReady("b", "") {
		t.Errorf("at startup the index has %s; %v", index(r), err)
	}
	d.remove("c")
	var log logtest.Log // polls go on while the test reads
	synctest.Test(t, func(t *testing.T) {
		r := polling(t, d, &tracked{}, slog.New(slog.NewTextHandler(&log, nil)))
		wait := func(b []int64, text string, times int) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got, n := serving(r, "b"), strings.Count(log.String(), text); !slices.Equal(got, b) || n != times || !r.ModelReady("a", "") || !r.ModelReady("d", "") {
				t.Errorf("the versions %v serve, want %v; %d records have %q:\n%s", got, b, n, text, log.String())
			}
		}
		d.remove("b")
		link("b")
		d.model("d", echoConfig, "1")
		wait([]int64{1}, "cannot be read", 1)
		d.remove("b")
		d.model("b", echoConfig, "2")
		wait([]int64{2}, "can be read again", 1)
		d.remove("b")
		link("b.onnx")
		wait([]int64{2}, "cannot be read", 2)
		d.remove("b.onnx")
		wait(nil, "can be read again", 2)
	})
}

func TestAnEnsembleIsPolledAfterItsMembers(t *testing.T) {
	d := newDisk(t).model("a", chain("y"), "1").model("y", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		r := polling(t, d, &tracked{takes: time.Second}, slog.New(slog.DiscardHandler))
		renamed := strings.NewReplacer(`"x"`, `"other"`)
		d.model("a", renamed.Replace(chain("y"))).model("y", renamed.Replace(echoConfig))
		time.Sleep(20 * time.Second) // one check sees the changes, and the next one begins to load
		synctest.Wait()
		if got, want := index(r), "a 1 READY; y 1 READY"; got != want {
			t.Errorf("index %q, want %q", got, want)
		}
		if err := askChain(t, r); err != nil {
			t.Error(err)
		}
	})
}

func TestAPollLoadsAnEnsembleAgainWhenAMemberHasOtherTensors(t *testing.T) {
	d := newDisk(t).model("a", chain("y"), "1").model("y", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		r := polling(t, d, &tracked{}, slog.New(slog.DiscardHandler))
		first := r.Versions("a")[0]
		d.model("y", echoConfig+`version_policy { latest { num_versions: 2 } }`)
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.Versions("a")[0] != first {
			t.Error("it was loaded again although its members have the same tensors")
		}
		d.model("y", strings.ReplaceAll(echoConfig, "[ 2 ]", "[ -1 ]"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if now := r.Versions("a"); len(now) != 1 || now[0] == first {
			t.Errorf("%d versions serve, and none is new", len(now))
		}
	})
}

func TestAPollLoadsAnEnsembleWhoseMemberWasRepaired(t *testing.T) {
	d := newDisk(t).model("z", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		r := polling(t, d, &tracked{}, slog.New(slog.DiscardHandler))
		d.model("a", chain("y"), "1").model("y", "max_batch_size: -1", "1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.ModelReady("a", "") {
			t.Fatal("it is ready with a member that cannot be loaded")
		}
		d.model("y", echoConfig)
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := askChain(t, r); err != nil {
			t.Errorf("after its member was repaired: %v", err)
		}
	})
}
