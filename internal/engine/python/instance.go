package python

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pause"
	"github.com/shoal-serving/shoal/internal/plainjson"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// An instance runs batches in a worker. When the worker dies, Restart starts another.
type instance struct {
	model *model
	placement
	worker        *worker
	backoff       backoff
	answered      bool                           // the current worker has completed a batch
	deathRecorded bool                           // the death of the current worker is counted in backoff
	restartDelay  time.Duration                  // before the next start; valid if deathRecorded
	startErr      error                          // of the last attempt to start a worker; nil if it succeeded
	probe         atomic.Pointer[readinessProbe] // of the worker; nil while no worker runs or if the model has no is_ready
	running       atomic.Pointer[worker]         // worker, for Abort; set before it is initialized
	aborted       atomic.Pointer[string]         // why Abort was called; nil if it was not

	batch     activeBatch
	single    [1]engine.Call // used by Run
	request   infer.Request
	cancelled []int
	table     []byte // copy of the last response's table
}

var (
	_ engine.Sender         = (*instance)(nil)
	_ engine.Restartable    = (*instance)(nil)
	_ engine.HealthChecker  = (*instance)(nil)
	_ engine.Aborter        = (*instance)(nil)
	_ engine.DelegateRunner = joinedInstance{}
)

// initialize assigns the worker to this instance and calls the model's initialize.
func (i *instance) initialize(ctx context.Context, w *worker) error {
	cfg := i.model.cfg
	w.instance = i.name
	w.batch.Store(&i.batch)
	i.running.Store(w)
	if why := i.aborted.Load(); why != nil {
		w.kill(*why)
	}
	// The keys are Triton's, and all values are strings.
	document, err := json.Marshal(map[string]string{
		"model_config":             string(plainjson.Append(nil, cfg.Effective())),
		"model_instance_kind":      i.placement.kind,
		"model_instance_name":      i.name,
		"model_instance_device_id": strconv.Itoa(i.placement.device),
		"model_repository":         i.model.dir,
		"model_version":            strconv.FormatInt(i.model.version, 10),
		"model_name":               cfg.Name,
	})
	if err == nil {
		_, err = w.request(ctx, kindInit, document)
	}
	if err == nil {
		i.probe.Store(w.probe.Load())
	}
	return loadError(err)
}

// Ready implements [engine.HealthChecker]. It returns true if the worker is dead, which is
// reported by Failing, or if the model has no is_ready.
func (i *instance) Ready() bool {
	p := i.probe.Load()
	return p == nil || p.check()
}

// Run implements [engine.Instance]. The batch is passed to the model as one request.
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	return i.RunFor(ctx, nil, in, out)
}

// RunFor implements [engine.DelegateRunner].
func (i *instance) RunFor(ctx context.Context, caller *access.Caller, in []tensor.Tensor, out *engine.Outputs) error {
	i.request.Inputs, i.request.Caller = in, caller
	i.single[0] = engine.Call{Request: &i.request, Outputs: engine.Outputs{Tensors: out.Tensors[:0]}}
	err := i.RunEach(ctx, i.single[:])
	if err == nil {
		err = i.single[0].Err
	}
	*out = i.single[0].Outputs
	i.request.Inputs, i.request.Caller = nil, nil
	return err
}

// RunEach implements [engine.PerRequest]. When ctx ends, the requests are marked as cancelled;
// RunEach still waits for the worker, because it cannot run anything else meanwhile.
func (i *instance) RunEach(ctx context.Context, calls []engine.Call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := i.worker
	if w.dead() {
		return w.deathError("had died before the batch began")
	}
	l := layOut(calls)
	if err := w.prepare(l.size); err != nil {
		return infer.Errorf(infer.Internal, "%w: %w", engine.ErrExhausted, err)
	}
	i.cancelled = writeBatch(w.in, l, calls, i.model.wire, i.cancelled[:0])
	serial := i.batch.begin(w, calls, i.cancelled)
	var began time.Time
	if l.traces != nil {
		began = time.Now()
	}
	w.send(frame{kind: kindRun, a: uint64(l.table), b: uint64(l.size - l.table)})
	f, err := w.await(ctx, kindRan, i.model.set.limit, func() { i.batch.abandon(serial) })
	senders := i.batch.end()
	if l.traces != nil {
		i.exportSpans(calls, began)
	}
	switch {
	case err != nil:
		err = w.deathError("died while it ran the batch")
	case f.kind == kindFailed:
		err = infer.Errorf(infer.Internal, "%s", f.text)
	default:
		err = i.readOutputs(f, calls)
	}
	if err != nil {
		for k, opened := range i.batch.opened {
			calls[k].Streaming = calls[k].Streaming || opened
		}
	}
	for _, s := range senders {
		s.batchDone(err)
	}
	i.answered = i.answered || err == nil
	return err
}

