package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
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
			"a stop":  s.Stop,
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
