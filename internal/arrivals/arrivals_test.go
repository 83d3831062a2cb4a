package arrivals

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// lines are arrivals as they are written.
var lines = []struct {
	arrival Arrival
	line    string
}{
	{Arrival{0, "resnet", 1, 0}, "0.000000 resnet 1 0"},
	{Arrival{1250*ms + 7*time.Microsecond, "resnet", 4, 2}, "1.250007 resnet 4 2"},
	{Arrival{3600 * time.Second, "ein größeres", 8, 1<<64 - 1}, `3600.000000 "ein größeres" 8 18446744073709551615`},
	{Arrival{ms, `a"b`, 1, 0}, `0.001000 "a\"b" 1 0`},
	{Arrival{ms, "", 1, 0}, `0.001000 "" 1 0`},
	{Arrival{ms, "#\n\xff", 1, 0}, `0.001000 "#\n\xff" 1 0`},
}

func TestAnArrivalIsALineAndBack(t *testing.T) {
	for _, l := range lines {
		if got := string(l.arrival.Append(nil)); got != l.line {
			t.Errorf("%+v is written as %s, want %s", l.arrival, got, l.line)
		}
		if got, err := parse(l.line); err != nil || got != l.arrival {
			t.Errorf("%s is read as %+v (%v), want %+v", l.line, got, err, l.arrival)
		}
	}
}

func TestOtherToolsMayWriteLessNeatly(t *testing.T) {
	const text = "shoal arrivals 1\r\n# by hand\n\n  2.5\tb  3 1  \r\n0 a 1 0\n2.5 a 1 0"
	got, err := read("trace.txt", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if want := []Arrival{{0, "a", 1, 0}, {2500 * ms, "b", 3, 1}, {2500 * ms, "a", 1, 0}}; !slices.Equal(got, want) {
		t.Errorf("read %+v, want %+v: by time, and then in the order of the file", got, want)
	}
}

func TestWhatCannotBeReadIsToldWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                   `trace.txt: the file is empty: expected the line "shoal arrivals 1", followed by arrivals`,
		"0.5 a 1 0":          `trace.txt:1: not a recording of arrivals: the first line is "0.5 a 1 0", expected "shoal arrivals 1"`,
		"shoal arrivals 2":   `trace.txt:1: not a recording of arrivals: the first line is "shoal arrivals 2", expected "shoal arrivals 1"`,
		Header + "\n0.5 a 1": `trace.txt:2: invalid arrival "0.5 a 1": expected seconds, model, rows and priority, such as 0.250000 resnet 4 0`,
		Header + "\n\n0.5 a 1 0 x": `trace.txt:3: invalid arrival "0.5 a 1 0 x": expected seconds, model, rows and priority, ` +
			`such as 0.250000 resnet 4 0`,
		Header + "\n0.5 \"a 1 0": `trace.txt:2: invalid arrival "0.5 \"a 1 0": expected seconds, model, rows and priority, such as 0.250000 resnet 4 0`,
		Header + "\n-1 a 1 0":    `trace.txt:2: invalid seconds "-1": expected a number from 0 to 1000000000 with up to six decimals`,
		Header + "\n0.0000001 a 1 0": `trace.txt:2: invalid seconds "0.0000001": expected a number from 0 to 1000000000 ` +
			`with up to six decimals`,
		Header + "\n0 a 0 0":                         `trace.txt:2: invalid rows "0": expected a whole number from 1 to 1000000`,
		Header + "\n0 a 1 high":                      `trace.txt:2: invalid priority "high": expected a whole number, 0 for the default`,
		Header + "\n" + strings.Repeat("x", maxLine): `trace.txt:2: the line is longer than 4096 bytes: expected one arrival per line`,
	} {
		if _, err := read("trace.txt", strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// FuzzParse holds that whatever can be read is written in one way, which is read as
// the same.
func FuzzParse(f *testing.F) {
	for _, l := range lines {
		f.Add(l.line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		a, err := parse(line)
		if err != nil {
			return
		}
		written := string(a.Append(nil))
		if again, err := parse(written); err != nil || again != a {
			t.Errorf("%q is %+v, written as %q, which is %+v (%v)", line, a, written, again, err)
		}
		if strings.ContainsAny(written, "\r\n") {
			t.Errorf("%q is written as %q, which is more than a line", line, written)
		}
	})
}
