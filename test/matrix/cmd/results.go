package main

import (
	"sync"

	"github.com/shoal-serving/shoal/test/measure"
)

// results stores values in a file. The last one with a key is valid.
type results[T any] struct {
	keyOf func(*T) string
	log   *measure.Log[*T]

	mu  sync.Mutex
	all map[string]*T
}

func open[T any](file string, keyOf func(*T) string) (*results[T], error) {
	log, err := measure.OpenLog(file, func(*T) bool { return true })
	if err != nil {
		return nil, err
	}
	r := &results[T]{keyOf: keyOf, log: log, all: map[string]*T{}}
	for _, one := range log.All() {
		r.all[keyOf(one)] = one
	}
	return r, nil
}

func (r *results[T]) get(key string) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[key]
}

func (r *results[T]) add(one *T) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[r.keyOf(one)] = one
	return r.log.Add(one)
}
