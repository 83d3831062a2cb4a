// Package repository is the source of the models that lie in some directories: which
// there are, and which of their versions are wanted. Package server has them.
//
//	DIR/NAME/config.pbtxt     what the model takes and gives; optional if the model file describes it
//	DIR/NAME/VERSION/         a number, with what the model's engine needs
//	DIR/NAME.onnx             a model with nothing but its file; it is version 1
//	app.py, NAME.joblib       files that are models by themselves where they are named
package repository

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
)

// Options say where models are, and which of them are loaded.
type Options struct {
	// Paths are directories of models, and files that are models by themselves.
	Paths []string

	Mode Mode
	// Models are loaded at the start in mode Explicit; "*" stands for all.
	Models []string
	// Poll is how often mode Poll looks for changes. Zero means [DefaultPoll].
	Poll time.Duration

	// ClientCode lets clients load code that they send: files of a model, or a configuration
	// that names a program to run.
	ClientCode bool

	Log *slog.Logger
}

// A Mode is a model control mode, as in Triton.
type Mode uint8

// How models come and go.
const (
	None     Mode = iota // all models of the paths, for as long as the server runs
	Poll                 // all models of the paths, as they come, change and go
	Explicit             // those that clients ask for
)

// DefaultPoll is used where Options do not say; it is Triton's.
const DefaultPoll = 15 * time.Second

// A Repository brings a server to what lies in its paths. Its methods may be called
// concurrently.
type Repository struct {
	server  *server.Server
	opts    Options
	closing chan struct{}  // closed by Close
	work    sync.WaitGroup // loads, and the poll

	mu     sync.Mutex // guards the following
	models map[string]*model
	closed bool
}

// A model is what is remembered of a name.
type model struct {
	wanted bool        // it was there at the start, or has served, and was not unloaded
	over   pollState   // of the poll
	with   override    // of the last load
	at     fingerprint // of the disk at the last load
}

// New returns a repository that has loaded nothing into s. The caller closes it before
// the server.
func New(s *server.Server, opts Options) *Repository {
	opts.Poll = cmp.Or(opts.Poll, DefaultPoll)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	return &Repository{server: s, opts: opts, closing: make(chan struct{}), models: map[string]*model{}}
}

// owner is what the server calls this source.
func (r *Repository) owner() string {
	return "the model repository " + strings.Join(r.opts.Paths, ", ")
}

// Start loads the models that are to be there from the start, and returns when
// each has been tried. The error says what is wrong with those that failed; the
// others serve.
func (r *Repository) Start(ctx context.Context) error {
	names, err := r.first()
	var all sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		r.mu.Lock()
		r.claimLocked(name).wanted = true
		r.mu.Unlock()
		all.Go(func() { errs[i] = r.load(ctx, name, override{}) })
	}
	all.Wait()
	if r.opts.Mode == Poll {
		r.begin(r.poll)
	}
	return errors.Join(append([]error{err}, errs...)...)
}

// first returns the names of the models that are loaded at the start.
func (r *Repository) first() ([]string, error) {
	if r.opts.Mode == Explicit && !slices.Equal(r.opts.Models, []string{"*"}) {
		return r.opts.Models, nil
	}
	found, err := scan(r.opts.Paths)
	return slices.Sorted(maps.Keys(found)), err
}

// claimLocked returns what is remembered of a name, which is nothing at first.
func (r *Repository) claimLocked(name string) *model {
	m := r.models[name]
	if m == nil {
		m = &model{}
		r.models[name] = m
	}
	return m
}

// begin runs f, unless the repository is closing.
func (r *Repository) begin(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Go(f)
	return true
}

// Close ends the poll, and loads nothing any more. It returns before the loads have
// ended that are under way: closing the server ends those.
func (r *Repository) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.closing)
	}
}

// Wait returns when everything has ended that the repository began.
func (r *Repository) Wait() { r.work.Wait() }

