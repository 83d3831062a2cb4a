package evict

// A Growth estimates how much more memory models hold than they did when they were loaded:
// buffers for batches, what Python code keeps, and memory that was freed and not returned to the
// system. It is not known whose it is, so all models count for that much more. The zero Growth has
// seen none.
type Growth struct{ factor float64 }

// calm is the weight of what may mislead: while models come or go, some hold more than they will,
// and others do not hold yet what is counted for them; and models that were just loaded have not
// grown yet, so that a fall is believed less than a rise.
const calm = 1.0 / 8

// Observe compares what is counted for models with what they hold, in bytes. settled means that
// no model is coming or going.
func (g *Growth) Observe(counted, held int64, settled bool) {
	if counted <= 0 {
		return
	}
	seen := max(1, float64(held)/float64(counted))
	if g.factor == 0 || settled && seen > g.factor {
		g.factor = seen
		return
	}
	g.factor += calm * (seen - g.factor)
}

// Limit returns how much may be counted for models so that they hold no more than memory. That is
// always enough for a newcomer that fits by itself.
func (g *Growth) Limit(memory, newcomer int64) int64 {
	return max(int64(float64(memory)/max(1, g.factor)), min(memory, newcomer))
}
