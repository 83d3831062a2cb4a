// Package repository is the source of models in directories: it finds them, and decides
// which of their versions should be loaded. Package server loads and serves them.
//
//	DIR/NAME/config.pbtxt     the model's configuration; optional if the model file describes the model
//	DIR/NAME/VERSION/         a number, with the model's files
//	DIR/NAME.onnx             a model that is a single file; it is version 1
//	app.py, NAME.joblib       files that are models if they are named as paths
package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/replace"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
)

// Options configure a [Repository].
type Options struct {
	// Paths are directories of models, and single model files.
	Paths []string
	// Buckets have models, too. Cache keeps their files. The caller closes both after the
	// repository.
	Buckets []*bucket.Bucket
	Cache   *bucket.Cache

	Mode Mode
	// Models are loaded at the start in mode Explicit; "*" stands for all.
	Models []string
	// Poll is how often mode Poll looks for changes. Zero means [DefaultPoll].
	Poll time.Duration

	// FileConfig is the configuration of models that are given as a file, as JSON; "" means
	// that all is left to the model.
	FileConfig string

	// ClientCode lets clients load code that they send: files of a model, or a configuration
	// that names a program to run.
	ClientCode bool

	// Demand configures mode Demand.
	Demand DemandOptions

	// EpochFile keeps the highest epoch of control requests for the next process. "" means that
	// the epoch is forgotten when the process ends.
	EpochFile string

	Log *slog.Logger
}

// A Mode is a model control mode, as in Triton.
type Mode uint8

// The modes.
const (
	None     Mode = iota // all models of the paths are loaded at startup
	Poll                 // the same, and changes of the files are followed
	Explicit             // clients load and unload models
	Demand               // requests load models, and models that are needed less leave memory for them
)

// DefaultPoll is the default interval of mode Poll, the same as in Triton.
const DefaultPoll = 15 * time.Second

// A Repository loads the models of its paths into a server. Its methods are safe for
// concurrent use.
type Repository struct {
	server  *server.Server
	opts    Options
	demand  *onDemand       // nil unless the mode is Demand
	closing chan struct{}   // closed by Close
	ctx     context.Context //nolint:containedctx // ends when the repository is closed: loads belong to no caller
	cancel  context.CancelFunc

	locations []location

	work sync.WaitGroup // loads, and the poll

	mu      sync.Mutex // guards the following
	models  map[string]*model
	closed  bool
	epoch   uint64                      // the highest that a control request had
	loads   int                         // of clients that are under way
	fetches map[string]*bucket.Progress // of models that are being fetched
	needs   map[*need]bool              // of loads in progress that have some
}

// A model is the state of a name.
type model struct {
	wanted   bool        // it existed at startup or has served, and was not unloaded
	asked    bool        // its load was asked for by its name, not only by that of an ensemble
	polled   pollState   // what the last poll saw
	override override    // that of the last load, without files: they are on disk, and may be large
	hadFiles bool        // the last load had files
	onDisk   fingerprint // of the files on disk at the last load

	members []string // of an ensemble, when it was last loaded or could not be; kept in mode Poll

	// refusal is why the last load of the files on disk failed before a version of the model
	// could be opened; "" if it did not.
	refusal string
}

// New returns a repository that has loaded nothing into s. The caller closes it before
// the server.
func New(s *server.Server, opts Options) *Repository {
	opts.Poll = cmp.Or(opts.Poll, DefaultPoll)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	r := &Repository{server: s, opts: opts, closing: make(chan struct{}), models: map[string]*model{}, fetches: map[string]*bucket.Progress{}, needs: map[*need]bool{}}
	r.epoch = readEpoch(opts.EpochFile, opts.Log)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.locations = []location{directories(opts.Paths)}
	for _, b := range opts.Buckets {
		r.locations = append(r.locations, &remoteLocation{bucket: b, cache: opts.Cache, log: opts.Log})
	}
	if opts.Mode == Demand {
		r.demand = newOnDemand(r, opts.Demand)
		s.SetDemand(r.demand)
	}
	return r
}