// Index lists the models that are on disk or loaded, with the states of their
// versions, or only what is ready.
func (r *Repository) Index(ready bool) []catalog.IndexEntry {
	onDisk, _ := scan(r.opts.Paths) // what cannot be read is not listed
	return r.server.Index(ready, slices.Collect(maps.Keys(onDisk))...)
}

// Load brings a model to what is on disk, or to what the client sent instead. If
// the client leaves, the load goes on.
func (r *Repository) Load(ctx context.Context, name string, opts catalog.LoadOptions) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	if err := override(opts).checkClient(r.opts.ClientCode); err != nil {
		return err
	}
	return r.load(ctx, name, override(opts))
}

// Unload takes a model out of service: new requests are refused, those that are
// here run, and a load that is under way ends. It returns before they have run. One that
// is not loaded is no error, and no model is made of others yet.
func (r *Repository) Unload(_ context.Context, name string, _ catalog.UnloadOptions) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	if owner := r.server.Owner(name); owner != "" && owner != r.owner() {
		return infer.Errorf(infer.Invalid, "model '%s' is of %s, which has its own way to take it away", name, owner)
	}
	r.unload(name)
	return nil
}

// LoadModel loads a model for another one, as [Repository.Load] does for a client. It may
// bring code, because the calling model is code already. config and files are the callee's.
func (r *Repository) LoadModel(ctx context.Context, name, config string, files map[string][]byte) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	opts := catalog.LoadOptions{Config: config}
	for path, content := range files {
		if err := opts.AddFile(path, content); err != nil {
			return err
		}
	}
	return r.load(ctx, name, override(opts))
}

// UnloadModel unloads a model for another one.
func (r *Repository) UnloadModel(ctx context.Context, name string) error {
	return r.Unload(ctx, name, catalog.UnloadOptions{})
}

// notAllowed answers clients that want to change which models are loaded where
// that is not theirs to say.
func (r *Repository) notAllowed() error {
	if r.opts.Mode == Explicit {
		return nil
	}
	return infer.Errorf(infer.Unavailable, "clients cannot load or unload models of this server; start it with --model-control-mode=explicit").
		WithReason(infer.LoadNotAllowed, "", "")
}

func (r *Repository) unload(name string) {
	r.mu.Lock()
	delete(r.models, name)
	r.mu.Unlock()
	r.server.Unload(name)
}

func (r *Repository) load(ctx context.Context, name string, with override) error {
	done := make(chan error, 1) // so that the load does not wait for a client that has left
	if !r.begin(func() { done <- r.change(name, with) }) {
		return server.ErrClosing
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "nobody waits for the load of '%s' any more; it goes on", name)
	}
}

// change loads a model, and remembers what of.
func (r *Repository) change(name string, with override) error {
	var sent *upload
	var at fingerprint
	err := r.server.Load(name, r.owner(), func([]*servable.Version) ([]servable.Source, error) {
		f, whole, err := r.source(name, with)
		if err != nil {
			return nil, refused(name, err)
		}
		with, at = whole, f.whole()
		if len(with.Files) > 0 {
			sent = newUpload(f.dir)
		}
		r.mu.Lock()
		r.claimLocked(name).over = pollState{tried: at, seen: at}
		r.mu.Unlock()
		d, err := newDesired(f, with)
		if err != nil {
			return nil, refused(name, err)
		}
		return d.sources(sent), nil
	})
	sent.letGo()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := r.claimLocked(name); {
	case err == nil:
		m.wanted, m.with, m.at = true, with, at
	case !m.wanted && !r.polls():
		delete(r.models, name)
	}
	return err
}

func (r *Repository) polls() bool { return r.opts.Mode == Poll }

// refused is the error of a load that cannot begin.
func refused(name string, err error) error {
	code := infer.CodeOf(err)
	if code == infer.Internal {
		code = infer.Invalid // it is about what the client wants to have loaded
	}
	return infer.Errorf(code, "model %q cannot be loaded: %w", name, err).WithReason(infer.LoadRefused, name, "")
}
