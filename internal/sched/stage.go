package sched

import (
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A stage is where the rows of a coming batch are put while all instances are
// busy, so that the instance which takes it need not copy them first. Callers copy
// their own rows, each to the place that it was given when it arrived. There are a
// few stages, one behind the other, because more may wait than one batch holds.
//
// Having a place says nothing about being in the batch: that is settled when an
// instance takes. If those on the first stage are not the batch, one for one and
// from the first place on, because somebody has left or gone before, then the stage
// is dropped, and the batch is joined as if there had been none.
type stage struct {
	number uint64 // in the order in which they were opened
	calls  []*call
	shape  uint64
	rows   int // that have been given places
	limit  int // rows that there is room for
	inputs []stageInput
	memory *buf.Buf // with one count, the stage's
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
	maxStage = 32 << 20
	// There are so many stages at the most.
	maxStages = 4
)

// A place is where a call's rows go on a stage.
type place struct {
	state  atomic.Int32 // see below
	stage  uint64       // its number. Guarded by the scheduler's lock
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

// reserveLocked gives c, which has just arrived, a place on the last stage, or on a
// new one, if there is use and room for it.
func (s *Scheduler) reserveLocked(c *call) {
	if !s.joins || s.opts.Ragged != nil || s.core.Idle() > 0 || !c.item.Waits() || !c.stageable() {
		return
	}
	if len(s.stages) == 0 || !s.stages[len(s.stages)-1].fits(c) {
		if len(s.stages) == maxStages {
			return
		}
		st := newStage(c, s.opts.Batching.MaxRows)
		if !st.fits(c) {
			return
		}
		s.opened++
		st.number, st.memory = s.opened, buf.Get(st.size())
		s.stages = append(s.stages, st)
	}
	s.stages[len(s.stages)-1].add(c)
}

func (st *stage) fits(c *call) bool {
	return c.item.Shape == st.shape && st.rows+c.item.Rows <= st.limit
}

func (st *stage) add(c *call) {
	st.memory.Retain()
	c.place.stage, c.place.first = st.number, st.rows
	c.place.inputs, c.place.memory = st.inputs, st.memory
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

// newStage plans the room for calls like c. It has no memory yet.
func newStage(c *call, maxRows int) stage {
	st := stage{shape: c.item.Shape, inputs: make([]stageInput, len(c.req.Inputs))}
	perRow := 0
	for i := range st.inputs {
		st.inputs[i].perRow = len(c.req.Inputs[i].Data) / c.item.Rows
		perRow += st.inputs[i].perRow
	}
	st.limit = min(maxRows, maxStage/perRow)
	offset := 0
	for i := range st.inputs {
		st.inputs[i].offset = offset
		offset += st.limit * st.inputs[i].perRow
	}
	return st
}

func (st *stage) size() int {
	last := st.inputs[len(st.inputs)-1]
	return last.offset + st.limit*last.perRow
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

// claimLocked returns the stage of a batch, if there is one that holds just that.
// The memory's count is then the worker's. It returns a stage without memory
// otherwise.
func (s *Scheduler) claimLocked(calls []*call) stage {
	if calls[0].place.state.Load() == unstaged {
		return stage{} // what is there may still serve a later batch
	}
	number := calls[0].place.stage
	for len(s.stages) > 0 && s.stages[0].number <= number {
		first := s.stages[0]
		s.stages = slices.Delete(s.stages, 0, 1)
		if first.number == number && first.begins(calls) {
			first.drop(len(calls))
			return first
		}
		first.drop(0)
		first.memory.Release()
	}
	return stage{}
}

// has reports whether c has its place on this stage. The stage also remembers
// calls that have left, and may have come back as other requests.
func (st *stage) has(c *call) bool {
	return c.place.stage == st.number && c.place.state.Load() != unstaged
}

// begins reports whether the calls have the first places of the stage, without a
// gap.
func (st *stage) begins(calls []*call) bool {
	row := 0
	for _, c := range calls {
		if !st.has(c) || c.place.first != row {
			return false
		}
		row += c.item.Rows
	}
	return true
}

// drop takes their places from all calls but the first ones.
func (st *stage) drop(from int) {
	for _, c := range st.calls[from:] {
		if st.has(c) {
			c.place.state.CompareAndSwap(reserved, unstaged)
			c.place.state.CompareAndSwap(copied, unstaged)
		}
	}
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
