package plot

import "math"

// An Axis maps values to positions along one side of a chart.
type Axis struct {
	Name  string
	Ticks []Tick

	at func(float64) float64 // position of a value, from 0 to 1
}

// A Tick is a labelled value.
type Tick struct {
	Value float64
	Label string
}

// Linear returns an axis from 0 to a round number that is at least most, with about the
// given number of ticks.
func Linear(name string, most float64, ticks int, label func(float64) string) Axis {
	step := Step(most / float64(ticks))
	n := max(1, int(math.Ceil(most/step-1e-9))) // tolerates rounding errors: 10 × 0.1 is not exactly 1
	a := Axis{Name: name, at: func(v float64) float64 { return v / (step * float64(n)) }}
	for i := range n + 1 {
		v := step * float64(i)
		a.Ticks = append(a.Ticks, Tick{v, label(v)})
	}
	return a
}

// Log returns a logarithmic axis. It begins and ends with 1, 2 or 5 times a power of ten,
// which are also its ticks, or with powers of ten if the range is large. least must be
// above 0.
func Log(name string, least, most float64, label func(float64) string) Axis {
	factors := []float64{1, 2, 5}
	if most/least > 1e4 {
		factors = []float64{1}
	}
	var marks []float64
	for power := math.Floor(math.Log10(least)); power <= math.Ceil(math.Log10(most)); power++ {
		for _, f := range factors {
			marks = append(marks, f*math.Pow(10, power))
		}
	}
	for len(marks) > 2 && marks[1] <= least {
		marks = marks[1:]
	}
	for len(marks) > 2 && marks[len(marks)-2] >= most {
		marks = marks[:len(marks)-1]
	}
	low, span := math.Log10(marks[0]), math.Log10(marks[len(marks)-1]/marks[0])
	a := Axis{Name: name, at: func(v float64) float64 { return (math.Log10(v) - low) / span }}
	for _, v := range marks {
		a.Ticks = append(a.Ticks, Tick{v, label(v)})
	}
	return a
}

// Span returns a linear axis that ends exactly at most, such as one of elapsed time.
func Span(name string, most float64, ticks int, label func(float64) string) Axis {
	a := Linear(name, most, ticks, label)
	a.at = func(v float64) float64 { return v / most }
	for len(a.Ticks) > 1 && a.Ticks[len(a.Ticks)-1].Value > most {
		a.Ticks = a.Ticks[:len(a.Ticks)-1]
	}
	return a
}

// Tail returns an axis of percentiles, ascending, on which 90, 99, 99.9 and so on are
// equally far apart. 100 would be infinitely far away, so it is placed a third of that
// distance after the last one.
func Tail(name string, percents []float64, label func(float64) string) Axis {
	nines := func(p float64) float64 { return -math.Log10(1 - p/100) }
	last := 0.0
	for _, p := range percents {
		if p < 100 {
			last = max(last, nines(p))
		}
	}
	position := func(p float64) float64 {
		if p >= 100 {
			return last + 1.0/3
		}
		return nines(p)
	}
	least, most := position(percents[0]), position(percents[len(percents)-1])
	a := Axis{Name: name, at: func(p float64) float64 { return (position(p) - least) / max(most-least, 1e-9) }}
	for _, p := range percents {
		a.Ticks = append(a.Ticks, Tick{p, label(p)})
	}
	return a
}
