package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestTheNodeHasWhatServesAndWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, &enginetest.Echo{Takes: func(int) time.Duration { return 100 * ms }, Fails: failsForBad})
		defer stop()
		for _, value := range []uint8{1, bad} {
			resp := &infer.Response{}
			if err := s.Infer(t.Context(), rows(2, value), resp); err == nil {
				resp.Release()
			}
		}
		s.setStates(s.models["m"], []int64{2}, StateUnavailable, "/srv/m/2/model.onnx: no such file")
		all := s.NodeModels()
		if len(all) != 2 {
			t.Fatalf("%d models: %+v", len(all), all)
		}
		if m := all[0]; m.Name != "m" || m.Version != "1" || m.State != "READY" || m.Digest == "" || m.Requests != 2 || m.Failures != 1 || m.Busy < 200*ms {
			t.Errorf("the version that serves: %+v", m)
		}
		if m := all[1]; m.Version != "2" || m.State != "UNAVAILABLE" || m.Reason != "m/2/model.onnx: no such file" || m.Stats != nil {
			t.Errorf("the version that failed: %+v", m)
		}
	})
}

func TestChangesOfStatesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, &enginetest.Echo{})
		defer stop()
		for name, change := range map[string]func(){
			"a state": func() { s.setStates(s.models["m"], []int64{7}, StateLoading, "") },
			"a stop":  s.SetUnready,
		} {
			reported := s.Changed()
			if reported != s.Changed() {
				t.Errorf("%s: two callers have different channels before it", name)
			}
			select {
			case <-reported:
				t.Errorf("%s is reported before it", name)
			default:
			}
			change()
			select {
			case <-reported:
			default:
				t.Errorf("%s is not reported", name)
			}
		}
		reported := s.Changed()
		s.Unload("m")
		synctest.Wait()
		select {
		case <-reported:
		default:
			t.Error("an unload is not reported")
		}
		for _, m := range s.NodeModels() {
			if m.Version == "1" {
				t.Errorf("a version that was unloaded is there: %+v", m)
			}
		}
	})
}

func TestFiguresOfVersionsAreOfTheVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, &enginetest.Echo{Takes: func(int) time.Duration { return 100 * ms }, Fails: failsForBad})
		defer stop()
		ask := func(ctx context.Context, value uint8) {
			resp := &infer.Response{}
			if err := s.Infer(ctx, rows(2, value), resp); err == nil {
				resp.Release()
			}
		}
		if all := s.NodeFigures("m"); len(all) != 1 || all[0].Version != "1" || all[0].Requests != 0 {
			t.Fatalf("before: %+v", all)
		}
		ask(t.Context(), 1)
		ask(t.Context(), bad)
		gone, leave := context.WithTimeout(t.Context(), 10*ms)
		defer leave()
		cancelled, cancel := context.WithCancel(gone)
		go func() { time.Sleep(5 * ms); cancel() }()
		ask(cancelled, 1) // is not counted
		f := s.NodeFigures("m")[0]
		if f.Requests != 2 || f.Failures != 1 || len(f.Times) != 1 || f.Times[0].Count != 1 || f.Times[0].Most < 100*ms || f.Times[0].Most > 107*ms {
			t.Errorf("%+v", f)
		}
		ask(t.Context(), deadly)
		if f := s.NodeFigures("m")[0]; f.Requests != 3 || f.Failures != 2 {
			t.Errorf("after the instance died: %+v", f)
		}
		s.SetUnready()
		ask(t.Context(), deadly) // is not counted
		if f := s.NodeFigures("m")[0]; f.Requests != 3 || f.Failures != 2 {
			t.Errorf("after the instance died while the server stopped: %+v", f)
		}
		if all := s.NodeFigures("other"); len(all) != 0 {
			t.Errorf("a model that does not exist: %+v", all)
		}
	})
}

func TestAVersionIsNotTheReasonForAModelItCallsThatIsNotLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var member error
		s, stop := serve(t, &enginetest.Echo{Fails: func([]tensor.Tensor) error {
			return infer.Errorf(infer.CodeOf(member), "in ensemble 'm', %w", member) // as ensembles wrap it
		}})
		defer stop()
		s.NodeFigures("m") // from now on unavailable requests are counted
		unavailable := func(reason infer.Reason) error {
			return infer.Errorf(infer.Unavailable, "not now").WithReason(reason, "member", "")
		}
		for _, c := range []struct {
			name    string
			err     error
			failure uint64
		}{
			{"it is being loaded", unavailable(infer.ModelLoading), 0},
			{"its version does not serve", unavailable(infer.VersionNotReady), 0},
			{"it is not in memory", unavailable(infer.NotInMemory), 0},
			{"there is no memory for it", unavailable(infer.NoMemory), 0},
			{"its instance died", infer.Errorf(infer.Unavailable, "%w", engine.ErrDied), 1},
			{"it has no instance", unavailable(infer.NoInstance), 1},
			{"it cannot be loaded", unavailable(infer.LoadFailed), 1},
			{"it says so itself", unavailable(infer.Unspecified), 1},
			{"it does not exist", infer.Errorf(infer.NotFound, "unknown").WithReason(infer.UnknownModel, "member", ""), 1},
		} {
			before := s.NodeFigures("m")[0]
			member = c.err
			if err := s.Infer(t.Context(), rows(1, 1), &infer.Response{}); infer.CodeOf(err) != infer.CodeOf(c.err) {
				t.Errorf("%s: %v", c.name, err)
			}
			after := s.NodeFigures("m")[0]
			if after.Failures-before.Failures != c.failure || after.Requests-before.Requests != c.failure {
				t.Errorf("%s: %d requests and %d failures more, want %d", c.name, after.Requests-before.Requests, after.Failures-before.Failures, c.failure)
			}
		}
	})
}

func TestOutputsAreComparedWithTheConfiguration(t *testing.T) {
	cfg := &modelconfig.Config{MaxBatchSize: 8, Outputs: []modelconfig.Tensor{{Name: "y", Type: tensor.FP32, Dims: []int64{-1, 4}}}}
	for _, c := range []struct {
		output tensor.Tensor
		fits   bool
	}{
		{tensor.Tensor{Name: "y", Type: tensor.FP32, Shape: []int64{2, 7, 4}}, true},
		{tensor.Tensor{Name: "y", Type: tensor.FP32, Shape: []int64{2, 7, 5}}, false},
		{tensor.Tensor{Name: "y", Type: tensor.FP32, Shape: []int64{2, 4}}, false},
		{tensor.Tensor{Name: "y", Type: tensor.Int32, Shape: []int64{2, 7, 4}}, false},
		{tensor.Tensor{Name: "more", Type: tensor.Int32, Shape: []int64{2}}, true}, // the configuration says nothing of it
	} {
		if got := asDeclared(cfg, []tensor.Tensor{c.output}); got != c.fits {
			t.Errorf("%v: %v", c.output, got)
		}
	}
}
