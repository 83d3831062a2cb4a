package sched

import (
	"runtime"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A stage is where the rows of the next batch are put while all instances are
// busy, so that the instance which takes it need not copy them first. Callers copy
// their own rows, each to the place that it was given when it arrived.
//
// Having a place says nothing about being in the batch: that is settled when an
// instance takes. If those on the stage are not the batch, one for one and from
// the first place on, because somebody has left or gone before, then the stage is
// dropped, and the batch is joined as if there had been none.
type stage struct {
	calls  []*call
	shape  uint64
	rows   int // that have been given places
	limit  int // rows that there is room for
	inputs []stageInput
	size   int      // bytes of memory
	memory *buf.Buf // with one count, the stage's; nil while nobody has a place
}

// A stageInput is the room for the rows of one input.
type stageInput struct {
	offset int // in the stage's memory
	perRow int // bytes
}

const (
	// Rows of less than this are copied faster than a place is found for them.
	minStaged = 8 << 10
	// A stage has room for so many bytes at the most.
	maxStage = 64 << 20
)

// A place is where a call's rows go on a stage.
type place struct {
	state  atomic.Int32 // see below
	first  int          // its first row
	inputs []stageInput
	memory *buf.Buf // with one count, the caller's, until it has filled the place
}

// How far the filling of a place has come. Whoever moves it from reserved to
// copying does the copying, the caller or a worker that cannot wait for it.
const (
	unstaged int32 = iota
	reserved
	copying
	copied
)

// reserveLocked gives c, which has just arrived, a place on the stage, if there is
// use and room for it.
func (s *Scheduler) reserveLocked(c *call) {
	if !s.combines || s.core.Running() < len(s.workers) || !c.item.Waits() || !c.stageable() {
		return
	}
	st := &s.stage
	if len(st.calls) == 0 {
		st.open(c, s.opts.Batching.MaxRows)
	}
	if c.item.Shape != st.shape || st.rows+c.item.Rows > st.limit {
		return
	}
	if st.memory == nil {
		st.memory = buf.Get(st.size)
	}
	st.memory.Retain()
	c.place.first, c.place.inputs, c.place.memory = st.rows, st.inputs, st.memory
	c.place.state.Store(reserved)
	st.rows += c.item.Rows
	st.calls = append(st.calls, c)
}

func (c *call) stageable() bool {
	size := 0
	for i := range c.req.Inputs {
		if c.req.Inputs[i].Type == tensor.Bytes {
			return false // its rows differ in size
		}
		size += len(c.req.Inputs[i].Data)
	}
	return size >= minStaged
}

// open plans the room for calls like c.
func (st *stage) open(c *call, maxRows int) {
	perRow := 0
	st.inputs = make([]stageInput, len(c.req.Inputs)) // those of the last stage may be in use
	for i := range st.inputs {
		st.inputs[i].perRow = len(c.req.Inputs[i].Data) / c.item.Rows
		perRow += st.inputs[i].perRow
	}
	st.shape, st.rows, st.limit, st.size = c.item.Shape, 0, min(maxRows, maxStage/perRow), 0
	for i := range st.inputs {
		st.inputs[i].offset = st.size
		st.size += st.limit * st.inputs[i].perRow
	}
}

// fill is called by the caller, to put its rows where they belong.
func (c *call) fill() {
	if c.place.memory == nil {
		return
	}
	c.copyRows(c.place.memory)
	c.place.memory.Release()
	c.place.memory = nil
}

// copyRows copies the rows to their place, if nobody has begun to.
func (c *call) copyRows(memory *buf.Buf) {
	if !c.place.state.CompareAndSwap(reserved, copying) {
		return
	}
	for i, in := range c.place.inputs {
		copy(memory.B[in.offset+c.place.first*in.perRow:], c.req.Inputs[i].Data)
	}
	c.place.state.Store(copied)
}

// claimLocked returns the stage for a batch, if it holds just that. The memory's
// count is then the worker's. It returns a stage without memory otherwise.
func (s *Scheduler) claimLocked(calls []*call) stage {
	st := &s.stage
	if len(st.calls) == 0 || calls[0].place.state.Load() == unstaged {
		return stage{} // what is there may still serve a later batch
	}
	claimed := *st
	*st = stage{}
	used := 0
	if claimed.begins(calls) {
		used = len(calls)
	}
	for _, c := range claimed.calls[used:] {
		c.place.state.CompareAndSwap(reserved, unstaged)
		c.place.state.CompareAndSwap(copied, unstaged)
	}
	if used == 0 {
		claimed.memory.Release()
		return stage{}
	}
	return claimed
}

// begins reports whether the calls have the first places of the stage, without a
// gap.
func (st *stage) begins(calls []*call) bool {
	if len(calls) > len(st.calls) {
		return false
	}
	row := 0
	for i, c := range calls {
		// A call may have left, and come back as another request with another
		// place: the same call is not enough.
		if c != st.calls[i] || c.place.first != row {
			return false
		}
		row += c.item.Rows
	}
	return true
}

// finish makes sure that all rows are there. It waits for a caller only if that is
// in the middle of copying.
func (st *stage) finish(calls []*call) {
	for _, c := range calls {
		c.copyRows(st.memory)
	}
	for _, c := range calls {
		for c.place.state.Load() != copied {
			runtime.Gosched()
		}
	}
}

// input returns the first rows of an input.
func (st *stage) input(i, rows int) []byte {
	in := st.inputs[i]
	return st.memory.B[in.offset : in.offset+rows*in.perRow]
}
