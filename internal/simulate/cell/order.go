package cell

// An order is a heap of nodes by the time of their next event, and by index if equal.
type order struct {
	heap []int32
	at   []int32 // position in heap, by node
	time []Time  // by node
}

func newOrder(n int) *order {
	o := &order{heap: make([]int32, n), at: make([]int32, n), time: make([]Time, n)}
	for i := range n {
		o.heap[i], o.at[i], o.time[i] = int32(i), int32(i), never
	}
	return o
}

// next returns the node that is first, and its time.
func (o *order) next() (int32, Time) { return o.heap[0], o.time[o.heap[0]] }

// set changes the time of a node.
func (o *order) set(n int32, t Time) {
	if o.time[n] == t {
		return
	}
	earlier := t < o.time[n]
	o.time[n] = t
	if earlier {
		o.up(int(o.at[n]))
	} else {
		o.down(int(o.at[n]))
	}
}

func (o *order) before(x, y int32) bool {
	return o.time[x] < o.time[y] || o.time[x] == o.time[y] && x < y
}

func (o *order) put(i int, n int32) { o.heap[i], o.at[n] = n, int32(i) }

func (o *order) up(i int) {
	n := o.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !o.before(n, o.heap[parent]) {
			break
		}
		o.put(i, o.heap[parent])
		i = parent
	}
	o.put(i, n)
}

func (o *order) down(i int) {
	n := o.heap[i]
	for {
		child := 2*i + 1
		if child >= len(o.heap) {
			break
		}
		if child+1 < len(o.heap) && o.before(o.heap[child+1], o.heap[child]) {
			child++
		}
		if !o.before(o.heap[child], n) {
			break
		}
		o.put(i, o.heap[child])
		i = child
	}
	o.put(i, n)
}
