package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/pause"
	"github.com/shoal-serving/shoal/internal/replace"
)

const (
	readEvery = 500 * time.Millisecond // how often the wanted nodes and models are read again
	saveAgain = time.Second            // after a state that could not be written
)

// Options of a [Controller].
type Options struct {
	Nodes     Nodes
	Models    Models
	Client    *http.Client                                       // calls nodes and the followed cell; adds credentials
	Scheme    string                                             // of the nodes: http or https
	StateFile string                                             // where the state is kept; empty means nowhere
	Follow    string                                             // URL of the cell to follow; empty means that this one decides
	Update    func(changed []cell.Route, removed []string) error // gives routes to proxies
	Log       *slog.Logger
}

// A Controller runs a cell.
type Controller struct {
	opts   Options
	core   *cell.Core
	events chan cell.Event
	calls  chan func(*cell.Core) cell.Event // the loop steps the core with what one returns, unless that is nil
	tasks  sync.WaitGroup
	polls  map[string]poll
	newest atomic.Pointer[cell.State] // to be kept; nil once it is
	saves  chan struct{}              // has an element if there may be one
	saving sync.Mutex                 // held while one is written, so that an older one never replaces it
	fenced atomic.Uint64              // epoch of the last one that was written
	failed atomic.Uint64              // how many times one could not be
	saved  atomic.Pointer[saved]
}

// saved is a state that was encoded, with its tag for followers.
type saved struct {
	tag  string
	body []byte
}

// A poll reads the pages of one node until it is cancelled.
type poll struct {
	node   cell.Node
	cancel context.CancelFunc
}

// New returns a controller. It fails if the state on disk cannot be read; a damaged one is
// put aside, because nodes report everything that matters.
func New(opts Options) (*Controller, error) {
	state, err := readState(opts.StateFile, opts.Log)
	if err != nil {
		return nil, err
	}
	return &Controller{
		opts: opts, core: cell.NewCore(cell.Options{State: state, Follow: opts.Follow != ""}),
		events: make(chan cell.Event, 256), calls: make(chan func(*cell.Core) cell.Event), polls: map[string]poll{}, saves: make(chan struct{}, 1),
	}, nil
}

func readState(file string, log *slog.Logger) (*cell.State, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) { // as the file without a name
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state, err := cell.DecodeState(text)
	if err != nil {
		log.Warn("the state is not used; the plan is rebuilt from what the nodes report", "file", file, "error", err)
		return nil, os.Rename(file, file+".damaged")
	}
	return state, nil
}

// Run runs the cell until ctx ends. What is wanted must be readable at the start; later
// mistakes in it are logged, and what was wanted before stays.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.tasks.Wait()
	defer cancel()
	first, err := c.read(ctx)
	if err != nil {
		return err
	}
	c.tasks.Go(func() { c.watch(ctx, first) })
	c.tasks.Go(func() { c.keep(ctx) })
	if c.opts.Follow != "" {
		c.tasks.Go(func() { c.follow(ctx) })
	}
	c.step(ctx, cell.Configured{Wanted: first})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-c.events:
			timer.Reset(c.step(ctx, e))
		case <-timer.C:
			timer.Reset(c.step(ctx, cell.Tick{}))
		case call := <-c.calls:
			if e := call(c.core); e != nil {
				timer.Reset(c.step(ctx, e))
			}
		}
	}
}

// step steps the core, carries its actions out, and returns when to step again.
func (c *Controller) step(ctx context.Context, e cell.Event) time.Duration {
	began := now()
	a := c.core.Step(began, e)
	for _, line := range a.Log {
		c.opts.Log.Info(line)
	}
	if len(a.Routes) > 0 || len(a.Removed) > 0 {
		if err := c.opts.Update(a.Routes, a.Removed); err != nil {
			c.opts.Log.Error("routes could not be given to proxies", "error", err)
		}
	}
	if a.Save != nil {
		c.newest.Store(a.Save)
		if a.Fence {
			_ = c.save() // it is logged, and the orders are not sent
		}
		select {
		case c.saves <- struct{}{}:
		default:
		}
	}
	for _, m := range a.Measure {
		c.tasks.Go(func() { c.send(ctx, c.measure(ctx, m)) })
	}
	for _, o := range a.Orders {
		c.tasks.Go(func() { c.send(ctx, c.carryOut(ctx, o)) })
	}
	if a.Poll != nil {
		c.pollNodes(ctx, a.Poll)
	}
	if a.Next == 0 {
		return time.Hour
	}
	return a.Next - began
}

