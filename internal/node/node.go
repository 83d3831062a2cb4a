// Package node describes a server on one page: what it is, which models it has, and how they
// run. The page is for programs that distribute models and requests over several servers; the
// server itself knows nothing of them.
package node

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/stats"
)

// A Page describes a server. Durations are in nanoseconds.
type Page struct {
	Build    string            `json:"build"` // version of the program
	ID       string            `json:"id"`
	Zone     string            `json:"zone,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Cores    int               `json:"cores"`
	Memory   int64             `json:"memory_bytes"` // for models; 0 means unknown
	Ready    bool              `json:"ready"`
	Draining bool              `json:"draining"` // it reports that it is not ready, so that requests go elsewhere
	Epoch    uint64            `json:"epoch"`    // the highest that a load or unload had
	Models   []Model           `json:"models"`   // ordered by name and version
}

// A Model describes a version of a model that is loaded, is being loaded or unloaded, or could
// not be loaded.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state"` // as in the repository's index
	Reason  string `json:"reason,omitempty"`

	// The following are of loaded versions only.
	Digest    string        `json:"digest,omitempty"` // changes when the files do
	Bytes     int64         `json:"bytes,omitempty"`  // approximate memory; 0 means unknown
	LoadTime  time.Duration `json:"load_ns,omitempty"`
	Objective time.Duration `json:"objective_ns,omitempty"`
	Efficient int           `json:"efficient_rows,omitempty"` // target batch size; 0 if the policy does not learn
	Curve     []Point       `json:"curve,omitempty"`

	Busy     time.Duration `json:"busy_ns"`  // in the engine, since it was loaded
	Requests uint64        `json:"requests"` // that were answered, since it was loaded
	Failures uint64        `json:"failures"` // of these, with an error
	Queue    int           `json:"queue"`    // requests that wait now

	// Recent figures, of the last ten seconds or more.
	Rate float64       `json:"rate"`             // requests per second
	Rows float64       `json:"rows,omitempty"`   // average rows of a request that succeeded
	P99  time.Duration `json:"p99_ns,omitempty"` // 99th percentile of the time in the queue, and of that in the engine, added; at most twice the real one

	// Counters behind the recent figures.
	Stats *stats.Totals `json:"-"`
}

// A Point is how long batches of one size take.
type Point struct {
	Rows  int           `json:"rows"`
	Takes time.Duration `json:"takes_ns"`
}

// Figures are what one version of a model has done, for programs that compare versions.
type Figures struct {
	Version  string `json:"version"`
	Requests uint64 `json:"requests"` // that the version answered, since it was loaded
	// Failures are those of them that the version may be the reason for: not those that a client
	// cancelled or had no right to, and not those that came while it was stopping. Responses whose
	// types or shapes the configuration does not have count, too, once someone has asked.
	Failures uint64 `json:"failures"`
	// Times are those of successful requests since someone first asked, ascending.
	Times []Bucket `json:"times,omitempty"`
}

// A Bucket is a number of requests that took at most a time, and longer than that of the bucket
// before. Times of two neighbours differ by a sixteenth or less.
type Bucket struct {
	Most  time.Duration `json:"most_ns"`
	Count uint64        `json:"count"`
}

// A window is the time over which recent figures are measured: it begins anew when it is
// this long.
const window = 10 * time.Second

// recent measures the recent figures of one version.
type recent struct {
	read  time.Time // when it was last updated
	began time.Time
	at    stats.Totals // counters then
	rate  float64
	rows  float64
	p99   time.Duration
}

// update takes note of the counters now, and sets the recent figures of m. Until the first
// window has passed they are those of a part of it.
func (r *recent) update(now time.Time, m *Model) {
	r.read = now
	took := now.Sub(r.began)
	if took >= window || r.rate == 0 && took >= time.Second {
		r.measure(took, m.Stats)
	}
	if took >= window {
		r.began, r.at = now, *m.Stats
	}
	m.Rate, m.Rows, m.P99 = r.rate, r.rows, r.p99
}

// loadedAgain reports whether a version was loaded again since before: those counters that it has
// caught up with already do not show it, and a difference of the others would be below zero.
func loadedAgain(before, now *stats.Totals) bool {
	less := func(before, now *stats.DurationHistogram) bool {
		for i := range now.Buckets {
			if now.Buckets[i] < before.Buckets[i] {
				return true
			}
		}
		return false
	}
	return now.Success < before.Success || now.Fail < before.Fail || now.Rows < before.Rows ||
		less(&before.QueueTimes, &now.QueueTimes) || less(&before.EngineTimes, &now.EngineTimes)
}

func (r *recent) measure(took time.Duration, s *stats.Totals) {
	succeeded, failed := s.Success-r.at.Success, s.Fail-r.at.Fail
	r.rate, r.rows, r.p99 = float64(succeeded+failed)/took.Seconds(), 0, 0
	if succeeded > 0 {
		r.rows = float64(s.Rows-r.at.Rows) / float64(succeeded)
		r.p99 = percentile99(&s.QueueTimes, &r.at.QueueTimes) + percentile99(&s.EngineTimes, &r.at.EngineTimes)
	}
}

// percentile99 returns the upper bound of the bucket that has the 99th percentile of what was
// added since before. What is above all buckets counts as twice the last one.
func percentile99(now, before *stats.DurationHistogram) time.Duration {
	total := uint64(0)
	for i := range now.Buckets {
		total += now.Buckets[i] - before.Buckets[i]
	}
	if total == 0 {
		return 0
	}
	below := uint64(0)
	for i := range now.Buckets {
		below += now.Buckets[i] - before.Buckets[i]
		if below*100 >= total*99 {
			return stats.BucketBound(i)
		}
	}
	return 0 // not reached: the last bucket completes the total
}

// urgent reports whether a reader of page a must know b at once: what serves, and from which
// files, has changed.
func urgent(a, b *Page) bool {
	return a.Ready != b.Ready || a.Draining != b.Draining || a.Epoch != b.Epoch || a.Memory != b.Memory || a.Cores != b.Cores || !maps.Equal(a.Labels, b.Labels) ||
		!slices.EqualFunc(a.Models, b.Models, func(x, y Model) bool {
			return x.Name == y.Name && x.Version == y.Version && x.State == y.State && x.Digest == y.Digest && x.Bytes == y.Bytes
		})
}

// gradual reports whether figures of the same models have changed by more than a fifth.
func gradual(a, b *Page) bool {
	return !slices.EqualFunc(a.Models, b.Models, func(x, y Model) bool {
		return near(x.Rate, y.Rate) && near(x.Rows, y.Rows) && near(float64(x.Queue), float64(y.Queue)) && near(float64(x.Efficient), float64(y.Efficient)) &&
			slices.EqualFunc(x.Curve, y.Curve, func(p, q Point) bool { return p.Rows == q.Rows && near(float64(p.Takes), float64(q.Takes)) })
	})
}

func near(a, b float64) bool { return math.Abs(a-b) <= max(a, b)/5 }
