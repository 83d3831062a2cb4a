package batching

// A lane holds waiting items that may share a batch: of one shape, and bound to
// one instance or to none.
type lane struct {
	key    laneKey
	levels []level
	items  int
	rows   int // of the items
}

type laneKey struct {
	shape    uint64
	instance int
}

// A level holds a lane's items of one priority: those in time, and behind them
// those that have waited past the level's timeout.
type level struct{ fresh, late list }

// list is a queue of items, linked through them so that any of them can leave
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
	return &l.levels[it.level].fresh
}

func (l *lane) push(it *Item) {
	l.listOf(it).push(it)
	it.lane = l
	l.items++
	l.rows += it.Rows
}

func (l *lane) remove(it *Item) {
	l.listOf(it).remove(it)
	it.lane = nil
	l.items--
	l.rows -= it.Rows
}

// first returns the item that is to run next, or nil if the lane is empty.
func (l *lane) first() *Item { return l.from(0, false) }

// after returns the item that follows it in the lane, or nil.
func (l *lane) after(it *Item) *Item {
	if it.next != nil {
		return it.next
	}
	if it.late {
		return l.from(it.level+1, false)
	}
	return l.from(it.level, true)
}

func (l *lane) from(n int, late bool) *Item {
	for ; n < len(l.levels); n++ {
		if !late && l.levels[n].fresh.first != nil {
			return l.levels[n].fresh.first
		}
		if l.levels[n].late.first != nil {
			return l.levels[n].late.first
		}
		late = false
	}
	return nil
}

// before reports whether a runs before b although they stand in different
// lanes: by priority, then in time before late, then by arrival.
func before(a, b *Item) bool {
	if a.level != b.level {
		return a.level < b.level
	}
	if a.late != b.late {
		return b.late
	}
	return a.number < b.number
}

// A Line is the part of a lane that a [Policy] may take from, from the front.
type Line struct {
	lane    *lane
	end     *Item // of another lane; the line ends before it. Nil if nothing stands in the way
	closing bool
}

// First returns the item at the front, or nil if nobody waits.
func (l Line) First() *Item { return l.within(l.lane.first()) }

// After returns the item behind it, or nil if it is the last.
func (l Line) After(it *Item) *Item { return l.within(l.lane.after(it)) }

func (l Line) within(it *Item) *Item {
	if it == nil || l.end != nil && before(l.end, it) {
		return nil
	}
	return it
}

// Cut reports whether a request of another shape stands behind the line, so
// that nothing can join it any more.
func (l Line) Cut() bool { return l.end != nil }

// Fit returns how many items from the front have no more than the given rows
// together, how many rows those have, and whether that is the whole line. The first
// is counted however many rows it has. Only if not all fit does it walk along the
// line.
func (l Line) Fit(most int) (items, rows int, all bool) {
	if l.end == nil && l.lane.rows <= most {
		return l.lane.items, l.lane.rows, true
	}
	for it := l.First(); it != nil; it = l.After(it) {
		if items > 0 && rows+it.Rows > most {
			return items, rows, false
		}
		items++
		rows += it.Rows
	}
	return items, rows, true
}

// Closing reports whether nothing more will arrive at all.
func (l Line) Closing() bool { return l.closing }
