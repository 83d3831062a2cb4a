package batching

// alarms is a min-heap of items by the time at which Step must handle them. Each item
// knows its position, so that it can be removed early.
type alarms []*Item

// set sets the alarm of it, or removes it if at is Never.
func (h *alarms) set(it *Item, at Time) {
	it.alarm = at
	switch {
	case at == Never && it.alarmSlot == 0:
	case at == Never:
		h.remove(it)
	case it.alarmSlot == 0:
		*h = append(*h, it)
		h.up(len(*h) - 1)
	default:
		h.down(h.up(it.alarmSlot - 1))
	}
}

func (h *alarms) next() Time {
	if len(*h) == 0 {
		return Never
	}
	return (*h)[0].alarm
}

func (h *alarms) remove(it *Item) {
	i, last := it.alarmSlot-1, len(*h)-1
	it.alarmSlot = 0
	if moved := (*h)[last]; i != last {
		h.put(i, moved)
	}
	(*h)[last] = nil
	*h = (*h)[:last]
	if i != last {
		h.down(h.up(i))
	}
}

// alarmBefore orders items by alarm, and by arrival if alarms are equal.
func alarmBefore(a, b *Item) bool {
	if a.alarm != b.alarm {
		return a.alarm < b.alarm
	}
	return a.sequence < b.sequence
}

func (h *alarms) put(i int, it *Item) {
	(*h)[i] = it
	it.alarmSlot = i + 1
}

func (h *alarms) up(i int) int {
	it := (*h)[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !alarmBefore(it, (*h)[parent]) {
			break
		}
		h.put(i, (*h)[parent])
		i = parent
	}
	h.put(i, it)
	return i
}

func (h *alarms) down(i int) {
	it := (*h)[i]
	for {
		child := 2*i + 1
		if child >= len(*h) {
			break
		}
		if child+1 < len(*h) && alarmBefore((*h)[child+1], (*h)[child]) {
			child++
		}
		if !alarmBefore((*h)[child], it) {
			break
		}
		h.put(i, (*h)[child])
		i = child
	}
	h.put(i, it)
}
