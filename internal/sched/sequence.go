package sched

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Sequences configure a model whose requests belong to sequences.
type Sequences struct {
	Model *modelconfig.Sequence
	Slots int // of an instance

	// MaxBytes limits the inputs of a batch in which all rows are as large as that of one
	// request; zero means no limit. Used if Model.Direct: the rows of other slots are as large as
	// a client makes its own, and only that one is charged.
	MaxBytes int64
}

// check returns an error if a batch with req may be too large.
func (s *Sequences) check(req *infer.Request) error {
	if !s.Model.Direct || s.MaxBytes == 0 {
		return nil
	}
	row := int64(0)
	for i := range req.Inputs {
		row += int64(emptySize(&req.Inputs[i]))
	}
	if row > s.MaxBytes/int64(s.Slots) {
		return infer.Errorf(infer.Invalid, "limit of decoded bytes exceeded: the model's direct sequences have %d rows, each as large as the request's %d bytes, and allowed are %d together", s.Slots, row, s.MaxBytes)
	}
	return nil
}

// waitingLocked and runningLocked return the number of queued requests and of running batches.
func (s *Scheduler) waitingLocked() int {
	if s.sequences != nil {
		return s.sequences.Waiting()
	}
	return s.core.Waiting()
}

func (s *Scheduler) runningLocked() int {
	if s.sequences != nil {
		return s.sequences.Running()
	}
	return s.core.Running()
}

// Slots returns the slots for sequences; nil if requests do not belong to sequences.
func (s *Scheduler) Slots() (slots *explain.Slots) {
	if s.sequences == nil {
		return nil
	}
	s.locked(nil, func(batching.Time, *batching.Actions) {
		used, waiting := s.sequences.Live()
		slots = &explain.Slots{All: s.sequences.Slots(), Used: used, Waiting: waiting}
	})
	return slots
}

// stepCoreLocked steps whichever core the model has.
func (s *Scheduler) stepCoreLocked(now batching.Time, ev batching.Event, out *batching.Actions) {
	if s.sequences != nil {
		s.sequences.Step(now, ev, out)
		return
	}
	s.core.Step(now, ev, out)
}

// withControls returns a copy of req with the inputs that clients do not send: the controls,
// and the states with their initial values, which the worker replaces by those of the
// sequence. The caller keeps req, and may read it at any time.
func (s *Scheduler) withControls(req *infer.Request) *infer.Request {
	seq := s.opts.Sequences.Model
	full := *req
	full.Inputs = make([]tensor.Tensor, 0, len(req.Inputs)+len(seq.Controls)+len(seq.States))
	full.Inputs = append(full.Inputs, req.Inputs...)
	of := req
	if req.Correlation == 0 && req.CorrelationName == "" {
		of = nil // a sample that warms up the model, or an empty row
	}
	for i := range seq.Controls {
		c := &seq.Controls[i]
		full.Inputs = append(full.Inputs, tensor.Tensor{Name: c.Name, Type: c.Type, Shape: s.rowShape([]int64{1}), Data: c.Value(of)})
	}
	if len(req.Outputs) > 0 {
		full.Outputs = slices.Clone(req.Outputs)
	}
	for i := range seq.States {
		st := &seq.States[i]
		if len(req.Outputs) > 0 {
			full.Outputs = append(full.Outputs, st.Output)
		}
		full.Inputs = append(full.Inputs, tensor.Tensor{Name: st.Input, Type: st.Type, Shape: s.rowShape(st.FirstDims()), Data: st.Initial})
	}
	return &full
}

// rowShape returns the shape of one row.
func (s *Scheduler) rowShape(dims []int64) []int64 {
	if s.opts.NoBatchDimension {
		return dims
	}
	return append([]int64{1}, dims...)
}

// correlate sets what the core needs to know of a request of a sequence.
func (c *call) correlate(req *infer.Request) {
	c.item.Correlation = batching.Correlation{Number: req.Correlation, Name: req.CorrelationName}
	if req.Caller != nil { // its names, because each connection, and each token, has a Caller of its own
		c.item.Correlation.Caller = req.Caller.Tenant() + "\x00" + req.Caller.Name()
	}
	c.item.Start, c.item.End = req.Flags&infer.SequenceStart != 0, req.Flags&infer.SequenceEnd != 0
	c.item.PadGroup = 0
}

// A sequenceState is the state of a sequence between its requests. Only the worker that runs
// a request of the sequence uses it.
type sequenceState []tensor.Tensor // by state of the configuration; the data are its own

// addStates gives calls the states of their sequences. A request that starts a sequence has
// the initial values already.
func (w *worker) addStates(calls []*call) {
	for _, c := range calls {
		seq := c.item.Sequence()
		if seq == nil {
			continue
		}
		if c.item.Start {
			seq.State = nil // if this request fails, the next must not go on where the last sequence ended
			continue
		}
		if state, ok := seq.State.(sequenceState); ok {
			inputs := c.req.Inputs[len(c.req.Inputs)-len(state):]
			for k := range state {
				inputs[k].Shape, inputs[k].Data = state[k].Shape, state[k].Data
			}
		}
	}
}

