package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/pause"
)

const (
	followEvery = 500 * time.Millisecond
	maxFile     = 16 << 20
)

// Handler returns the API of a cell for its commands and followers.
func (c *Controller) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		var d cell.Description
		if c.call(r.Context(), func(core *cell.Core) { d = core.Describe() }) == nil {
			answer(w, http.StatusOK, d)
		}
	})
	mux.HandleFunc("POST /v1/plan", func(w http.ResponseWriter, r *http.Request) {
		var changes []cell.Change
		var next cell.Wanted
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFile))
		if err == nil {
			next, err = wanted(r.Context(), bytes.NewReader(text))
		}
		if err != nil {
			refuse(w, statusOf(err), err.Error())
		} else if c.call(r.Context(), func(core *cell.Core) { changes = core.Preview(next) }) == nil {
			answer(w, http.StatusOK, changes)
		}
	})
	mux.HandleFunc("POST /v1/rollouts", func(w http.ResponseWriter, r *http.Request) {
		var rollout cell.Rollout
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFile)).Decode(&rollout)
		if err == nil && c.change(r.Context(), func(core *cell.Core) cell.Event {
			if rollout, err = core.PrepareRollout(rollout); err != nil {
				return nil
			}
			return cell.Started{Rollout: rollout}
		}) != nil {
			return
		}
		if err != nil {
			refuse(w, statusOf(err), err.Error())
			return
		}
		answer(w, http.StatusOK, rollout)
	})
	mux.HandleFunc("DELETE /v1/rollouts/{model}", func(w http.ResponseWriter, r *http.Request) {
		model, known := r.PathValue("model"), false
		switch {
		case c.change(r.Context(), func(core *cell.Core) cell.Event {
			if known = core.HasRollout(model); !known {
				return nil
			}
			return cell.Stopped{Model: model, Reason: "an operator stopped it"}
		}) != nil:
		case !known:
			refuse(w, http.StatusNotFound, fmt.Sprintf("there is no rollout of %q", model))
		default:
			answer(w, http.StatusOK, struct{}{})
		}
	})
	mux.HandleFunc("GET /v1/state", c.sendState)
	mux.HandleFunc("GET /v2/health/live", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = c.Figures(r.Context()) // it is live if its loop answers
	})
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, r *http.Request) {
		if f, err := c.Figures(r.Context()); err == nil && !f.Routed {
			refuse(w, http.StatusServiceUnavailable, "Envoys have got no routes yet: there is no plan, or no node has answered")
		}
	})
	return mux
}

// Figures returns the state of the cell in numbers.
func (c *Controller) Figures(ctx context.Context) (f cell.Figures, err error) {
	err = c.call(ctx, func(core *cell.Core) { f = core.Figures(now()) })
	f.StateFailures = c.failed.Load()
	return f, err
}

// sendState answers a follower, with the state unless it has it.
func (c *Controller) sendState(w http.ResponseWriter, r *http.Request) {
	state := c.saved.Load()
	switch {
	case state == nil:
		refuse(w, http.StatusServiceUnavailable, "there is no plan yet")
	case r.Header.Get(tagHeader) == state.tag:
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("ETag", state.tag)
		_, _ = w.Write(state.body) // a client that has left needs nothing
	}
}

// statusOf returns the status of a request whose body is wrong, or has not arrived in time: there is
// little while the cell stops.
func statusOf(err error) int {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

func refuse(w http.ResponseWriter, status int, why string) {
	answer(w, status, map[string]string{"error": why})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has left needs nothing
}

// follow copies the state of another cell until ctx ends.
func (c *Controller) follow(ctx context.Context) {
	tag, complained := "", false
	for after := time.Duration(0); pause.For(ctx, after) == nil; after = followEvery {
		body, next, err := c.ask(ctx, pollTimeout, http.MethodGet, c.opts.Follow+"/v1/state", tagHeader, tag)
		var state *cell.State
		if err == nil && body != nil {
			state, err = cell.DecodeState(body)
		}
		if err != nil && !complained && ctx.Err() == nil {
			c.opts.Log.Warn("the followed cell does not answer; its last plan stays", "cell", c.opts.Follow, "error", err)
		}
		if complained = err != nil; err == nil {
			tag = next
		}
		if state != nil {
			c.send(ctx, cell.Followed{State: *state})
		}
	}
}
