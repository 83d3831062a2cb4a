package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// troublesFile is where behaviours.py keeps its findings, in the folder of results.
const troublesFile = "behaviours.jsonl"

// Troubles are what servers made of the five kinds of trouble, as behaviours.py has
// kept them.
type troubles struct {
	Names []string // of the kinds
	Rows  []troubleRow
}

// A troubleRow is one server.
type troubleRow struct {
	Server string
	Words  []string // one for each kind
}

// readTroubles returns nil if there are none.
func readTroubles(file string) (*troubles, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t := &troubles{}
	for n, one := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var l struct{ Server, Trouble, Words string }
		if err := json.Unmarshal(one, &l); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n+1, err)
		}
		column := slices.Index(t.Names, l.Trouble)
		if column < 0 {
			column = len(t.Names)
			t.Names = append(t.Names, l.Trouble)
		}
		row := slices.IndexFunc(t.Rows, func(r troubleRow) bool { return r.Server == l.Server })
		if row < 0 {
			row = len(t.Rows)
			t.Rows = append(t.Rows, troubleRow{Server: l.Server})
		}
		for len(t.Rows[row].Words) <= column {
			t.Rows[row].Words = append(t.Rows[row].Words, "–")
		}
		t.Rows[row].Words[column] = l.Words
	}
	for i := range t.Rows {
		for len(t.Rows[i].Words) < len(t.Names) {
			t.Rows[i].Words = append(t.Rows[i].Words, "–")
		}
	}
	return t, nil
}
