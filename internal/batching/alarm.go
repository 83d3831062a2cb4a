package batching

// alarms is a heap of the items that Step must look at when a time comes, the
// next one first. Each item knows its place, so that it can leave early.
type alarms []*Item

// set puts it at the given time, or takes it out if that is Never.
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

// sooner orders items by their alarms, and those of one instant by their
// arrival.
func sooner(a, b *Item) bool {
	if a.alarm != b.alarm {
		return a.alarm < b.alarm
	}
	return a.number < b.number
}

func (h *alarms) put(i int, it *Item) {
	(*h)[i] = it
	it.alarmSlot = i + 1
}

func (h *alarms) up(i int) int {
	it := (*h)[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !sooner(it, (*h)[parent]) {
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
		if child+1 < len(*h) && sooner((*h)[child+1], (*h)[child]) {
			child++
		}
		if !sooner((*h)[child], it) {
			break
		}
		h.put(i, (*h)[child])
		i = child
	}
	h.put(i, it)
}
