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

// A Runner runs a model when nobody else wants it to.
type Runner interface {
	// Try runs a request on so many instances at once, so many times on each, and
	// returns how long each run took, or nothing if it had to make way.
	Try(ctx context.Context, req *infer.Request, instances, runs int) ([]time.Duration, error)
}

// A Job is one model to be measured.
type Job struct {
	Runner Runner
	Bounds Bounds
	// Request returns one of so many rows, which has been checked.
	Request func(rows int) (*infer.Request, error)
	// Await returns when nothing has run for so long, or ctx's error.
	Await func(ctx context.Context, quiet time.Duration) error
	// Memory returns what there is. Nil means that nobody knows.
	Memory func() machine.Memory
	// Tell is called with what is known, each time that is more. Nil means nobody.
	Tell func(Findings)
}

// How long nothing may have run before measuring begins. It is twice as long each
// time that it had to make way again.
const (
	firstQuiet = 50 * time.Millisecond
	lastQuiet  = 10 * time.Second
)

// longest ends a step whose batches do not seem to end.
const longest = time.Minute

var errLong = fmt.Errorf("it was not measured within %v", longest)

// Measure measures what is not among the findings yet, and returns all. The error is
// ctx's, or that of a model that cannot run one row.
func Measure(ctx context.Context, j Job, f Findings) (Findings, error) {
	quiet, patience := firstQuiet, firstQuiet
	for {
		s, more := Next(j.Bounds, f)
		if !more {
			return f, nil
		}
		if err := j.Await(ctx, quiet); err != nil {
			return f, err
		}
		took, ended, err := j.step(ctx, s, f)
		switch {
		case err != nil:
			return f, err
		case ended != "" && s.Instances > 1:
			return f, nil // so many at once are too many
		case ended != "":
			f.Ended = ended
		case len(took) == 0:
			patience = min(2*patience, lastQuiet)
			quiet = patience
			continue
		default:
			f = f.Add(s, took)
			quiet, patience = 0, firstQuiet // go on, as long as it lasts
		}
		if j.Tell != nil {
			j.Tell(f)
		}
	}
}

// step carries out one step, beyond what was found before. What it returns for ended
// says why nothing larger can be measured.
func (j *Job) step(ctx context.Context, s Step, before Findings) (took []time.Duration, ended string, err error) {
	if s.Rows > 1 && j.Memory != nil && tight(j.Memory()) {
		return nil, "little memory is left", nil
	}
	req, err := j.Request(s.Rows)
	if err != nil {
		return nil, "", err
	}
	limited, cancel := context.WithTimeoutCause(ctx, longest, errLong)
	defer cancel()
	took, err = j.runs(limited, req, s, before)
	switch {
	case err == nil:
		return took, "", nil
	case ctx.Err() != nil:
		return nil, "", context.Cause(ctx)
	case errors.Is(err, engine.ErrExhausted):
		return nil, "memory ran out", nil
	case s.Rows > 1:
		return nil, "the model failed: " + err.Error(), nil
	}
	return nil, "", err
}

// runs returns how long each run of a step took, or nothing if it had to make way.
// Others who use the cores only ever make batches slower: while that may be so it is
// done again, and the fastest counts.
func (j *Job) runs(ctx context.Context, req *infer.Request, s Step, before Findings) (took []time.Duration, err error) {
	first, err := j.Runner.Try(ctx, req, s.Instances, 1)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	for n := range attempts {
		again, err := j.Runner.Try(ctx, req, s.Instances, s.Runs)
		if err != nil || len(again) == 0 {
			return nil, err
		}
		if n == 0 || middleOf(again) < middleOf(took) {
			took = again
		}
		if !before.doubts(s, took) {
			break
		}
	}
	return took, nil
}

// tight reports whether so little memory is left that a larger batch might take
// what others need.
func tight(m machine.Memory) bool { return m.Limit > 0 && m.Free < m.Limit/8 }
