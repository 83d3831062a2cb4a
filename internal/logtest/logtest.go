// Package logtest has a log that a test reads while others write it.
package logtest

import (
	"bytes"
	"sync"
)

// A Log keeps what is written. The zero value is empty. Its methods may be called concurrently.
type Log struct {
	mu   sync.Mutex // guards the following
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was written until now.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
