package measure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"sync"
)

// A Log is a file of measurements, a line of JSON each, that only grows. Its methods may
// be called by several goroutines at once.
type Log[T any] struct {
	file string

	mu  sync.Mutex // guards the following
	all []T
}

// OpenLog reads the measurements of a file, which need not exist. It leaves out those
// that keep returns false for, such as those of another binary, and a last line that was cut
// off because the program was ended: that one is measured again.
func OpenLog[T any](file string, keep func(T) bool) (*Log[T], error) {
	l := &Log[T]{file: file}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if !bytes.HasSuffix(line, []byte("\n")) || len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var one T
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("%s:%d: %w: delete the file to start again", file, n, err)
		}
		if keep(one) {
			l.all = append(l.all, one)
		}
	}
	if n > 0 && text[len(text)-1] != '\n' {
		return l, os.Truncate(file, int64(bytes.LastIndexByte(text, '\n')+1))
	}
	return l, nil
}

// All returns the measurements in the order in which they were added. The caller must
// not change them.
func (l *Log[T]) All() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.all)
}

// Add appends a measurement to the file.
func (l *Log[T]) Add(one T) error {
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(text, '\n')); err == nil {
		l.all = append(l.all, one)
	}
	return errors.Join(err, f.Close())
}

// Samples are values by the name of their figure. Those of another binary, or of another
// setting, are not among them.
type Samples struct {
	log   *Log[sample]
	under string
}

type sample struct {
	Under string  `json:"under"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// OpenSamples reads the samples of a file that were measured under the same
// circumstances, such as the hash of a binary.
func OpenSamples(file, under string) (*Samples, error) {
	log, err := OpenLog(file, func(s sample) bool { return s.Under == under })
	return &Samples{log, under}, err
}

// Of returns the samples of a figure, oldest first.
func (s *Samples) Of(name string) (values []float64) {
	for _, one := range s.log.All() {
		if one.Name == name {
			values = append(values, one.Value)
		}
	}
	return values
}

// Add keeps a sample.
func (s *Samples) Add(name string, value float64) error {
	return s.log.Add(sample{s.under, name, value})
}

// Ratios returns the ratios of two figures, round by round.
func (s *Samples) Ratios(of, to string) (ratios []float64) {
	a, b := s.Of(of), s.Of(to)
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, a[i]/b[i])
	}
	return ratios
}

// Turn returns the sides of a round, counted from 0, in the order in which they are
// measured: one right after the other, and each round beginning with another one, so
// that none is always first.
func Turn(round, sides int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range sides {
			if !yield((i + round) % sides) {
				return
			}
		}
	}
}

// Pair measures two sides of a round, in the order of [Turn].
func Pair[T any](round int, first, second func() T) (a, b T) {
	for side := range Turn(round, 2) {
		if side == 0 {
			a = first()
		} else {
			b = second()
		}
	}
	return a, b
}
