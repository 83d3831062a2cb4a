// Package contexttest has the test that every [context.Context] of the project passes,
// whether a type of its own implements it or a part hands one out.
package contexttest

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Check tests what package context and its users rely on. begin returns a context that
// has not ended, and what ends it; it is called several times. A part that makes one
// context after the other calls reuse between the end of one and the next begin.
func Check(t *testing.T, begin func() (ctx context.Context, end func()), reuse func()) {
	t.Helper()
	t.Run("an ended context stays ended", func(t *testing.T) { staysEnded(t, begin, reuse) })
	t.Run("a watcher that comes late sees the end", func(t *testing.T) { lateWatcher(t, begin, reuse) })
	t.Run("children end with it", func(t *testing.T) { childrenEnd(t, begin, reuse) })
	t.Run("it ends while many watch", func(t *testing.T) { manyWatch(t, begin, reuse) })
}

func staysEnded(t *testing.T, begin func() (context.Context, func()), reuse func()) {
	ctx, end := begin()
	select {
	case <-ctx.Done():
		t.Fatal("Done is closed before the end")
	default:
	}
	if err := ctx.Err(); err != nil {
		t.Fatalf("Err is %v before the end", err)
	}
	done := ctx.Done()
	end()
	<-done
	first := ctx.Err()
	reuse()
	switch again := ctx.Err(); {
	case first == nil:
		t.Error("Done is closed and Err is nil")
	case again != first: //nolint:errorlint // the very same
		t.Errorf("Err was %v and is %v", first, again)
	case ctx.Done() != done:
		t.Error("Done returns another channel after the end")
	}
}

// A held context blocks a goroutine that has seen its Done and asks for its Err. It hides
// what it wraps, so that package context watches it with a goroutine, as it does with
// types that it does not know.
type held struct {
	of       context.Context //nolint:containedctx // it is one
	seen, on chan struct{}   // closed when Err is asked for, and when it may answer
	once     *sync.Once
}

func (h held) Deadline() (time.Time, bool) { return h.of.Deadline() }
func (h held) Done() <-chan struct{}       { return h.of.Done() }
func (h held) Value(any) any               { return nil }

func (h held) Err() error {
	select {
	case <-h.of.Done():
		h.once.Do(func() { close(h.seen) })
		<-h.on
	default:
	}
	return h.of.Err()
}

// lateWatcher holds the goroutine of context.AfterFunc back between Done and Err, and
// lets the next context begin meanwhile.
func lateWatcher(t *testing.T, begin func() (context.Context, func()), reuse func()) {
	ctx, end := begin()
	h := held{ctx, make(chan struct{}), make(chan struct{}), new(sync.Once)}
	called := make(chan struct{})
	context.AfterFunc(h, func() { close(called) })
	end()
	<-h.seen
	reuse()
	if err := ctx.Err(); err == nil {
		t.Error("Err is nil for who comes late; package context panics")
		return // it does so in a goroutine of its own, and would end the test
	}
	close(h.on)
	<-called
}

func childrenEnd(t *testing.T, begin func() (context.Context, func()), reuse func()) {
	ctx, end := begin()
	called := make(chan struct{})
	context.AfterFunc(ctx, func() { close(called) })
	stopped := context.AfterFunc(ctx, func() { t.Error("a function that was taken back was called") })
	if !stopped() {
		t.Error("a function could not be taken back before the end")
	}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	timed, cancelTimed := context.WithTimeout(ctx, time.Hour)
	defer cancelTimed()
	other, cancelOther := context.WithCancel(ctx)
	cancelOther()
	if ctx.Err() != nil || other.Err() == nil {
		t.Error("the end of a child ended its parent, or not the child")
	}
	end()
	reuse()
	<-called
	for _, c := range []context.Context{child, timed} {
		<-c.Done()
		if c.Err() == nil || context.Cause(c) == nil {
			t.Errorf("a child ended with %v, %v", c.Err(), context.Cause(c))
		}
	}
}

// manyWatch ends contexts while goroutines begin to watch them; the race detector looks
// on.
func manyWatch(t *testing.T, begin func() (context.Context, func()), reuse func()) {
	for range 100 {
		ctx, end := begin()
		var watchers sync.WaitGroup
		for range 4 {
			watchers.Go(func() {
				called := make(chan struct{})
				context.AfterFunc(ctx, func() { close(called) })
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				<-child.Done()
				<-called
				if ctx.Err() == nil {
					t.Error("Done is closed and Err is nil")
				}
			})
		}
		end()
		watchers.Wait()
		reuse()
	}
}