// exportSpans exports the time that a batch was in the worker, for each of its requests that is
// traced.
func (i *instance) exportSpans(calls []engine.Call, began time.Time) {
	now := time.Now()
	for k := range calls {
		if of := calls[k].Request.Trace; of != nil {
			of.ExportPart(&trace.Span{Name: "execute", Start: began, End: now, Attributes: []trace.Attribute{
				{Name: trace.Instance, Value: i.name}, {Name: trace.ProcessID, Value: i.worker.cmd.Process.Pid},
			}})
		}
	}
}

// Left implements [engine.Sender].
func (i *instance) Left(req *infer.Request) { i.batch.markCancelled(req) }

// readOutputs copies the outputs of a batch out of the worker's memory and then validates
// them.
func (i *instance) readOutputs(f frame, calls []engine.Call) error {
	w := i.worker
	var err error
	if i.table, err = w.copyOut(f, i.table[:0]); err != nil {
		return w.deathError("violated the protocol")
	}
	memory := buf.Get(int(f.a))
	defer memory.Release() // each call retains it
	copy(memory.B, w.out)
	if err := readAnswers(i.table, memory.B, calls, i.batch.opened, i.model.wire); err != nil {
		for k := range calls {
			calls[k].Err, calls[k].Outputs.Tensors = nil, calls[k].Outputs.Tensors[:0]
		}
		w.kill("it violated the protocol: it sent " + err.Error())
		<-w.died
		return w.deathError("violated the protocol")
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

// Died implements [engine.Restartable].
func (i *instance) Died() <-chan struct{} { return i.worker.died }

// recordDeath counts the death of the current worker, once, and logs it.
func (i *instance) recordDeath() {
	if i.deathRecorded {
		return
	}
	i.restartDelay = i.backoff.recordDeath(time.Now(), i.answered, rand.Float64())
	i.deathRecorded, i.answered = true, false
	log := i.model.log.With("instance", i.name, "restart_delay", i.restartDelay)
	switch {
	case i.startErr != nil:
		log.Error("failed to start the model's worker", "error", i.startErr)
	case i.backoff.crashLooping():
		log.Error("the model's worker is crash looping", "reason", i.worker.reason())
	default:
		log.Warn("the model's worker died and will be restarted", "reason", i.worker.reason())
	}
}

// Failing implements [engine.Restartable].
func (i *instance) Failing() *infer.Error {
	if !i.worker.dead() {
		return nil
	}
	i.recordDeath()
	var err *infer.Error
	switch {
	case i.startErr != nil:
		err = infer.Errorf(infer.Unavailable, "model '%s' is not available: its worker died and cannot be started: %s", i.model.cfg.Name, headline(i.startErr))
	case i.backoff.crashLooping():
		err = infer.Errorf(infer.Unavailable, "model '%s' is not available: its worker dies whenever it is started: %s", i.model.cfg.Name, i.worker.reason())
	default:
		return nil
	}
	err.RetryAfter = max(i.restartDelay, minRetryAfter)
	return err
}

// minRetryAfter is the shortest Retry-After of a failing instance.
const minRetryAfter = time.Second

// headline returns the exception of a worker's error without the prefix that names the
// model and without the traceback.
func headline(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if _, exception, ok := strings.Cut(line, ", message: "); ok {
		return exception
	}
	return line
}

// Restart implements [engine.Restartable].
func (i *instance) Restart(ctx context.Context) error {
	i.recordDeath()
	i.probe.Store(nil)
	i.worker.stop()
	if pause.For(ctx, i.restartDelay) != nil {
		return ctx.Err()
	}
	err := i.restart(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	i.deathRecorded, i.startErr = false, err
	if err != nil {
		i.recordDeath() // a failed start counts as a death
		return err
	}
	i.model.log.Info("the model's worker was restarted", "instance", i.name)
	return nil
}

// restart starts a new worker, within the time limit. If it fails, i.worker is a dead one.
func (i *instance) restart(ctx context.Context) error {
	if limit := i.model.restartTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, infer.Errorf(infer.Unavailable, "it did not start within %v", limit))
		defer cancel()
	}
	if i.model.fileChanged() {
		i.model.log.Warn("the model's file has changed since it was loaded: the restarted worker loads the changed file", "file", i.model.file)
	}
	w, _, err := i.model.load(ctx, i.name)
	if err != nil {
		i.worker.cause.Store(new(err.Error()))
		return err
	}
	i.worker = w
	if err := i.initialize(ctx, w); err != nil {
		w.setCause(err.Error())
		w.stop()
		return err
	}
	return nil
}

// Abort implements [engine.Aborter]. A worker that is started later is killed at once.
func (i *instance) Abort(reason string) {
	i.aborted.Store(&reason)
	i.running.Load().kill(reason)
}

// Process returns the id of the worker's process. It must be called from the goroutine
// that calls Run.
func (i *instance) Process() int { return i.worker.cmd.Process.Pid }

// Close implements [engine.Instance].
func (i *instance) Close() error {
	i.worker.stop()
	return nil
}
