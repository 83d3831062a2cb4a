package python

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// A running is the batch that an instance runs, for those who are not its goroutine: who
// hears the worker, and who tells that a client has left.
type running struct {
	mu        sync.Mutex // guards the following
	memory    []byte     // the inputs'; nil if no batch runs
	serial    uint64     // of the batch, counted over all workers of the instance
	number    uint32     // of the question
	calls     []engine.Call
	cancelled []int // where in memory the words are that say that a request was
	opened    []bool
	senders   []*sender
	errands   map[*errand]struct{}
}

// begin returns the serial number of the batch, for abandon.
func (r *running) begin(w *worker, calls []engine.Call, cancelled []int) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serial++
	r.memory, r.number, r.calls, r.cancelled = w.in, w.number+1, calls, cancelled
	r.opened, r.senders = r.opened[:0], r.senders[:0]
	for range calls {
		r.opened = append(r.opened, false)
	}
	return r.serial
}

// end returns what was opened for the batch. Nothing is opened for it any more.
func (r *running) end() []*sender {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory, r.calls = nil, nil
	clear(r.errands)
	return r.senders
}

// left tells the model that nobody waits for a request any more.
func (r *running) left(req *infer.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.calls {
		if r.calls[i].Request == req {
			r.memory[r.cancelled[i]] = 1
		}
	}
}

// abandon tells the model that nobody waits for any request of a batch any more, if
// that still runs. What it asked of others ends.
func (r *running) abandon(serial uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serial != serial {
		return
	}
	for i := range r.calls {
		r.memory[r.cancelled[i]] = 1
	}
	for e := range r.errands {
		e.cancel()
	}
}

func (r *running) add(e *errand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		return // it is made by a thread of the model's own
	}
	if r.errands == nil {
		r.errands = map[*errand]struct{}{}
	}
	r.errands[e] = struct{}{}
}

func (r *running) remove(e *errand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.errands, e)
}

// open makes a sender of a line for one request of the batch, and hands it on. It
// takes the line over, and closes it if nobody wants it any more.
func (r *running) open(f frame, s *sender) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil || f.number != r.number || f.a >= uint64(len(r.calls)) || r.opened[f.a] || r.calls[f.a].Opened == nil {
		s.Close()
		return
	}
	select {
	case r.calls[f.a].Opened <- s:
		r.opened[f.a], r.senders = true, append(r.senders, s)
	default: // one that was opened before the batch was run again
		s.Close()
	}
}

// A sender is where the responses to one request come from: the other end of a
// pb_utils.InferenceResponseSender. It implements [infer.More].
type sender struct {
	line *net.UnixConn
	w    *worker
	cfg  *modelconfig.Config
	once sync.Once // Close

	ran    chan struct{} // closed when its batch has
	failed error         // what that came to, to be read then
}

// settle is called once when the batch has run. If that failed, nothing follows what
// was sent already.
func (s *sender) settle(err error) {
	s.failed = err
	close(s.ran)
	if err != nil {
		_ = s.line.CloseRead() // what is there can still be read
	}
}

// Close implements [infer.More]. The model finds the line closed.
func (s *sender) Close() {
	s.once.Do(func() {
		_ = s.line.Close()
		s.w.senders.Done()
	})
}

// Next implements [infer.More].
func (s *sender) Next(ctx context.Context, resp *infer.Response) error {
	resp.Outputs, resp.Parameters, resp.Last, resp.Bare = resp.Outputs[:0], nil, false, false
	stop := until(ctx, s.line)
	f, p, err := receive(s.line)
	stop()
	switch {
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
		p.release()
		resp.Last = true
		return context.Cause(ctx)
	case err == nil && f.kind == 0 || errors.Is(err, net.ErrClosed):
		resp.Last = true
		return s.why()
	case err == nil && f.kind != kindSend:
		err = fmt.Errorf("a frame of kind %d on a line for responses", f.kind)
	}
	if err != nil {
		p.release()
		resp.Last = true
		s.w.kill("it broke the protocol: it sent " + err.Error())
		return s.why()
	}
	if f.flags&senderGone != 0 {
		resp.Last = true
		return s.gone(ctx)
	}
	resp.Last, resp.Bare = f.flags&lastOne != 0, p == nil
	if p == nil {
		return nil
	}
	return s.unpack(p, resp)
}

// unpack makes of a parcel what the model answers.
func (s *sender) unpack(p *parcel, resp *infer.Response) (err error) {
	defer p.release() // unless resp has it
	if p.Failed {
		return infer.Errorf(codeOf(p.Code), "%s", p.Text)
	}
	if resp.Parameters, err = decodeParameters(p.Parameters); err != nil {
		return err
	}
	for i := range p.data {
		x := &p.data[i]
		if !s.has(x.Name) {
			return infer.Errorf(infer.Internal, "the model answered with an output %q, which its configuration does not have", x.Name)
		}
		if err := x.Check(); err != nil {
			return infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
		}
	}
	resp.Outputs, resp.Memory = append(resp.Outputs, p.data...), p.take()
	return nil
}

func (s *sender) has(output string) bool {
	for i := range s.cfg.Outputs {
		if s.cfg.Outputs[i].Name == output {
			return true
		}
	}
	return false
}

// gone says why the model has let go of the sender: it forgot the last word, unless
// the batch failed, which shows when that has run.
func (s *sender) gone(ctx context.Context) error {
	select {
	case <-s.ran:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.failed != nil {
		return s.failed
	}
	return infer.Errorf(infer.Internal, "Failed to process the request(s) for model '%s', message: its response sender is gone, "+
		"and sent no TRITONSERVER_RESPONSE_COMPLETE_FINAL", s.w.instance)
}

// why says why the line has ended: the batch failed, or the worker died, which shows
// soon.
func (s *sender) why() error {
	select {
	case <-s.ran:
		if s.failed != nil {
			return s.failed
		}
	default:
	}
	timer := time.NewTimer(2 * glance)
	defer timer.Stop()
	select {
	case <-s.w.died:
		return s.w.death("died before it had sent all responses")
	case <-timer.C:
		s.w.kill("it closed a line without a word")
		<-s.w.died
		return s.w.death("broke the protocol")
	}
}
