package budget

// minAnswer is the size of answers that are charged. The number of requests bounds smaller ones.
const minAnswer = 32 << 10

// answers estimates how large the answers of a key are. Some models return as much as they get,
// others the same for every request. The zero value expects nothing.
type answers struct {
	perByte float64 // mean, of a byte of the request
	most    float64 // bytes
}

// recent is the weight of the last answer. Few large answers among small ones must not get requests
// refused whose answers are small.
const recent = 1.0 / 8

// expect returns how large the answer to a request of asked bytes will be.
func (a answers) expect(asked int64) int64 {
	return int64(min(a.perByte*float64(max(1, asked)), a.most))
}

// observe returns the estimate after an answer.
func (a answers) observe(asked, answer int64) answers {
	perByte, size := float64(answer)/float64(max(1, asked)), float64(answer)
	if a == (answers{}) {
		return answers{perByte, size}
	}
	return answers{a.perByte + recent*(perByte-a.perByte), max(size, a.most+recent*(size-a.most))}
}

// Reserve adds what the answer to a request of asked bytes will probably take, and reports
// whether it fits: the memory of an answer is allocated before its size is known. A request that
// is the only one of its key gets what is left if more is expected, because only its answer can
// correct the estimate.
func (c *Charge) Reserve(asked int64) bool {
	b := c.budget
	c.asked = asked
	if b == nil || !b.large.Load() {
		return true
	}
	b.mu.Lock()
	var earlier answers
	if earlier, c.expected = b.answers[c.key]; !c.expected {
		b.mu.Unlock()
		return true
	}
	bytes := earlier.expect(asked)
	if b.byKey[c.key] == c.bytes {
		bytes = min(bytes, b.room(c.key))
	}
	fits := b.growAnswer(c, bytes)
	b.mu.Unlock()
	return fits || b.refused()
}

// growAnswer is grow for the answer of a charge that has none.
func (b *Budget) growAnswer(c *Charge, bytes int64) bool {
	if !b.grow(c, bytes) {
		return false
	}
	c.answer = bytes
	return true
}

// Settle replaces what the charge has for an answer, reserved or settled before, with its size,
// and reports whether that fits. If not, the charge has nothing for the answer.
func (c *Charge) Settle(answer int64) bool {
	b := c.budget
	if b == nil || answer < minAnswer && !c.expected {
		return true
	}
	b.mu.Lock()
	b.shrink(c, c.answer)
	c.answer = 0
	b.learn(c, answer)
	fits := answer < minAnswer || b.growAnswer(c, answer)
	b.mu.Unlock()
	return fits || b.refused()
}

// learn improves the estimate of a key. The caller holds the lock.
func (b *Budget) learn(c *Charge, answer int64) {
	if c.key == unknown {
		return // requests to many models have this key
	}
	now := b.answers[c.key].observe(c.asked, answer)
	c.expected = now.most >= minAnswer
	if c.expected {
		b.answers[c.key] = now
	} else {
		delete(b.answers, c.key)
	}
	b.large.Store(len(b.answers) > 0)
}

// Split moves bytes that were settled for an answer to a charge of their own, which the caller
// must close: the answer outlives its request.
func (c *Charge) Split(bytes int64) Charge {
	bytes = min(bytes, c.answer)
	c.answer -= bytes
	c.bytes -= bytes
	return Charge{budget: c.budget, key: c.key, bytes: bytes}
}
