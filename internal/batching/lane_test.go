package batching_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// holdsShape holds requests of one shape as long as it may, and runs others at once.
type holdsShape uint64

func (s holdsShape) Decide(_ batching.Time, line batching.Line) batching.Decision {
	if line.First().Shape == uint64(s) && line.Deferrable() {
		return batching.Decision{Until: batching.Never}
	}
	return batching.Decision{Take: 1, Reason: batching.Idle}
}

// orderOf runs the items one after the other on one instance, each for a millisecond, and
// returns the order in which they ran.
func orderOf(cfg batching.Config, items ...*batching.Item) (order []string) {
	core, out := batching.New(cfg), batching.Actions{}
	step := func(at time.Duration, ev batching.Event) (ran bool) {
		core.Step(at, ev, &out)
		for _, a := range out.List {
			if a.Kind == batching.Run {
				order = append(order, a.Items[0].Owner.(string))
				ran = true
			}
		}
		return ran
	}
	for _, it := range items {
		step(0, batching.Event{Kind: batching.Arrive, Item: it})
	}
	step(0, batching.Event{Kind: batching.Up, Instance: 1})
	for at := time.Duration(0); step(at, batching.Event{Kind: batching.Take, Instance: 1}); at += time.Millisecond {
		step(at+time.Millisecond, batching.Event{Kind: batching.Done, Instance: 1})
	}
	return order
}

func request(name string, shape uint64) *batching.Item {
	return &batching.Item{Rows: 1, Shape: shape, Owner: name}
}

func TestAHeldLaneIsPassedAtMostTwice(t *testing.T) {
	order := orderOf(batching.Config{Policy: holdsShape(1), MaxRows: 8, OvertakeOtherShapes: true},
		request("held", 1), request("a", 2), request("b", 2), request("c", 2), request("d", 2))
	if want := []string{"a", "b", "held", "c", "d"}; !slices.Equal(order, want) {
		t.Errorf("ran %v, want %v", order, want)
	}
}

func TestALaneIsNotHeldForLowerPriorities(t *testing.T) {
	urgent := request("urgent", 1)
	urgent.Priority = 1
	order := orderOf(batching.Config{Policy: holdsShape(1), MaxRows: 8, OvertakeOtherShapes: true, Levels: make([]batching.Level, 2), DefaultLevel: 2},
		urgent, request("a", 2))
	if want := []string{"urgent", "a"}; !slices.Equal(order, want) {
		t.Errorf("ran %v, want %v", order, want)
	}
}

// always predicts the same duration for every batch.
type always time.Duration

func (a always) Predict(batching.Size, int) time.Duration { return time.Duration(a) }

func TestALaneIsNotHeldIfItsFirstRequestWouldBeLate(t *testing.T) {
	for _, test := range []struct {
		deadline time.Duration
		want     []string
	}{
		{2 * time.Millisecond, []string{"due", "a"}},
		{3 * time.Millisecond, []string{"a", "due"}},
	} {
		due := request("due", 1)
		due.Deadline = test.deadline
		order := orderOf(batching.Config{Policy: holdsShape(1), MaxRows: 8, OvertakeOtherShapes: true, Predictor: always(time.Millisecond)}, due, request("a", 2))
		if !slices.Equal(order, test.want) {
			t.Errorf("due after %v: ran %v, want %v", test.deadline, order, test.want)
		}
	}
}

func TestPredictionsCountTheBatchesOfOtherShapes(t *testing.T) {
	// Four requests that can share a batch are done in one; of four shapes, each needs its own.
	for _, test := range []struct {
		name   string
		shapes [4]uint64
		want   time.Duration
	}{
		{"one shape", [4]uint64{1, 1, 1, 1}, 0},
		{"the same shape as one of them", [4]uint64{1, 2, 3, 4}, 3 * time.Millisecond},
	} {
		core, out := batching.New(batching.Config{
			Policy: batching.Triton{MaxRows: 8}, MaxRows: 8, OvertakeOtherShapes: true, Predictor: always(time.Millisecond),
			Levels: []batching.Level{{MaxQueue: 4}}, DefaultLevel: 1,
		}), batching.Actions{}
		core.Step(0, batching.Event{Kind: batching.Up, Instance: 1}, &out)
		core.Step(0, batching.Event{Kind: batching.Take, Instance: 1}, &out)
		core.Step(0, batching.Event{Kind: batching.Arrive, Item: request("runs", 9)}, &out)
		core.Step(0, batching.Event{Kind: batching.Take, Instance: 1}, &out)
		for _, shape := range test.shapes {
			core.Step(0, batching.Event{Kind: batching.Arrive, Item: request("waits", shape)}, &out)
		}
		core.Step(0, batching.Event{Kind: batching.Arrive, Item: request("refused", 1)}, &out)
		if len(out.List) != 1 || out.List[0].RetryAfter != time.Millisecond+test.want {
			t.Errorf("%s: %+v, want a refusal with a retry after %v", test.name, out.List, time.Millisecond+test.want)
		}
	}
}

// waits holds all requests for a running batch, with a rule or because of a limit.
type waits uint8

func (w waits) Decide(batching.Time, batching.Line) batching.Decision {
	return batching.Decision{Until: batching.Never, Rule: uint8(w)}
}

// A batch of a millisecond begins an eighth of its time early. A limit of parallel batches is not
// exceeded for a deadline.
func TestAHoldForARunningBatchEndsInTimeForADeadline(t *testing.T) {
	for rule, want := range map[waits]batching.Time{0: 10 * time.Millisecond, 1: 10*time.Millisecond - 1125*time.Microsecond} {
		core, out := batching.New(batching.Config{Policy: rule, MaxRows: 8, Predictor: always(time.Millisecond)}), batching.Actions{}
		core.Step(0, batching.Event{Kind: batching.Up, Instance: 1}, &out)
		core.Step(0, batching.Event{Kind: batching.Take, Instance: 1}, &out)
		due := request("due", 1)
		due.Deadline = 10 * time.Millisecond
		core.Step(0, batching.Event{Kind: batching.Arrive, Item: due}, &out)
		if next := out.Wake; next != want {
			t.Errorf("with rule %d the core acts at %v, want %v", rule, next, want)
		}
	}
}
