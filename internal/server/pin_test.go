package server

import (
	"testing"
	"testing/synctest"

	"github.com/shoal-serving/shoal/internal/infer"
)

func TestPinnedVersionsServeUntilTheyAreReleased(t *testing.T) {
	eng := &counting{}
	inBubble(t, eng, Options{}, func(t *testing.T, s *Server) {
		s.MarkStarted()
		mustLoad(t, s, versions(1, 1))
		pinned, release := s.Pin([]infer.ModelVersion{{Model: "m"}, {Model: "m"}, {Model: "other"}})
		mustLoad(t, s, versions(1, 2))
		synctest.Wait()
		if eng.open != 2 || found(s) != 2 {
			t.Errorf("%d versions are open, and %d serves, want the pinned one beside the new one", eng.open, found(s))
		}
		ask := func(model string, pinned any) (infer.Response, error) {
			var resp infer.Response
			req := rows(1, 1)
			req.Model, req.Pinned = model, pinned
			err := s.Call(t.Context(), req, &resp)
			if err == nil {
				resp.Release()
			}
			return resp, err
		}
		for want, pinned := range map[string]any{"1": pinned, "2": nil} {
			if resp, err := ask("m", pinned); err != nil || resp.Version != want {
				t.Errorf("version %s answered with %v, want version %s", resp.Version, err, want)
			}
		}
		if _, err := ask("other", pinned); infer.CodeOf(err) != infer.NotFound {
			t.Errorf("a model that did not serve: %v, want that it is not found", err)
		}
		release()
		synctest.Wait()
		if eng.open != 1 {
			t.Errorf("%d versions are open after the release, want one", eng.open)
		}
		if _, err := ask("m", pinned); err == nil {
			t.Error("a closed version answered")
		}
	})
}
