package evict

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// old returns a model of one byte that takes a second to load and was loaded an hour ago.
func old(name string, rate float64) Model {
	return Model{Name: name, Bytes: 1, Reload: time.Second, Rate: rate, Loaded: now.Add(-time.Hour)}
}

func with(m Model, change func(*Model)) Model {
	change(&m)
	return m
}

func TestWhichModelLeaves(t *testing.T) {
	young := func(m *Model) { m.Loaded = now.Add(-9 * time.Second) }
	inUse := func(m *Model) { m.InUse = true }
	bytes := func(n int64) func(*Model) { return func(m *Model) { m.Bytes = n } }
	newcomer := old("new", 0.01)
	for _, c := range []struct {
		name     string
		memory   int64
		loaded   []Model
		newcomer Model
		want     Decision
	}{
		{"none while there is room", 3, []Model{old("a", 1), old("b", 2)}, newcomer, Decision{}},
		{"the one with the lowest rate", 3, []Model{old("a", 0.02), old("b", 0.01), old("c", 0.03)}, newcomer, Decision{Evict: []string{"b"}}},
		{
			"the one that is loaded fastest",
			2,
			[]Model{old("a", 0.01), with(old("b", 0.01), func(m *Model) { m.Reload = time.Millisecond })},
			newcomer,
			Decision{Evict: []string{"b"}},
		},
		{"the largest", 5, []Model{old("a", 0.01), with(old("b", 0.01), bytes(4))}, newcomer, Decision{Evict: []string{"b"}}},
		{"of equal ones that which was loaded first", 2, []Model{old("a", 0), with(old("b", 0), func(m *Model) { m.Loaded = m.Loaded.Add(-time.Second) })}, newcomer, Decision{Evict: []string{"b"}}},
		{"as many as needed", 4, []Model{old("a", 0.01), old("b", 0.02), old("c", 0.03), old("d", 0.04)}, with(newcomer, bytes(3)), Decision{Evict: []string{"a", "b", "c"}}},
		{"none that need not after all", 5, []Model{old("a", 0.01), with(old("b", 0.09), bytes(4))}, with(newcomer, bytes(4)), Decision{Evict: []string{"b"}}},
		{"never one in use", 2, []Model{with(old("a", 0), inUse), old("b", 0.05)}, newcomer, Decision{Evict: []string{"b"}}},
		{"none if all are in use", 1, []Model{with(old("a", 0), inUse)}, newcomer, Decision{Reason: InUse, Blocker: "a", Wait: time.Second}},
		{"none that is younger than ten times its load time", 1, []Model{with(old("a", 0), young)}, newcomer, Decision{Reason: Young, Blocker: "a", Wait: time.Second}},
		{"one that is exactly so old", 1, []Model{with(old("a", 0), func(m *Model) { m.Loaded = now.Add(-10 * time.Second) })}, newcomer, Decision{Evict: []string{"a"}}},
		{"a busy one, if no model is young", 1, []Model{old("a", 5)}, newcomer, Decision{Evict: []string{"a"}}},
		{"no busy one while another newcomer is young", 2, []Model{old("a", 5), with(old("b", 0), young)}, newcomer, Decision{Reason: Busier, Blocker: "a", Wait: time.Second}},
		{"a busy one for a busier newcomer", 2, []Model{old("a", 5), with(old("b", 0), young)}, old("new", 8), Decision{Evict: []string{"a"}}},
		{"none for one that does not fit at all", 2, []Model{old("a", 0)}, with(newcomer, bytes(3)), Decision{Reason: TooLarge}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(now, c.memory, c.loaded, c.newcomer)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("decision %+v, want %+v", got, c.want)
			}
			if again := Decide(now, c.memory, c.loaded, c.newcomer); !reflect.DeepEqual(again, got) {
				t.Errorf("asked twice, the decision is %+v and %+v", got, again)
			}
		})
	}
}

func TestHowManyModelsAreLoadedAtOnce(t *testing.T) {
	for _, c := range []struct {
		name                    string
		free, opening, newcomer int64
		want                    bool
	}{
		{"one, however full the memory is", 0, 0, 500, true},
		{"another, if there is room for both twice", 180, 60, 60, true},
		{"no other, if there is not", 179, 60, 60, false},
		{"small ones, up to a tenth of the memory", 0, 80, 20, true},
		{"none beyond that", 0, 80, 21, false},
	} {
		if got := MayOpen(c.free, 1000, c.opening, c.newcomer); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func FuzzDecisionsKeepTheRules(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, int64(20), uint8(3))
	f.Fuzz(func(t *testing.T, spec []byte, memory int64, size uint8) {
		memory = max(1, memory%1000)
		var loaded []Model
		held := int64(0)
		for i := 0; i+2 < len(spec); i += 3 {
			m := Model{
				Name: string(rune('a' + i)), Bytes: int64(spec[i]%32) + 1, Reload: time.Duration(spec[i+1]) * time.Millisecond * 100, Rate: float64(spec[i+2]) / 16,
				Loaded: now.Add(-time.Duration(spec[i+2]) * time.Second), InUse: spec[i]&64 != 0,
			}
			if held+m.Bytes > memory {
				break
			}
			held += m.Bytes
			loaded = append(loaded, m)
		}
		newcomer := Model{Name: "new", Bytes: int64(size) + 1, Reload: time.Second, Rate: 0.1}
		d := Decide(now, memory, loaded, newcomer)
		free := memory - held
		for _, name := range d.Evict {
			for _, m := range loaded {
				if m.Name != name {
					continue
				}
				free += m.Bytes
				if m.InUse || now.Sub(m.Loaded) < 10*m.Reload {
					t.Errorf("%+v leaves, and is in use or young", m)
				}
			}
		}
		switch {
		case d.Reason == Admitted && free < newcomer.Bytes:
			t.Errorf("admitted with %d bytes free, needs %d", free, newcomer.Bytes)
		case d.Reason != Admitted && len(d.Evict) > 0:
			t.Errorf("refused, and %v leave", d.Evict)
		case d.Reason > TooLarge && (d.Blocker == "" || d.Wait <= 0 || d.Wait == math.MaxInt64):
			t.Errorf("refused without saying for what and how long: %+v", d)
		}
	})
}

func TestARateForgetsOldRequests(t *testing.T) {
	var r Rate
	for i := range 1200 { // two per second for ten minutes
		r.Add(now.Add(time.Duration(i)*time.Second/2), 1)
	}
	end := now.Add(10 * time.Minute)
	if got := r.PerSecond(end); !(math.Abs(got-2) <= 0.05) {
		t.Errorf("rate %.2f, want 2", got)
	}
	if got := r.PerSecond(end.Add(2 * time.Minute)); !(math.Abs(got-2/math.E) <= 0.05) {
		t.Errorf("rate %.2f after two minutes without requests, want %.2f", got, 2/math.E)
	}
}

func TestExcessTakesWhatMayLeave(t *testing.T) {
	used, young, large := old("used", 0), old("young", 0), old("large", 1)
	used.InUse, young.Loaded = true, now
	loaded := []Model{used, young, old("rare", 0.001), old("often", 10), large}
	for i := range loaded {
		loaded[i].Bytes = 10
	}
	loaded[4].Bytes = 30
	for memory, want := range map[int64][]string{
		70: nil,
		60: {"rare"},
		45: {"large"}, // the rare one need not leave, too
		25: {"rare", "large", "often"},
		5:  {"rare", "large", "often"}, // the others may not
	} {
		if got := Excess(now, memory, loaded); !slices.Equal(got, want) {
			t.Errorf("memory for %d: %v leave, want %v", memory, got, want)
		}
	}
}
