package hunt

import (
	"reflect"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// every is the distance of the cases that a test runs: some of them, with the race detector.
var every = map[bool]int{false: 1, true: 9}[raceEnabled]

func TestARunIsDeterminedByItsSeed(t *testing.T) {
	for seed := range uint64(20 / every) {
		r, again := Draw(seed), Draw(seed)
		if !reflect.DeepEqual(r, again) {
			t.Fatalf("seed %d is drawn as %+v, and then as %+v", seed, r, again)
		}
		if first, second := r.With(r.Automatic(), 0), again.With(again.Automatic(), 0); !reflect.DeepEqual(first, second) {
			t.Errorf("seed %d: %d batches, and %d in a second run", seed, len(first), len(second))
		}
	}
}

// Runs must contain what they are drawn for.
func TestRunsHaveAllKindsOfDisturbances(t *testing.T) {
	const seeds = 1000
	seen := map[string]int{}
	for seed := range uint64(seeds) {
		r := Draw(seed)
		count := func(what string, ok bool) {
			if ok {
				seen[what]++
			}
		}
		count("several instances", r.Instances > 1)
		count("mixed rows", len(r.Rows) > 1)
		count("mixed shapes", len(r.Levels[0].Shapes) > 1)
		count("other clients later", len(r.Levels) > 1)
		count("calibrated from the start", len(r.Calibration) > 0 && r.Calibration[0].At == 0)
		count("not calibrated", len(r.Calibration) == 0)
		for _, c := range r.Calibration {
			count("calibrated during traffic", c.At > 0)
			count("calibrated with another shape", c.Replace)
		}
		for i := 0; i < len(r.Speed); i += 2 {
			lasts := r.Speed[i+1].At - r.Speed[i].At
			count("slow moments", r.Speed[i].Times < 20)
			count("stalls of a second and more", r.Speed[i].Times > 20 && lasts > time.Second)
		}
		if last := r.Speed; len(last) > 0 && last[len(last)-1].At > r.End {
			t.Errorf("seed %d ends at %v, before its last disturbance at %v", seed, r.End, last[len(last)-1].At)
		}
	}
	if len(seen) != 10 {
		t.Errorf("only %v occur", seen)
	}
	for what, n := range seen {
		if n < seeds/50 {
			t.Errorf("%d of %d runs have %s", n, seeds, what)
		}
	}
}

// A policy that the judge must find: it answers one request after the other.
type oneByOne struct{}

func (oneByOne) Decide(batching.Time, batching.Line) batching.Decision {
	return batching.Decision{Take: 1, Reason: batching.Alone}
}

func TestAPolicyThatDoesNotCombineIsStuck(t *testing.T) {
	r := quiet(8, 1, 16)
	if f := r.judge(r.With(oneByOne{}, 0)); !f.Stuck() || f.Share > 0.25 {
		t.Errorf("one by one has %.2f of the throughput of batches of 8, want about an eighth", f.Share)
	}
}

// A policy that the judge must find, too: it runs no batch.
type never struct{}

func (never) Decide(batching.Time, batching.Line) batching.Decision {
	return batching.Decision{Until: batching.Never}
}

func TestAPolicyThatStopsIsStuck(t *testing.T) {
	r := quiet(8, 1, 16)
	if f := r.judge(r.With(never{}, 0)); !f.Stuck() || f.Share != 0 {
		t.Errorf("it has %.2f of the throughput of greedy, want 0", f.Share)
	}
	first := r.With(r.Greedy(), 0)[:maxBatches/2]
	if f := r.judge(first); !f.Stuck() {
		t.Error("one that stops after some batches is not stuck")
	}
}

func TestGreedyIsNotStuck(t *testing.T) {
	for seed := range uint64(100 / every) {
		r := Draw(seed)
		if f := r.judge(r.With(r.Greedy(), replicas)); f.Stuck() {
			t.Errorf("compared with itself: %v", f)
		}
	}
}

// The short form of `make measure WHAT=hunt`.
func TestThePolicyRecovers(t *testing.T) {
	for seed := range uint64(150 / every) {
		if f := Try(seed); f.Stuck() {
			t.Error(f)
		}
	}
}

// Runs that were stuck, by what kept the policy from the throughput of greedy.
func TestRunsThatWereStuckRecover(t *testing.T) {
	for seed, cause := range map[uint64]string{
		8254:  "the device gets slower while three batches run all the time: their slowdown seemed to have grown",
		6006:  "two batches at once seemed to be slower than three",
		6758:  "25 clients do not divide evenly: half of the batches waited for a 13th request",
		5588:  "only one request fits into a batch, which was planned with half of another",
		7481:  "three clients after two: a third batch was not tried, because trials with two clients had shown nothing",
		9212:  "calibration was disturbed: small batches seemed to be slow, and never ran",
		1116:  "shares of a queue were rounded down to whole requests",
		16279: "two instances were planned for three clients, with one or two in a batch: the third waited",
		2695:  "gathering was disabled, but all clients were still planned in one batch",
		4743:  "a queue was held while a shorter one ran in its place",

		4294968092: "requests of one and four rows do not fill batches of five, which were planned",
		4294968213: "a request of one row waited for one of six, which did not fit",
		4294969213: "a request of 1.4 rows on average was planned as one row, and two of them as three",
		4294969563: "calibrated times were too long, and batches always ran beside others: these seemed to cost nothing",
		8589938269: "requests waited for others, although an instance was free for each",

		34359741545: "as good a plan with fewer instances was preferred, in which requests wait for others",
		34359745172: "clients that do not divide evenly were planned on fewer instances than pay",
		34359750307: "calibrated slowdowns were not measured again until the round after next",
		34359766113: "an audit compared a round of probing with greedy",

		68721491263: "sizes that no requests make up seemed to be fast, and never ran",
		68721490674: "as many requests as were planned waited for another one, because they had fewer rows than on average",
		68721493181: "two clients were held for each other, because a single request had seemed to be slow",
		68721501366: "small requests did not share a batch, because large ones do not fit into one together",
	} {
		if f := Try(seed); f.Stuck() {
			t.Errorf("%s: %v", cause, f)
		}
	}
}

// quiet returns an undisturbed run on a device on which a batch costs far more than a row.
func quiet(most, rows, clients int) *Run {
	return &Run{
		MaxRows: most, Instances: 1, Rows: []int{rows},
		Shapes: []Shape{{Curve: device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300 * time.Nanosecond}}},
		Think:  [2]time.Duration{100 * time.Microsecond, 300 * time.Microsecond},
		Levels: []Level{{Clients: clients, Shapes: []int{0}}},
		End:    time.Second,
	}
}

func TestEverySizeOfRequestsFillsItsBatches(t *testing.T) {
	for most := 1; most <= 64; most += every {
		for rows := 1; rows <= min(16, most); rows++ {
			possible := most / rows
			r := quiet(most, rows, 3*possible)
			all := r.With(r.Automatic(), 0)
			all = all[len(all)/2:]
			requests := 0
			for _, b := range all {
				requests += b.Requests
			}
			if mean := float64(requests) / float64(len(all)); !(mean >= 0.99*float64(possible)) {
				t.Errorf("max_batch_size %d, %d rows per request: %.2f requests per batch, want %d", most, rows, mean, possible)
			}
		}
	}
}
