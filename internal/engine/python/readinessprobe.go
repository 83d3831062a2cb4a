package python

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// probeTimeout is how long is_ready may take, as in Triton.
const probeTimeout = 5 * time.Second

// A readinessProbe asks a model that has an is_ready method whether it is ready. A thread
// of the worker answers, even while a batch runs. The worker owns the connection and
// closes it.
type readinessProbe struct {
	conn *net.UnixConn

	mu     sync.Mutex // guards the following; held while a probe is in flight
	number uint32     // of the last probe
	at     time.Time  // when the last probe was answered or timed out
	ready  bool       // its result
}

// check reports whether the model is ready. Callers that arrive while a probe is in flight
// share its result, so that a model that does not answer delays no caller for longer than
// the timeout.
func (p *readinessProbe) check() bool {
	asked := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.at.After(asked) {
		p.ready = p.probeLocked()
		p.at = time.Now()
	}
	return p.ready
}

// probeLocked sends one probe and waits for the answer. It returns true if the connection
// is closed: the worker is dead then, which Failing reports.
func (p *readinessProbe) probeLocked() bool {
	p.number++
	f := frame{kind: kindProbe, number: p.number}
	_ = p.conn.SetDeadline(time.Now().Add(probeTimeout))
	if _, err := p.conn.Write(f.append(nil)); err != nil {
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	var message [frameSize + 1]byte
	for {
		n, err := p.conn.Read(message[:])
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
		// This answers an earlier probe that timed out.
	}
}
