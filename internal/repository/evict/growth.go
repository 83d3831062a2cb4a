package evict

// A Growth estimates how much more memory models hold than they did when they were loaded:
// buffers for batches, what Python code keeps, and memory that was freed and not returned to the
// system. It is not known whose it is: up to mostGrowth is taken for the growth of all, so that
// others will grow as much, and the rest for that of a few. The zero Growth has seen none.
type Growth struct {
	factor float64 // what models hold, as a multiple of what is counted for them
	rest   float64 // bytes beyond mostGrowth
}

const (
	// calm is the weight of what may mislead: while models come or go, some hold more than they
	// will, and others do not hold yet what is counted for them; and models that were just loaded
	// have not grown yet, so that a fall is believed less than a rise.
	calm       = 1.0 / 8
	mostGrowth = 3
)

// Observe compares what is counted for models with what they hold, in bytes. settled means that
// no model is coming or going.
func (g *Growth) Observe(counted, held int64, settled bool) {
	if counted <= 0 {
		return
	}
	g.factor = follow(g.factor, max(1, float64(held)/float64(counted)), settled)
	g.rest = follow(g.rest, float64(max(0, held-mostGrowth*counted)), settled)
}

// follow returns an estimate after seen.
func follow(estimate, seen float64, settled bool) float64 {
	if estimate == 0 || settled && seen > estimate {
		return seen
	}
	return estimate + calm*(seen-estimate)
}

// Limit returns how much may be counted for models so that they hold no more than memory. That is
// always enough for a newcomer that fits by itself.
func (g *Growth) Limit(memory, newcomer int64) int64 {
	factor := max(1, g.factor)
	limit := (float64(memory) - g.rest) / min(factor, mostGrowth)
	limit = max(limit, float64(memory)/factor) // as much as if all had grown
	if limit >= float64(memory) {
		return memory // the largest integer becomes a larger float
	}
	return max(int64(limit), min(memory, newcomer))
}

// Room returns a limit in steps of a 32nd of memory, for others that plan with it: it must not change
// with each look. before is what it returned last. It is never more than the limit, and rises when the
// limit is half a step above the next one.
func Room(before, limit, memory int64) int64 {
	step := max(1, memory/32)
	switch {
	case limit >= memory:
		return memory
	case before <= limit && limit-before < step+step/2:
		return before
	}
	return limit - limit%step
}
