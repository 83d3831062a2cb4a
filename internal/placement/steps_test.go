package placement

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
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
		if got := Steps(plan, all, models); !slices.Equal(got, want) {
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
	if got := Steps(plan, all, models); len(got) != 0 {
		t.Errorf("two models change places in full memory: %v, want no step", got)
	}
	plan.Models[1].InUse = false
	if got, want := Steps(plan, all, models), []Step{{"b", "n", true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("one of them is not in use: %v, want %v", got, want)
	}
}

func TestANodeLoadsTwoModelsAtATime(t *testing.T) {
	all := []Node{{Name: "a", Bytes: 1000}, {Name: "b", Bytes: 1000, Copies: []Loaded{{Model: "m9", Bytes: 10, Ready: false}}}}
	plan, models := &Plan{}, []Model{}
	for i := range 10 {
		name := fmt.Sprint("m", i)
		models = append(models, Model{Name: name, Bytes: 10})
		plan.Models = append(plan.Models, Placement{Model: name, Copies: []Copy{{"a", true}, {"b", true}}})
	}
	if got, want := Steps(plan, all, models), []Step{{"a", "m0", false}, {"b", "m0", false}, {"a", "m1", false}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the first steps are %v, want %v: two loads at a time, one of which runs", got, want)
	}
}

func TestACopyAtItsHomeStaysUntilItsMemoryIsNeeded(t *testing.T) {
	all := []Node{{Name: "a", Bytes: 10, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: false}}}}
	models := []Model{{Name: "m", Bytes: 10}, {Name: "n", Bytes: 10}}
	plan := &Plan{Models: []Placement{{Model: "m", Home: "a"}}}
	check := func(why string, want ...Step) {
		t.Helper()
		if got := Steps(plan, all, models); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", why, got, want)
		}
	}
	check("while it loads")
	plan.Models[0].Home = "b"
	check("while another node than its home loads it", Step{"a", "m", true})
	plan.Models[0].Home = "a"
	all[0].Copies[0].Ready = true
	check("when it is ready")
	plan.Models = append(plan.Models, Placement{Model: "n", InUse: true, Active: 1, Copies: []Copy{{"a", true}}})
	check("when another one needs the memory", Step{"a", "m", true})
}

func TestTheMemoryOfALoadThatIsStartedCountsOnce(t *testing.T) {
	all := []Node{
		{Name: "a", Bytes: 25, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: true}}},
		{Name: "b", Bytes: 10, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: true}}},
		{Name: "c", Bytes: 5},
	}
	models := []Model{{Name: "m", Bytes: 10}, {Name: "n", Bytes: 10}}
	plan := &Plan{Models: []Placement{
		{Model: "m", InUse: true, Active: 2, Copies: []Copy{{"b", true}, {"c", true}}}, // c has no memory yet
		{Model: "n", InUse: true, Active: 1, Copies: []Copy{{"a", true}}},
	}}
	if got, want := Steps(plan, all, models), []Step{{"a", "n", false}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v: node a has room for both", got, want)
	}
}

func TestACopyThatGetsRequestsIsUnloadedOnlyForItsMemory(t *testing.T) {
	all := []Node{
		{Name: "a", Bytes: 20, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: true, Rate: 3}}}, // of a stream that began with another model
		{Name: "b", Bytes: 20, Copies: []Loaded{{Model: "m", Bytes: 10, Ready: true, Rate: 3}}},
	}
	models := []Model{{Name: "m", Bytes: 10}, {Name: "n", Bytes: 15}}
	plan := &Plan{Models: []Placement{{Model: "m", InUse: true, Active: 1, Copies: []Copy{{"b", true}}}}}
	unload := []Step{{"a", "m", true}}
	check := func(why string, want []Step) {
		t.Helper()
		if got := Steps(plan, all, models); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", why, got, want)
		}
	}
	check("while it gets requests", nil)
	plan.Models[0].OverQuota = true
	check("when its tenant is over its quota", unload)
	plan.Models[0].OverQuota = false
	plan.Models = append(plan.Models, Placement{Model: "n", InUse: true, Active: 1, Copies: []Copy{{"a", true}}})
	check("when another model needs the memory", unload)
	plan.Models = nil
	check("when it is not wanted", []Step{{"a", "m", true}, {"b", "m", true}})
	plan.Models = []Placement{{Model: "m", InUse: true, Active: 1, Copies: []Copy{{"b", true}}}}
	all[0].Copies[0].Rate = 0
	check("when it gets none", unload)
}
