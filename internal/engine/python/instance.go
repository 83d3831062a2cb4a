package python

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/plainjson"
	"github.com/shoal-serving/shoal/tensor"
)

// An instance runs batches in a worker, and in another when that has died.
type instance struct {
	model *model
	place
	worker   *worker
	comeback comeback
	answered bool                  // the worker has answered a batch
	counted  bool                  // its death is, in comeback
	pause    time.Duration         // before the next start; good once counted
	failure  error                 // of the last attempt to start a worker; nil if that worked
	pulse    atomic.Pointer[pulse] // of the worker; nil while there is none, or if it has none

	running   running
	one       [1]engine.Call // for Run
	request   infer.Request
	cancelled []int
	table     []byte // a copy of the last answer's
}

var (
	_ engine.Sender = (*instance)(nil)
	_ engine.Mortal = (*instance)(nil)
	_ engine.Judge  = (*instance)(nil)
)

// initialize makes the worker that of this instance.
func (i *instance) initialize(ctx context.Context, w *worker) error {
	cfg := i.model.cfg
	w.instance = i.name
	w.run.Store(&i.running)
	// The keys are Triton's, and all values are strings.
	document, err := json.Marshal(map[string]string{
		"model_config":             string(plainjson.Append(nil, cfg.Effective())),
		"model_instance_kind":      i.place.kind,
		"model_instance_name":      i.name,
		"model_instance_device_id": strconv.Itoa(i.place.device),
		"model_repository":         i.model.dir,
		"model_version":            strconv.FormatInt(i.model.version, 10),
		"model_name":               cfg.Name,
	})
	if err == nil {
		_, err = w.ask(ctx, kindInit, document)
	}
	if err == nil {
		i.pulse.Store(w.pulse.Load())
	}
	return loadError(err)
}

// Ready implements [engine.Judge]. Of a worker that is dead, or does not say, nothing
// is known here.
func (i *instance) Ready() bool {
	p := i.pulse.Load()
	return p == nil || p.ask()
}

// Run implements [engine.Instance]: the batch is one request to the model.
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	i.request.Inputs = in
	i.one[0] = engine.Call{Request: &i.request, Outputs: engine.Outputs{Tensors: out.Tensors[:0]}}
	err := i.RunEach(ctx, i.one[:])
	if err == nil {
		err = i.one[0].Err
	}
	*out = i.one[0].Outputs
	i.request.Inputs = nil
	return err
}

// RunEach implements [engine.Each]. When ctx ends, the requests are told that they
// are cancelled; the worker is waited for all the same, because it can do nothing
// else meanwhile.
func (i *instance) RunEach(ctx context.Context, calls []engine.Call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := i.worker
	if w.dead() {
		return w.death("had died before the batch began")
	}
	l := layOut(calls)
	if err := w.prepare(l.size); err != nil {
		return infer.Errorf(infer.Internal, "%w: %w", engine.ErrExhausted, err)
	}
	i.cancelled = writeBatch(w.in, l, calls, i.model.cfg, i.cancelled[:0])
	serial := i.running.begin(w, calls, i.cancelled)
	w.send(frame{kind: kindRun, a: uint64(l.table), b: uint64(l.size - l.table)})
	f, err := w.await(ctx, kindRan, i.model.set.limit, func() { i.running.abandon(serial) })
	senders := i.running.end()
	switch {
	case err != nil:
		err = w.death("died while it ran the batch")
	case f.kind == kindFailed:
		err = infer.Errorf(infer.Internal, "%s", f.text)
	default:
		err = i.take(f, calls)
	}
	for _, s := range senders {
		s.settle(err)
	}
	i.answered = i.answered || err == nil
	return err
}

// Left implements [engine.Sender].
func (i *instance) Left(req *infer.Request) { i.running.left(req) }

