package node

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/stats"
)

// A source is a server whose page a test sets.
type source struct {
	mu      sync.Mutex
	page    Page
	changed chan struct{}
	reads   int
}

func (s *source) options() Options {
	return Options{
		Read: func() Page {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reads++
			page := s.page
			page.Models = append([]Model(nil), s.page.Models...)
			return page
		},
		Changed: func() <-chan struct{} {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.changed
		},
	}
}

// set changes the page. The server reports it if told is true.
func (s *source) set(told bool, change func(*Page)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.page)
	if told {
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

func newSource() *source {
	return &source{page: Page{Models: []Model{{Name: "m", Version: "1", State: "READY", Queue: 10}}}, changed: make(chan struct{})}
}

// wait returns how long a reader that knows the tag waits, and whether it gets a page.
func wait(t *testing.T, r *Reporter, tag string, most time.Duration) (took time.Duration, got bool, next string) {
	t.Helper()
	began := time.Now()
	body, next, err := r.Wait(t.Context(), tag, most)
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(began), body != nil, next
}

func TestAReaderIsAnsweredWhenSomethingChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		told   bool
		change func(*Page)
		took   time.Duration // after 4.5 s, at which it changes
		got    bool
	}{
		"a state, at once":               {true, func(p *Page) { p.Models[0].State = "UNLOADING" }, 4500 * time.Millisecond, true},
		"draining, at once":              {true, func(p *Page) { p.Draining = true }, 4500 * time.Millisecond, true},
		"a model more, at once":          {true, func(p *Page) { p.Models = append(p.Models, Model{Name: "n"}) }, 4500 * time.Millisecond, true},
		"an outage, soon":                {false, func(p *Page) { p.Models[0].State = "UNAVAILABLE" }, 6 * time.Second, true},
		"a queue by a half, after 10 s":  {false, func(p *Page) { p.Models[0].Queue = 15 }, 10 * time.Second, true},
		"a queue by a tenth, not at all": {false, func(p *Page) { p.Models[0].Queue = 11 }, 30 * time.Second, false},
		"what decides nothing, neither":  {true, func(p *Page) { p.Models[0].Failures = 100 }, 30 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSource()
				r := NewReporter(s.options())
				_, got, tag := wait(t, r, "", 30*time.Second)
				if !got {
					t.Fatal("a reader without a tag got no page")
				}
				time.AfterFunc(4500*time.Millisecond, func() { s.set(tt.told, tt.change) })
				took, got, next := wait(t, r, tag, 30*time.Second)
				if took != tt.took || got != tt.got || got == (next == tag) {
					t.Errorf("answered after %v, with a page: %v, tag %s after %s", took, got, next, tag)
				}
			})
		})
	}
}

func TestReadersThatWaitShareThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		r := NewReporter(s.options())
		_, _, tag := wait(t, r, "", 0)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if _, got, _ := wait(t, r, tag, time.Minute); got {
					t.Error("the page has not changed")
				}
			})
		}
		all.Wait()
		if s.reads > 35 {
			t.Errorf("ten readers had the page read %d times in a minute", s.reads)
		}
	})
}

func TestAServerThatDrainsLetsNobodyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping := make(chan struct{})
		opts := newSource().options()
		opts.Stopping = stopping
		r := NewReporter(opts)
		_, _, tag := wait(t, r, "", 0)
		time.AfterFunc(500*time.Millisecond, func() { close(stopping) })
		if took, got, _ := wait(t, r, tag, time.Minute); took != 500*time.Millisecond || got {
			t.Errorf("answered after %v, with a page: %v", took, got)
		}
	})
}

func TestTagsOfAnEarlierProcessAreNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := newSource().options()
		opts.Started = time.Now()
		_, _, tag := wait(t, NewReporter(opts), "", 0)
		opts.Started = opts.Started.Add(time.Second)
		if _, got, _ := wait(t, NewReporter(opts), tag, time.Minute); !got {
			t.Error("a tag of another process is taken for this one's")
		}
	})
}

func TestRecentFiguresAreOfTheLastTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		r := NewReporter(s.options())
		counters := stats.Totals{}
		read := func() Model {
			t.Helper()
			s.set(false, func(p *Page) {
				now := counters
				p.Models[0].Stats = &now
			})
			body, _, err := r.Wait(t.Context(), "", 0)
			if err != nil {
				t.Fatal(err)
			}
			var p Page
			if err := json.Unmarshal(body, &p); err != nil {
				t.Fatal(err)
			}
			return p.Models[0]
		}
		add := func(n uint64, bucket int) {
			counters.Success += n
			counters.Rows += 2 * n
			counters.QueueTimes.Buckets[0] += n
			counters.EngineTimes.Buckets[bucket] += n
		}
		if m := read(); m.Rate != 0 || m.P99 != 0 {
			t.Errorf("before anything was measured: %+v", m)
		}
		for _, tt := range []struct {
			after  time.Duration
			n      uint64
			bucket int
			want   string
		}{
			{5 * time.Second, 500, 3, "100.0 2.0 450µs"},
			{5 * time.Second, 500, 3, "100.0 2.0 450µs"},
			{5 * time.Second, 4000, 5, "100.0 2.0 450µs"}, // half of a window
			{5 * time.Second, 4000, 5, "800.0 2.0 1.65ms"},
			{20 * time.Second, 0, 0, "0.0 0.0 0s"},
		} {
			time.Sleep(tt.after)
			add(tt.n, tt.bucket)
			m := read()
			if got := fmt.Sprintf("%.1f %.1f %v", m.Rate, m.Rows, m.P99); got != tt.want {
				t.Errorf("after %d requests in %v: %s, want %s", tt.n, tt.after, got, tt.want)
			}
		}
	})
}

func TestFiguresOfAnEarlierLoadAreNotRecent(t *testing.T) {
	rows := stats.Totals{Success: 10, Rows: 320}
	rows.QueueTimes.Buckets[1], rows.EngineTimes.Buckets[4] = 10, 10
	times := rows
	times.Rows = 10
	for name, before := range map[string]stats.Totals{"fewer rows": rows, "other times": times} {
		t.Run(name, func(t *testing.T) {
			again := stats.Totals{Success: 20, Rows: 20} // more than before, between two reads of the page
			again.QueueTimes.Buckets[0], again.EngineTimes.Buckets[3] = 20, 20
			now := &before
			r := NewReporter(Options{Read: func() Page { return Page{Models: []Model{{Name: "m", Stats: now}}} }})
			began := time.Now()
			r.refresh(began)
			now = &again
			r.refresh(began.Add(time.Minute))
			if m := r.page.Models[0]; m.Rate != 0 || m.Rows != 0 || m.P99 != 0 {
				t.Errorf("%.1f requests/s of %.1f rows with a p99 of %v, want none yet", m.Rate, m.Rows, m.P99)
			}
			more := again
			more.Success, more.Rows = 80, 140
			more.QueueTimes.Buckets[0], more.EngineTimes.Buckets[3] = 80, 80
			now = &more
			r.refresh(began.Add(2 * time.Minute))
			if m := r.page.Models[0]; m.Rate != 1 || m.Rows != 2 || m.P99 != 450*time.Microsecond {
				t.Errorf("%.1f requests/s of %.1f rows with a p99 of %v, want 1 of 2 with 450µs", m.Rate, m.Rows, m.P99)
			}
		})
	}
}
