package repository

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// broad is an engine to whose models narrow rows cost the less the more there are,
// and broad ones do not: those have more of two threads, which narrow ones have not.
type broad struct {
	refuses int64 // the width that models fail with
}

type broadModel struct {
	refuses int64
	threads int64
}

func (e *broad) Load(_ context.Context, src engine.Source) (engine.Model, error) {
	return &broadModel{e.refuses, int64(max(1, src.Threads))}, nil
}

func (*broad) AnyThreads(*modelconfig.Config) bool { return true }

// Instance returns the model itself, which keeps nothing.
func (m *broadModel) Instance(context.Context) (engine.Instance, error) { return m, nil }

func (m *broadModel) Close() error { return nil }

func (m *broadModel) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	rows, width := in[0].Shape[0], in[0].Shape[1]
	if width == m.refuses {
		return infer.Errorf(infer.Invalid, "not so wide")
	}
	takes := 10*time.Millisecond + time.Duration(rows)*time.Millisecond
	if width > 100 {
		takes = time.Duration(rows*width/m.threads) * 100 * time.Microsecond
	}
	echo := enginetest.Echo{Takes: func(int) time.Duration { return takes }}
	inst, err := echo.Instance(ctx)
	if err != nil {
		return err
	}
	return inst.Run(ctx, in, out)
}

const broadConfig = `
backend: "echo"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "x" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group { count: 1 }
dynamic_batching { }
`

// send has requests of some width run, one after the other, and lets the model be
// idle then.
func send(t *testing.T, r *running, requests, width int) {
	t.Helper()
	for range requests {
		v := find(t, r, "a")
		req := &infer.Request{Inputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{1, int64(width)}, Data: make([]byte, width)}}}
		var resp infer.Response
		err := v.Config.Check(req)
		if err == nil {
			err = v.Scheduler.Submit(t.Context(), req, &resp)
		}
		if err == nil {
			resp.Release()
		}
	}
	time.Sleep(time.Minute)
	synctest.Wait()
}

func TestAModelIsMeasuredWithTheShapeThatItsRequestsHave(t *testing.T) {
	d, kept := newDisk(t).model("a", broadConfig, "1"), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		var log bytes.Buffer
		opts := setup{Log: slog.New(slog.NewTextHandler(&log, nil))}
		opts.Store = calibrate.NewStore(kept, opts.Log)
		for start, want := range [][2]string{{"steps=12 threads=1 instances=1 exclusive_threads=0 batch=4", "steps=10 threads=2 instances=1 exclusive_threads=0 batch=1"}, {"steps=0 threads=1", "steps=0 threads=2"}} {
			log.Reset()
			r := tuned(t, d, &broad{}, p, opts)
			told := func(shape string, from explain.ShapeOrigin, efficient, threads int, steps uint64) {
				t.Helper()
				m := explained(t, r, "a")
				if m.Calibration.Shape != shape || m.Calibration.ShapeOrigin != from || m.Policy.TargetRows != efficient || m.Threads.Count != threads || start == 0 && m.Calibration.Steps != steps {
					t.Errorf("start %d: measured %+v; batches are filled up to %d, with %d threads", start, m.Calibration, m.Policy.TargetRows, m.Threads.Count)
				}
			}
			send(t, r, 0, 0)
			told("x[16]", explain.SyntheticShape, 4, 1, 12)
			send(t, r, 15, 320)
			told("x[16]", explain.SyntheticShape, 4, 1, 12)
			send(t, r, 1, 320)
			told("x[320]", explain.TrafficShape, 1, 2, 22)
			send(t, r, 100, 320) // it does not ask again, although another version has taken its place
			told("x[320]", explain.TrafficShape, 1, 2, 22)
			if n := strings.Count(log.String(), "model measured"); n != 2 || !strings.Contains(log.String(), want[0]) || !strings.Contains(log.String(), want[1]) {
				t.Errorf("start %d: measured %d times, want %q in\n%s", start, n, want, &log)
			}
			send(t, r, 20, 16)
			told("x[16]", explain.SyntheticShape, 4, 1, 22)
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			opts.Store = calibrate.NewStore(kept, opts.Log)
		}
	})
}

func TestShapesThatChangeForEverAreNotFollowedForEver(t *testing.T) {
	d := newDisk(t).model("a", broadConfig, "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &broad{refuses: 300}, p, setup{})
		send(t, r, 0, 0)
		for _, tt := range []struct {
			width int
			want  string
		}{
			{200, "x[200]"}, {300, "x[200]"}, {400, "x[400]"}, {500, "x[500]"}, {600, "x[500]"}, {200, "x[500]"},
		} {
			send(t, r, 16, tt.width)
			if got := explained(t, r, "a").Calibration; got.Shape != tt.want || got.Error != "" {
				t.Errorf("after rows of %d: %+v, want %s", tt.width, got, tt.want)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAModelWithASampleKeepsToIt(t *testing.T) {
	const sample = `model_warmup { name: "s" batch_size: 1 inputs { key: "x" value { data_type: TYPE_UINT8 dims: 8 random_data: true } } }`
	d := newDisk(t).model("a", broadConfig+sample, "1")
	synctest.Test(t, func(t *testing.T) {
		p := pacer.NewPortable()
		defer p.Close()
		r := tuned(t, d, &broad{}, p, setup{})
		send(t, r, 0, 0)
		send(t, r, 100, 320)
		if m := explained(t, r, "a").Calibration; m.Shape != "x[8]" || m.ShapeOrigin != explain.SampleShape || m.Steps != 12 {
			t.Errorf("measured %+v", m)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
