package budget

import "testing"

const mib = 1 << 20

// answered returns a budget of 100 MiB after requests of a model, of asked bytes each, were
// answered.
func answered(t *testing.T, asked int64, answers ...int64) *Budget {
	t.Helper()
	b := New(100 * mib)
	for _, answer := range answers {
		c := b.Open("model")
		if !c.Grow(asked) || !c.Reserve(asked) || !c.Settle(answer) {
			t.Fatalf("an answer of %d bytes does not fit", answer)
		}
		if want := asked + answer; answer >= minAnswer && b.State().Used != want {
			t.Fatalf("%d bytes are charged, want %d", b.State().Used, want)
		}
		c.Close()
	}
	return b
}

// reserved returns what is reserved for a request of asked bytes, beside another one.
func reserved(t *testing.T, b *Budget, asked int64) int64 {
	t.Helper()
	other, c := b.Open("model"), b.Open("model")
	defer other.Close()
	defer c.Close()
	if !other.Grow(1) || !c.Reserve(asked) {
		t.Fatal("nothing could be reserved")
	}
	return c.Bytes()
}

func TestAnswersAreExpectedAsBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		answers     []int64 // to requests of 1 MiB
		asked, want int64
	}{
		"as large as the request":        {answers: []int64{mib}, asked: mib / 2, want: mib / 2},
		"no larger than any before":      {answers: []int64{4 * mib}, asked: 8 * mib, want: 4 * mib},
		"a little more after a larger":   {answers: []int64{mib, 9 * mib}, asked: mib, want: 2 * mib},
		"an eighth less after a smaller": {answers: []int64{2 * mib, 0}, asked: mib, want: 2 * mib * 7 / 8},
		"small ones are not charged":     {answers: []int64{minAnswer - 1}, asked: mib, want: 0},
		"large ones are forgotten":       {answers: append([]int64{mib}, make([]int64, 100)...), asked: mib, want: 0},
	} {
		b := answered(t, mib, tt.answers...)
		if got := reserved(t, b, tt.asked); got != tt.want {
			t.Errorf("%s: %d bytes are reserved, want %d", name, got, tt.want)
		}
		if expects := len(b.answers) > 0; expects != b.large.Load() || expects != (tt.want > 0) {
			t.Errorf("%s: %d models are remembered, large is %v", name, len(b.answers), b.large.Load())
		}
	}
}

func TestARequestWhoseAnswerWillNotFitIsRefused(t *testing.T) {
	b := answered(t, mib, 20*mib) // one model gets 50 MiB
	first, second, third := b.Open("model"), b.Open("model"), b.Open("model")
	if !first.Reserve(mib) || !second.Reserve(mib) {
		t.Fatal("answers of 40 MiB do not fit")
	}
	refused := 0
	b.Refused = func() { refused++ }
	if third.Reserve(mib) || third.Bytes() != 0 || refused != 1 || b.State().Rejected != 1 {
		t.Errorf("a third answer fits: charged %d bytes, %d refused, %+v", third.Bytes(), refused, b.State())
	}
	first.Close()
	if !third.Reserve(mib) {
		t.Error("a third answer does not fit after the first was sent")
	}
	if other := b.Open("other"); !other.Reserve(50*mib) || other.Bytes() != 0 {
		t.Error("another model's answers are expected to be as large")
	}
}

// A model whose answers were too large once must get requests again.
func TestTheOnlyRequestOfAModelIsNeverRefusedForItsAnswer(t *testing.T) {
	b := New(100 * mib)
	c := b.Open("model")
	if !c.Reserve(1) || c.Settle(60*mib) || c.Bytes() != 0 {
		t.Fatalf("an answer of more than half of the budget fits, %d bytes are charged", c.Bytes())
	}
	if c = b.Open("model"); !c.Grow(mib) || !c.Reserve(1) || c.Bytes() != 50*mib {
		t.Errorf("%d bytes are charged for the next request, want half of the budget", c.Bytes())
	}
	if !c.Settle(mib) || c.Bytes() != 2*mib {
		t.Errorf("%d bytes are charged for request and answer of 1 MiB", c.Bytes())
	}
}

func TestAnAnswerOutlivesItsRequest(t *testing.T) {
	b := New(100 * mib)
	c := b.Open("model")
	if !c.Grow(mib) || !c.Reserve(mib) || !c.Settle(3*mib) {
		t.Fatal("4 MiB do not fit")
	}
	answer := c.Split(2 * mib)
	if c.Close(); b.State().Used != 2*mib || c.Bytes() != 0 {
		t.Errorf("%d bytes are charged after the request, want those of the answer", b.State().Used)
	}
	if answer.Close(); b.State().Used != 0 {
		t.Errorf("%d bytes are charged in the end", b.State().Used)
	}
	if c = b.Open("model"); !c.Grow(mib) {
		t.Fatal("1 MiB does not fit")
	}
	if other := c.Split(mib); other.Bytes() != 0 {
		t.Errorf("%d bytes of a request became its answer's", other.Bytes())
	}
}

// A stream has several answers, one after the other.
func TestEachAnswerOfAStreamReplacesTheOneBefore(t *testing.T) {
	b := New(100 * mib)
	c := b.Open("model")
	for _, size := range []int64{mib, 3 * mib, 2 * mib} {
		if !c.Settle(size) || b.State().Used != size {
			t.Errorf("%d bytes are charged for an answer of %d", b.State().Used, size)
		}
	}
	if !c.Settle(10) || b.State().Used != 0 {
		t.Errorf("%d bytes are charged for a small answer", b.State().Used)
	}
	c.Close()
}

func TestWithoutABudgetNoAnswerIsExpected(t *testing.T) {
	var c Charge
	if !c.Reserve(mib) || !c.Settle(mib) || c.Bytes() != 0 {
		t.Error("an answer is charged to no budget")
	}
}
