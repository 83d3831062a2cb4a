package repository

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
)

func explained(t *testing.T, r *running, name string) *explain.Model {
	t.Helper()
	m, err := r.Explain(t.Context(), name, "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWhatIsWrittenIsToldWithItsLine(t *testing.T) {
	d := newDisk(t).model("written", echoConfig+"dynamic_batching { max_queue_delay_microseconds: 500 }\ninstance_group { count: 2 }\nparameters { key: \"slo_milliseconds\" value { string_value: \"50\" } }\n", "1").
		model("plain", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, setup{})
		m := explained(t, r, "written")
		file := filepath.Join(d.dir, "written", "config.pbtxt")
		b := m.Batching
		if b.Origin != explain.Configured || !strings.HasPrefix(b.Where, file+":") || *b.Delay != 500*time.Microsecond || !strings.HasPrefix(b.MaxRowsWhere, file+":") || b.Safety.Verdict != explain.NotChecked {
			t.Errorf("batching is %+v", b)
		}
		if n := m.Instances; n.Origin != explain.Configured || n.Count != 2 || !strings.HasPrefix(n.Where, file+":") {
			t.Errorf("instances are %+v", n)
		}
		if o := m.Objective; o == nil || o.Limit != 50*time.Millisecond || !strings.HasPrefix(o.Where, file+":") {
			t.Errorf("the objective is %+v", o)
		}
		if m.Policy != nil || m.Totals.SinceLastBatch != 0 || len(m.Curve) != 0 {
			t.Errorf("nothing has run, and it says %+v", m)
		}
		if b := explained(t, r, "plain").Batching; b.Origin != explain.Default || b.Combines || b.Where != "" {
			t.Errorf("without a scheduling block batching is %+v", b)
		}
		ask(t, r, "written")
		m = explained(t, r, "written")
		if len(m.Curve) != 1 || m.Curve[0].Rows != 1 || m.Curve[0].Samples != 1 || m.Curve[0].Calibrated || m.Totals.Batches != 1 || m.Totals.Closed[0].Reason != "waited" || m.Totals.MeanQueueTime != 500*time.Microsecond {
			t.Errorf("of one request it says %+v", m)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// declaring is an engine whose models set their own batch size and number of instances.
type declaring struct{ simulated.Engine }

func (e *declaring) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	declared := *src.Config
	declared.MaxBatchSize = 8
	if err := src.Config.Adopt(&declared); err != nil {
		return nil, err
	}
	src.Config.Instances = 3
	return e.Engine.Load(ctx, src)
}

func TestWhatAModelSetsItselfIsNotCalledADefault(t *testing.T) {
	d := newDisk(t).model("own", strings.Replace(echoConfig, "max_batch_size: 4\n", "", 1), "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &declaring{simulated.Engine{Pacer: p}}, p, setup{})
		m := explained(t, r, "own")
		if b := m.Batching; b.MaxRows != 8 || !b.MaxRowsByModel || b.MaxRowsWhere != "" {
			t.Errorf("batching is %+v", b)
		}
		if n := m.Instances; n.Count != 3 || n.Origin != explain.Configured || n.Why != "the model sets the number" {
			t.Errorf("instances are %+v", n)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// ask runs a request of one row.
func ask(t *testing.T, r *running, name string) {
	t.Helper()
	v := find(t, r, name)
	req, err := calibrate.Synthetic(v.Config)[0].Request(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Config.Check(req); err != nil {
		t.Fatal(err)
	}
	var resp infer.Response
	if err := v.Scheduler.Submit(t.Context(), req, &resp); err != nil {
		t.Fatal(err)
	}
	resp.Release()
}

func TestWhatIsFoundOutIsToldWithItsReasons(t *testing.T) {
	d := newDisk(t).model("a", echoConfig+"dynamic_batching { }", "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, setup{})
		m := explained(t, r, "a")
		if m.Calibration.State != explain.CalibrationRunning || m.Batching.Origin != explain.Automatic || m.Instances.Origin != explain.Automatic || m.Instances.Count != 2 || m.Threads.Count != 1 {
			t.Errorf("at first it says %+v", m)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		m = explained(t, r, "a")
		// With two threads there is one instance, of which there is nothing to compare.
		if m.Threads.Count != 2 || m.Instances.Count != 1 || m.Calibration.State != explain.CalibrationDone || m.Calibration.Steps != 13 || len(m.Calibration.Trials) != 3 {
			t.Errorf("in the end it says %+v", m)
		}
		for _, tried := range m.Calibration.Trials {
			if tried.Chosen != (tried.Threads == 2) {
				t.Errorf("tried %+v", tried)
			}
		}
		if e := m.Policy; e == nil || e.TargetRows != 4 || e.Curve != nil || len(m.Curve) != 4 || !m.Curve[3].Calibrated || m.Curve[3].Expected.Round(time.Millisecond) != 7*time.Millisecond {
			t.Errorf("the policy knows %+v, and batches take %+v", m.Policy, m.Curve)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheVerdictOnSharingABatchIsTold(t *testing.T) {
	d := newDisk(t).write(map[string]string{"bare.onnx": ""})
	for together, want := range map[bool]explain.Verdict{true: explain.Unsafe, false: explain.Safe} {
		synctest.Test(t, func(t *testing.T) {
			p := pacer.NewPortable()
			defer p.Close()
			r := tuned(t, d, &seeing{together: together}, p, setup{})
			b := explained(t, r, "bare").Batching
			if b.Safety.Verdict != want || b.Combines == together || b.Origin != explain.Automatic || together != strings.Contains(b.Safety.Why, "not independent") {
				t.Errorf("batching is %+v", b)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhoIsNotThereIsNotExplained(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &threaded{simulated.Engine{Pacer: p}}, p, setup{})
		for _, named := range [][2]string{{"nosuch", ""}, {"a", "7"}} {
			if _, err := r.Explain(t.Context(), named[0], named[1]); infer.CodeOf(err) != infer.NotFound {
				t.Errorf("%q: %v", named, err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
