package servable

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
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