// owner is what the server calls this source.
func (r *Repository) owner() string {
	return "the model repository " + strings.Join(r.places(), ", ")
}

// places returns the paths and the URLs of buckets.
func (r *Repository) places() []string {
	all := slices.Clone(r.opts.Paths)
	for _, b := range r.opts.Buckets {
		all = append(all, b.URL())
	}
	return all
}

// list returns all models by name. The error reports locations that cannot be read; models of
// the others are still returned. See location for fresh.
func (r *Repository) list(fresh bool) (map[string]*candidate, error) {
	all := map[string]*candidate{}
	var errs []error
	for _, l := range r.locations {
		models, err := l.list(r.ctx, fresh)
		errs = append(errs, err)
		merge(all, models)
	}
	return all, errors.Join(errs...)
}

// Start loads the models that are loaded at startup, and returns when all have been
// tried. The error joins those of the models that failed; the others serve. A model that
// needs something that is not supported yet has not failed, as long as another one serves:
// the server is of use without it, and the log and the index say why it is missing.
func (r *Repository) Start(ctx context.Context) error {
	names, err := r.first()
	if r.demand != nil {
		r.demand.list(names)
		names = nil
	}
	var all sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		r.mu.Lock()
		r.claimLocked(name).wanted = true
		r.mu.Unlock()
		all.Go(func() { errs[i] = r.load(ctx, name, override{}, false) })
	}
	all.Wait()
	if r.opts.Mode == Poll || r.demand != nil {
		r.begin(r.poll)
	}
	if r.demand != nil {
		r.begin(r.demand.watch)
	}
	if slices.Contains(errs, nil) {
		errs = slices.DeleteFunc(errs, func(err error) bool { return infer.CodeOf(err) == infer.Unsupported })
	}
	return errors.Join(append([]error{err}, errs...)...)
}

// first returns the names of the models that are loaded at startup.
func (r *Repository) first() ([]string, error) {
	if r.opts.Mode == Explicit && !slices.Equal(r.opts.Models, []string{"*"}) {
		return r.opts.Models, nil
	}
	models, err := r.list(true)
	return slices.Sorted(maps.Keys(models)), err
}

// claimLocked returns the state of a name, which it adds if it is missing.
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

// Close stops polling and new loads. It does not wait for loads that have begun: closing
// the server cancels them.
func (r *Repository) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.closing)
		r.cancel()
	}
}

// Wait returns when all loads and the poll have ended.
func (r *Repository) Wait() { r.work.Wait() }

// Index lists the models that are on disk or loaded, with the states of their
// versions, or only what is ready, as far as the caller may know.
func (r *Repository) Index(ctx context.Context, ready bool) []catalog.IndexEntry {
	onDisk, _ := r.list(false) // models that cannot be read are not listed
	index := r.server.Index(ready, slices.Collect(maps.Keys(onDisk))...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range index {
		e := &index[i]
		m := r.models[e.Name]
		switch {
		case m == nil || m.refusal == "":
		case e.State == "":
			e.State, e.Reason = string(server.StateUnavailable), m.refusal
		case e.State == string(server.StateReady) && e.Reason == "":
			e.Reason = server.StillServes + m.refusal
		}
		if r.demand != nil && e.State == string(server.StateUnavailable) && e.Reason == server.ReasonUnloaded {
			e.Reason += "; a request loads it"
		}
		if p := r.fetches[e.Name]; p != nil && e.State != string(server.StateReady) {
			e.State, e.Reason = string(server.StateLoading), fmt.Sprintf("fetching: %d of %d MiB", p.Done.Load()>>20, machine.Mebibytes(p.Total.Load()))
		}
	}
	return r.server.Visible(ctx, index)
}

// maxLoads is how many loads of clients may be under way, those that wait for another one of their
// model included.
const maxLoads = 1024

// Load loads a model from disk, or from what the client sent instead. If the client
// disconnects, the load continues. Load returns when it has ended all the same, because what the
// client sent is charged to its request; only a server that stops does not wait.
func (r *Repository) Load(ctx context.Context, name string, opts catalog.LoadOptions) error {
	return r.server.Change(ctx, loadChange(name, opts), func() error {
		if err := r.notAllowed(); err != nil {
			return err
		}
		if err := r.checkEpoch(opts.Epoch); err != nil {
			return err
		}
		if err := override(opts).checkClient(r.opts.ClientCode); err != nil {
			return err
		}
		if err := r.beginClientLoad(); err != nil {
			return err
		}
		defer r.endClientLoad()
		if err := r.makeRoom(ctx, name, override(opts), false); err != nil {
			return err
		}
		done := r.startChange(name, override(opts), true, false)
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
		}
		select {
		case err := <-done:
			return err
		case <-r.server.Stopping():
			return errLeft(name)
		}
	})
}

