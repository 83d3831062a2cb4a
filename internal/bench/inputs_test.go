package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

func TestInputsAreFilledAsTheModelTakesThem(t *testing.T) {
	all := []Input{}
	for ty := tensor.Bool; ty <= tensor.BF16; ty++ {
		all = append(all, Input{ty.String(), ty, []int64{-1, 2, -1}})
	}
	shapes := map[string][]int64{}
	for _, in := range all {
		shapes[in.Name] = []int64{2, 3}
	}
	for _, random := range []bool{false, true} {
		got, err := Model{Name: "m", Inputs: all, MaxBatch: 8}.Fill(Data{Rows: 4, Shapes: shapes, Random: random, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		again, _ := Model{Name: "m", Inputs: all, MaxBatch: 8}.Fill(Data{Rows: 4, Shapes: shapes, Random: random, Seed: 1})
		for i, in := range got {
			if err := in.Check(); err != nil || !slices.Equal(in.Shape, []int64{4, 2, 3}) {
				t.Errorf("%s: shape %v, %v", in.Name, in.Shape, err)
			}
			if zero := !slices.ContainsFunc(in.Data, func(b byte) bool { return b != 0 }); zero == random {
				t.Errorf("%s: random is %v, but the data is % x", in.Name, random, in.Data)
			}
			if !slices.Equal(in.Data, again[i].Data) {
				t.Errorf("%s: the same seed gave other data", in.Name)
			}
		}
	}
}

func TestRowsAreWhereTheServerSaysOrEverywhereIsAnySize(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxBatch int
		shape    []int64
		want     []int64
	}{
		{"batched", 8, []int64{-1, 3}, []int64{1, 3}},
		{"not batched", 0, []int64{5, 3}, []int64{5, 3}},
		{"not told, any size", -1, []int64{-1, 3}, []int64{1, 3}},
		{"not told, fixed", -1, []int64{5, 3}, []int64{5, 3}},
	} {
		got, err := Model{Name: "m", Inputs: []Input{{"x", tensor.FP32, c.shape}}, MaxBatch: c.maxBatch}.Fill(Data{})
		if err != nil || !slices.Equal(got[0].Shape, c.want) {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}

func TestInputsThatCannotBeFilledAreToldWhy(t *testing.T) {
	in := []Input{{"x", tensor.FP32, []int64{-1, -1, 3}}}
	for _, c := range []struct {
		name  string
		model Model
		data  Data
		want  string
	}{
		{"too many rows", Model{Name: "m", Inputs: in, MaxBatch: 4}, Data{Rows: 5}, `model "m" takes up to 4 rows per request, not 5`},
		{"no rows", Model{Name: "m", Inputs: in, MaxBatch: 0}, Data{Rows: 2}, `has no batch dimension`},
		{"any size", Model{Name: "m", Inputs: in, MaxBatch: 4}, Data{}, `input "x" has the variable shape [-1 3]: set it with --shape x:…`},
		{"no dimension for rows", Model{Name: "m", Inputs: []Input{{"x", tensor.FP32, nil}}, MaxBatch: 4}, Data{}, `input "x" has no dimensions, so it cannot have rows, and the server says that requests of model "m" have up to 4`},
		{"another input", Model{Name: "m", Inputs: in, MaxBatch: 4}, Data{Shapes: map[string][]int64{"y": {1}}}, `cannot set the shape of "y": model "m" has the inputs "x"`},
		{"another shape", Model{Name: "m", Inputs: in, MaxBatch: 4}, Data{Shapes: map[string][]int64{"x": {7, 4}}}, `is [7 4], but the model requires [-1 3]`},
		{"with the rows", Model{Name: "m", Inputs: in, MaxBatch: 4}, Data{Shapes: map[string][]int64{"x": {1, 7, 3}}}, `is [1 7 3], but the model requires [-1 3] (both without the batch dimension)`},
	} {
		if _, err := c.model.Fill(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}
