package render

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// A view is a report with the functions that the text and the picture share.
type view struct {
	*simulate.Report
	unit unit
}

// viewOf returns a view of the report, in which times count from when each run began.
func viewOf(r *simulate.Report) view {
	shown := *r
	shown.Runs = make([]*simulate.Run, len(r.Runs))
	for i, run := range r.Runs {
		shown.Runs[i] = fromBegin(run)
	}
	return view{&shown, unit(r.Unit)}
}

// fromBegin returns a run with times that count from when it began. Those that are zero,
// because something did not happen, remain zero.
func fromBegin(run *simulate.Run) *simulate.Run {
	if run.Began == 0 {
		return run
	}
	shown := *run
	shown.Began = 0
	shown.Models, shown.Batches, shown.Requests = slices.Clone(run.Models), slices.Clone(run.Batches), slices.Clone(run.Requests)
	move := func(times ...*batching.Time) {
		for _, t := range times {
			*t = max(0, *t-run.Began)
		}
	}
	move(&shown.Total.Last)
	for i := range shown.Models {
		move(&shown.Models[i].Last)
	}
	for i := range shown.Batches {
		b := &shown.Batches[i]
		move(&b.Began, &b.Ended)
	}
	for i := range shown.Requests {
		q := &shown.Requests[i]
		move(&q.Arrived, &q.Began, &q.Ended, &q.Answered)
	}
	return &shown
}

// A group is the runs of one setting, at each point of the varied parameter.
type group struct {
	setting string
	runs    []*simulate.Run
}

func (v view) groups() []group {
	var all []group
	for _, run := range v.Runs {
		if n := len(all); n == 0 || all[n-1].setting != run.Setting {
			all = append(all, group{setting: run.Setting})
		}
		g := &all[len(all)-1]
		g.runs = append(g.runs, run)
	}
	return all
}

// drawn returns the runs that get a timeline: the last point of each setting, which has
// the highest load.
func (v view) drawn() []*simulate.Run {
	var runs []*simulate.Run
	for _, g := range v.groups() {
		runs = append(runs, g.runs[len(g.runs)-1])
	}
	return runs
}

// nameOf names a run by its setting, and by the point if there are several.
func (v view) nameOf(run *simulate.Run) string {
	if v.Varied == "" {
		return run.Setting
	}
	return run.Setting + ", " + v.pointOf(run)
}

// pointOf describes the varied parameter and its value in the run.
func (v view) pointOf(run *simulate.Run) string {
	of := "client"
	if v.Varied == "rate" {
		of = "request per second"
	}
	if run.Point == 1 {
		return "1 " + of
	}
	return perSecond(run.Point) + " " + strings.Replace(of, "t", "ts", 1)
}