var started = time.Now()

// now returns the time since 1970, which does not change when the clock is set.
func now() cell.Time { return cell.Time(started.UnixNano()) + time.Since(started) }

// send reports an event to the loop.
func (c *Controller) send(ctx context.Context, e cell.Event) {
	select {
	case c.events <- e:
	case <-ctx.Done():
	}
}

// call runs f in the loop.
func (c *Controller) call(ctx context.Context, f func(*cell.Core)) error {
	return c.change(ctx, func(core *cell.Core) cell.Event { f(core); return nil })
}

// change runs f in the loop, which steps the core with the event that f returns before it does anything
// else: of two commands that f would both accept, the second sees what the first has changed. f returns
// nil to change nothing.
func (c *Controller) change(ctx context.Context, f func(*cell.Core) cell.Event) error {
	done := make(chan struct{})
	select {
	case c.calls <- func(core *cell.Core) cell.Event { defer close(done); return f(core) }:
		<-done
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Controller) read(ctx context.Context) (w cell.Wanted, err error) {
	if w.Nodes, err = c.opts.Nodes.Nodes(ctx); err != nil {
		return w, err
	}
	w.Models, w.Quotas, err = c.opts.Models.Models(ctx)
	return w, err
}

// watch reports changes of what is wanted that two reads in a row have found: the first lines of a
// file that is being written are often valid, and have fewer models.
func (c *Controller) watch(ctx context.Context, last cell.Wanted) {
	complained, before := "", last
	for pause.For(ctx, readEvery) == nil {
		next, err := c.read(ctx)
		if err != nil {
			if complained != err.Error() && ctx.Err() == nil {
				c.opts.Log.Error("what is wanted cannot be read; what was wanted before stays", "error", err)
			}
			complained = err.Error()
			continue
		}
		complained = ""
		found := reflect.DeepEqual(before, next)
		if before = next; found && !reflect.DeepEqual(last, next) {
			c.opts.Log.Info("what is wanted has changed", "nodes", len(next.Nodes), "models", len(next.Models))
			last = next
			c.send(ctx, cell.Configured{Wanted: next})
		}
	}
}

// pollNodes polls the given nodes, and no others.
func (c *Controller) pollNodes(ctx context.Context, nodes []cell.Node) {
	kept := make(map[string]poll, len(nodes))
	for _, n := range nodes {
		if p, polled := c.polls[n.Name]; polled && p.node == n {
			kept[n.Name] = p
			delete(c.polls, n.Name)
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		kept[n.Name] = poll{n, cancel}
		c.tasks.Go(func() { c.poll(ctx, n) })
	}
	for _, p := range c.polls {
		p.cancel()
	}
	c.polls = kept
}

// keep keeps states until ctx ends: the loop does not wait for the disk.
func (c *Controller) keep(ctx context.Context) {
	again := time.NewTimer(saveAgain)
	defer again.Stop()
	for complained := false; ; {
		select {
		case <-c.saves:
		case <-again.C: // after a failure; otherwise there is nothing to keep
		case <-ctx.Done():
			return
		}
		err := c.save()
		if err != nil {
			again.Reset(saveAgain)
			if !complained {
				c.opts.Log.Error("the state could not be kept; it is tried again every second", "file", c.opts.StateFile, "error", err)
			}
		}
		complained = err != nil
	}
}

// save writes the newest state, unless that was done, to a file that replaces the old one. If it
// cannot, the state is still to be kept.
func (c *Controller) save() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	s := c.newest.Swap(nil)
	if s == nil {
		return nil
	}
	body, err := s.Encode()
	if err == nil {
		c.saved.Store(&saved{fmt.Sprintf(`"%d-%d"`, s.Epoch, s.Version), body})
		if c.opts.StateFile != "" {
			err = replace.File(c.opts.StateFile, body, "")
		}
	}
	if err != nil {
		c.failed.Add(1)
		c.newest.CompareAndSwap(nil, s) // unless there is a newer one
		return err
	}
	c.fenced.Store(s.Epoch)
	return nil
}
