package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// A fake answers each request when answer says, counted from the first one.
type fake struct {
	Caller
	began  time.Time
	answer func(at time.Duration) (takes time.Duration, err error)
}

func (*fake) Prepare([]tensor.Tensor) error { return nil }

func (f *fake) Infer(ctx context.Context) error {
	takes, err := f.answer(time.Since(f.began))
	wait := time.NewTimer(takes)
	defer wait.Stop()
	select {
	case <-wait.C:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Statistics count a request of 3 ns for each millisecond.
func (f *fake) Statistics(context.Context) (Statistics, error) {
	n := int(time.Since(f.began).Milliseconds())
	return Statistics{Requests: n, Total: 3 * time.Duration(n)}, nil
}

func always(takes time.Duration) func(time.Duration) (time.Duration, error) {
	return func(time.Duration) (time.Duration, error) { return takes, nil }
}

// run measures a fake in fake time.
func run(ctx context.Context, t *testing.T, b Bench, answer func(time.Duration) (time.Duration, error), loads ...Load) ([]Level, error) {
	t.Helper()
	b.Caller = &fake{began: time.Now(), answer: answer}
	b.Pacer = pacer.NewPortable()
	defer b.Pacer.Close()
	var levels []Level
	err := b.Run(ctx, loads, func(l Level) { levels = append(levels, l) })
	return levels, err
}

// Not a multiple of what requests take, so that none ends with a window.
const interval = 1003 * time.Millisecond

func TestAClosedLoopKeepsItsRequestsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		levels, err := run(t.Context(), t, Bench{Rows: 2, Interval: interval, Rule: Rule{Percent: 1}}, always(10*time.Millisecond),
			Load{Concurrency: 1}, Load{Concurrency: 4})
		if err != nil || len(levels) != 2 {
			t.Fatal(levels, err)
		}
		for i, clients := range []int{1, 4} {
			l := levels[i]
			if l.Concurrency != clients || !l.Stable || l.Interrupted || l.Client.Requests != 300*clients || l.Client.Took != 3*interval || l.Client.Mean != 10*time.Millisecond {
				t.Errorf("got %+v", l)
			}
			if want := 600 * float64(clients) / (3 * interval).Seconds(); l.Client.InfersPerSecond < want-1e-6 || l.Client.InfersPerSecond > want+1e-6 {
				t.Errorf("%v infer/s, want %v", l.Client.InfersPerSecond, want)
			}
			if l.Server == nil || l.Server.Requests != 3009 || l.Server.Total != 3*3009 {
				t.Errorf("the server's side is %+v", l.Server)
			}
		}
		if want := (Second{At: 2 * time.Second, Requests: 400, P50: 10 * time.Millisecond, P99: 10 * time.Millisecond, Max: 10 * time.Millisecond}); len(levels[1].Timeline) != 4 || !near(levels[1].Timeline[2], want) {
			t.Errorf("the time line is %+v", levels[1].Timeline)
		}
		// The first request, and for each load three windows and the rest of a request.
		if took := time.Since(began); took != 10*time.Millisecond+2*(3010*time.Millisecond) {
			t.Errorf("took %v", took)
		}
	})
}

// near reports whether two seconds are the same to the digits that are kept.
func near(a, b Second) bool {
	for _, d := range []struct{ a, b time.Duration }{{a.P50, b.P50}, {a.P99, b.P99}, {a.Max, b.Max}} {
		if d.a < d.b-d.b/1000 || d.a > d.b+d.b/1000 {
			return false
		}
	}
	return a.At == b.At && a.Requests == b.Requests && a.Failed == b.Failed
}

func TestAnOpenLoopShowsAStall(t *testing.T) {
	// From 1 s to 2 s nothing is answered. 401 requests are due in the window, a
	// hundred of them in the stall.
	stall := func(at time.Duration) (time.Duration, error) {
		if at >= time.Second && at < 2*time.Second {
			return 2*time.Second - at, nil
		}
		return 0, nil
	}
	synctest.Test(t, func(t *testing.T) {
		levels, err := run(t.Context(), t, Bench{Interval: 4003 * time.Millisecond, MaxTrials: 1}, stall, Load{Rate: 100})
		if err != nil {
			t.Fatal(err)
		}
		c := levels[0].Client
		if c.Requests != 401 || c.Failed != 0 {
			t.Fatalf("got %+v", c)
		}
		// What is due in the stall is answered at its end.
		if got := levels[0].Timeline; len(got) != 5 || got[1].Requests != 0 || got[2].Requests != 200 || got[2].Max < 999*time.Millisecond {
			t.Errorf("the time line is %+v", got)
		}
		for _, p := range []struct {
			percent float64
			want    time.Duration
		}{
			{50, 0}, {90, 600 * time.Millisecond}, {95, 800 * time.Millisecond}, {99, 960 * time.Millisecond},
		} {
			if got := c.latency(p.percent); got < p.want-p.want/1000 || got > p.want+p.want/1000 {
				t.Errorf("p%v is %v, want %v", p.percent, got, p.want)
			}
		}
	})
}

func TestPoissonArrivalsAreSentWhenTheyAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := Load{Rate: 1000, Poisson: true, Seed: 3}
		levels, err := run(t.Context(), t, Bench{Interval: interval, MaxTrials: 1}, always(0), load)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for at := range load.schedule() {
			if at > interval {
				break
			}
			want++
		}
		if c := levels[0].Client; c.Requests != want || c.Late != 0 || c.Mean != 0 {
			t.Errorf("%d requests are due, got %+v", want, c)
		}
	})
}

func TestWindowsThatDifferAreNotStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Each second makes requests a millisecond slower.
		slower := func(at time.Duration) (time.Duration, error) { return time.Millisecond + at/1000, nil }
		levels, err := run(t.Context(), t, Bench{Interval: interval, MaxTrials: 4, Rule: Rule{Percent: 10}}, slower, Load{Concurrency: 1})
		if err != nil || levels[0].Stable || levels[0].Client.Took != 3*interval {
			t.Errorf("got %+v, %v", levels, err)
		}
	})
}

func TestAnInterruptedRunHasWhatWasMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 515*time.Millisecond)
		defer cancel()
		levels, err := run(ctx, t, Bench{Interval: interval}, always(10*time.Millisecond), Load{Concurrency: 1}, Load{Concurrency: 2})
		if err != nil || len(levels) != 1 {
			t.Fatal(levels, err)
		}
		if l := levels[0]; !l.Interrupted || l.Stable || l.Client.Requests != 50 || l.Client.Took != 505*time.Millisecond || l.Server == nil {
			t.Errorf("got %+v", l)
		}
	})
}

func TestRequestsThatFailAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		some := func(time.Duration) (time.Duration, error) {
			if n++; n%4 == 0 {
				return 10 * time.Millisecond, errors.New("too busy")
			}
			return 10 * time.Millisecond, nil
		}
		levels, err := run(t.Context(), t, Bench{Interval: interval, MaxTrials: 1}, some, Load{Concurrency: 1})
		if err != nil {
			t.Fatal(err)
		}
		if c := levels[0].Client; c.Requests != 75 || c.Failed != 25 || c.Error != "too busy" {
			t.Errorf("got %+v", c)
		}
	})
}

func TestAServerThatIsNoUseIsAnError(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(time.Duration) (time.Duration, error)
		want   string
	}{
		{"from the first", func(time.Duration) (time.Duration, error) { return 1, errors.New("gone") }, "the first request failed: gone"},
		{"from the second", func(at time.Duration) (time.Duration, error) {
			if at == 0 {
				return time.Millisecond, nil
			}
			return 100 * time.Millisecond, errors.New("gone")
		}, "all 10 requests of a window failed, the first with: gone"},
		{"stalls", func(at time.Duration) (time.Duration, error) {
			if at == 0 {
				return time.Millisecond, nil
			}
			return time.Hour, nil
		}, "nothing was answered in the last window"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				levels, err := run(t.Context(), t, Bench{Interval: interval, MaxTrials: 3}, c.answer, Load{Concurrency: 1})
				if err == nil || !strings.Contains(err.Error(), c.want) || len(levels) > 0 {
					t.Errorf("got %v, %v, want %s", levels, err, c.want)
				}
			})
		})
	}
}

func TestReportsHaveTheFiguresOfEachLevel(t *testing.T) {
	server := &Statistics{Inferences: 20, Executions: 5, Requests: 10, Total: 2000 * 1000, Queue: 500 * 1000, Input: 100 * 1000, Infer: 1000 * 1000, Output: 50 * 1000}
	client := Summary{
		Took: time.Second, Requests: 10, Failed: 1, Error: "too busy", Late: 2, InfersPerSecond: 20, Mean: 250 * time.Microsecond, Deviation: 30 * time.Microsecond,
		Percentiles: []Percentile{{50, 240 * time.Microsecond}, {90, 280 * time.Microsecond}, {95, 300 * time.Microsecond}, {99, 310 * time.Microsecond}},
	}
	r := &Report{Percentile: 95, Levels: []Level{
		{Concurrency: 4, Stable: true, Client: client, Server: server},
		{Concurrency: 5, Client: client},
	}}
	var text, table, csv strings.Builder
	for _, err := range []error{r.Levels[0].WriteText(&text), r.Levels[1].WriteText(&text), r.WriteTable(&table), r.WriteCSV(&csv)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	clientLines := `  Client:
    Request count: 10
    Failed request count: 1, the first with: too busy
    Throughput: 20.00 infer/sec
    Avg latency: 250 usec (standard deviation 30 usec)
    p50 latency: 240 usec
    p90 latency: 280 usec
    p95 latency: 300 usec
    p99 latency: 310 usec
    Late request count: 2; this machine could not keep up with the rate, and latencies have that in them
`
	wantText := "Request concurrency: 4\n" + clientLines + `  Server:
    Inference count: 20
    Execution count: 5
    Successful request count: 10
    Avg request latency: 200 usec (overhead 35 usec + queue 50 usec + compute input 10 usec + compute infer 100 usec + compute output 5 usec)

Request concurrency: 5
` + clientLines + `  Not stable: the last windows differ by more than was allowed.

`
	const wantTable = `Inferences/Second vs. Client p95 Batch Latency
Concurrency: 4, throughput: 20.00 infer/sec, latency 300 usec
Concurrency: 5, throughput: 20.00 infer/sec, latency 300 usec
`
	const wantCSV = `Concurrency,Inferences/Second,Network+Server Send/Recv,Server Queue,Server Compute Input,Server Compute Infer,Server Compute Output,p50 latency,p90 latency,p95 latency,p99 latency,Avg latency
4,20.00,85,50,10,100,5,240,280,300,310,250
5,20.00,,,,,,240,280,300,310,250
`
	for _, c := range [][2]string{{text.String(), wantText}, {table.String(), wantTable}, {csv.String(), wantCSV}} {
		if !slices.Equal(strings.Split(c[0], "\n"), strings.Split(c[1], "\n")) {
			t.Errorf("got\n%s\nwant\n%s", c[0], c[1])
		}
	}
}
