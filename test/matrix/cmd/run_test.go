package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shoal-serving/shoal/test/matrix"
	"github.com/shoal-serving/shoal/test/measure"
)

func TestANewMissAndAGateWithoutCellsFail(t *testing.T) {
	known := []measure.Known{{Gate: "matrix: A1", Figure: 0.93, Date: "2026-11-19"}}
	missed := func(gate string, figure float64) matrix.Verdict {
		return matrix.Verdict{Gate: gate, Figure: figure, Bound: measure.AtLeast(0.97)}
	}
	for _, c := range []struct {
		verdict matrix.Verdict
		only    string
		want    string
	}{
		{matrix.Verdict{Gate: "A2"}, "", "<nil>"},
		{missed("A2", 0.9), "", "matrix: A2: 0.9 [0.9, 0.9], want at least 0.97: missed by 7.2 %"},
		{missed("A1", 0.92), "", "<nil>"},
		{missed("A1", 0.8), "", "matrix: A1: 0.8 [0.8, 0.8], want at least 0.97: missed by 17.5 %, and by 4.1 % only on 2026-11-19"},
		{matrix.Verdict{Gate: "A1"}, "", "A1 is met again: remove it from known-misses.json"},
		{matrix.Verdict{Gate: "A1"}, "flat", "<nil>"},
		{matrix.Verdict{Gate: "A2", NotRun: true}, "", "A2 has no cells"},
		{matrix.Verdict{Gate: "A2", NotRun: true}, "flat", "<nil>"},
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
