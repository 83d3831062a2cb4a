package measure

import (
	"bytes"
	_ "embed" // for the list
	"encoding/json"
	"fmt"
	"slices"
)

//go:embed known-misses.json
var knownMisses []byte

// A Known is a gate that is known to be missed.
type Known struct {
	Gate   string  `json:"gate"`
	Figure float64 `json:"figure"` // the median when it was last measured
	Date   string  `json:"date"`
	Reason string  `json:"reason"`
}

// A known miss may grow by a quarter of itself and by 5 % of the bound before it is a new
// one: medians of seven differ from run to run.
const (
	growth = 1.25
	slack  = 0.05
)

// KnownMisses returns the list, which is in known-misses.json.
func KnownMisses() ([]Known, error) { return readKnown(knownMisses) }

func readKnown(text []byte) (all []Known, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		return nil, fmt.Errorf("known-misses.json: %w", err)
	}
	seen := map[string]bool{}
	for _, k := range all {
		if k.Gate == "" || k.Date == "" || k.Reason == "" || seen[k.Gate] {
			return nil, fmt.Errorf("known-misses.json: %q has no gate, date or reason, or is listed twice", k.Gate)
		}
		seen[k.Gate] = true
	}
	return all, nil
}

// Held compares a verdict with the list of known misses. The error is a new miss, or a
// known one that has grown. The note is not empty if there is something to say of a gate
// that does not fail: that a known miss is missed as before, or that it is met again and
// should be removed from the list.
func Held(v Verdict, known []Known) (note string, err error) {
	at := slices.IndexFunc(known, func(k Known) bool { return k.Gate == v.Gate })
	switch {
	case at < 0 && v.Met():
		return "", nil
	case at < 0:
		return "", fmt.Errorf("%v", v)
	case v.Met():
		return fmt.Sprintf("%v again: remove it from known-misses.json", v), nil
	}
	k := known[at]
	if v.Bound.Miss(v.Median) > growth*v.Bound.Miss(k.Figure)+slack {
		return "", fmt.Errorf("%v, and by %.1f %% only on %s", v, 100*v.Bound.Miss(k.Figure), k.Date)
	}
	return fmt.Sprintf("%v; known since %s (%s)", v, k.Date, k.Reason), nil
}
