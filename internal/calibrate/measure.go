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
	Probe(ctx context.Context, req *infer.Request, instances, runs int) ([]time.Duration, error)
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
	// Waited returns for how long cores were waited for so far; see [machine.Waited].
	// Nil means that nobody knows.
	Waited func() time.Duration
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
		took, disturbed, ended, err := j.step(ctx, s, f)
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
			f.Disturbed = f.Disturbed || disturbed
			quiet, patience = 0, firstQuiet // go on, as long as it lasts
		}
		if j.Tell != nil {
			j.Tell(f)
		}
	}
}

// step carries out one step, beyond what was found before. What it returns for ended
// says why nothing larger can be measured.
func (j *Job) step(ctx context.Context, s Step, before Findings) (took []time.Duration, disturbed bool, ended string, err error) {
	if s.Rows > 1 && j.Memory != nil && tight(j.Memory()) {
		return nil, false, "little memory is left", nil
	}
	req, err := j.Request(s.Rows)
	if err != nil {
		return nil, false, "", err
	}
	limited, cancel := context.WithTimeoutCause(ctx, longest, errLong)
	defer cancel()
	took, disturbed, err = j.runs(limited, req, s, before)
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

// runs returns how long each run of a step took, or nothing if it had to make way.
// Others who use the cores only ever make batches slower: while that may be so it is
// done again, and the fastest counts. It also returns whether others did each time,
// as far as the kernel tells.
func (j *Job) runs(ctx context.Context, req *infer.Request, s Step, before Findings) (took []time.Duration, disturbed bool, err error) {
	first, err := j.Runner.Probe(ctx, req, s.Instances, 1)
	if err != nil || len(first) == 0 {
		return nil, false, err
	}
	disturbed = true
	for n := range attempts {
		others := j.others()
		again, err := j.Runner.Probe(ctx, req, s.Instances, s.Runs)
		if err != nil || len(again) == 0 {
			return nil, false, err
		}
		if n == 0 || middleOf(again) < middleOf(took) {
			took = again
		}
		quiet := !others()
		disturbed = disturbed && !quiet
		if quiet && !before.doubts(s, took) {
			break
		}
	}
	return took, disturbed, nil
}

// others returns a function that says whether others have used the cores since.
func (j *Job) others() func() bool {
	if j.Waited == nil {
		return func() bool { return false }
	}
	began, before := time.Now(), j.Waited()
	return func() bool { return busy*(j.Waited()-before) > time.Since(began) }
}

// tight reports whether so little memory is left that a larger batch might take
// what others need.
func tight(m machine.Memory) bool { return m.Limit > 0 && m.Free < m.Limit/8 }
