package automatic

import (
	"math"
	"math/bits"

	"github.com/shoal-serving/shoal/internal/batching"
)

// costs are what the policy knows about the time of batches of one size class: those whose
// rows have 2ⁿ to 2ⁿ⁺¹-1 elements each, for one n. A row of 512 tokens may cost as much as a
// hundred rows of 4 tokens, or as much as one; each class is measured by itself, so that
// neither is assumed.
// Models without variable dimensions have a single class.
type costs struct {
	class     int // see classOf; -1 if nothing is known
	curve     curve
	sizes     sizes
	drift     drift
	retest    retest
	length    lengthShare // for requests that may be padded
	padTrial  padTrial
	firstRows int // limit of the first batch
}

// classOf returns the size class of rows with the given number of elements.
func classOf(elements int64) int { return bits.Len64(uint64(elements)) }

// selectClass makes the costs of a size class the current ones. Every method that the core
// calls for a request or a batch begins with it. If the class had no requests yet, it selects
// p.unknown.
func (p *Policy) selectClass(elements int64) {
	class := classOf(elements)
	if p.class == class {
		return
	}
	p.costs = &p.unknown
	for _, c := range p.classes {
		if c.class == class {
			p.costs = c
		}
	}
}

// ensureClass is selectClass, except that it creates the costs of a class that has none yet.
func (p *Policy) ensureClass(elements int64) {
	if p.selectClass(elements); p.costs == &p.unknown {
		p.costs = p.newCosts(classOf(elements))
		p.length.reference = float64(max(1, elements))
		p.classes = append(p.classes, p.costs)
	}
}

// newCosts returns the costs of a new class. Its first batch has no more elements than the
// largest measured one of the nearest class: long rows may be far more expensive than short
// ones, and a batch of as many of them as of short ones could take minutes.
func (p *Policy) newCosts(class int) *costs {
	c := &costs{class: class, curve: newCurve(p.opt.MaxRows), retest: retest{next: p.ledger.batch + retestFirst}, padTrial: padTrial{next: retest{next: p.ledger.batch + retestFirst}}}
	c.sizes = sizesOf(&c.curve, &p.rate, p.opt.Objective)
	c.firstRows = c.curve.max()
	nearest := math.MaxInt
	for _, other := range p.classes {
		if distance := max(class-other.class, other.class-class); other.curve.known() && distance < nearest {
			nearest = distance
			rows := math.Ldexp(float64(other.curve.largest), other.class-class) // the same number of elements in rows of this class
			c.firstRows = max(1, min(c.curve.max(), int(rows)))
		}
	}
	return c
}

// soloBatches returns the number of measured batches, of all classes, that ran without
// parallel ones.
func (p *Policy) soloBatches() (n int) {
	for _, c := range p.classes {
		n += c.curve.soloBatches
	}
	return n
}

// elementsOf returns the number of elements of a row of a batch. Rows with fewer are padded.
func elementsOf(items []*batching.Item) (elements int64) {
	for _, it := range items {
		elements = max(elements, it.Elements)
	}
	return elements
}