// beginClientLoad counts a load of a client, or returns an error if too many are under way. The
// caller ends it with endClientLoad.
func (r *Repository) beginClientLoad() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loads >= maxLoads {
		return &infer.Error{Code: infer.Overloaded, RetryAfter: time.Second, Text: fmt.Sprintf("%d loads are under way, and no more may be; retry later", maxLoads)}
	}
	r.loads++
	return nil
}

func (r *Repository) endClientLoad() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads--
}

// makeRoom gives a model that a client loads, or another model if the call is nested, its memory
// first, in mode Demand.
func (r *Repository) makeRoom(ctx context.Context, name string, with override, nested bool) error {
	if r.demand == nil {
		return nil
	}
	if len(with.Files) > 0 {
		return infer.Errorf(infer.Unsupported, "files of a model cannot be sent in mode demand, because they would be lost when the model leaves memory; put the model into the model repository")
	}
	return r.demand.Await(ctx, name, nested) // the model may have been loaded before with other files
}

// loadChange describes a load, for the audit log.
func loadChange(name string, opts catalog.LoadOptions) access.Change {
	c := access.Change{Action: access.Manage, What: "load", Model: name}
	switch {
	case len(opts.Files) > 0:
		c.Detail = fmt.Sprintf("with a configuration and %d files", len(opts.Files))
	case opts.Config != "":
		c.Detail = "with a configuration"
	}
	return c
}

// Unload takes a model out of service: it rejects new requests, runs the queued ones in
// the background, and cancels a load. Unloading a model that is not loaded is not an error.
// Members that it unloads with an ensemble are changes of their own: the caller must be allowed
// to make each.
func (r *Repository) Unload(ctx context.Context, name string, opts catalog.UnloadOptions) error {
	return r.unloadFor(ctx, name, opts, false)
}

// unloadFor unloads a model for a client, or for another model if the call is nested: then it does
// not wait for requests, of which the call may be a part. It does wait for the memory of a model without
// any, so that the caller can load it again.
func (r *Repository) unloadFor(ctx context.Context, name string, opts catalog.UnloadOptions, nested bool) error {
	var members []string
	if opts.Dependents {
		members = r.servingMembers(name)
	}
	err := r.server.Change(ctx, access.Change{Action: access.Manage, What: "unload", Model: name}, func() error {
		if err := r.notAllowed(); err != nil {
			return err
		}
		if err := r.checkEpoch(opts.Epoch); err != nil {
			return err
		}
		if owner := r.server.Owner(name); owner != "" && owner != r.owner() {
			return infer.Errorf(infer.Invalid, "model '%s' belongs to %s; unregister it there", name, owner)
		}
		wait, blocking := r.unload(name)
		if !nested || !blocking {
			wait()
			return nil
		}
		r.begin(wait) // if the repository is closed, nothing counts memory any more
		return nil
	})
	if err != nil {
		return err
	}
	for _, member := range members {
		if r.unneeded(member, name) {
			err = errors.Join(err, r.unloadFor(ctx, member, opts, nested))
		}
	}
	return err
}

