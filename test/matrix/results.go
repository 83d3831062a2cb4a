package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// results are kept in a file, one a line. A line that was cut off, since the
// program was, is left out, and run again.
type results[T any] struct {
	file  string
	keyOf func(*T) string

	mu  sync.Mutex
	all map[string]*T
}

func open[T any](file string, keyOf func(*T) string) (*results[T], error) {
	r := &results[T]{file: file, keyOf: keyOf, all: map[string]*T{}}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var one T
		if json.Unmarshal(line, &one) == nil {
			r.all[keyOf(&one)] = &one
		}
	}
	return r, nil
}

func (r *results[T]) get(key string) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[key]
}

func (r *results[T]) add(one *T) error {
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[r.keyOf(one)] = one
	f, err := os.OpenFile(r.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	// The line feed before it ends a line that was cut off.
	_, err = fmt.Fprintf(f, "\n%s\n", text)
	return errors.Join(err, f.Close())
}
