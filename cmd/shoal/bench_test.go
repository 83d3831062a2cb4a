package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestRangesOfLoadsAreRead(t *testing.T) {
	for _, c := range []struct {
		text string
		want []float64
		err  string
	}{
		{"4", []float64{4}, ""},
		{"1:3", []float64{1, 2, 3}, ""},
		{"2:16:4", []float64{2, 6, 10, 14}, ""},
		{"0.5:1:0.25", []float64{0.5, 0.75, 1}, ""},
		{"4:2", nil, `"4:2" ends before it starts`},
		{"0:4", nil, `"0" in "0:4" is not a number above 0`},
		{"1:nan", nil, `"nan" in "1:nan" is not a number above 0`},
		{"1:inf", nil, `"inf" in "1:inf" is not a number above 0`},
		{"", nil, `"" in "" is not a number above 0`},
		{"1:2:3:4", nil, "more than start:end:step"},
		{"1:1000000000", nil, "more than 1000 loads"},
	} {
		got, err := parseRange(c.text)
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: got %v, %v", c.text, got, err)
		}
	}
}

func TestShapesMayHaveColonsInTheirNames(t *testing.T) {
	got, err := parseShapes([]string{"x:1,2", "serving:0:7"})
	if err != nil || !slices.Equal(got["x"], []int64{1, 2}) || !slices.Equal(got["serving:0"], []int64{7}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestBenchSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args   string
		want   string
		status int
	}{
		{"", "which model? Name it with -m", 2},
		{"-m a -i smoke", `-i is "smoke", but there are http and grpc`, 2},
		{"-m a -b 0", "-b is 0", 2},
		{"-m a --input-data file", `--input-data is "file"`, 2},
		{"-m a --request-distribution even", `--request-distribution is "even"`, 2},
		{"-m a --percentile 100", "--percentile is 100", 2},
		{"-m a --percentile 0", "--percentile is 0", 2},
		{"-m a -p 0", "--measurement-interval is 0", 2},
		{"-m a -s 0", "--stability-percentage is 0", 2},
		{"-m a -r 0", "--max-trials is 0", 2},
		{"-m a --shape x", `--shape is "x", but has to be NAME:d,d`, 2},
		{"-m a --shape x:1,-1", `"-1" is not a dimension`, 2},
		{"-m a --concurrency-range 1.5", "1.5 is not a number of requests", 2},
		{"-m a --concurrency-range 1 --request-rate-range 1", "none of the others can be", 1},
		{"-m a -u 127.0.0.1:1", `model "a" at 127.0.0.1:1 over HTTP: `, 1},
		{"-m a -u 127.0.0.1:1 -i grpc", `model "a" at 127.0.0.1:1 over gRPC: `, 1},
	} {
		var out bytes.Buffer
		cmd := newBenchCommand()
		cmd.SetArgs(append([]string{}, strings.Fields(c.args)...))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || exitStatus(err) != c.status {
			t.Errorf("%s: got %v, want %s", c.args, err, c.want)
		}
	}
}
