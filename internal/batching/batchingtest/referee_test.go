package batchingtest_test

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/batchingtest"
)

func TestFinishSaysWhatIsLeft(t *testing.T) {
	cfg := batching.Config{TakeTurns: true}
	core, referee := batching.New(cfg), batchingtest.New(cfg)
	item := &batching.Item{Rows: 1, Owner: "a"}
	var out batching.Actions
	for _, step := range []struct {
		event batching.Event
		want  string // what Finish says after it
	}{
		{batching.Event{Kind: batching.Up, Instance: 1}, ""},
		{batching.Event{Kind: batching.Take, Instance: 1}, ""},
		{batching.Event{Kind: batching.Arrive, Item: item}, "request a was never answered"},
		{batching.Event{Kind: batching.Turn}, "request a was never answered"}, // instance 1 is called
		{batching.Event{Kind: batching.Cancel, Item: item}, "1 turns were granted, but 0 were given back"},
		{batching.Event{Kind: batching.Take, Instance: 1}, ""},
	} {
		core.Step(0, step.event, &out)
		if err := referee.Check(0, step.event, &out); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := referee.Finish(); err != nil {
			got = err.Error()
		}
		if got != step.want {
			t.Errorf("after %+v: got %q, want %q", step.event, got, step.want)
		}
	}
}