// LoadModel loads a model for another one, as [Repository.Load] does for a client. It may
// bring code, because the calling model is code already. config and files are the callee's.
func (r *Repository) LoadModel(ctx context.Context, name, config string, files map[string][]byte) error {
	opts := catalog.LoadOptions{Config: config}
	for path, content := range files {
		if err := opts.AddFile(path, content); err != nil {
			return err
		}
	}
	return r.server.Change(ctx, loadChange(name, opts), func() error {
		if err := r.notAllowed(); err != nil {
			return err
		}
		if err := r.makeRoom(ctx, name, override(opts), true); err != nil {
			return err
		}
		return r.load(ctx, name, override(opts), true)
	})
}

// UnloadModel unloads a model for another one, and returns before it has drained.
func (r *Repository) UnloadModel(ctx context.Context, name string) error {
	return r.unloadFor(ctx, name, catalog.UnloadOptions{}, true)
}

// Epoch returns the highest epoch that a load or unload had.
func (r *Repository) Epoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// checkEpoch returns an error if a control request is of a controller that another one has
// replaced. It remembers the highest epoch, before anything is changed because of it.
func (r *Repository) checkEpoch(epoch uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch != 0 && epoch < r.epoch {
		return infer.Errorf(infer.Outdated, "the request has epoch %d, and the server has seen epoch %d: another controller has taken over", epoch, r.epoch)
	}
	if epoch > r.epoch {
		r.epoch = epoch
		r.keepEpochLocked()
	}
	return nil
}

// keepEpochLocked writes the epoch to its file. A controller is not refused because that
// fails: the server remembers the epoch as long as it runs.
func (r *Repository) keepEpochLocked() {
	if r.opts.EpochFile == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(r.opts.EpochFile), 0o700)
	if err == nil {
		err = replace.File(r.opts.EpochFile, strconv.AppendUint(nil, r.epoch, 10), "")
	}
	if err != nil {
		r.opts.Log.Warn("the epoch of control requests cannot be kept; it is forgotten when the server ends", "epoch", r.epoch, "error", err)
	}
}

// readEpoch returns the epoch that an earlier process kept in a file, or 0.
func readEpoch(file string, log *slog.Logger) uint64 {
	text, err := os.ReadFile(file)
	if file == "" || errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	var epoch uint64
	if err == nil {
		epoch, err = strconv.ParseUint(string(text), 10, 64)
	}
	if err != nil {
		log.Warn("the epoch of earlier control requests cannot be read", "error", err)
	}
	return epoch
}

// notAllowed returns an error unless clients may load and unload models.
func (r *Repository) notAllowed() error {
	if r.opts.Mode == Explicit || r.demand != nil {
		return nil
	}
	return infer.Errorf(infer.Unavailable, "clients cannot load or unload models of this server; start it with --model-control-mode=explicit or demand").
		WithReason(infer.LoadNotAllowed, "", "")
}

// unload takes a model out of service, if it is this repository's. wait, which the caller calls,
// returns in mode Demand when its memory is free; see [onDemand.unload].
func (r *Repository) unload(name string) (wait func(), blocking bool) {
	r.mu.Lock()
	delete(r.models, name)
	r.mu.Unlock()
	if owner := r.server.Owner(name); owner != "" && owner != r.owner() {
		return func() {}, false // another source serves a model of this name; the poll has seen that files of that name are gone
	}
	if r.demand != nil {
		return r.demand.unload(name)
	}
	r.server.Unload(name)
	return func() {}, false
}

// load loads a model; nested means that it is for another one. If ctx ends, the load continues.
func (r *Repository) load(ctx context.Context, name string, with override, nested bool) error {
	select {
	case err := <-r.startChange(name, with, true, nested):
		return err
	case <-ctx.Done():
		return errLeft(name)
	}
}

// errLeft returns the error of a load whose caller does not wait for its end.
func errLeft(name string) error {
	return infer.Errorf(infer.Cancelled, "the client disconnected while model '%s' was being loaded; the load continues", name)
}

