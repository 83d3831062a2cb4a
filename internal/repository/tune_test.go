package repository

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/tensor"
)

// threaded is a simulated engine whose batches take half as long with two threads.
type threaded struct{ simulated.Engine }

func (e *threaded) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	src.Config.Parameters = map[string]string{"fixed_us": "10000", "per_row_us": "1000", "slowdown": "1, 2"}
	if src.Threads == 2 {
		src.Config.Parameters = map[string]string{"fixed_us": "5000", "per_row_us": "500"}
	}
	return e.Engine.Load(ctx, src)
}

func (*threaded) AnyThreads(*modelconfig.Config) bool { return true }
func (*threaded) LibraryVersion() string              { return "7" }

// tuned starts a repository on two cores that finds out about its models, in fake
// time.
func tuned(t *testing.T, d disk, eng engine.Engine, p *pacer.Pacer, opts setup) *running {
	t.Helper()
	opts.Paths, opts.Pacer, opts.Cores, opts.Automatic = []string{d.dir}, p, 2, true
	opts.Runners = map[string]servable.Runner{"echo": {Engine: eng, Device: sched.NewDevice(2)}, "onnxruntime": {Engine: eng, Device: sched.NewDevice(2)}}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	r := opts.open()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func find(t *testing.T, r *running, name string) *servable.Version {
	t.Helper()
	v, err := r.Find(name, "")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// threads returns those of a batch, and those of one that begins while no other runs.
func threads(v *servable.Version) [2]int {
	m := v.Explain()
	return [2]int{m.Threads.Count, m.ExclusiveThreads}
}

func TestAModelIsMeasuredAndRunsAsIsBestForIt(t *testing.T) {
	d, kept := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1"), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		var log bytes.Buffer
		opts := setup{Log: slog.New(slog.NewTextHandler(&log, nil)), CPU: "fast"}
		opts.Store = calibrate.NewStore(kept, opts.Log)
		for start, want := range []string{
			"steps=13 threads=2 instances=1 exclusive_threads=0 batch=4 rows_per_second=571 single_row=5.5ms", // 7 with one thread, of which the last is two at once
			"steps=0 threads=2 instances=1 exclusive_threads=0 batch=4 rows_per_second=571 single_row=5.5ms",
		} {
			log.Reset()
			r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, opts)
			first := find(t, r, "a")
			if threads(first) != [2]int{1, 0} || first.Config.Instances != 2 {
				t.Errorf("it began with %d threads and %d instances", threads(first), first.Config.Instances)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			last := find(t, r, "a")
			if threads(last) != [2]int{2, 0} || last.Config.Instances != 1 || last.Stats != first.Stats || index(r) != "a 1 READY" {
				t.Errorf("%d threads and %d instances; index %q", threads(last), last.Config.Instances, index(r))
			}
			if !strings.Contains(log.String(), want) {
				t.Errorf("start %d: no %q in\n%s", start, want, &log)
			}
			if got := last.Stats.Snapshot(); got.Runs != 0 {
				t.Errorf("%d runs were counted", got.Runs)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// elastic is a simulated engine whose batches take half as long with two threads, and
// twice as long as those beside another one.
type elastic struct {
	threaded
	loaded []engine.Source
}

func (e *elastic) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	e.loaded = append(e.loaded, src)
	src.Config.Parameters = map[string]string{"fixed_us": "10000", "per_row_us": "1000"}
	if src.Threads == 2 {
		src.Config.Parameters = map[string]string{"fixed_us": "5000", "per_row_us": "500"}
	}
	return e.Engine.Load(ctx, src)
}

func TestALoneBatchHasMoreThreadsWhereThatAnswersItSooner(t *testing.T) {
	d := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		eng := &elastic{threaded: threaded{simulated.Engine{Pacer: p}}}
		r := tuned(t, d, eng, p, setup{})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if v := find(t, r, "a"); threads(v) != [2]int{1, 2} || v.Config.Instances != 2 {
			t.Errorf("it runs with %d threads and %d instances", threads(v), v.Config.Instances)
		}
		if last := eng.loaded[len(eng.loaded)-1]; len(eng.loaded) != 3 || last.Threads != 1 || last.ExclusiveThreads != 2 {
			t.Errorf("loaded %d times, last %+v", len(eng.loaded), last)
		}
		m := explained(t, r, "a")
		if m.ExclusiveThreads != 2 || !slices.ContainsFunc(m.Calibration.Trials, func(tried explain.Trial) bool {
			return tried.Chosen && tried.ExclusiveThreads == 2 && tried.Instances == 2
		}) {
			t.Errorf("it says %+v", m)
		}
		// Sizes are for load, where there is one thread for each; a lone batch is faster.
		if takes := m.Curve[0].Expected.Round(100 * time.Microsecond); takes != 11*time.Millisecond || m.Policy.Slowdown[0] > 0.7 || m.Policy.Slowdown[1] > 1.1 {
			t.Errorf("one row takes %v, and alone or beside another %v times as long", takes, m.Policy.Slowdown)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// changing is an engine that calls change after it has opened a model with two threads.
type changing struct {
	*elastic
	change func()
}

func (e *changing) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	m, err := e.elastic.Load(ctx, src)
	if src.Threads == 2 {
		e.change()
	}
	return m, err
}

// Only the repository decides when new files are served.
func TestFilesThatHaveChangedAreNotServedBecauseOtherThreadsAreBetter(t *testing.T) {
	for _, tt := range []struct {
		when  string
		opens int // how often the version is opened
	}{{"before it is opened again", 1}, {"meanwhile", 2}} {
		t.Run(tt.when, func(t *testing.T) {
			d := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1")
			change := func() { d.write(map[string]string{"a/1/weights": "of another model"}) }
			synctest.Test(t, func(t *testing.T) {
				p := pacer.NewPortable()
				defer p.Close()
				eng := &changing{&elastic{threaded: threaded{simulated.Engine{Pacer: p}}}, change}
				r := tuned(t, d, eng, p, setup{})
				if tt.opens == 1 {
					change()
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if v := find(t, r, "a"); threads(v) != [2]int{1, 0} || len(eng.loaded) != tt.opens {
					t.Errorf("it runs with %d threads, and was opened %d times, want 1 and %d", threads(v), len(eng.loaded), tt.opens)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatWasMeasuredBesideOthersIsMeasuredAgainAtTheNextStart(t *testing.T) {
	d, kept := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1"), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		began := time.Now()
		others := true
		var log bytes.Buffer
		for start, want := range []string{"steps=13 ", "steps=13 ", "steps=0 "} {
			log.Reset()
			opts := setup{Log: slog.New(slog.NewTextHandler(&log, nil))}
			opts.Store = calibrate.NewStore(kept, opts.Log)
			opts.Waited = func() time.Duration {
				if !others {
					return 0
				}
				return time.Since(began) / 2
			}
			r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, opts)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if !strings.Contains(log.String(), want) {
				t.Errorf("start %d: no %q in\n%s", start, want, &log)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			others = false
		}
	})
}

// TestTheStateOfAnotherReleaseIsMeasuredAgain starts on a directory that a run of this release has
// written, then with the format that an older and a newer release would have written, and last
// with this release's own again, which shows that only the format made the difference.
func TestTheStateOfAnotherReleaseIsMeasuredAgain(t *testing.T) {
	d, dir := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1"), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		start := func(what, want string) {
			var log bytes.Buffer
			opts := setup{Log: slog.New(slog.NewTextHandler(&log, nil)), CPU: "fast"}
			opts.Store = calibrate.NewStore(dir, opts.Log)
			r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, opts)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if !strings.Contains(log.String(), want) {
				t.Errorf("with %s: no %q in\n%s", what, want, &log)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		start("an empty directory", "steps=13 ")
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil || len(files) != 2 { // one thread, and two
			t.Fatalf("it kept %q, %v", files, err)
		}
		own := map[string][]byte{}
		for _, file := range files {
			if own[file], err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
		write := func(format string) {
			for file, text := range own {
				other := bytes.Replace(text, []byte(`"Format": 2,`), []byte(`"Format": `+format+`,`), 1)
				if bytes.Equal(other, text) != (format == "2") {
					t.Fatalf("this release's own format is not 2: %s", text)
				}
				if err := os.WriteFile(file, other, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, format := range []string{"1", "3"} {
			write(format)
			start("format "+format, "steps=13 ")
		}
		write("2")
		start("its own format", "steps=0 ")
	})
}

func TestMeasuringEndsWithItsModel(t *testing.T) {
	d := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1").model("b", echoConfig+"dynamic_batching { }", "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, setup{Mode: Explicit, Models: []string{"*"}})
		time.Sleep(60 * time.Millisecond) // in the middle of it
		began := time.Now()
		if err := r.Unload("a"); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// seeing is an engine whose models say of themselves that each row is computed by
// itself. If together is set, it is not: each row gets those before it added.
type seeing struct {
	enginetest.Echo
	together bool
}

func (e *seeing) Load(_ context.Context, src engine.Source) (engine.Model, error) {
	port := modelconfig.Port{Name: "x", Type: tensor.Uint8, Dims: []int64{-1, 4}}
	err := src.Config.Complete(modelconfig.Description{Inputs: []modelconfig.Port{port}, Outputs: []modelconfig.Port{port}, Batchable: true})
	return e, err
}

func (e *seeing) Instance(ctx context.Context) (engine.Instance, error) {
	inst, err := e.Echo.Instance(ctx)
	return &seeingInstance{inst, e.together}, err
}

type seeingInstance struct {
	engine.Instance
	together bool
}

func (i *seeingInstance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	err := i.Instance.Run(ctx, in, out)
	if err == nil && i.together {
		data := out.Tensors[0].Data
		for at := 4; at < len(data); at++ {
			data[at] += data[at-4]
		}
	}
	return err
}

func TestRowsThatSeeEachOtherAreNotCombinedUnlessItIsAskedFor(t *testing.T) {
	d := newDisk(t).write(map[string]string{"bare.onnx": "", "sized/1/model.onnx": "", "sized/config.pbtxt": "max_batch_size: 6", "asked/1/model.onnx": "", "asked/config.pbtxt": "max_batch_size: 6 dynamic_batching { }"})
	for _, tt := range []struct {
		together  bool
		model     string
		most      int
		combines  bool
		inTheText string
	}{
		{true, "bare", 0, false, "requests are not combined: rows are not independent: row 2 of 2"},
		{true, "sized", 6, false, "requests are not combined: rows are not independent: row 2 of 2"},
		{true, "asked", 6, true, "asked 1 READY;"},
		{false, "bare", 64, true, "bare 1 READY;"},
		{false, "sized", 6, true, "sized 1 READY"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := pacer.NewPortable()
			defer p.Close()
			r := tuned(t, d, &seeing{together: tt.together}, p, setup{})
			cfg := find(t, r, tt.model).Config
			if cfg.MaxBatchSize != tt.most || cfg.Tunes() != tt.combines || !strings.Contains(index(r), tt.inTheText) {
				t.Errorf("%+v: max_batch_size %d, combines %t, index %q", tt, cfg.MaxBatchSize, cfg.Tunes(), index(r))
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestThreeRowsOfOneRequestAreTheModelsOwnAffair(t *testing.T) {
	d := newDisk(t).write(map[string]string{"bare.onnx": ""})
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &seeing{together: true}, p, setup{})
		v := find(t, r, "bare")
		req := &infer.Request{Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{3, 4}, Data: bytes.Repeat([]byte{1}, 12)}}}
		var resp infer.Response
		err := v.Config.Check(req)
		if err == nil {
			err = v.Scheduler.Submit(t.Context(), req, &resp)
		}
		if want := []byte{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}; err != nil || !bytes.Equal(resp.Outputs[0].Data, want) {
			t.Errorf("%+v, %v; want %v", resp, err, want)
		}
		resp.Release()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTritonsDefaultsAreKeptWhereTheyAreWanted(t *testing.T) {
	d := newDisk(t).write(map[string]string{"bare.onnx": ""})
	eng := &seeing{together: true}
	p := pacer.New()
	defer p.Close()
	r := setup{Paths: []string{d.dir}, Pacer: p, Cores: 2, Log: slog.New(slog.DiscardHandler), Runners: map[string]servable.Runner{"onnxruntime": {Engine: eng, Instances: 2}}}.open()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := find(t, r, "bare").Config
	if cfg.MaxBatchSize != modelconfig.DefaultMaxBatch || cfg.Dynamic == nil || cfg.Tunes() || cfg.Instances != 2 || len(eng.Batches()) != 0 {
		t.Errorf("%+v, and %v were run", cfg, eng.Batches())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatWasMeasuredSurvivesEviction(t *testing.T) {
	d := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		var log bytes.Buffer
		eng := &elastic{threaded: threaded{simulated.Engine{Pacer: p}}}
		r := tuned(t, d, eng, p, setup{Mode: Demand, Demand: DemandOptions{Memory: 1 << 20}, Log: slog.New(slog.NewTextHandler(&log, nil)), CPU: "fast"})
		if err := r.Load(t.Context(), "a", override{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before, loads := find(t, r, "a"), len(eng.loaded)
		if n := strings.Count(log.String(), "model measured"); n != 1 {
			t.Fatalf("measured %d times:\n%s", n, &log)
		}
		if err := r.Unload("a"); err != nil {
			t.Fatal(err)
		}
		if err := r.Load(t.Context(), "a", override{}); err != nil {
			t.Fatal(err)
		}
		after := find(t, r, "a")
		if threads(after) != threads(before) || after.Config.Instances != before.Config.Instances || after.Stats != before.Stats {
			t.Errorf("it has %d threads and %d instances, before %d and %d", threads(after), after.Config.Instances, threads(before), before.Config.Instances)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := len(eng.loaded) - loads; got != 1 || find(t, r, "a") != after || !strings.Contains(log.String(), "steps=0") {
			t.Errorf("loaded %d times again, want once:\n%s", got, &log)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
