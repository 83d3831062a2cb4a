package calibrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
)

// A Runner runs a model while it is idle.
type Runner interface {
	// Probe runs a request on the given number of instances at once, the given number of
	// times on each, and returns how long each run took. It returns nil, nil if client
	// requests interrupted it.
	Probe(ctx context.Context, req *infer.Request, instances, runs int) ([]time.Duration, error)
}

// A Job describes one model to measure.
type Job struct {
	Runner Runner
	Bounds Bounds
	// Request returns a valid request with the given number of rows.
	Request func(rows int) (*infer.Request, error)
	// Await blocks until nothing has run for the duration quiet, or returns ctx's error.
	Await func(ctx context.Context, quiet time.Duration) error
	// Memory, if not nil, returns how much memory there is.
	Memory func() machine.Memory
	// Waited, if not nil, returns how long threads have waited for a core in total; see
	// [machine.Waited].
	Waited func() time.Duration
	// OnProgress, if not nil, is called with the findings after each step.
	OnProgress func(Findings)
}

// How long the model must have been idle before a measurement. The time doubles with each
// interruption, up to maxQuiet.
const (
	minQuiet = 50 * time.Millisecond
	maxQuiet = 10 * time.Second
)

// stepTimeout bounds the time of a step.
const stepTimeout = time.Minute

var errStepTimeout = fmt.Errorf("the measurement timed out after %v", stepTimeout)

// Measure takes the measurements that f does not have yet, and returns all findings. It
// fails if ctx ends, or if the model cannot run a single row.
func Measure(ctx context.Context, j Job, f Findings) (Findings, error) {
	quiet, backoff := minQuiet, minQuiet
	for {
		s, more := Next(j.Bounds, f)
		if !more {
			return f, nil
		}
		if err := j.Await(ctx, quiet); err != nil {
			return f, err
		}
		took, disturbed, ended, err := j.step(ctx, s, f)
		switch {
		case err != nil:
			return f, err
		case ended != "" && s.Instances > 1:
			return f, nil // too many instances for the memory or the model
		case ended != "" && f.StopReason != "":
			return f, nil // sizes that were measured before cannot be measured again, either
		case ended != "":
			f.StopReason = ended
		case len(took) == 0:
			backoff = min(2*backoff, maxQuiet)
			quiet = backoff
			continue
		default:
			f = f.add(s, took)
			f.Disturbed = f.Disturbed || disturbed
			quiet, backoff = 0, minQuiet // continue at once while the model is idle
		}
		if j.OnProgress != nil {
			j.OnProgress(f)
		}
	}
}

// step takes one measurement. before are the findings so far. If nothing larger can be
// measured, ended is the reason; if client requests interrupted the step, took is empty.
func (j *Job) step(ctx context.Context, s Step, before Findings) (took []time.Duration, disturbed bool, ended string, err error) {
	if s.Rows > 1 && j.Memory != nil && lowMemory(j.Memory()) {
		return nil, false, "memory is low", nil
	}
	req, err := j.Request(s.Rows)
	if err != nil {
		return nil, false, "", err
	}
	limited, cancel := context.WithTimeoutCause(ctx, stepTimeout, errStepTimeout)
	defer cancel()
	took, disturbed, err = j.measureStep(limited, req, s, before)
	switch {
	case err == nil:
		return took, disturbed, "", nil
	case ctx.Err() != nil:
		return nil, false, "", context.Cause(ctx)
	case errors.Is(err, engine.ErrExhausted):
		return nil, false, "memory ran out", nil
	case s.Rows > 1:
		return nil, false, "the model failed: " + err.Error(), nil
	}
	return nil, false, "", err
}

// measureStep returns how long each run of a step took, or nil if client requests
// interrupted it. Other processes can only make batches slower, so while they may have
// disturbed a measurement, it is repeated, and the fastest counts. disturbed reports whether
// every attempt was disturbed, as far as the kernel reports it.
func (j *Job) measureStep(ctx context.Context, req *infer.Request, s Step, before Findings) (took []time.Duration, disturbed bool, err error) {
	first, err := j.Runner.Probe(ctx, req, s.Instances, 1)
	if err != nil || len(first) == 0 {
		return nil, false, err
	}
	disturbed = true
	for n := range maxAttempts {
		contended := j.watchContention()
		again, err := j.Runner.Probe(ctx, req, s.Instances, s.Runs)
		if err != nil || len(again) == 0 {
			return nil, false, err
		}
		if n == 0 || median(again) < median(took) {
			took = again
		}
		quiet := !contended()
		disturbed = disturbed && !quiet
		if quiet && !before.doubtful(s, took) {
			break
		}
	}
	return took, disturbed, nil
}

// watchContention returns a function that reports whether threads have had to wait for the
// cores since.
func (j *Job) watchContention() func() bool {
	if j.Waited == nil {
		return func() bool { return false }
	}
	began, before := time.Now(), j.Waited()
	return func() bool { return contentionDivisor*(j.Waited()-before) > time.Since(began) }
}

// lowMemory reports whether so little memory is free that a larger batch might exhaust it.
func lowMemory(m machine.Memory) bool { return m.Limit > 0 && m.Free < m.Limit/8 }
