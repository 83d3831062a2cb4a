package render

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

// drawing is what a test wants to know of a picture.
type drawing struct {
	texts    []string
	requests []string // the stories of the requests in batches
	batches  int
	foreign  []string // what is not allowed in a picture that stands alone
}

// look reads a picture. It fails if that is not well-formed.
func look(t *testing.T, picture string) drawing {
	t.Helper()
	var d drawing
	var path []string // of classes and names
	dec := xml.NewDecoder(strings.NewReader(picture))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		if err != nil {
			t.Fatalf("the picture is not well-formed: %v", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			name := e.Name.Local
			if slices.Contains([]string{"script", "image", "use", "foreignObject", "link"}, name) {
				d.foreign = append(d.foreign, name)
			}
			for _, a := range e.Attr {
				switch {
				case a.Name.Local == "class" && (a.Value == "batch" || a.Value == "request"):
					name = a.Value
				case a.Name.Local == "href" || strings.Contains(a.Value, "url("):
					d.foreign = append(d.foreign, a.Name.Local)
				}
			}
			path = append(path, name)
			if name == "batch" {
				d.batches++
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			switch n := len(path); {
			case n == 0:
			case path[n-1] == "text":
				d.texts = append(d.texts, string(e))
			case path[n-1] == "title" && path[n-2] == "request":
				d.requests = append(d.requests, string(e))
			}
		}
	}
}

// aToE returns the report of the five requests of the tutorials.
func aToE(t *testing.T) *simulate.Report {
	t.Helper()
	s, err := scenario.Load("../../../examples/scenarios/a-to-e.yaml")
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestThePictureHasEveryRequestOfEverySetting(t *testing.T) {
	report := aToE(t)
	var out strings.Builder
	if err := SVG(&out, report, SVGOptions{}); err != nil {
		t.Fatal(err)
	}
	got := look(t, out.String())
	if len(got.foreign) > 0 {
		t.Errorf("the picture does not stand alone: %v", got.foreign)
	}
	if want := 5 + 3 + 2 + 5 + 3 + 2; got.batches != want {
		t.Errorf("%d batches, want %d", got.batches, want)
	}
	want := []string{ // of the second setting, from the bottom of each batch up
		"A: 4 rows, arrived at 0, waited 0, ran from 0 to X",
		"C: 2 rows, arrived at 0, waited 0, ran from 0 to X",
		"B: 2 rows, arrived at X/3, waited 2X/3, ran from X to 2X",
		"D: 6 rows, arrived at 2X/3, waited X/3, ran from X to 2X",
		"E: 2 rows, arrived at 2X/3, waited 4X/3, ran from 2X to 3X",
	}
	if len(got.requests) != 6*5 || !slices.Equal(got.requests[5:10], want) {
		t.Errorf("%d requests, the second five of them\n%s\nwant\n%s", len(got.requests), strings.Join(got.requests[5:10], "\n"), strings.Join(want, "\n"))
	}
	for _, id := range []string{"A", "B", "C", "D", "E"} {
		n := 0
		for _, text := range got.texts {
			if text == id {
				n++
			}
		}
		if n != 2*6 {
			t.Errorf("%s is named %d times, want once where it arrives and once where it runs, in each of 6 settings", id, n)
		}
	}
}

func TestPicturesOfAllKindsAreWellFormed(t *testing.T) {
	scenarios := map[string]string{
		"names that are markup": `
title: "<script> & 'quotes' ]]>"
text: "a\n\nb"
model: {name: "<m>", max_batch_size: 2, takes: 1ms}
arrivals: [{at: 0, id: "<&\">"}, {at: 0, id: "\u0007"}, {at: 0, rows: 3}, {at: 0, cancel_at: 0.5ms}]
settings: [{name: "<b>"}, {name: "` + strings.Repeat("long", 60) + `", instances: 5}]`,
		"nothing runs":     "model: {max_batch_size: 2, takes: 1ms}\narrivals: [{at: 0, rows: 3}]",
		"nothing takes":    "model: {max_batch_size: 2, takes: 0}\narrivals: [{at: 0}]",
		"no largest batch": "model: {takes: 1ms, batching: none}\narrivals: [{at: 0, rows: 3}, {at: 0}]",
		"very many":        "model: {max_batch_size: 512, takes: 1ms}\nload: {clients: 2000, requests: 20000}",
		"an open loop":     "model: {max_batch_size: 64, takes: 1ms}\nload: {rate: [1000, 100000, 1000000], requests: 5000}",
	}
	for name, text := range scenarios {
		t.Run(name, func(t *testing.T) {
			s, err := scenario.Parse("scenario.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			report, err := s.Run()
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := SVG(&out, report, SVGOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := look(t, out.String()); len(got.foreign) > 0 {
				t.Errorf("the picture does not stand alone: %v", got.foreign)
			}
			for _, bad := range []string{"NaN", "Inf"} {
				if strings.Contains(out.String(), bad) {
					t.Errorf("the picture has a length of %s", bad)
				}
			}
			if err := Text(&out, report, 40); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestManyRequestsHaveColoursBetweenThoseOfThePalette(t *testing.T) {
	var run simulate.Run
	for i := range 100 {
		run.Requests = append(run.Requests, simulate.Request{ID: fmt.Sprint(i)})
	}
	got := colours([]*simulate.Run{&run})
	if got["0"] != "#3b72b8" || got["99"] != "#7d5bb5" || got["50"] == got["51"] {
		t.Errorf("the first, the last and two neighbours have %s, %s, %s and %s", got["0"], got["99"], got["50"], got["51"])
	}
}

func TestAPictureThatPlaysCoversItsTimelinesOnly(t *testing.T) {
	report := aToE(t)
	var still, plays strings.Builder
	if err := errors.Join(SVG(&still, report, SVGOptions{}), SVG(&plays, report, SVGOptions{Play: true})); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(still.String(), "animation") {
		t.Error("a picture that was not asked to play has an animation")
	}
	// Without what plays it is the same picture. Who wants less motion sees what is covered.
	lines := regexp.MustCompile(`(?s)<(rect|line)[^>]*class="[^"]*(future|now)"[^>]*/>\n`)
	if got := len(lines.FindAllString(plays.String(), -1)); got != 2 {
		t.Errorf("%d elements play, want a cover and a line", got)
	}
	if !strings.Contains(plays.String(), "@media (prefers-reduced-motion: no-preference)") {
		t.Error("the picture plays for readers who want less motion, too")
	}
	rest := lines.ReplaceAllString(plays.String(), "")
	from, to := strings.Index(rest, "\n.future"), strings.Index(rest, "</style>")
	if from < 0 || rest[:from]+rest[to:] != still.String() {
		t.Error("the picture that plays differs in more than what plays")
	}
}
