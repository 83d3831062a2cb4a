package python

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// pulseLimit is how long a model may take to say that it is ready, as in Triton.
const pulseLimit = 5 * time.Second

// A pulse is the line over which a model is asked whether it is ready, if it has a
// method is_ready. A thread of the worker answers, also while a batch runs. The line is
// the worker's, who closes it.
type pulse struct {
	line *net.UnixConn

	mu     sync.Mutex // guards the following, and is held while the model is asked
	number uint32     // of the last question
	at     time.Time  // when it was answered, or given up
	ready  bool       // what came of it
}

// ask asks the model. Those who ask while another waits share the answer, so that a
// model that gives none holds up nobody for longer than the limit.
func (p *pulse) ask() bool {
	asked := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.at.After(asked) {
		p.ready = p.questionLocked()
		p.at = time.Now()
	}
	return p.ready
}

// questionLocked asks once. A line that is closed says nothing against the model: its
// worker is dead, which others tell.
func (p *pulse) questionLocked() bool {
	p.number++
	f := frame{kind: kindProbe, number: p.number}
	_ = p.line.SetDeadline(time.Now().Add(pulseLimit))
	if _, err := p.line.Write(f.append(nil)); err != nil {
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	var message [frameSize + 1]byte
	for {
		n, err := p.line.Read(message[:])
		if err != nil || n == 0 {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
		f, err := readFrame(message[:n])
		switch {
		case err != nil:
			return false
		case f.number == p.number:
			return f.a == 1
		}
		// It is the answer to a question that was given up.
	}
}
