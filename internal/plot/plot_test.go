package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func plain(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

func labels(a Axis) string {
	var all []string
	for _, t := range a.Ticks {
		all = append(all, t.Label)
	}
	return strings.Join(all, " ")
}

func TestAxesHaveRoundTicks(t *testing.T) {
	for _, c := range []struct {
		name string
		axis Axis
		want string
	}{
		{"linear", Linear("", 3100, 6, plain), "0 1000 2000 3000 4000"},
		{"linear, exactly", Linear("", 10, 5, plain), "0 2 4 6 8 10"},
		{"linear, nothing", Linear("", 0, 5, plain), "0 1"},
		{"span", Span("", 7.5, 8, plain), "0 1 2 3 4 5 6 7"},
		{"log", Log("", 3, 90, plain), "2 5 10 20 50 100"},
		{"log, one value", Log("", 10, 10, plain), "10 20"},
		{"log, many powers", Log("", 1.5, 2e6, plain), "1 10 100 1000 10000 100000 1e+06 1e+07"},
		{"tail", Tail("", []float64{50, 90, 99, 100}, plain), "50 90 99 100"},
	} {
		if got := labels(c.axis); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		for _, tick := range c.axis.Ticks {
			if at := c.axis.at(tick.Value); at < -1e-9 || at > 1+1e-9 {
				t.Errorf("%s: %s is at %v", c.name, tick.Label, at)
			}
		}
	}
}

func TestEachNineIsAsWideAsTheOneBefore(t *testing.T) {
	a := Tail("", []float64{90, 99, 99.9, 100}, plain)
	one, two, all := a.at(99)-a.at(90), a.at(99.9)-a.at(99), a.at(100)-a.at(99.9)
	if math.Abs(one-two) > 1e-9 || math.Abs(all-one/3) > 1e-9 || a.at(90) != 0 || a.at(100) != 1 {
		t.Errorf("got %v, %v, %v", one, two, all)
	}
}

// chart returns one of three lines that end close to each other.
func chart() Chart {
	c := Chart{ID: "c", Title: "a <b>", Desc: "d & e", Width: 400, Height: 200, Right: 60, X: Linear("x", 10, 5, plain), Y: Linear("y", 10, 5, plain)}
	for i, name := range []string{"<one>", "two", "three"} {
		c.Lines = append(c.Lines, Line{Name: name, Class: "s" + strconv.Itoa(i), Points: []Point{{X: 1, Y: 1, Title: "<t>", Name: "n"}, {X: 10, Y: float64(i) / 10}}})
	}
	return c
}

// texts reads a picture, and returns the text of its elements with their classes
// and heights. It fails if the picture is not well-formed.
func texts(t *testing.T, picture string) (all []struct {
	class, text string
	y           float64
},
) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(picture))
	var inside xml.StartElement
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v in %s", err, picture)
		}
		switch e := token.(type) {
		case xml.StartElement:
			inside = e.Copy()
		case xml.CharData:
			if text := strings.TrimSpace(string(e)); text != "" {
				one := struct {
					class, text string
					y           float64
				}{inside.Name.Local, text, 0}
				for _, a := range inside.Attr {
					switch a.Name.Local {
					case "class":
						one.class = a.Value
					case "y":
						one.y, _ = strconv.ParseFloat(a.Value, 64)
					}
				}
				all = append(all, one)
			}
		}
	}
}

func TestForeignTextIsEscaped(t *testing.T) {
	var got []string
	for _, one := range texts(t, chart().SVG()) {
		got = append(got, one.text)
	}
	for _, want := range []string{"a <b>", "d & e", "<one>", "<t>"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

func TestNamesOfLinesStandApartAndInside(t *testing.T) {
	var at []float64
	for _, one := range texts(t, chart().SVG()) {
		if strings.HasPrefix(one.class, "end ") {
			at = append(at, one.y)
		}
	}
	if len(at) != 3 || at[1]-at[0] < lineHeight || at[2]-at[1] < lineHeight || at[2] > 200-bottomRoom+4 {
		t.Errorf("names are at %v", at)
	}
}

func TestNamesOfPointsDoNotStandOnEachOther(t *testing.T) {
	n := 0
	for _, one := range texts(t, chart().SVG()) {
		if one.class == "mark" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d names at one place", n)
	}
}

func TestALineHasAGapWhereThereIsNoValue(t *testing.T) {
	c := chart()
	nan := math.NaN()
	c.Lines = []Line{{Plain: true, Points: []Point{{X: 0, Y: 0}, {X: 2, Y: 0}, {X: 3, Y: nan}, {X: 4, Y: 0}, {X: 5, Y: nan}, {X: 6, Y: nan}}}}
	got := c.SVG()
	if !strings.Contains(got, `<path d="M62 158L117.6 158M173.2 158"/>`) {
		t.Errorf("got %s", got)
	}
	// What stands alone would not be seen without a dot.
	if n := strings.Count(got, "<circle"); n != 1 {
		t.Errorf("%d dots, want 1", n)
	}
}

func TestBarsAndSlicesStandOnTheAxis(t *testing.T) {
	c := chart()
	c.Lines, c.Bars, c.Slices = nil, []Bar{{0, 5, 5, "bad"}}, []Slice{{0, 5, "<s>"}}
	got := c.SVG()
	for _, want := range []string{
		`<rect class="bar bad" x="62" y="92" width="138" height="66"/>`,
		`<rect class="slice" x="62" y="26" width="139" height="132"><title>&lt;s&gt;</title></rect>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
}
