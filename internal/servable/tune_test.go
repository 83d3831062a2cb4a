package servable

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/tensor"
)

func TestAVersionIsClosedWhenItsTuningHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		v, err := newTestEnv(t, f, Options{}).Open(t.Context(), source(plain))
		if err != nil {
			t.Fatal(err)
		}
		tuner := &tuner{env: v.env, v: v, log: slog.New(slog.DiscardHandler)}
		ended := false
		tuner.start(func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second) // a batch runs to its end
			f.check(t, 1, 2)
			ended = true
			return ctx.Err()
		})
		mustClose(t, v)
		if !ended {
			t.Error("the version was closed while it was measured")
		}
		f.check(t, 0, 0)
		tuner.start(func(context.Context) error {
			t.Error("a closed version is measured")
			return nil
		})
	})
}

func TestAVersionIsClosedWhileAnotherModelIsHashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t, &fake{}, Options{Automatic: true})
		v, err := env.Open(t.Context(), source(plain+"dynamic_batching { }"))
		if err != nil {
			t.Fatal(err)
		}
		env.hashing <- struct{}{}
		v.Tune(nil)
		synctest.Wait()
		if v.tuningDone == nil {
			t.Fatal("the version is not tuned")
		}
		mustClose(t, v)
		<-env.hashing
	})
}

func TestNoMoreInstancesAreMeasuredThanAVersionHas(t *testing.T) {
	for _, config := range []string{"", "instance_group { }", "instance_group { } instance_group { }"} {
		open := func(how tuning) *Version {
			cfg, err := modelconfig.Parse("", []byte(config))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Automatic = true
			v := &Version{env: NewEnv(Options{Cores: 8}), runner: Runner{Instances: 2, Device: sched.NewDevice(8)}, Config: cfg, threads: max(1, how.threads)}
			cfg.Instances, v.autoInstances = v.instanceCount(how)
			return v
		}
		v := open(tuning{})
		for _, n := range []int{1, 2, 4, 8} {
			want := min(open(tuning{threads: n}).Config.Instances, 8/n)
			if got := (&tuner{env: v.env, v: v}).bounds(n).Instances; got != want {
				t.Errorf("%q with %d threads: up to %d instances at once are measured, want %d", config, n, got, want)
			}
		}
		wantDefault := config != ""
		if got := v.explainInstances(); (got.Origin == explain.Default) != wantDefault || strings.Contains(got.Why, "cores") == wantDefault {
			t.Errorf("%q: explained as %+v", config, got)
		}
	}
}

func TestInputsThatAModelRefusesAreNotMeasuredWith(t *testing.T) {
	refuses := false
	f := &fake{Echo: enginetest.Echo{Fails: func([]tensor.Tensor) error {
		if refuses {
			return errors.New("not this")
		}
		return nil
	}}}
	v, err := newTestEnv(t, f, Options{}).Open(t.Context(), source(plain))
	if err != nil {
		t.Fatal(err)
	}
	for _, refuses = range []bool{true, false} {
		if err := v.warmWith(t.Context(), calibrate.Synthetic(v.Config)); err != nil || (v.inputs == nil) != refuses {
			t.Errorf("refuses %t: %v, and there are inputs: %t", refuses, err, v.inputs != nil)
		}
	}
	mustClose(t, v)
}

// A single is a fake whose batches may have any number of threads.
type single struct{ *fake }

func (single) AnyThreads(*modelconfig.Config) bool { return true }

func TestAModelThatCannotBeMeasuredSaysWhy(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		takes      time.Duration
		err        error
	}{
		{"it refuses all inputs", "no inputs that were generated suit the model; add a sample to model_warmup: the model failed: not this", 0, errors.New("not this")},
		{"it is slow", "the model did not run one row within 10s", time.Minute, nil},
		{"it can be measured", "", 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{Echo: enginetest.Echo{Fails: func([]tensor.Tensor) error {
					time.Sleep(tt.takes)
					return tt.err
				}}}
				env := newTestEnv(t, f, Options{Automatic: true, Cores: 2})
				env.opts.Runners["fake"] = Runner{Engine: single{f}}
				v, err := env.Open(t.Context(), source(strings.Replace(plain, "count: 2", "", 1)+"dynamic_batching { }"))
				if err != nil {
					t.Fatal(err)
				}
				env.hashing <- struct{}{} // what can be measured waits
				v.Tune(nil)
				m := v.Explain()
				if m.Calibration.Error != tt.want || (m.Calibration.State == explain.CalibrationDone) != (tt.want != "") {
					t.Errorf("calibration is explained as %+v, want %q", m.Calibration, tt.want)
				}
				if got, want := m.Threads.Why, "the default, because calibration failed"; (got == want) != (tt.want != "") {
					t.Errorf("threads are explained with %q", got)
				}
				mustClose(t, v)
				<-env.hashing
			})
		})
	}
}
