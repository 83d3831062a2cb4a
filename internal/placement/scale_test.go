package placement

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// bigCell returns 1,000 nodes in three zones, and 10,000 models whose rates follow Zipf's law at
// the given multiple of the unbatched capacity. Memory suffices for the given share of the copies.
func bigCell(nodes, models int, load, memory float64) (all []Node, wanted []Model) {
	chance := rand.New(rand.NewPCG(1, 1))
	weights := 0.0
	for i := range models {
		weights += 1 / float64(i+1)
	}
	var bytes int64
	for i := range models {
		fixed := time.Duration(float64(5*time.Millisecond) * math.Exp(0.3*chance.NormFloat64()))
		m := Model{
			Name: fmt.Sprintf("m%05d", i), Digest: fmt.Sprint("sha256:", i), Bytes: 50<<20 + chance.Int64N(400<<20),
			Curve: device.Curve{Fixed: fixed, PerRow: fixed / 10}, Efficient: 31, Objective: 50 * time.Millisecond, Asked: true,
			Rate: load * float64(nodes) / 0.0055 / weights / float64(i+1),
		}
		need := m.need(nil, 3)
		bytes += m.Bytes * int64(need.Active+need.Spare)
		wanted = append(wanted, m)
	}
	for i := range nodes {
		all = append(all, Node{Name: fmt.Sprintf("n%04d", i), Zone: fmt.Sprint("z", i%3), Bytes: int64(memory * float64(bytes) / float64(nodes))})
	}
	return all, wanted
}

// holdAll returns the nodes with all planned copies ready.
func holdAll(all []Node, plan *Plan, models []Model) []Node {
	all = slices.Clone(all)
	index := map[string]int{}
	for i := range all {
		all[i].Copies = nil
		index[all[i].Name] = i
	}
	for i, p := range plan.Models {
		for _, c := range p.Copies {
			n := &all[index[c.Node]]
			n.Copies = append(n.Copies, Loaded{Model: p.Model, Bytes: models[i].Bytes, Ready: true})
		}
	}
	return all
}

// cpu returns the CPU time that f uses. The clock would measure other processes, too.
func cpu(t *testing.T, f func()) time.Duration {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	f()
	return used() - before
}

// moves returns how many copies of b are not in a.
func moves(a, b *Plan) (n int) {
	for i := range b.Models {
		before := a.Find(b.Models[i].Model)
		for _, c := range b.Models[i].Copies {
			n += btoi(find(before.Copies, c.Node, func(c *Copy) string { return c.Node }) == nil)
		}
	}
	return n
}

// TestABigCell plans 1,000 nodes and 10,000 models with memory for 80 % of the copies.
func TestABigCell(t *testing.T) {
	all, models := bigCell(1000, 10000, 2, 0.8)
	var plan *Plan
	took := cpu(t, func() { plan = Config{}.Plan(nil, all, models, 0) })
	copies, wanted, zero := 0, 0, 0
	used, busy := map[string]int64{}, map[string]float64{}
	for i, p := range plan.Models {
		copies += len(p.Copies)
		wanted += p.Active + p.Spare
		zero += btoi(len(p.Copies) == 0)
		for _, c := range p.Copies {
			used[c.Node] += models[i].Bytes
			busy[c.Node] += float64(models[i].deviceTime(p.Active)) / 1e9 * float64(btoi(c.Active))
		}
	}
	sum, most := 0.0, 0.0
	for _, n := range all {
		if used[n.Name] > n.Bytes {
			t.Errorf("%s: %d of %d bytes are planned", n.Name, used[n.Name], n.Bytes)
		}
		sum, most = sum+busy[n.Name], max(most, busy[n.Name])
	}
	mean := sum / float64(len(all))
	t.Logf("empty to placed: %v of CPU, %d of %d copies, device time %.3f in the mean and %.3f of the fullest node", took, copies, wanted, mean, most)
	if took > 2*time.Second*slower {
		t.Errorf("%v of CPU for a new plan, want at most 2 s", took)
	}
	if most > 1.3*mean {
		t.Errorf("the fullest node has %.2f times the mean device time, want at most 1.3", most/mean)
	}
	if zero > 0 {
		t.Errorf("%d models in use have no copy", zero)
	}

	held := holdAll(all, plan, models)
	again := Config{}.Plan(plan, held, models, 0)
	if before, after := encode(t, plan), encode(t, again); before != after {
		t.Errorf("planning again moves %d copies", moves(plan, again))
	}
}

// TestARoundOfAHundredChanges measures a round in which a hundred models of the same cell need more copies.
func TestARoundOfAHundredChanges(t *testing.T) {
	all, models := bigCell(1000, 10000, 0.8, 1.2)
	plan := Config{}.Plan(nil, all, models, 0)
	held := holdAll(all, plan, models)
	for i := range 100 {
		models[10+i].Rate *= 2
	}
	report := func(at time.Duration) {
		for i := range models {
			models[i].Reported = at
		}
	}
	report(time.Second)
	first := Config{}.Plan(plan, held, models, time.Second)
	report(2 * time.Second)
	var next *Plan
	var steps []Step
	took := time.Hour
	for range 3 { // the least of three: the collector may run in one of them
		runtime.GC()
		took = min(took, cpu(t, func() {
			next = Config{}.Plan(first, held, models, 2*time.Second)
			steps = Steps(next, held, models)
		}))
	}
	t.Logf("a round of 100 changes: %v of CPU, %d copies move, %d steps", took, moves(plan, next), len(steps))
	if len(steps) == 0 {
		t.Error("the changes lead to no step")
	}
	if took > 50*time.Millisecond*slower*4 { // four times: what shares the machine slows the caches down
		t.Errorf("%v of CPU for a round of 100 changes, want at most 50 ms on a quiet machine", took)
	}
}

func encode(t *testing.T, plan *Plan) string {
	t.Helper()
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOneNodeMovesOnlyItsModels checks that the loss or addition of a node moves at most 1.5 times the
// models that it holds.
func TestOneNodeMovesOnlyItsModels(t *testing.T) {
	for _, memory := range []float64{0.8, 1.2} {
		all, models := bigCell(100, 1000, 2, memory)
		plan := Config{}.Plan(nil, all, models, 0)
		held := holdAll(all, plan, models)
		most, perNode := 0, 0
		for i := range all {
			left := append(slices.Clone(held[:i]), held[i+1:]...)
			moved := moves(plan, Config{}.Plan(plan, left, models, time.Second))
			if limit := len(held[i].Copies) * 3 / 2; moved > limit {
				t.Errorf("memory %v: %s with %d models was lost, and %d copies move", memory, all[i].Name, len(held[i].Copies), moved)
			}
			most, perNode = max(most, moved), perNode+len(held[i].Copies)
		}
		more := append(slices.Clone(held), Node{Name: "n9999", Zone: "z0", Bytes: all[0].Bytes})
		added := Config{}.Plan(plan, more, models, time.Second)
		moved := moves(plan, added)
		perNode /= len(all)
		t.Logf("memory %v: at most %d copies move after a loss, %d after an addition; a node has %d", memory, most, moved, perNode)
		if moved > perNode*3/2 {
			t.Errorf("memory %v: a node was added, and %d copies move, more than 1.5 times the %d of a node", memory, moved, perNode)
		}
	}
}
