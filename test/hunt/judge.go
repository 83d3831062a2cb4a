package hunt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/batching"
)

// What counts as stuck: the throughput stays below minShare of greedy's for maxBatches
// batches and more, in each part of them.
const (
	minShare   = 0.9
	maxBatches = 200
	parts      = 4
)

// A Finding is the part of a run with the lowest throughput relative to greedy.
type Finding struct {
	Run      *Run
	Share    float64 // of greedy's throughput
	From, To batching.Time
	Greedy   int // greedy's batches in the same time
}

// Stuck reports whether the policy did not recover.
func (f *Finding) Stuck() bool { return f.Share < minShare }

func (f *Finding) String() string {
	r := f.Run
	var rest []string
	add := func(format string, args ...any) { rest = append(rest, fmt.Sprintf(format, args...)) }
	if len(r.Rows) > 1 {
		add("mixed rows")
	}
	if len(r.Shapes) > 1 {
		add("%d shapes", len(r.Shapes))
	}
	if len(r.Calibration) > 0 {
		add("calibrated")
	}
	if len(r.Speed) > 0 {
		add("disturbed")
	}
	return fmt.Sprintf("seed %d: %.2f of greedy from %v to %v (end %v), greedy %d batches; max %d, rows %v, %d instances %v; %s",
		r.Seed, f.Share, f.From, f.To, r.End, f.Greedy, r.MaxRows, r.Rows, r.Instances, r.Slowdown, strings.Join(rest, ", "))
}

// replicas is the number of runs of greedy that a finding is compared with. Greedy itself
// is up to a third slower in one run than in another over so few batches, where requests of
// different sizes come by chance.
const replicas = 20

// Try runs a seed with the automatic policy and with greedy.
func Try(seed uint64) *Finding {
	r := Draw(seed)
	return r.judge(r.With(r.Automatic(), 0))
}

// judge compares batches with greedy, first with one run, and then, if they seem to be
// stuck, with the slowest of several.
func (r *Run) judge(ours []Batch) *Finding {
	greedy := [][]Batch{r.With(r.Greedy(), 0)}
	if f := r.stopped(ours, greedy[0]); f != nil {
		return f
	}
	f := r.compare(ours, greedy)
	for n := uint64(1); f.Stuck() && n < replicas; n++ {
		greedy = append(greedy, r.With(r.Greedy(), n))
		f = r.compare(ours, greedy)
	}
	return f
}

// stopped returns the part of a run in which ours ran no batch any more, and greedy more than
// maxBatches. It returns nil if there is none.
func (r *Run) stopped(ours, greedy []Batch) *Finding {
	last := batching.Time(0)
	if len(ours) > 0 {
		last = ours[len(ours)-1].At
	}
	if after := len(greedy) - indexAt(greedy, last); after > maxBatches {
		return &Finding{Run: r, From: last, To: r.End, Greedy: after}
	}
	return nil
}

// compare returns the worst part of maxBatches batches. Greedy is compared over the same
// time, so that both have the same clients and the same disturbances. What counts is the
// work that was done: the time that the requests would take one by one.
func (r *Run) compare(ours []Batch, greedy [][]Batch) *Finding {
	f := &Finding{Run: r, Share: 1}
	for i := 0; i+maxBatches < len(ours); i += maxBatches / 8 {
		a, b := ours[i], ours[i+maxBatches]
		theirs, batches := math.Inf(1), 0
		for _, g := range greedy {
			theirs = min(theirs, totalAt(g, b.At)-totalAt(g, a.At))
			batches = indexAt(g, b.At) - indexAt(g, a.At)
		}
		if share := float64(b.Total-a.Total) / theirs; theirs > 0 && share < f.Share && stays(ours[i:i+maxBatches+1], greedy[0]) {
			f.Share, f.From, f.To, f.Greedy = share, a.At, b.At, batches
		}
	}
	return f
}

// stays reports whether the throughput is below minShare of greedy's in each part. If it is
// not, it has recovered, or the clients have changed meanwhile, and some batches after that
// count more than all before it.
func stays(ours, greedy []Batch) bool {
	for n := range parts {
		a, b := ours[n*maxBatches/parts], ours[(n+1)*maxBatches/parts]
		if float64(b.Total-a.Total) >= minShare*(totalAt(greedy, b.At)-totalAt(greedy, a.At)) {
			return false
		}
	}
	return true
}

// totalAt returns the work that was done by a time. It rises evenly between the ends of two
// batches, so that it does not matter whether one ends right before or after.
func totalAt(all []Batch, at batching.Time) float64 {
	i := indexAt(all, at)
	before := Batch{}
	if i > 0 {
		before = all[i-1]
	}
	if i == len(all) || all[i].At == before.At {
		return float64(before.Total)
	}
	return float64(before.Total) + float64(all[i].Work)*float64(at-before.At)/float64(all[i].At-before.At)
}

// indexAt returns the first batch that ends after a time.
func indexAt(all []Batch, at batching.Time) int {
	i, _ := slices.BinarySearchFunc(all, at, func(b Batch, at batching.Time) int {
		return cmp.Or(cmp.Compare(b.At, at), -1)
	})
	return i
}
