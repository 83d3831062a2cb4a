package batching

// A lane holds waiting items that may share a batch: all have the same shape, and are
// bound to the same instance or to none.
type lane struct {
	key    laneKey
	levels []level
	items  int
	rows   int // total rows of the items
	passed int // batches of other lanes that ran in place of this one since it last ran
}

type laneKey struct {
	shape    uint64
	instance int
}

// A level holds the items of a lane with one priority: those on time, and after them
// those that have exceeded the level's timeout.
type level struct{ onTime, late list }

// list is an intrusive doubly linked queue of items, so that an item can be removed
// without a search.
type list struct{ first, last *Item }

func (l *list) push(it *Item) {
	it.prev, it.next = l.last, nil
	if l.last == nil {
		l.first = it
	} else {
		l.last.next = it
	}
	l.last = it
}

// insert puts the item before those that start later, in virtual time. The search begins at the
// previous item of its tenant, which has about one item of each other tenant behind it that
// starts earlier; or at the front, if that is in another list.
func (l *list) insert(it *Item) {
	if l.last == nil || runsBefore(l.last, it) {
		l.push(it)
		return
	}
	at := l.first
	if own := it.tenantPrev; own != nil && own.lane == it.lane && own.late == it.late {
		at = own.next
	}
	for runsBefore(at, it) { // not beyond the last
		at = at.next
	}
	it.prev, it.next = at.prev, at
	if at.prev == nil {
		l.first = it
	} else {
		at.prev.next = it
	}
	at.prev = it
}

func (l *list) remove(it *Item) {
	if it.prev == nil {
		l.first = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.last = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next = nil, nil
}

func (l *lane) listOf(it *Item) *list {
	if it.late {
		return &l.levels[it.level].late
	}
	return &l.levels[it.level].onTime
}

func (l *lane) push(it *Item) {
	it.lane = l
	l.listOf(it).insert(it)
	l.items++
	l.rows += it.Rows
}

func (l *lane) remove(it *Item) {
	l.listOf(it).remove(it)
	it.lane = nil
	l.items--
	l.rows -= it.Rows
}

// first returns the item that runs next, or nil if the lane is empty.
func (l *lane) first() *Item { return l.firstFrom(0, false) }

// after returns the item that follows it in the lane, or nil.
func (l *lane) after(it *Item) *Item {
	if it.next != nil {
		return it.next
	}
	if it.late {
		return l.firstFrom(it.level+1, false)
	}
	return l.firstFrom(it.level, true)
}

func (l *lane) firstFrom(n int, late bool) *Item {
	for ; n < len(l.levels); n++ {
		if !late && l.levels[n].onTime.first != nil {
			return l.levels[n].onTime.first
		}
		if l.levels[n].late.first != nil {
			return l.levels[n].late.first
		}
		late = false
	}
	return nil
}

// runsBefore reports whether a runs before b: by priority, then on time before late, then by
// the shares of their tenants, then by arrival.
func runsBefore(a, b *Item) bool {
	if a.level != b.level {
		return a.level < b.level
	}
	if a.late != b.late {
		return b.late
	}
	if a.start != b.start {
		return a.start < b.start
	}
	return a.sequence < b.sequence
}

// A Line is the part of a lane that a [Policy] may take from, starting at the front. It has few
// fields: with a fifth one, the compiler would no longer pass it in registers.
type Line struct {
	lane    *lane
	end     *Item // item of another lane before which the line ends; nil if there is none
	closing bool

	deferrable bool
}

// First returns the item at the front, or nil if the line is empty.
func (l Line) First() *Item { return l.within(l.lane.first()) }

// After returns the item behind it, or nil if it is the last.
func (l Line) After(it *Item) *Item { return l.within(l.lane.after(it)) }

func (l Line) within(it *Item) *Item {
	if it == nil || l.end != nil && runsBefore(l.end, it) {
		return nil
	}
	return it
}

// Cut reports whether a request of another shape follows the line, so that no further
// request can join it.
func (l Line) Cut() bool { return l.end != nil }

// Fit returns how many items from the front have at most the given number of rows in
// total, how many rows they have, and whether they are the whole line. It always counts
// the first item, even if that has more rows. Fit walks along the line only if not all
// items fit.
func (l Line) Fit(maxRows int) (items, rows int, all bool) {
	if l.end == nil && l.lane.rows <= maxRows {
		return l.lane.items, l.lane.rows, true
	}
	for it := l.First(); it != nil; it = l.After(it) {
		if items > 0 && rows+it.Rows > maxRows {
			return items, rows, false
		}
		items++
		rows += it.Rows
	}
	return items, rows, true
}

// Deferrable reports whether requests of another shape run instead if the policy holds
// these, so that no instance is idle meanwhile.
func (l Line) Deferrable() bool { return l.deferrable }

// Overtaken reports whether batches of other shapes have run in place of these requests as often
// as they may, so that the policy must not hold them any longer.
func (l Line) Overtaken() bool { return l.lane.overtaken() }

// Closing reports whether no more requests will arrive.
func (l Line) Closing() bool { return l.closing }
