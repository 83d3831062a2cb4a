package simulated

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// A Speed defines how long the batches of a simulated model take.
type Speed struct {
	Curve      device.Curve
	PerElement time.Duration // of the first input, in addition to the curve
	Slowdown   []float64
	Drift      []device.Change // ascending times since the model was loaded
	Device     string          // name of the device that it shares with other models; empty means one of its own
}

// ParseSpeed reads a speed from a model's parameters:
//
//	fixed_us      microseconds per batch
//	per_row_us    microseconds per row, in addition
//	per_element_us microseconds per element of the first input, padding included, in addition
//	table_us      in place of both: microseconds by number of rows, such as "1:1980, 8:2396"
//	slowdown      factors on the time of a batch while 1, 2, … batches run at once, such as "1, 1.39"
//	drift_ms      factors on the time of a batch, starting at milliseconds after loading: "5000:2, 9000:1"
//	device        name of a device that it shares with all models of the same name: they take turns
//
// Times default to zero, and factors to 1.
func ParseSpeed(parameters map[string]string) (Speed, error) {
	var s Speed
	for name, value := range parameters {
		var err error
		switch name {
		case "fixed_us":
			s.Curve.Fixed, err = parseMicroseconds(value)
		case "per_row_us":
			s.Curve.PerRow, err = parseMicroseconds(value)
		case "per_element_us":
			s.PerElement, err = parseMicroseconds(value)
		case "pad": // read by package modelconfig
		case "table_us":
			s.Curve.Table, err = parseTable(value)
		case "slowdown":
			s.Slowdown, err = parseSlowdown(value)
		case "drift_ms":
			s.Drift, err = parseDrift(value)
		case "device":
			s.Device = value
		default:
			err = fmt.Errorf("unknown parameter of a simulated model; expected fixed_us, per_row_us, per_element_us, table_us, slowdown, drift_ms or device")
		}
		if err != nil {
			return Speed{}, fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	if len(s.Curve.Table) > 0 && s.Curve.Fixed+s.Curve.PerRow > 0 {
		return Speed{}, fmt.Errorf("parameter table_us: cannot be combined with fixed_us or per_row_us")
	}
	if s.Device != "" && s.Slowdown != nil {
		return Speed{}, fmt.Errorf("parameter slowdown: cannot be combined with device, whose batches share its time evenly")
	}
	return s, nil
}

func parseMicroseconds(value string) (time.Duration, error) {
	us, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(us >= 0 && us <= 1e12) {
		return 0, fmt.Errorf("found %q, expected microseconds, such as 59.3", value)
	}
	return time.Duration(us * 1e3), nil
}

func parseTable(value string) ([]device.Point, error) {
	var table []device.Point
	for pair := range strings.SplitSeq(value, ",") {
		rows, takes, _ := strings.Cut(pair, ":")
		n, err := strconv.Atoi(strings.TrimSpace(rows))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("found %q, expected ROWS:MICROSECONDS", pair)
		}
		d, err := parseMicroseconds(takes)
		if err != nil {
			return nil, err
		}
		if len(table) > 0 && n <= table[len(table)-1].Rows {
			return nil, fmt.Errorf("found %q, expected ascending sizes", value)
		}
		table = append(table, device.Point{Rows: n, Takes: d})
	}
	return table, nil
}

func parseSlowdown(value string) ([]float64, error) {
	var slowdown []float64
	for f := range strings.SplitSeq(value, ",") {
		x, err := strconv.ParseFloat(strings.TrimSpace(f), 64)
		if err != nil || !(x >= 1) || x > 1e6 {
			return nil, fmt.Errorf("found %q, expected factors of at least 1, such as \"1, 1.39\"", value)
		}
		slowdown = append(slowdown, x)
	}
	return slowdown, nil
}

func parseDrift(value string) ([]device.Change, error) {
	var drift []device.Change
	for pair := range strings.SplitSeq(value, ",") {
		after, factor, _ := strings.Cut(pair, ":")
		ms, err := strconv.ParseFloat(strings.TrimSpace(after), 64)
		times, wrong := strconv.ParseFloat(strings.TrimSpace(factor), 64)
		if err != nil || wrong != nil || !(ms >= 0 && ms <= 1e12) || !(times > 0 && times <= 1e6) {
			return nil, fmt.Errorf("found %q, expected MILLISECONDS:TIMES", pair)
		}
		at := time.Duration(ms * 1e6)
		if len(drift) > 0 && at <= drift[len(drift)-1].At {
			return nil, fmt.Errorf("found %q, expected ascending times", value)
		}
		drift = append(drift, device.Change{At: at, Times: times})
	}
	return drift, nil
}
