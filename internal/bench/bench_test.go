package bench

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/pacer"
)

// A fake answers each request when answer says, counted from the first one.
type fake struct {
	Caller
	began  time.Time
	answer func(at time.Duration) (takes time.Duration, err error)

	mu   sync.Mutex // guards the following
	sent []Planned
}

func (f *fake) Infer(ctx context.Context, request int) error {
	f.mu.Lock()
	f.sent = append(f.sent, Planned{time.Since(f.began), request})
	f.mu.Unlock()
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

// reloaded is a fake whose statistics begin again after a time.
type reloaded struct {
	*fake
	after time.Duration
}

func (r reloaded) Statistics(ctx context.Context) (Statistics, error) {
	s, err := r.fake.Statistics(ctx)
	if n := int(r.after.Milliseconds()); s.Requests > n {
		s.Requests -= n
		s.Total -= 3 * time.Duration(n)
	}
	return s, err
}

func always(takes time.Duration) func(time.Duration) (time.Duration, error) {
	return func(time.Duration) (time.Duration, error) { return takes, nil }
}

// run measures a fake in fake time.
func run(ctx context.Context, t *testing.T, b Bench, answer func(time.Duration) (time.Duration, error), loads ...Load) ([]Level, error) {
	t.Helper()
	b.Targets = []Target{{Model: "m", Caller: &fake{began: time.Now(), answer: answer}, Rows: []int{2}}}
	return runTargets(ctx, b, loads...)
}

// runTargets measures the targets of a bench in fake time.
func runTargets(ctx context.Context, b Bench, loads ...Load) ([]Level, error) {
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
		levels, err := run(t.Context(), t, Bench{Interval: interval, Rule: Rule{Percent: 1}}, always(10*time.Millisecond),
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

func TestAServerWhoseStatisticsBeginAgainHasNone(t *testing.T) {
	for _, after := range []time.Duration{1500 * time.Millisecond, 2500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{began: time.Now(), answer: always(10 * time.Millisecond)}
			b := Bench{Interval: interval, Rule: Rule{Percent: 1}, Targets: []Target{{Model: "m", Caller: reloaded{f, after}, Rows: []int{1}}}}
			levels, err := runTargets(t.Context(), b, Load{Concurrency: 1})
			if err != nil || len(levels) != 1 {
				t.Fatal(levels, err)
			}
			if l := levels[0]; l.Server != nil || !strings.HasPrefix(l.ServerError, "they began again") || l.Client.Requests != 300 {
				t.Errorf("after %v: %+v, %q", after, l.Server, l.ServerError)
			}
		})
	}
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
		// One client is enough when nothing stalls. It has one slow request, and that
		// is not among a hundredth of 401.
		if got := levels[0].ClosedLoop; *got != (ClosedLoop{Clients: 1, Max: time.Second}) {
			t.Errorf("a closed loop would have seen %+v", got)
		}
		var text strings.Builder
		const want = "A closed loop would have missed this: its p99 would have been 0 usec (1 waiting at a time, counted from when they could be sent); here it is 96"
		if err := levels[0].WriteText(&text); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("the report is %s", text.String())
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

func TestEachModelHasRandomArrivalsOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 100
		load := Load{Rate: 1000, Poisson: true, Seed: 3, Count: requests}
		models := []*fake{{began: time.Now(), answer: always(0)}, {began: time.Now(), answer: always(0)}, {began: time.Now(), answer: always(0)}}
		b := Bench{Interval: interval}
		for _, f := range models {
			b.Targets = append(b.Targets, Target{Caller: f, Rows: []int{1}})
		}
		if _, err := runTargets(t.Context(), b, load); err != nil {
			t.Fatal(err)
		}
		models[0].sent = models[0].sent[1:] // without that of the warm-up, which is at 0, too
		n := 0
		for at := range load.schedule() {
			if n == requests {
				break
			}
			if got := models[0].sent[n].At; got != at {
				t.Fatalf("request %d of the first model is sent at %v, want %v as if there were no other", n, got, at)
			}
			n++
		}
		seen := map[time.Duration]bool{}
		for _, f := range models {
			for _, p := range f.sent[len(f.sent)-requests:] {
				if seen[p.At] {
					t.Fatalf("requests of two models arrive at %v", p.At)
				}
				seen[p.At] = true
			}
		}
	})
}

func TestARecordingIsPlayedAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		recorded := []arrivals.Arrival{
			{At: 1000 * ms, Model: "m", Rows: 1},
			{At: 1002 * ms, Model: "m", Rows: 4, Priority: 2},
			{At: 1002 * ms, Model: "m", Rows: 1},
			{At: 1500 * ms, Model: "m", Rows: 4, Priority: 2},
		}
		plan, kinds := Replay(recorded, 1000*ms, 2)
		if want := []Kind{{1, 0}, {4, 2}}; !slices.Equal(kinds, want) {
			t.Fatalf("got the kinds %v, want %v", kinds, want)
		}
		f := &fake{began: time.Now(), answer: always(10 * ms)}
		b := Bench{Targets: []Target{{Caller: f, Rows: []int{1, 1, 4, 4}, Plan: plan}}, Interval: ms}
		levels, err := runTargets(t.Context(), b, Load{Plan: true})
		if err != nil {
			t.Fatal(err)
		}
		// After the first request, which took 10 ms. Those of one time go in any order.
		got := f.sent[1:]
		slices.SortFunc(got, func(a, b Planned) int { return cmp.Or(cmp.Compare(a.At, b.At), b.Request-a.Request) })
		if want := []Planned{{10 * ms, 0}, {12 * ms, 3}, {12 * ms, 0}, {510 * ms, 3}}; !slices.Equal(got, want) {
			t.Errorf("sent %v, want %v", got, want)
		}
		l := levels[0]
		if c := l.Client; c.Requests != 4 || c.Took != 510*ms || c.Late != 0 || c.late(100) != 0 || math.Abs(c.InfersPerSecond-10/0.51) > 1e-6 || !l.Stable || l.Rate != 6 {
			t.Errorf("got %+v", l)
		}
	})
}

func TestTheReportSaysHowLateRequestsWereSent(t *testing.T) {
	w := newWindow()
	for us := range 1000 {
		w.Sent(time.Duration(us+1) * time.Microsecond)
	}
	w.Sent(2 * time.Millisecond)
	s := w.Summarize(0)
	if s.Late != 1 || s.late(50)/time.Microsecond != 501 || s.late(99)/time.Microsecond != 991 || s.late(100).Round(10*time.Microsecond) != 2*time.Millisecond {
		t.Errorf("got %+v", s)
	}
	var text strings.Builder
	if err := (Level{Client: s}).WriteText(&text); err != nil || !strings.Contains(text.String(), "Sent later than due: p50 501 usec, p99 991 usec, at most 2000 usec") {
		t.Errorf("got %s", text.String())
	}
}

func TestALoadOfSoManyRequestsIsOneWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		levels, err := run(t.Context(), t, Bench{Interval: interval, WarmUp: 3}, always(10*time.Millisecond),
			Load{Concurrency: 3, Count: 8}, Load{Rate: 1000, Count: 8})
		if err != nil {
			t.Fatal(err)
		}
		for i, took := range []time.Duration{30 * time.Millisecond, 17 * time.Millisecond} {
			if c := levels[i].Client; c.Requests != 8 || c.Took != took || !levels[i].Stable {
				t.Errorf("got %+v", levels[i])
			}
		}
	})
}

func TestALoadThatGetsNowhereIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := func(at time.Duration) (time.Duration, error) {
			if at < 30*time.Millisecond {
				return 10 * time.Millisecond, nil
			}
			return 24 * time.Hour, nil
		}
		_, err := run(t.Context(), t, Bench{Interval: interval}, stuck, Load{Concurrency: 2, Count: 100})
		if want := "2 requests are in flight, and none was sent or answered for 1m0s"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		// One that has a long time to wait does get somewhere.
		f := &fake{began: time.Now(), answer: always(time.Millisecond)}
		b := Bench{Targets: []Target{{Caller: f, Rows: []int{1}, Plan: []Planned{{0, 0}, {time.Hour, 0}}}}}
		if levels, err := runTargets(t.Context(), b, Load{Plan: true}); err != nil || levels[0].Client.Requests != 2 {
			t.Errorf("got %+v, %v", levels, err)
		}
	})
}

func TestWindowsMayEndWithTheirAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		levels, err := run(t.Context(), t, Bench{Interval: interval, Requests: 20, Rule: Rule{Percent: 1}}, always(10*time.Millisecond), Load{Concurrency: 1})
		if err != nil || levels[0].Client.Requests != 60 || levels[0].Client.Took != 600*time.Millisecond {
			t.Errorf("got %+v, %v", levels, err)
		}
	})
}

// A window that ends late takes no time from the next one, which would have few answers.
func TestNoWindowIsShorterThanTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Bench{Interval: interval, Rule: Rule{Percent: 5}, Targets: []Target{{Caller: &late{fake: fake{began: time.Now(), answer: always(time.Millisecond)}}, Rows: []int{1}}}}
		levels, err := runTargets(t.Context(), b, Load{Concurrency: 1})
		if err != nil {
			t.Fatal(err)
		}
		if took, want := levels[0].Client.Took, 3*interval+interval*4/5; took != want {
			t.Errorf("three windows took %v, want %v: the second waited for statistics", took, want)
		}
	})
}

