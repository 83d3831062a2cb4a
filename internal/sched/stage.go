package sched

import (
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A stage is memory in which callers assemble a coming batch while all instances are
// busy, so that the worker that takes the batch need not copy the rows first. Each caller
// copies its own rows, to the slot that it got when it arrived. There are several stages
// in a queue, because more requests may wait than fit in one batch.
//
// A slot does not promise a place in the batch: the core decides that when a worker takes
// the batch. If the batch is not what the first slots of the stage hold, without a gap,
// because a request was cancelled or overtaken, the stage is dropped, and the worker
// joins the batch itself.
type stage struct {
	number   uint64 // in the order in which they were opened
	calls    []*call
	shape    uint64
	rows     int // that have slots
	capacity int // in rows
	inputs   []stageInput
	memory   *buf.Buf // the stage has one reference
}

// A stageInput is the part of a stage's memory that holds one input.
type stageInput struct {
	offset   int // in the stage's memory
	rowBytes int
}

const (
	// minStagedBytes is the size below which a request is not staged: copying it later is
	// faster than reserving a slot.
	minStagedBytes = 8 << 10
	// maxStageBytes bounds the memory of a stage.
	maxStageBytes = 32 << 20
	// maxStages bounds the number of stages.
	maxStages = 4
)

// A slot is the place of a call's rows on a stage.
type slot struct {
	state    atomic.Int32 // unstaged, reserved, copying or copied
	stage    uint64       // the stage's number. Guarded by the scheduler's lock
	firstRow int          // on the stage
	inputs   []stageInput
	memory   *buf.Buf // the caller has one reference until it has copied its rows; then nil
}

// States of a slot. The goroutine that moves a slot from reserved to copying copies the
// rows: either the caller, or a worker that needs them before the caller has begun.
const (
	unstaged int32 = iota
	reserved
	copying
	copied
)

// reserveLocked gives c, which has just arrived, a slot on the last stage of its shape or on
// a new one, if staging it is useful and there is room.
func (s *Scheduler) reserveLocked(c *call) {
	if !s.joins || s.opts.Ragged != nil || s.sequences != nil || s.core.Idle() > 0 || !c.item.Queued() || !c.stageable() {
		return
	}
	last := len(s.stages) - 1
	for last >= 0 && s.stages[last].shape != c.item.Shape {
		last--
	}
	if last < 0 || !s.stages[last].fits(c) {
		if len(s.stages) == maxStages && !s.dropEmptyStages() {
			return
		}
		st := newStage(c, s.opts.Batching.MaxRows)
		if !st.fits(c) {
			return
		}
		s.stagesOpened++
		st.number, st.memory = s.stagesOpened, buf.Get(st.size())
		s.stages = append(s.stages, st)
		last = len(s.stages) - 1
	}
	if s.stages[last].laidOutFor(c) {
		s.stages[last].add(c)
	}
}

// dropEmptyStages drops the stages whose calls have all left, or are in batches that did not use
// them, and reports whether there were any.
func (s *Scheduler) dropEmptyStages() bool {
	before := len(s.stages)
	s.stages = slices.DeleteFunc(s.stages, func(st stage) bool {
		used := slices.ContainsFunc(st.calls, func(c *call) bool { return st.has(c) && !c.taken })
		if !used {
			st.dropFrom(0)
			st.memory.Release()
		}
		return !used
	})
	return len(s.stages) < before
}

// fits reports whether the stage has room for c, which has its shape.
func (st *stage) fits(c *call) bool { return st.rows+c.item.Rows <= st.capacity }

// laidOutFor reports whether rows of c have the sizes of the stage's slots. Shapes are hashes, and
// after a collision, c's rows would overwrite those of other calls; see joinable.
func (st *stage) laidOutFor(c *call) bool {
	if len(c.req.Inputs) != len(st.inputs) {
		return false
	}
	for i, in := range st.inputs {
		if len(c.req.Inputs[i].Data) != c.item.Rows*in.rowBytes {
			return false
		}
	}
	return true
}

func (st *stage) add(c *call) {
	st.memory.Retain()
	c.slot.stage, c.slot.firstRow = st.number, st.rows
	c.slot.inputs, c.slot.memory = st.inputs, st.memory
	c.slot.state.Store(reserved)
	st.rows += c.item.Rows
	st.calls = append(st.calls, c)
}

func (c *call) stageable() bool {
	size := 0
	for i := range c.req.Inputs {
		if c.req.Inputs[i].Type == tensor.Bytes {
			return false // rows of strings differ in size
		}
		size += len(c.req.Inputs[i].Data)
	}
	return size >= minStagedBytes
}

// newStage lays out a stage for calls like c. It does not allocate the stage's memory.
func newStage(c *call, maxRows int) stage {
	st := stage{shape: c.item.Shape, inputs: make([]stageInput, len(c.req.Inputs))}
	perRow := 0
	for i := range st.inputs {
		st.inputs[i].rowBytes = len(c.req.Inputs[i].Data) / c.item.Rows
		perRow += st.inputs[i].rowBytes
	}
	st.capacity = min(maxRows, maxStageBytes/perRow)
	offset := 0
	for i := range st.inputs {
		st.inputs[i].offset = offset
		offset += st.capacity * st.inputs[i].rowBytes
	}
	return st
}

func (st *stage) size() int {
	last := st.inputs[len(st.inputs)-1]
	return last.offset + st.capacity*last.rowBytes
}

// copyToStage copies the rows to the call's slot, if it has one. Submit calls it on the
// caller's goroutine.
func (c *call) copyToStage() {
	if c.slot.memory == nil {
		return
	}
	c.copyRows(c.slot.memory)
	c.slot.memory.Release()
	c.slot.memory = nil
}

// copyRows copies the rows to their slot, unless another goroutine has begun to.
func (c *call) copyRows(memory *buf.Buf) {
	if !c.slot.state.CompareAndSwap(reserved, copying) {
		return
	}
	for i, in := range c.slot.inputs {
		copy(memory.B[in.offset+c.slot.firstRow*in.rowBytes:], c.req.Inputs[i].Data)
	}
	c.slot.state.Store(copied)
}

// claimLocked removes and returns the stage that holds exactly the given batch in its
// first slots; the caller then owns the stage's reference to its memory. If there is no
// such stage, it returns one without memory. Either way it drops earlier stages of the same
// shape, and those of other shapes if all of their calls have left.
func (s *Scheduler) claimLocked(calls []*call) stage {
	if calls[0].slot.state.Load() == unstaged {
		return stage{} // keep the stages, for later batches
	}
	number, shape := calls[0].slot.stage, calls[0].item.Shape
	var claimed stage
	s.stages = slices.DeleteFunc(s.stages, func(st stage) bool {
		switch {
		case st.number > number: // a later stage
			return false
		case st.shape != shape && slices.ContainsFunc(st.calls, st.has): // of another shape, and in use
			return false
		case st.number == number && st.startsWith(calls):
			st.dropFrom(len(calls))
			claimed = st
		default:
			st.dropFrom(0)
			st.memory.Release()
		}
		return true
	})
	return claimed
}

// has reports whether c has a slot on this stage. That is not certain for a call in
// st.calls: it may have left, and have been reused for another request.
func (st *stage) has(c *call) bool {
	return c.slot.stage == st.number && c.slot.state.Load() != unstaged
}

// startsWith reports whether the calls have the first slots of the stage, without a gap.
func (st *stage) startsWith(calls []*call) bool {
	row := 0
	for _, c := range calls {
		if !st.has(c) || c.slot.firstRow != row {
			return false
		}
		row += c.item.Rows
	}
	return true
}

// dropFrom takes the slots from all calls but the first n.
func (st *stage) dropFrom(n int) {
	for _, c := range st.calls[n:] {
		if st.has(c) {
			c.slot.state.CompareAndSwap(reserved, unstaged)
			c.slot.state.CompareAndSwap(copied, unstaged)
		}
	}
}

// complete makes sure that the rows of all calls have been copied. It waits for a caller
// only if that is copying at the moment.
func (st *stage) complete(calls []*call) {
	for _, c := range calls {
		c.copyRows(st.memory)
	}
	for _, c := range calls {
		for c.slot.state.Load() != copied {
			runtime.Gosched()
		}
	}
}

// input returns the data of the first rows of input i.
func (st *stage) input(i, rows int) []byte {
	in := st.inputs[i]
	return st.memory.B[in.offset : in.offset+rows*in.rowBytes]
}