// startChange begins to load a model; asked means that a client or the command line has named it, and
// nested that the load is for another model. The channel gets the outcome.
func (r *Repository) startChange(name string, with override, asked, nested bool) <-chan error {
	done := make(chan error, 1) // size 1, so that the load does not wait for a caller that has left
	if !r.begin(func() {
		err := r.reload(name, with, nested)
		if err == nil && asked {
			r.mu.Lock()
			r.claimLocked(name).asked = true
			r.mu.Unlock()
		}
		done <- err
	}) {
		done <- server.ErrClosing
	}
	return done
}

// reload loads a model that may be in memory already.
func (r *Repository) reload(name string, with override, nested bool) error {
	err := r.change(name, with, nested)
	if err == nil {
		r.demand.reloaded(name)
	}
	return err
}

// change loads a model, and records what it was loaded from.
func (r *Repository) change(name string, with override, nested bool) error {
	var sent *upload
	var before []*servable.Version
	var at fingerprint
	needs := &need{ensemble: name, nested: nested}
	refusal := ""
	refuse := func(err error) error {
		// Uploads and names without files are not listed in the index, and neither are models that
		// were unloaded meanwhile.
		if len(with.Files) == 0 && infer.CodeOf(err) != infer.NotFound && !errors.Is(err, servable.ErrUnloading) {
			refusal = err.Error()
		}
		return loadRefused(name, err)
	}
	unreached := func(err error) error {
		// The next check tries again, although the files are the same, unless it would read all of a
		// wrong object again.
		if infer.CodeOf(err) == infer.Unavailable && !errors.Is(err, bucket.ErrChecksum) {
			r.mu.Lock()
			r.claimLocked(name).polled.tried = 0
			r.mu.Unlock()
		}
		return refuse(err)
	}
	load := r.server.Load
	if nested {
		load = r.server.LoadNested
	}
	err := load(name, r.owner(), func(ctx context.Context, have []*servable.Version) ([]servable.Source, error) {
		before = have
		if err := r.loadMembers(ctx, name, with, nil, needs); err != nil {
			return nil, refuse(err)
		}
		f, full, err := r.source(name, with)
		if err != nil {
			return nil, unreached(err)
		}
		with, at = full, f.whole() // of all versions, although only those that serve are fetched
		if len(with.Files) > 0 {
			sent = newUpload(f.unpacked)
		} else if f, sent, err = r.fetch(ctx, f, r.selected(with)); err != nil {
			return nil, unreached(err)
		}
		r.mu.Lock()
		r.claimLocked(name).polled = pollState{tried: at, seen: at}
		r.mu.Unlock()
		d, err := newDesired(f, with)
		if err != nil {
			return nil, refuse(err)
		}
		r.addMembers(d)
		sources := d.sources(sent)
		if r.demand != nil {
			resume := r.demand.resumeOf(name)
			for i := range sources {
				sources[i].Resume = resume[sources[i].Number]
			}
		}
		return sources, nil
	})
	sent.release()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.needs, needs)
	m := r.claimLocked(name)
	m.refusal = refusal
	switch {
	case err == nil:
		m.wanted, m.override, m.hadFiles, m.onDisk = true, override{Config: with.Config}, len(with.Files) > 0, at
		if r.polls() && !slices.Equal(before, r.server.Versions(name)) {
			r.retryEnsemblesLocked(name)
		}
	case !m.wanted && !r.polls() && refusal == "":
		delete(r.models, name)
	}
	return err
}

func (r *Repository) polls() bool { return r.opts.Mode == Poll }

// loadRefused returns the error of a load whose model cannot be read.
func loadRefused(name string, err error) error {
	code := infer.CodeOf(err)
	if code == infer.Internal {
		code = infer.Invalid // the client asked to load invalid files
	}
	return infer.Errorf(code, "model %q cannot be loaded: %w", name, err).WithReason(infer.LoadRefused, name, "")
}