// keepStates moves the states from the outputs of a call to its sequence: all of them, or none
// if one is missing or has another type.
func (w *worker) keepStates(c *call) error {
	states := w.s.opts.Sequences.Model.States
	seq := c.item.Sequence()
	if len(states) == 0 {
		return nil
	}
	output := func(st *modelconfig.State) int {
		return slices.IndexFunc(c.outputs, func(x tensor.Tensor) bool { return x.Name == st.Output })
	}
	for k := range states {
		st := &states[k]
		switch i := output(st); {
		case i < 0:
			return infer.Errorf(infer.Internal, "the model returned no output %s, which is a state of the sequence", st.Output)
		case c.outputs[i].Type != st.Type:
			return infer.Errorf(infer.Internal, "output %s of the model has type %v, expected %v", st.Output, c.outputs[i].Type, st.Type)
		}
	}
	var state sequenceState
	if seq != nil {
		state, _ = seq.State.(sequenceState)
	}
	if state == nil {
		state = make(sequenceState, len(states))
	}
	shape := uint64(0)
	for k := range states {
		st := &states[k]
		i := output(st)
		out := &c.outputs[i]
		state[k] = tensor.Tensor{
			Name: st.Input, Type: st.Type, Shape: append(state[k].Shape[:0:0], out.Shape...), Data: append(state[k].Data[:0], out.Data...),
		}
		for j, d := range st.Dims {
			if at := len(out.Shape) - len(st.Dims) + j; d == -1 && at >= 0 && out.Shape[at] != 1 {
				const prime = 1099511628211
				shape = (shape ^ uint64(out.Shape[at]) ^ uint64(k)<<32 ^ uint64(j)<<48) * prime
			}
		}
		if !st.Listed() {
			c.outputs = slices.Delete(c.outputs, i, i+1)
		}
	}
	if seq != nil {
		seq.State, seq.StateShape = state, shape
	}
	return nil
}

// rowsOf returns the calls of a batch as rows: if sequences have rows of their own, each call
// is in that of its sequence, and the rows before it that have no request are empty.
func (w *worker) rowsOf(calls []*call) []*call {
	if !w.s.opts.Sequences.Model.Direct || calls[0].item.Sequence() == nil {
		return calls
	}
	last := 0
	for _, c := range calls {
		last = max(last, c.item.Sequence().Slot())
	}
	rows := make([]*call, last+1)
	for _, c := range calls {
		rows[c.item.Sequence().Slot()] = c
	}
	var empty *infer.Request // of all rows without one, which only read it
	for i, c := range rows {
		if c == nil {
			if empty == nil {
				empty = w.emptyRequest(calls[0])
			}
			rows[i] = &call{req: empty, empty: true}
			rows[i].item.Rows, rows[i].item.Shape = 1, calls[0].item.Shape
		}
	}
	return rows
}

// emptyRequest returns the request of rows that have none. It has the shapes of the given
// one, and zeros.
func (w *worker) emptyRequest(like *call) *infer.Request {
	seq := w.s.opts.Sequences.Model
	var zeros []byte // of all inputs: models do not write to them
	zero := func(size int) []byte {
		if size > len(zeros) {
			zeros = make([]byte, size)
		}
		return zeros[:size:size]
	}
	// A model that calls others does so for the callers of all rows; none would be without rights.
	req := &infer.Request{Model: like.req.Model, Version: like.req.Version, Rows: 1, Caller: like.req.Caller}
	for _, in := range like.req.Inputs[:len(like.req.Inputs)-len(seq.Controls)-len(seq.States)] {
		req.Inputs = append(req.Inputs, tensor.Tensor{Name: in.Name, Type: in.Type, Shape: in.Shape, Data: zero(emptySize(&in))})
	}
	req = w.s.withControls(req)
	for k, first := len(req.Inputs)-len(seq.States), len(like.req.Inputs)-len(seq.States); first < len(like.req.Inputs); k, first = k+1, first+1 {
		req.Inputs[k].Shape, req.Inputs[k].Data = like.req.Inputs[first].Shape, zero(len(like.req.Inputs[first].Data))
	}
	return req
}

// emptySize returns the size of a row without a request in which an input has the shape of in.
func emptySize(in *tensor.Tensor) int {
	if in.Type != tensor.Bytes {
		return len(in.Data)
	}
	elements, _ := tensor.Elements(in.Shape) // the request has passed the check
	return int(4 * elements)                 // empty strings
}

// endRows keeps the states of the rows, and releases those that are empty.
func (w *worker) endRows(rows []*call) {
	for _, c := range rows {
		switch {
		case c.empty:
			c.memory.Release()
			c.memory = nil
		case c.err == nil:
			if c.err = w.keepStates(c); c.err != nil {
				c.memory.Release()
				c.memory = nil
			}
		}
	}
}
