package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/bench"
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
		{"1:2:3:4", nil, "has too many parts; expected start:end:step"},
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
		{"", "name a model, as in", 2},
		{"-m a -i smoke", `--protocol: "smoke" is not valid: expected http or grpc`, 2},
		{"-m a -b 0", "-b: 0 is not valid: expected at least 1", 2},
		{"-m a,", "name a model, as in", 2},
		{"-m a --streaming", "--streaming needs -i grpc", 2},
		{"-m a --shared-memory system", `--shared-memory: "system" is not supported`, 2},
		{"-m a --service-kind openai", `--service-kind: "openai" is not supported`, 2},
		{"-m a --measurement-mode forever", `--measurement-mode: "forever" is not valid`, 2},
		{"-m a -l 5", "--latency-threshold of perf_analyzer is not supported", 2},
		{"-m a --binary-search", "--binary-search of perf_analyzer", 2},
		{"-m a --burst-size 0", "--burst-size: 0 is not valid: expected at least 1", 2},
		{"-m a --request-trace nowhere", "--request-trace: open nowhere", 2},
		{"-m a --request-intervals nowhere", "--request-intervals: open nowhere", 2},
		{"-m a --request-distribution even", `--request-distribution: "even" is not valid`, 2},
		{"-m a --percentile 100", "--percentile: 100 is not valid", 2},
		{"-m a --percentile 0", "--percentile: 0 is not valid", 2},
		{"-m a -p 0", "--measurement-interval: 0 is not valid", 2},
		{"-m a -s 0", "--stability-percentage: 0 is not valid", 2},
		{"-m a -r 0", "--max-trials: 0 is not valid", 2},
		{"-m a --sequence-length 0", "--sequence-length: 0 is not valid", 2},
		{"-m a --num-of-sequences 0", "--num-of-sequences: 0 is not valid", 2},
		{"-m a --sequence-length-variation 101", "--sequence-length-variation: 101 is not valid", 2},
		{"-m a --sequence-id-range 0:5", `--sequence-id-range: "0:5" is not valid`, 2},
		{"-m a --sequence-id-range 5:5", `--sequence-id-range: "5:5" is not valid`, 2},
		{"-m a --sequence-id-range 5:0", `--sequence-id-range: "5:0" is not valid`, 2},
		{"-m a --sequence-id-range 1:9 --concurrency-range 9", `--sequence-id-range: "1:9" has 8 IDs`, 2},
		{"-m a --shape x", `--shape: "x" is not valid: expected NAME:d,d`, 2},
		{"-m a --shape x:1,-1", `"-1" is not a dimension`, 2},
		{"-m a --concurrency-range 1.5", "1.5 is not valid: expected a whole number of requests", 2},
		{"-m a --quick --concurrency-range 1", "--quick cannot be combined with --concurrency-range", 2},
		{"a b", `unexpected argument "b"`, 2},
		{"-m a --quick -p 100", "--quick cannot be combined with --measurement-interval", 2},
		{"-m a --quick --request-count 9", "--quick cannot be combined with --request-count", 2},
		{"-m a --quick --max-trials 3", "--quick cannot be combined with --max-trials", 2},
		{"-m a,b --quick", "--quick measures one model", 2},
		{"-m a --json - -f -", "-f and --json cannot both write to stdout; name a file for one of them", 2},
		{"-m a --json - --html -", "--json and --html cannot both write to stdout", 2},
		{"-m a --concurrency-range 1 --request-rate-range 1", "--concurrency-range cannot be combined with --request-rate-range", 2},
		{"-m a -u 127.0.0.1:1", `no server answers at 127.0.0.1:1; start one with "shoal serve", or name its address with -u`, 1},
		{"-m a -u 127.0.0.1:1 -i grpc", `no server answers at 127.0.0.1:1; start one with "shoal serve", or name its address with -u`, 1},
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

