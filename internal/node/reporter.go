package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"
)

const (
	// patience is how long figures that change by more than a fifth may stay unreported.
	patience = 10 * time.Second
	// fresh is how long a page is used again, unless the server reports a change: readers
	// that wait share it.
	fresh = time.Second
	// look is how often a reader that waits looks for changes that the server does not report,
	// such as rates and workers that died.
	look = 2 * time.Second
)

// A Reporter reports the page of a server. Its methods may be called concurrently.
type Reporter struct {
	opts Options

	mu        sync.Mutex // guards the following
	read      time.Time  // when the page was read
	seen      <-chan struct{}
	page      Page
	published Page      // that the tag is for
	at        time.Time // when it was published
	changes   uint64
	recent    map[[2]string]*recent // by name and version
}

// Options of a reporter.
type Options struct {
	// Read returns the page, without recent figures.
	Read func() Page
	// Changed returns a channel that is closed when what serves changes.
	Changed func() <-chan struct{}
	// Stopping is closed when readers must not wait any more, because the server drains.
	Stopping <-chan struct{}
	// Figures returns the figures of a model's versions that serve.
	Figures func(model string) []Figures
	// Started identifies the process, so that tags of an earlier one are not mistaken.
	Started time.Time
}

// NewReporter returns a reporter. It does nothing until it is asked.
func NewReporter(opts Options) *Reporter {
	return &Reporter{opts: opts, recent: map[[2]string]*recent{}}
}

// Wait returns the page as JSON and its tag. If the tag is known, it waits until it changes,
// but no longer than the given time, and returns no page if it has not.
func (r *Reporter) Wait(ctx context.Context, known string, wait time.Duration) (body []byte, tag string, err error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		changed := r.opts.Changed() // before the page is read, so that no change is missed
		if body, tag, err = r.current(time.Now(), changed, known); tag != known || err != nil {
			return body, tag, err
		}
		again := time.NewTimer(look)
		select {
		case <-changed:
		case <-again.C:
		case <-timeout.C:
			again.Stop()
			return nil, tag, nil
		case <-r.opts.Stopping:
			again.Stop()
			return nil, tag, nil
		case <-ctx.Done():
			again.Stop()
			return nil, tag, context.Cause(ctx)
		}
		again.Stop()
	}
}

// current returns the page and its tag. The page is nil if the tag is the known one.
func (r *Reporter) current(now time.Time, changed <-chan struct{}, known string) ([]byte, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if changed != r.seen || now.Sub(r.read) >= fresh {
		r.refresh(now)
		r.seen = changed
	}
	tag := fmt.Sprintf(`"%x-%d"`, r.opts.Started.UnixNano(), r.changes)
	if tag == known {
		return nil, tag, nil
	}
	body, err := json.Marshal(&r.page)
	return body, tag, err
}

// refresh reads the page, and publishes it if it differs enough from the published one.
func (r *Reporter) refresh(now time.Time) {
	page := r.opts.Read()
	loaded := 0
	for i := range page.Models {
		m := &page.Models[i]
		if m.Stats == nil {
			continue
		}
		loaded++
		key := [2]string{m.Name, m.Version}
		figures := r.recent[key]
		if figures == nil || loadedAgain(&figures.at, m.Stats) {
			figures = &recent{began: now, at: *m.Stats}
			r.recent[key] = figures
		}
		figures.update(now, m)
	}
	if loaded < len(r.recent) {
		maps.DeleteFunc(r.recent, func(_ [2]string, figures *recent) bool { return !figures.read.Equal(now) })
	}
	r.page, r.read = page, now
	if r.changes == 0 || urgent(&r.published, &page) || now.Sub(r.at) >= patience && gradual(&r.published, &page) {
		r.published, r.at = page, now
		r.changes++
	}
}

// Figures returns the figures of a model's versions that serve, as JSON.
func (r *Reporter) Figures(model string) ([]byte, error) {
	return json.Marshal(map[string][]Figures{"versions": r.opts.Figures(model)})
}