// points returns the values of the varied parameter over all settings.
func (v view) points() []float64 {
	var points []float64
	for _, run := range v.Runs {
		points = append(points, run.Point)
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// at returns the run of the group at a point, or nil.
func (g group) at(point float64) *simulate.Run {
	for _, run := range g.runs {
		if run.Point == point {
			return run
		}
	}
	return nil
}

// refuses reports whether any request was answered without a result.
func (v view) refuses() bool {
	return slices.ContainsFunc(v.Runs, func(run *simulate.Run) bool { return len(run.Total.Refused) > 0 })
}

// objective reports whether any model has an objective.
func (v view) objective() bool {
	return slices.ContainsFunc(v.Runs, func(run *simulate.Run) bool { return run.Total.Goodput > 0 || run.Total.Late > 0 })
}

// horizon returns the end of the timelines: the last answer, or, if not all batches can
// be shown, a multiple of the mean batch time of the fastest run.
func (v view) horizon(all, some int) (end batching.Time, cut bool) {
	shortest := batching.Never
	long := false
	for _, run := range v.drawn() {
		end = max(end, run.Total.Last)
		for _, q := range run.Requests {
			end = max(end, q.Arrived)
		}
		long = long || run.Total.Sent > len(run.Requests) || run.Total.Batches > all
		if n := len(run.Batches); n > 0 {
			var sum time.Duration
			for _, b := range run.Batches {
				sum += b.Ended - b.Began
			}
			shortest = min(shortest, sum/time.Duration(n))
		}
	}
	switch {
	case shortest == batching.Never, shortest == 0:
		return max(end, 1), false
	case long || end > time.Duration(all)*shortest:
		if limit := time.Duration(some) * shortest; limit < end {
			return limit, true
		}
	}
	return max(end, 1), false
}

// capacity returns the maximum rows of a batch of the lane, for drawing.
func capacity(run *simulate.Run, lane int) int {
	if rows := run.Lanes[lane].MaxRows; rows > 0 {
		return rows
	}
	most := 1
	for _, b := range run.Batches {
		if b.Lane == lane {
			most = max(most, b.Rows)
		}
	}
	return most
}

// label names a lane. The name of the model is omitted if there is only one.
func label(run *simulate.Run, lane int) string {
	l := run.Lanes[lane]
	if len(run.Models) == 0 {
		return strconv.Itoa(l.Instance)
	}
	return fmt.Sprintf("%s %d", l.Model, l.Instance)
}

// namesOf returns the names of a batch's requests.
func namesOf(run *simulate.Run, b simulate.Batch) []string {
	var names []string
	for _, i := range b.Requests {
		names = append(names, run.Requests[i].ID)
	}
	return names
}

// short writes names within the given width: all of them, or ranges, or their number, or
// nothing.
func short(names []string, most int) string {
	if len(names) == 1 {
		return clip(names[0], most)
	}
	for _, text := range []string{strings.Join(names, " "), ranges(names), "×" + strconv.Itoa(len(names))} {
		if len(names) > 0 && width(text) <= most {
			return text
		}
	}
	return ""
}

// ranges writes consecutive numbers as ranges: 1–4 7.
func ranges(names []string) string {
	var numbers []int
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			return strings.Join(names, " ")
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var parts []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		if part := strconv.Itoa(numbers[i]); last == i {
			parts = append(parts, part)
		} else {
			parts = append(parts, part+"–"+strconv.Itoa(numbers[last]))
		}
		i = last + 1
	}
	return strings.Join(parts, " ")
}

// counts writes how often each thing happened, in descending order.
func counts(of map[string]int) string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), strings.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", of[name], name)
	}
	return strings.Join(names, ", ")
}

// perSecond formats a throughput.
func perSecond(v float64) string {
	if v < 100 {
		return trimZeros(strconv.FormatFloat(v, 'f', 1, 64))
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// A measure is a figure by which the points of a group are compared.
type measure struct {
	name string // with its unit
	of   func(*simulate.Run) float64
}

// measures returns the figures to compare, each in one unit.
func (v view) measures() []measure {
	in := v.unit
	if in.Length == 0 {
		in = unit{"ms", time.Millisecond}
	}
	of := func(d time.Duration) float64 { return float64(d) / float64(in.Length) }
	all := []measure{
		{"rows per second", func(run *simulate.Run) float64 { return run.Total.RowsPerSecond }},
		{"p95 latency in " + in.Name, func(run *simulate.Run) float64 { return of(run.Total.Latency.P95) }},
		{"mean latency in " + in.Name, func(run *simulate.Run) float64 { return of(run.Total.Latency.Mean) }},
		{"mean batch in rows", func(run *simulate.Run) float64 { return run.Total.MeanBatch }},
	}
	refused := measure{"refused in %", func(run *simulate.Run) float64 { return percent(run.Total.Sent-run.Total.Answered, run.Total.Sent) }}
	switch {
	case v.objective():
		all = append(all,
			measure{"rows in time per second", func(run *simulate.Run) float64 { return run.Total.Goodput }},
			measure{"late answers in %", func(run *simulate.Run) float64 { return percent(run.Total.Late, run.Total.Answered) }},
			refused,
			measure{"mean time to refuse in " + in.Name, func(run *simulate.Run) float64 { return of(run.Total.Refusal.Mean) }},
		)
	case v.refuses():
		all = append(all, refused)
	}
	return all
}

func percent(part, of int) float64 { return 100 * float64(part) / float64(max(1, of)) }

// threeDigits formats a number with three significant digits.
func threeDigits(v float64) string { return strconv.FormatFloat(v, 'f', digitsAfterPoint(v), 64) }