func TestPerfAnalyzersOptionsBecomeLoads(t *testing.T) {
	distances := filepath.Join(t.TempDir(), "distances")
	if err := os.WriteFile(distances, []byte("1000\n3000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]bench.Load{
		"-t 4 --sync --max-threads 3 --shared-memory none":                             {{Concurrency: 4}},
		"--concurrency-range 2 --request-count 9 -a":                                   {{Concurrency: 2, Count: 9}},
		"--request-rate-range 80 --request-distribution burst":                         {{Rate: 80, Poisson: true, Burst: 8, Seed: 1}},
		"--request-rate-range 80 --request-distribution constant-burst --burst-size 2": {{Rate: 80, Burst: 2, Seed: 1}},
		"--request-intervals " + distances:                                             {{Rate: 500, Intervals: []time.Duration{time.Millisecond, 3 * time.Millisecond}}},
		"--concurrency-range 1:2 --repeats 2":                                          {{Concurrency: 1, Repeat: 1}, {Concurrency: 2, Repeat: 1}, {Concurrency: 1, Repeat: 2}, {Concurrency: 2, Repeat: 2}},
	} {
		o, f := parsedBench(t, "-m a "+args)
		w, err := o.check(f)
		if err != nil || !reflect.DeepEqual(w.loads, want) {
			t.Errorf("%s: got %+v, %v, want %+v", args, w.loads, err, want)
		}
	}
}

// parsedBench returns the options that arguments set.
func parsedBench(t *testing.T, args string) (*benchOptions, *pflag.FlagSet) {
	t.Helper()
	var o benchOptions
	f := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse(strings.Fields(args)); err != nil {
		t.Fatal(err)
	}
	return &o, f
}

func TestATraceIsFoundUnderTheModelsName(t *testing.T) {
	write := func(lines ...string) string {
		name := filepath.Join(t.TempDir(), "trace")
		if err := os.WriteFile(name, []byte(arrivals.Header+"\n"+strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	two, one := write("1.0 x 1 0", "2.0 y 2 0", "3.0 x 3 0"), write("1.0 x 1 0")
	for _, c := range []struct {
		args string
		want map[string]int // requests of each model
		zero time.Duration
		err  string
	}{
		{"-m x --request-trace " + two, map[string]int{"x": 2}, time.Second, ""},
		{"-m y --request-trace " + two, map[string]int{"y": 1}, 2 * time.Second, ""},
		{"-m y,x --request-trace " + two, map[string]int{"x": 2, "y": 1}, time.Second, ""},
		{"-m z --request-trace " + two + " --request-trace-model y", map[string]int{"z": 1}, 2 * time.Second, ""},
		{"-m z --request-trace " + one, map[string]int{"z": 1}, time.Second, ""},
		{"-m z --request-trace " + two, nil, 0, `has no requests for "z", but for ["x" "y"]; choose one with --request-trace-model`},
		{"-m x,z --request-trace " + one, nil, 0, `has no requests for "z"`},
	} {
		o, f := parsedBench(t, c.args)
		w, err := o.check(f)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %s", c.args, err, c.err)
			continue
		}
		if err != nil {
			continue
		}
		got := map[string]int{}
		for model, all := range w.recorded {
			got[model] = len(all)
		}
		if !maps.Equal(got, c.want) || w.zero != c.zero {
			t.Errorf("%s: got %v from %v, want %v from %v", c.args, got, w.zero, c.want, c.zero)
		}
	}
}

func TestQuickFiguresSayWhatTheyLeaveOut(t *testing.T) {
	level := func(clients int, change func(*bench.Level)) bench.Level {
		l := bench.Level{
			Concurrency: clients,
			Client: bench.Summary{
				Requests: 100, InfersPerSecond: 100 * float64(clients),
				Percentiles: []bench.Percentile{{Percent: 50, Latency: time.Millisecond}, {Percent: 99, Latency: 2 * time.Millisecond}},
			},
		}
		change(&l)
		return l
	}
	plain := func(*bench.Level) {}
	const one, many = "m: 100 req/s with 1 client, p50 1 ms, p99 2 ms; ", "1600 req/s with 16 clients, p50 1 ms, p99 2 ms"
	for name, c := range map[string]struct {
		change func(*bench.Level)
		want   string
	}{
		"nothing": {plain, one + many + ": 16.0 times the throughput."},
		"failures": {
			func(l *bench.Level) { l.Client.Failed, l.Client.Error = 300, "the queue is full" },
			one + many + ": 16.0 times the throughput. 300 of 400 requests of 16 clients failed, the first with: the queue is full",
		},
		"an interruption": {
			func(l *bench.Level) { l.Interrupted, l.Client.Took = true, 250*time.Millisecond },
			one + many + ": 16.0 times the throughput. Interrupted: the figures of 16 clients are of 250 ms.",
		},
		"batches": {
			func(l *bench.Level) { l.Server = &bench.Statistics{Executions: 2, BatchSizes: map[int]int{1: 1, 4: 1}} },
			one + many + ", in batches of 2.5 rows on average: 16.0 times the throughput.",
		},
		"a server without sizes of batches": {
			func(l *bench.Level) { l.Server = &bench.Statistics{Executions: 2} },
			one + many + ": 16.0 times the throughput.",
		},
	} {
		var out bytes.Buffer
		err := writeQuick(&out, &bench.Report{Model: "m", Rows: 1, Levels: []bench.Level{level(1, plain), level(16, c.change)}}, false)
		if got := strings.Join(strings.Fields(out.String()), " "); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestShortDurationsHaveNoExponent(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1500 * time.Microsecond:   "1.5 ms",
		999400 * time.Microsecond: "999 ms",
		999500 * time.Microsecond: "1.00 s",
		1234 * time.Millisecond:   "1.23 s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}