// take copies the outputs of a batch out of the worker's memory, and looks at them
// then.
func (i *instance) take(f frame, calls []engine.Call) error {
	w := i.worker
	var err error
	if i.table, err = w.copyOut(f, i.table[:0]); err != nil {
		return w.death("broke the protocol")
	}
	memory := buf.Get(int(f.a))
	defer memory.Release() // each call has a count of its own
	copy(memory.B, w.out)
	if err := readAnswers(i.table, memory.B, calls, i.running.opened, i.model.cfg); err != nil {
		for k := range calls {
			calls[k].Err, calls[k].Outputs.Tensors = nil, calls[k].Outputs.Tensors[:0]
		}
		w.kill("it broke the protocol: it sent " + err.Error())
		<-w.died
		return w.death("broke the protocol")
	}
	for k := range calls {
		c := &calls[k]
		for n := range c.Outputs.Tensors {
			x := &c.Outputs.Tensors[n]
			if err := x.Check(); err != nil && c.Err == nil {
				c.Err = infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
			}
		}
		if c.Err != nil {
			c.Outputs.Tensors = c.Outputs.Tensors[:0]
			continue
		}
		memory.Retain()
		c.Outputs.Memory = memory
	}
	return nil
}

// Died implements [engine.Mortal].
func (i *instance) Died() <-chan struct{} { return i.worker.died }

// count counts the death of the worker, once.
func (i *instance) count() {
	if i.counted {
		return
	}
	i.pause = i.comeback.died(time.Now(), i.answered, rand.Float64())
	i.counted, i.answered = true, false
	log := i.model.log.With("instance", i.name, "pause", i.pause)
	switch {
	case i.failure != nil:
		log.Error("the model's worker cannot be started", "error", i.failure)
	case i.comeback.loops():
		log.Error("the model's worker dies whenever it is started", "reason", i.worker.reason())
	default:
		log.Warn("the model's worker died, and is started again", "reason", i.worker.reason())
	}
}

// Failing implements [engine.Mortal].
func (i *instance) Failing() *infer.Error {
	if !i.worker.dead() {
		return nil
	}
	i.count()
	var err *infer.Error
	switch {
	case i.failure != nil:
		err = infer.Errorf(infer.Unavailable, "model '%s' is not available: its worker died and cannot be started: %s", i.model.cfg.Name, headline(i.failure))
	case i.comeback.loops():
		err = infer.Errorf(infer.Unavailable, "model '%s' is not available: its worker dies whenever it is started: %s", i.model.cfg.Name, i.worker.reason())
	default:
		return nil
	}
	err.RetryAfter = max(i.pause, minRetryAfter)
	return err
}

// minRetryAfter is the shortest wait that clients of a failing instance are advised.
const minRetryAfter = time.Second

// headline returns the exception of a worker's error, without the words before it that
// name the model and the lines after it that say where it was raised.
func headline(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if _, exception, ok := strings.Cut(line, ", message: "); ok {
		return exception
	}
	return line
}

// Revive implements [engine.Mortal].
func (i *instance) Revive(ctx context.Context) error {
	i.count()
	i.pulse.Store(nil)
	i.worker.end()
	timer := time.NewTimer(i.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := i.restart(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	i.counted, i.failure = false, err
	if err != nil {
		i.count() // a worker that did not come to anything is one more that died
		return err
	}
	i.model.log.Info("the model's worker is back", "instance", i.name)
	return nil
}

// restart starts another worker, which is dead if it fails.
func (i *instance) restart(ctx context.Context) error {
	w, _, err := i.model.load(ctx, i.name)
	if err != nil {
		i.worker.cause.Store(new(err.Error()))
		return err
	}
	i.worker = w
	if err := i.initialize(ctx, w); err != nil {
		w.because(err.Error())
		w.end()
		return err
	}
	return nil
}

// Process returns the id of the process that runs batches. It is asked by whoever
// calls Run.
func (i *instance) Process() int { return i.worker.cmd.Process.Pid }

// Close implements [engine.Instance].
func (i *instance) Close() error {
	i.worker.end()
	return nil
}
