package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
)

const (
	followEvery = 500 * time.Millisecond
	maxState    = 1 << 30
	maxFile     = 16 << 20
)

// Handler returns the API of a cell for its commands and followers.
func (c *Controller) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		var d cell.Description
		if err := c.call(r.Context(), func(core *cell.Core) { d = core.Describe() }); err == nil {
			answer(w, http.StatusOK, d)
		}
	})
	mux.HandleFunc("POST /v1/plan", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFile))
		var next cell.Wanted
		if err == nil {
			next, err = wanted(r.Context(), text)
		}
		if err != nil {
			answer(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		var p cell.Preview
		if err := c.call(r.Context(), func(core *cell.Core) { p = core.Preview(next) }); err == nil {
			answer(w, http.StatusOK, p)
		}
	})
	mux.HandleFunc("POST /v1/rollouts", c.startRollout)
	mux.HandleFunc("DELETE /v1/rollouts/{model}", c.stopRollout)
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, r *http.Request) {
		var state []byte
		var tag string
		if err := c.call(r.Context(), func(core *cell.Core) {
			state = c.state
			epoch, version := core.Version()
			tag = fmt.Sprintf(`"%d-%d"`, epoch, version)
		}); err != nil {
			return
		}
		w.Header().Set("ETag", tag)
		switch {
		case state == nil:
			answer(w, http.StatusServiceUnavailable, map[string]string{"error": "there is no plan yet"})
		case r.Header.Get("If-None-Match") == tag:
			w.WriteHeader(http.StatusNotModified)
		default:
			_, _ = w.Write(state) // a client that has left needs nothing
		}
	})
	return mux
}

func (c *Controller) startRollout(w http.ResponseWriter, r *http.Request) {
	var rollout cell.Rollout
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFile)).Decode(&rollout)
	if err == nil {
		if failed := c.call(r.Context(), func(core *cell.Core) { rollout, err = core.PrepareRollout(rollout) }); failed != nil {
			return
		}
	}
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	c.send(r.Context(), cell.Started{Rollout: rollout})
	answer(w, http.StatusOK, rollout)
}

func (c *Controller) stopRollout(w http.ResponseWriter, r *http.Request) {
	model, known := r.PathValue("model"), false
	if err := c.call(r.Context(), func(core *cell.Core) { known = core.HasRollout(model) }); err != nil {
		return
	}
	if !known {
		answer(w, http.StatusNotFound, map[string]string{"error": fmt.Sprintf("there is no rollout of %q", model)})
		return
	}
	c.send(r.Context(), cell.Stopped{Model: model, Reason: "an operator stopped it"})
	answer(w, http.StatusOK, map[string]string{})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has left needs nothing
}

// follow copies the state of another cell until ctx ends.
func (c *Controller) follow(ctx context.Context) {
	tag, complained := "", false
	for {
		state, next, err := c.readState(ctx, tag)
		switch {
		case err != nil && !complained && ctx.Err() == nil:
			c.opts.Log.Warn("the followed cell does not answer; its last plan stays", "cell", c.opts.Follow, "error", err)
			complained = true
		case err == nil:
			complained, tag = false, next
			if state != nil {
				c.send(ctx, cell.Followed{State: *state})
			}
		}
		if !wait(ctx, followEvery) {
			return
		}
	}
}

func (c *Controller) readState(ctx context.Context, tag string) (*cell.State, string, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.opts.Follow+"/v1/state", nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("If-None-Match", tag)
	resp, err := c.opts.Client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNotModified:
		return nil, tag, nil
	case http.StatusOK:
	default:
		return nil, "", failure(resp)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxState))
	if err != nil {
		return nil, "", err
	}
	state, err := cell.DecodeState(text)
	return state, resp.Header.Get("ETag"), err
}