// Answers while the statistics of another model are read belong to the next window.
func TestWindowsOfAllModelsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &late{fake: fake{began: time.Now(), answer: always(10 * time.Millisecond)}}
		second := &fake{began: time.Now(), answer: always(10 * time.Millisecond)}
		b := Bench{Interval: interval, MaxTrials: 1, Targets: []Target{
			{Model: "first", Caller: first, Rows: []int{1}}, {Model: "second", Caller: second, Rows: []int{1}},
		}}
		levels, err := runTargets(t.Context(), b, Load{Concurrency: 1})
		if err != nil || len(levels) != 2 {
			t.Fatal(levels, err)
		}
		for _, l := range levels {
			if l.Client.Requests != 100 || l.Client.Took != interval {
				t.Errorf("%s: %d requests in %v, want 100 in %v", l.Model, l.Client.Requests, l.Client.Took, interval)
			}
		}
	})
}

// late is a fake whose second statistics take almost two windows.
type late struct {
	fake
	asked int
}

func (l *late) Statistics(ctx context.Context) (Statistics, error) {
	if l.asked++; l.asked == 2 {
		time.Sleep(interval * 9 / 5)
	}
	return l.fake.Statistics(ctx)
}

func TestSeveralModelsHaveALoadAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quick, slow := &fake{began: time.Now(), answer: always(10 * time.Millisecond)}, &fake{began: time.Now(), answer: always(50 * time.Millisecond)}
		b := Bench{Interval: interval, Rule: Rule{Percent: 10}, Targets: []Target{
			{Model: "quick", Caller: quick, Rows: []int{1, 1}}, {Model: "slow", Caller: slow, Rows: []int{1}},
		}}
		levels, err := runTargets(t.Context(), b, Load{Concurrency: 2})
		if err != nil || len(levels) != 2 {
			t.Fatal(levels, err)
		}
		if levels[0].Model != "quick" || levels[0].Client.Requests != 600 || levels[1].Model != "slow" || levels[1].Client.Requests != 120 {
			t.Errorf("got %+v", levels)
		}
		if sent := quick.sent[1:5]; sent[0].Request+sent[1].Request != 1 || sent[2].Request+sent[3].Request != 1 {
			t.Errorf("requests are not sent in turn: %v", sent)
		}
	})
}

func TestProgressIsToldEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		b := Bench{Interval: 1400 * time.Millisecond, MaxTrials: 2, Progress: func(p Progress) { lines = append(lines, p.String()) }}
		if _, err := run(t.Context(), t, b, always(7*time.Millisecond), Load{Concurrency: 2}); err != nil {
			t.Fatal(err)
		}
		want := "Concurrency: 2, window 1 of 2: 284/s, p50 7000 usec, p99 7000 usec, 2 waiting"
		if len(lines) != 2 || lines[0] != want || !strings.HasPrefix(lines[1], "Concurrency: 2, window 2 of 2: ") {
			t.Errorf("got %q, want first %s", lines, want)
		}
	})
}

func TestAServerWithoutStatisticsSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Bench{Interval: interval, MaxTrials: 1, Targets: []Target{{Caller: &silent{fake{began: time.Now(), answer: always(time.Millisecond)}}, Rows: []int{1}}}}
		levels, err := runTargets(t.Context(), b, Load{Concurrency: 1})
		if err != nil || levels[0].Server != nil {
			t.Fatal(levels, err)
		}
		var text strings.Builder
		if err := levels[0].WriteText(&text); err != nil || !strings.Contains(text.String(), "\n  Server: no statistics: never heard of them\n") {
			t.Errorf("got %s", text.String())
		}
	})
}

// silent is a fake without statistics.
type silent struct{ fake }

func (*silent) Statistics(context.Context) (Statistics, error) {
	return Statistics{}, errors.New("never heard of them")
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
		}, "no request was answered in the last window"},
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
	server := &Statistics{
		Inferences: 20, Executions: 5, Requests: 10, Total: 2000 * 1000, Queue: 500 * 1000, Input: 100 * 1000, Infer: 1000 * 1000, Output: 50 * 1000,
		BatchSizes: map[int]int{8: 1, 3: 4}, Closed: map[string]int{"waited": 4, "full": 1},
	}
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
    Batch sizes: 4.00 rows on average; 3: 80 %, 8: 20 %
    Batches closed: full: 20 %, waited: 80 %

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
	r.Levels = r.Levels[:1]
	r.Levels[0].Model = "m"
	var named strings.Builder
	if err := r.WriteCSV(&named); err != nil || !strings.HasPrefix(named.String(), "Model,Concurrency,") || !strings.Contains(named.String(), "\nm,4,20.00,") {
		t.Errorf("of several models: %v, %s", err, named.String())
	}
	for _, c := range [][2]string{{text.String(), wantText}, {table.String(), wantTable}, {csv.String(), wantCSV}} {
		if !slices.Equal(strings.Split(c[0], "\n"), strings.Split(c[1], "\n")) {
			t.Errorf("got\n%s\nwant\n%s", c[0], c[1])
		}
	}
}
