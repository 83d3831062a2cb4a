package placement

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestACopyIsLoadedBeforeTheOldOneIsUnloaded(t *testing.T) {
	all := []Node{
		{Name: "a", Bytes: 10, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: true}}},
		{Name: "b", Bytes: 10},
	}
	models := []Model{{Name: "m", Bytes: 10}}
	plan := &Plan{Models: []Placement{{Model: "m", InUse: true, Active: 1, Copies: []Copy{{"b", true}}}}}
	check := func(why string, want ...Step) {
		t.Helper()
		if got := Steps(plan, all, models, time.Second); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", why, got, want)
		}
	}
	check("at first", Step{Node: "b", Model: "m"})
	all[1].Copies = []Loaded{{Model: "m", Bytes: 10, Ready: false}}
	check("while it loads")
	if got := Routes(plan, all)[0]; !reflect.DeepEqual(got.Active, []string{"a"}) {
		t.Errorf("while it loads, the route is %v, want the old copy", got)
	}
	all[1].Copies[0].Ready = true
	check("when it is ready", Step{Node: "a", Model: "m", Unload: true})
	if got := Routes(plan, all)[0]; !reflect.DeepEqual(got.Active, []string{"b"}) || !reflect.DeepEqual(got.Spare, []string{"a"}) {
		t.Errorf("when it is ready, the route is %v, want the new copy", got)
	}
}

func TestTheLastReadyCopyOfAModelInUseStays(t *testing.T) {
	all := []Node{
		{Name: "a", Bytes: 10, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: true}}},
		{Name: "b", Bytes: 10, Copies: []Loaded{{Model: "n", Bytes: 10, Ready: true}}},
	}
	models := []Model{{Name: "m", Bytes: 10}, {Name: "n", Bytes: 10}}
	plan := &Plan{Models: []Placement{
		{Model: "m", InUse: true, Active: 1, Copies: []Copy{{"b", true}}},
		{Model: "n", InUse: true, Active: 1, Copies: []Copy{{"a", true}}},
	}}
	if got := Steps(plan, all, models, time.Second); len(got) != 0 {
		t.Errorf("two models change places in full memory: %v, want no step", got)
	}
	plan.Models[1].InUse = false
	if got, want := Steps(plan, all, models, time.Second), []Step{{"b", "n", true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("one of them is not in use: %v, want %v", got, want)
	}
}

func TestLoadsAreLimitedByNodeAndByTime(t *testing.T) {
	all := []Node{{Name: "a", Bytes: 1000}, {Name: "b", Bytes: 1000, Copies: []Loaded{{Model: "m9", Bytes: 10, Ready: false}}}}
	plan, models := &Plan{}, []Model{}
	for i := range 10 {
		name := fmt.Sprint("m", i)
		models = append(models, Model{Name: name, Bytes: 10})
		plan.Models = append(plan.Models, Placement{Model: name, Copies: []Copy{{"a", true}, {"b", true}}})
	}
	if got, want := Steps(plan, all, models, time.Second), []Step{{"a", "m0", false}, {"b", "m0", false}, {"a", "m1", false}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the first steps are %v, want %v: two loads at a time, one of which runs", got, want)
	}
	if got := Steps(plan, all, models, 10*time.Millisecond); len(got) != 2 {
		t.Errorf("%d steps in 10 ms, want 2", len(got))
	}
}
