package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shoal-serving/shoal/test/matrix"
	"github.com/shoal-serving/shoal/test/measure"
)

func TestANewMissAndAGateWithoutCellsFail(t *testing.T) {
	known := []measure.Known{{Gate: "matrix: A1"}}
	for _, c := range []struct {
		verdict matrix.Verdict
		only    string
		want    string
	}{
		{matrix.Verdict{Gate: "A2", Kept: true}, "", "<nil>"},
		{matrix.Verdict{Gate: "A2"}, "", "A2 is missed"},
		{matrix.Verdict{Gate: "A1"}, "", "<nil>"},
		{matrix.Verdict{Gate: "A1", Kept: true}, "", "A1 is met again: remove it from known-misses.json"},
		{matrix.Verdict{Gate: "A1", Kept: true}, "flat", "<nil>"},
		{matrix.Verdict{Gate: "A2", Kept: true, NotRun: true}, "", "A2 has no cells"},
		{matrix.Verdict{Gate: "A2", Kept: true, NotRun: true}, "flat", "<nil>"},
	} {
		o := options{only: c.only}
		if got := fmt.Sprint(o.judge([]matrix.Verdict{c.verdict}, known)); got != c.want {
			t.Errorf("%+v, only %q: %s, want %s", c.verdict, c.only, got, c.want)
		}
	}
}

func TestTheLastResultOfACellCounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.jsonl")
	key := func(r *matrix.Trial) string { return r.Cell }
	for took := range 3 {
		r, err := open(file, key)
		if err == nil {
			err = r.add(&matrix.Trial{Cell: "a", Took: float64(took)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := open(file, key)
	if err != nil || r.get("a") == nil || r.get("a").Took != 2 || r.get("b") != nil {
		t.Errorf("%v, %v", r, err)
	}
}
