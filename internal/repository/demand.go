package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/pause"
	"github.com/shoal-serving/shoal/internal/repository/evict"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
)

// DemandOptions configure mode Demand.
type DemandOptions struct {
	// Memory is how many bytes all models that are loaded may hold together.
	Memory int64
	// Loads is how many models the server loads at once. Zero means 4.
	Loads int
	// Waiting is how many requests may wait for one model. Zero means 1000.
	Waiting int
	// Queue is how many loads may wait for others. Zero means 64.
	Queue int
	// Resident returns the memory in bytes that models hold, and other parts of the process
	// that do not change much. Nil means unknown: the sizes of files count.
	Resident func() int64
	// Store keeps what models needed. Nil means in memory only.
	Store *calibrate.Store
}

// onDemand loads models when requests ask for them, and evicts others for them. It
// implements [server.Demand] for a repository in mode Demand.
//
// Memory is counted twice. Which models leave is decided at once, by what all models will
// hold when everything under way has ended; so that decision never promises more than there
// is. A load then waits until the models that leave for it are closed: held is what models
// hold at the moment.
type onDemand struct {
	repository *Repository
	opts       DemandOptions
	without    int64 // what is resident without models

	mu      sync.Mutex // guards the following
	models  map[string]*demanded
	held    int64        // bytes of models that are loaded, being loaded or leaving
	opening int64        // bytes of those that are being loaded
	growth  evict.Growth // what they hold in fact
	room    int64        // what that allows, in large steps
	known   struct {     // of all models that were measured
		onDisk, bytes int64
	}
	freed   chan struct{} // closed and replaced when held shrinks
	loading int           // loads that have not ended
	leaving int           // models that are going
	changes uint64        // loads that have begun or ended, and models that have left or were reloaded
	counts  DemandCounts
}

// DemandCounts are the counters of mode Demand.
type DemandCounts struct {
	Loads, FailedLoads uint64 // a load that a client unloaded meanwhile has not failed
	Evictions          uint64
	Waited             uint64 // requests that waited for the load of their model
	Refused            uint64 // requests whose model was not loaded for them
	Models, Loaded     int    // known, and in memory now
	Memory, Held       int64  // bytes: the limit, and what models hold
	Room               int64  // bytes that may be counted for models so that they hold no more than Memory, in large steps
}

// A demanded model is what is known of a model, loaded or not.
type demanded struct {
	state  residence
	flight *flight // the load that is under way; nil if there is none

	described time.Time   // when its files were last read
	files     fingerprint // of its files
	id        string      // what its footprint is kept under
	onDisk    int64       // bytes of its files
	bytes     int64       // memory that it needs: see estimateLocked, until it was measured
	measured  bool        // bytes was measured
	load      time.Duration
	loaded    time.Time // when it was last loaded

	rate    evict.Rate
	counted uint64 // requests that rate has
	resume  map[int64]*servable.Resume

	refusal error     // why it was not loaded last; nil if it was
	until   time.Time // the refusal is repeated until then
	broken  bool      // its last load failed
}

// A residence is where a model is.
type residence uint8

const (
	cold   residence = iota // not in memory
	coming                  // being loaded
	warm                    // in memory
	going                   // leaving memory
)

// A flight is a load that requests wait for.
type flight struct {
	done    chan struct{} // closed when the load has ended
	err     error         // set before done is closed
	waiting int           // requests that wait; guarded by the lock of onDemand
	held    bool          // it has the memory of its model; guarded by the lock, too
	unload  bool          // the model must leave when the load has ended; guarded by the lock, too
	left    chan struct{} // closed when it has left after that
	ready   time.Time     // when it will probably have ended; zero if that is not known
}

const (
	defaultLoads   = 4
	defaultWaiting = 1000
	defaultQueue   = 64

	// describedFor is how long the description of a model that is not loaded is used without
	// looking at its files again.
	describedFor = time.Second
	// refusedFor is how long a refusal is repeated at most without deciding again: a decision
	// looks at all loaded models, and clients may ask often.
	refusedFor = 50 * time.Millisecond
	// mostPerByte is how much memory a byte on disk takes at most in an estimate.
	mostPerByte = 3
	// openPatience is how long a load waits because others need twice their memory meanwhile.
	openPatience = 5 * time.Second
	// growthEvery is how often models are looked at that may have grown.
	growthEvery = time.Second
	// A model whose load failed is tried again after ten times the time that it took, within
	// these bounds.
	minBroken, maxBroken = time.Second, time.Minute
)

func newOnDemand(r *Repository, opts DemandOptions) *onDemand {
	opts.Loads = cmp.Or(opts.Loads, defaultLoads)
	opts.Waiting = cmp.Or(opts.Waiting, defaultWaiting)
	opts.Queue = cmp.Or(opts.Queue, defaultQueue)
	if opts.Store == nil {
		opts.Store = calibrate.NewStore("", r.opts.Log)
	}
	d := &onDemand{repository: r, opts: opts, models: map[string]*demanded{}, freed: make(chan struct{}), room: opts.Memory}
	d.without = d.resident()
	return d
}

// watch looks every second whether models have grown, and evicts some if all of them no longer fit.
// While models come and go, the loads do that.
func (d *onDemand) watch() {
	for pause.For(d.repository.ctx, growthEvery) == nil {
		resident := d.resident()
		d.mu.Lock()
		var leave []string
		if d.loading == 0 && d.leaving == 0 {
			d.observeLocked(resident, true)
			leave = d.excessLocked()
		}
		d.mu.Unlock()
		d.evict(leave...)
	}
}

// observeLocked compares what is counted for models with what is resident.
func (d *onDemand) observeLocked(resident int64, settled bool) {
	if d.opts.Resident != nil {
		d.growth.Observe(d.held, resident-d.without, settled)
		d.room = evict.Room(d.room, d.growth.Limit(d.opts.Memory, 0), d.opts.Memory)
	}
}

// list sets the names of the models that exist.
func (d *onDemand) list(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
		if d.models[name] == nil {
			d.models[name] = &demanded{}
		}
	}
	for name, m := range d.models {
		if m.state == cold && !there[name] {
			delete(d.models, name)
		}
	}
}

// Available implements [server.Demand].
func (d *onDemand) Available(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.models[name]
	return m != nil && !m.broken
}

// Counted implements [server.Demand].
func (d *onDemand) Counted(name string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.models[name]; m != nil && m.state != cold {
		return m.bytes
	}
	return 0
}

// Await implements [server.Demand].
func (d *onDemand) Await(ctx context.Context, name string, nested bool) error {
	f, err := d.join(ctx, name, nested)
	if err != nil || f == nil {
		return err
	}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		f.waiting--
	}()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join returns the load of a model, which it begins if there is none, and counts the caller
// as waiting for it. It returns nil if the model is loaded. A nested call does not wait for the
// memory of a model that has requests: it may be part of one of them.
func (d *onDemand) join(ctx context.Context, name string, nested bool) (*flight, error) {
	now := time.Now()
	m, err := d.find(now, name)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.models[name] = m // its files may have been gone for a moment
	m.rate.Add(now, 1)
	if m.flight == nil {
		switch {
		case m.state == warm:
			return nil, nil
		case now.Before(m.until):
			d.counts.Refused++
			return nil, m.refusal
		}
		if err := d.beginLocked(now, name, m); err != nil {
			d.counts.Refused++
			return nil, err
		}
	}
	f := m.flight
	if f.unload {
		d.counts.Refused++
		return nil, refuse(name, m.load, beingUnloaded, name)
	}
	if nested && !f.held && d.drainingLocked() && !d.allFitLocked(m) {
		d.counts.Refused++
		return nil, refuse(name, cmp.Or(m.load, time.Second), "model %q is not loaded, because it may need the memory of the model that calls it, which is being unloaded", name)
	}
	if deadline, ok := ctx.Deadline(); ok && f.ready.After(deadline) {
		d.counts.Refused++
		return nil, refuse(name, f.ready.Sub(now), "model %q is being loaded, which takes about %v, longer than the request's deadline allows", name, f.ready.Sub(now).Round(time.Millisecond))
	}
	if f.waiting >= d.opts.Waiting {
		d.counts.Refused++
		return nil, refuse(name, max(f.ready.Sub(now), m.load), "model %q is being loaded, and %d requests wait for it already", name, f.waiting)
	}
	f.waiting++
	d.counts.Waited++
	return f, nil
}

const beingUnloaded = "model %q is being unloaded"

// refuse returns the error of a request whose model is not loaded in time.
func refuse(name string, retry time.Duration, format string, args ...any) *infer.Error {
	err := infer.Errorf(infer.Unavailable, format, args...).WithReason(infer.NotInMemory, name, "")
	err.RetryAfter = max(retry, time.Millisecond)
	return err
}

// refuseBroken returns the error of a request whose model cannot be loaded at all, as far as is known.
func refuseBroken(name string, retry time.Duration, cause error) error {
	err := infer.Errorf(infer.Unavailable, "model %q cannot be loaded: %w", name, cause)
	err.Model, err.RetryAfter = name, retry
	return err
}

// find returns the state of a model. It looks at the files of a model that is not loaded, in
// case they have changed.
func (d *onDemand) find(now time.Time, name string) (*demanded, error) {
	d.mu.Lock()
	m := d.models[name]
	current := m != nil && (m.state != cold || now.Sub(m.described) < describedFor)
	d.mu.Unlock()
	if current {
		return m, nil
	}
	onDisk := d.repository.describe(d.opts.Store, name)
	d.mu.Lock()
	defer d.mu.Unlock()
	m = d.models[name]
	if onDisk.err != nil && infer.CodeOf(onDisk.err) == infer.NotFound {
		if m != nil && m.state == cold {
			delete(d.models, name)
		}
		return nil, onDisk.err
	}
	if onDisk.err != nil {
		if m != nil { // a client may have made the name up
			m.broken = true
		}
		return nil, refuseBroken(name, minBroken, onDisk.err)
	}
	if m == nil {
		m = &demanded{}
		d.models[name] = m
	}
	if m.state == cold && m.files != onDisk.files {
		m.adopt(onDisk)
	}
	m.described = now
	return m, nil
}

// A description is what the files of a model say about it.
type description struct {
	files fingerprint
	id    string               // what its footprint is kept under
	bytes int64                // of the files
	known *calibrate.Footprint // from an earlier load; nil if there is none
	err   error                // why it cannot be loaded
}

// adopt forgets what was learned of a model with other files, and takes what these say.
func (m *demanded) adopt(as description) {
	m.files, m.id, m.onDisk, m.bytes, m.measured, m.load, m.resume = as.files, as.id, as.bytes, as.bytes, false, 0, nil
	m.refusal, m.until, m.broken = nil, time.Time{}, false
	if as.known != nil {
		m.bytes, m.measured, m.load = as.known.Bytes, true, as.known.Load
	}
}

// footprintID returns what a footprint is kept under: it is that of the same files only.
func footprintID(f *candidate) string {
	path, err := filepath.Abs(f.path())
	if err != nil || f.remote != nil {
		path = f.path()
	}
	return fmt.Sprintf("%s %x", path, uint64(f.whole()))
}

// errNotFound is the error of a model that does not exist. The server replaces it.
var errNotFound = infer.Errorf(infer.NotFound, "no such model")

// describe reads the files of a model.
func (r *Repository) describe(store *calibrate.Store, name string) description {
	f, err := r.find(name, false)
	switch {
	case err != nil:
		return description{err: err}
	case f == nil:
		return description{err: errNotFound}
	}
	as := description{files: f.whole(), id: footprintID(f)}
	if known, ok := store.Footprint(as.id); ok {
		as.known = &known
	}
	if f.remote != nil {
		as.bytes = f.remote.newest()
		return as
	}
	if f.file != "" {
		as.bytes = sizeOf(f.path())
		return as
	}
	want, err := newDesired(f, override{})
	if err != nil {
		return description{err: err}
	}
	for n := range want.versions {
		as.bytes += sizeOf(want.dir(n))
	}
	return as
}

// sizeOf returns the size of a file, or of all files below a directory. Files that cannot be
// read do not count: loading reports them.
func sizeOf(root string) (size int64) {
	if link, err := filepath.EvalSymlinks(root); err == nil {
		root = link // the directory of a version may be a link, as in mounted volumes
	}
	_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}

// beginLocked begins to load a model, if there is or can be made room for it.
func (d *onDemand) beginLocked(now time.Time, name string, m *demanded) error {
	if m.state == going {
		return refuse(name, m.load, beingUnloaded, name)
	}
	if d.loading >= d.opts.Queue {
		return d.refuseLocked(now, m, refuse(name, cmp.Or(m.load, time.Second), "model %q is not loaded, and %d other models are being loaded", name, d.loading), refusedFor)
	}
	if !m.measured {
		m.bytes = d.estimateLocked(m.onDisk)
	}
	plan := evict.Decide(now, d.growth.Limit(d.opts.Memory, m.bytes), d.loadedLocked(now), m.asModel(now, name))
	if plan.Reason != evict.Admitted {
		return d.refuseLocked(now, m, d.noRoom(name, m, plan), min(plan.Wait, refusedFor))
	}
	f := &flight{done: make(chan struct{}), left: make(chan struct{})}
	if m.load > 0 {
		f.ready = now.Add(m.load + d.queuedLocked(m.bytes))
	}
	if !d.repository.begin(func() { d.load(name, m, f, plan.Evict) }) {
		return server.ErrClosing
	}
	d.markLocked(plan.Evict)
	m.state, m.flight = coming, f
	d.loading++
	return nil
}

// estimateLocked returns how much memory a model will probably take that was never measured: models
// that are loaded beside others are not. Others have shown how much it is for the size of the files;
// small files of code say nothing about weights, so that this is limited. A model whose
// files fit is not refused for an estimate.
func (d *onDemand) estimateLocked(onDisk int64) int64 {
	if d.known.onDisk == 0 {
		return onDisk
	}
	times := min(max(1, float64(d.known.bytes)/float64(d.known.onDisk)), mostPerByte)
	return max(onDisk, min(int64(times*float64(onDisk)), d.opts.Memory))
}

// markLocked marks models as leaving. The caller evicts them.
func (d *onDemand) markLocked(names []string) {
	for _, name := range names {
		d.models[name].state = going
	}
	d.leaving += len(names)
}

// refuseLocked remembers a refusal.
func (d *onDemand) refuseLocked(now time.Time, m *demanded, err error, repeat time.Duration) error {
	m.refusal, m.until = err, now.Add(repeat)
	return err
}

// noRoom returns the error of a model that cannot be loaded beside those that are.
func (d *onDemand) noRoom(name string, m *demanded, plan evict.Decision) error {
	const limit = "model %q is not loaded: %d MiB that it needs are not free in the %d MiB of --model-memory, because "
	reasons := map[evict.Reason]string{
		evict.InUse:  "model %q is in use",
		evict.Young:  "model %q was loaded only a moment ago",
		evict.Busier: "model %q is asked for more often",
	}
	if plan.Reason == evict.TooLarge {
		return infer.Errorf(infer.Unavailable, "model %q needs %d MiB of memory, and --model-memory allows %d MiB for all models; raise it", name, machine.Mebibytes(m.bytes), d.opts.Memory>>20)
	}
	return refuse(name, plan.Wait, limit+reasons[plan.Reason], name, machine.Mebibytes(m.bytes), d.opts.Memory>>20, plan.Blocker).WithReason(infer.NoMemory, name, "")
}

// queuedLocked returns how long a new load will probably wait for others.
func (d *onDemand) queuedLocked(bytes int64) (wait time.Duration) {
	opening := int64(0)
	for _, m := range d.models {
		if m.state == coming {
			wait += m.load
			opening += m.bytes
		}
	}
	switch {
	case d.loading >= d.opts.Loads:
		return wait / time.Duration(d.opts.Loads)
	case !d.mayOpenLocked(opening, bytes):
		return min(wait, openPatience)
	}
	return 0
}

// loadedLocked returns the models that hold memory, or will, and counts their requests.
func (d *onDemand) loadedLocked(now time.Time) (all []evict.Model) {
	for name, m := range d.models {
		if m.state != warm && m.state != coming {
			continue
		}
		requests, busy := d.repository.requests(name)
		if requests > m.counted {
			m.rate.Add(now, float64(requests-m.counted))
		}
		m.counted = requests
		one := m.asModel(now, name)
		one.InUse = busy || m.state == coming
		all = append(all, one)
	}
	return all
}

// requests returns the number of requests that a model has answered, and whether it has some
// at the moment, if only in a version that was replaced: evicting the model waits for those.
func (r *Repository) requests(name string) (answered uint64, busy bool) {
	busy = r.server.StillClosing(name)
	for _, v := range r.server.Versions(name) {
		answered += v.Stats.Requests()
		busy = busy || v.Scheduler.Busy()
	}
	return answered, busy
}

func (m *demanded) asModel(now time.Time, name string) evict.Model {
	return evict.Model{Name: name, Bytes: m.bytes, Reload: m.load, Rate: m.rate.PerSecond(now), Loaded: m.loaded}
}

// load evicts models and loads another one.
func (d *onDemand) load(name string, m *demanded, f *flight, leave []string) {
	d.evict(leave...)
	bytes := m.bytes // it does not change while the model is coming
	d.hold(f, bytes)
	change, before := d.beginChange(), d.resident()
	began := time.Now()
	err := d.open(name, f)
	resident := d.resident()
	more, alone := resident-before, d.endChange(change)
	d.mu.Lock()
	d.loading--
	m.flight = nil
	d.opening -= bytes
	unload := err == nil && f.unload
	switch {
	case err != nil:
		f.err = d.failedLocked(name, m, time.Since(began), err)
	case unload: // it goes without having been warm: the unload may have closed its version already
		f.err = unloadedMeanwhile(name)
		d.loadedNowLocked(m)
		d.markLocked([]string{name})
		bytes -= m.bytes
	default:
		d.loadedNowLocked(m)
		d.openedLocked(name, m)
		if alone && d.opts.Resident != nil {
			d.measuredLocked(m, more)
		}
		bytes -= m.bytes
	}
	d.releaseLocked(bytes)
	d.observeLocked(resident, alone && !unload)
	leave = d.excessLocked()
	id, footprint, known := m.id, calibrate.Footprint{Bytes: m.bytes, Load: m.load}, err == nil && !unload && m.measured
	d.mu.Unlock()
	close(f.done)
	if unload {
		d.evict(name)
	}
	close(f.left)
	if known {
		d.opts.Store.PutFootprint(id, footprint)
	}
	d.evict(leave...)
}

// open loads a model that has its memory, unless it was unloaded while it waited for that.
func (d *onDemand) open(name string, f *flight) error {
	d.mu.Lock()
	unload := f.unload
	d.mu.Unlock()
	if unload {
		return unloadedMeanwhile(name)
	}
	return d.repository.change(name, override{}, false)
}

// unloadedMeanwhile returns the error of requests that waited for a model that a client unloaded.
func unloadedMeanwhile(name string) error {
	return refuse(name, 0, "model %q cannot be loaded: %w", name, server.ErrUnloaded)
}

// measuredLocked records what a load took. Memory that was free before does not count, so it may be
// too little, and a smaller figure counts less than a larger one; memory of others that grew
// meanwhile does, so it may be too much, and a model that was loaded fits.
func (d *onDemand) measuredLocked(m *demanded, took int64) {
	took = max(m.onDisk, min(took, d.opts.Memory))
	if m.measured {
		m.bytes = max(took, m.bytes-(m.bytes-took)/4)
		return
	}
	m.bytes, m.measured = took, true
	d.known.onDisk += m.onDisk
	d.known.bytes += m.bytes
}

// failedLocked records that a load failed, and returns the error for the requests that waited.
func (d *onDemand) failedLocked(name string, m *demanded, took time.Duration, err error) error {
	m.state = cold
	switch {
	case errors.Is(err, server.ErrUnloaded):
		return unloadedMeanwhile(name)
	case errors.Is(err, servable.ErrUnloading):
		return err
	}
	d.counts.FailedLoads++
	wait := min(max(10*took, minBroken), maxBroken)
	m.broken = true
	return d.refuseLocked(time.Now(), m, refuseBroken(name, wait, err), wait)
}

// loadedNowLocked records that a model is loaded.
func (d *onDemand) loadedNowLocked(m *demanded) {
	d.counts.Loads++
	m.state, m.broken, m.refusal = warm, false, nil
}

// openedLocked notes when versions of a model were opened, and how long that took.
func (d *onDemand) openedLocked(name string, m *demanded) {
	m.loaded, m.load = time.Now(), 0
	m.counted, _ = d.repository.requests(name)
	for _, v := range d.repository.server.Versions(name) {
		m.load += v.LoadTime
	}
}

// largestLocked returns the bytes of the largest model that is in memory or being loaded. As it may
// come if it fits by itself, it may stay.
func (d *onDemand) largestLocked() (bytes int64) {
	for _, m := range d.models {
		if m.state == warm || m.state == coming {
			bytes = max(bytes, m.bytes)
		}
	}
	return bytes
}

// excessLocked returns models that leave because others turned out to be larger than
// expected, or have grown, and marks them. The caller evicts them.
func (d *onDemand) excessLocked() []string {
	limit := d.growth.Limit(d.opts.Memory, d.largestLocked())
	if d.held <= limit || d.leaving > 0 {
		return nil
	}
	now := time.Now()
	leave := evict.Excess(now, limit, d.loadedLocked(now))
	d.markLocked(leave)
	return leave
}

func (d *onDemand) resident() int64 {
	if d.opts.Resident == nil {
		return 0
	}
	return d.opts.Resident()
}

// beginChange counts the begin of a load.
func (d *onDemand) beginChange() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes++
	return d.changes
}

// endChange counts the end of a load, and reports whether no other change happened during it.
func (d *onDemand) endChange(began uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	alone := d.changes == began && d.loading == 1 && d.leaving == 0
	d.changes++
	return alone
}

// drainingLocked reports whether a model that leaves memory still has requests.
func (d *onDemand) drainingLocked() bool {
	if d.leaving == 0 {
		return false
	}
	for name, m := range d.models {
		if m.state == going && d.repository.server.Busy(name) {
			return true
		}
	}
	return false
}

// allFitLocked reports whether a model that is to be loaded has room beside all others, those that
// leave included.
func (d *onDemand) allFitLocked(newcomer *demanded) bool {
	bytes := int64(0)
	for _, m := range d.models {
		if m.state != cold {
			bytes += m.bytes
		}
	}
	return bytes <= d.growth.Limit(d.opts.Memory, newcomer.bytes)
}

// evict takes models that were marked as leaving out of memory: all out of service first, because a
// request of one that still serves while another one closes may call the model for which both leave.
func (d *onDemand) evict(names ...string) {
	for _, name := range names {
		d.withdraw(name)
	}
	for _, name := range names {
		d.awaitClosed(name)
	}
}

// withdraw takes a model out of service that was marked as leaving.
func (d *onDemand) withdraw(name string) {
	resume := map[int64]*servable.Resume{}
	for _, v := range d.repository.server.Versions(name) {
		resume[v.Number()] = v.Resume()
	}
	d.repository.server.Unload(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(resume) > 0 { // an unload that met the end of a load has taken the versions away
		d.models[name].resume = resume
	}
}

// awaitClosed waits until a model that was withdrawn is closed, and gives its memory back.
func (d *onDemand) awaitClosed(name string) {
	d.repository.server.Evict(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.models[name]
	m.state = cold
	d.changes++
	d.leaving--
	d.counts.Evictions++
	d.releaseLocked(m.bytes)
}

// unload takes a model out of service because a client wants it, or its files are gone. The caller
// calls wait, which returns when its memory is free, and waits for requests of models if blocking: for
// those of this one, or for the memory of others. A load that is under way evicts the model when it
// ends: if unload did that after the load, requests would find a model that counts as loaded and whose
// version is closed, or load it beside one that still closes.
func (d *onDemand) unload(name string) (wait func(), blocking bool) {
	d.mu.Lock()
	m := d.models[name]
	if m != nil && m.state == warm {
		d.markLocked([]string{name})
		d.mu.Unlock()
		d.withdraw(name)
		return func() { d.awaitClosed(name) }, d.repository.server.Busy(name)
	}
	var under *flight
	if m != nil && m.flight != nil {
		under = m.flight
		under.unload = true
	}
	d.mu.Unlock()
	d.repository.server.Unload(name) // it cancels the load, unless that waits for memory or is over
	return func() {
		d.repository.server.AwaitClosed(name)
		if under == nil {
			return
		}
		select {
		case <-under.left:
		case <-d.repository.closing:
		}
	}, under != nil || d.repository.server.Busy(name)
}

// reloaded records that a model that is in memory was loaded again, probably with other files. d
// may be nil.
func (d *onDemand) reloaded(name string) {
	if d == nil {
		return // models are not counted
	}
	if d.evictUncounted(name) {
		return
	}
	as := d.repository.describe(d.opts.Store, name)
	d.mu.Lock()
	m := d.models[name]
	if as.err != nil || m == nil || m.state != warm || m.files == as.files {
		d.mu.Unlock()
		return
	}
	before := m.bytes
	m.adopt(as)
	if !m.measured {
		m.bytes = d.estimateLocked(m.onDisk)
	}
	d.openedLocked(name, m)
	d.changes++
	d.releaseLocked(before - m.bytes)
	leave := d.excessLocked()
	d.mu.Unlock()
	d.evict(leave...)
}

// evictUncounted takes a model out of memory that left it just before it was loaded again, and
// reports whether it did: the model serves, so that no request would count it and load it.
func (d *onDemand) evictUncounted(name string) bool {
	d.mu.Lock()
	for d.models[name] != nil && d.models[name].state == going {
		freed := d.freed
		d.mu.Unlock()
		select {
		case <-freed:
		case <-d.repository.closing:
			return true
		}
		d.mu.Lock()
	}
	m := d.models[name]
	if m != nil && m.state != cold || len(d.repository.server.Versions(name)) == 0 {
		d.mu.Unlock()
		return false
	}
	if m == nil {
		m = &demanded{}
		d.models[name] = m
	}
	d.held += m.bytes // until it has left
	d.markLocked([]string{name})
	d.mu.Unlock()
	d.evict(name)
	return true
}

// resumeOf returns what is known of the versions of a model from when it was loaded before.
func (d *onDemand) resumeOf(name string) map[int64]*servable.Resume {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.models[name]; m != nil {
		return m.resume
	}
	return nil
}

// warmModels returns the names of the models in memory. d may be nil, and has none then.
func (d *onDemand) warmModels() map[string]bool {
	names := map[string]bool{}
	if d == nil {
		return names
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, m := range d.models {
		names[name] = m.state == warm
	}
	return names
}

// hold waits until there is memory for a model, and takes it. It does not wait if no model
// is leaving: then another one needs more than was expected when both were admitted, and
// excessLocked decides. For the memory that other loads need meanwhile it waits a limited time: they
// may be those of models that call this one, and small models may always come first.
func (d *onDemand) hold(f *flight, bytes int64) {
	tooLong := time.NewTimer(openPatience)
	defer tooLong.Stop()
	patient := true
	for {
		d.mu.Lock()
		if (d.held+bytes <= d.growth.Limit(d.opts.Memory, bytes) || d.leaving == 0) && (!patient || d.mayOpenLocked(d.opening, bytes)) {
			d.held += bytes
			d.opening += bytes
			f.held = true
			d.mu.Unlock()
			return
		}
		freed := d.freed
		d.mu.Unlock()
		select {
		case <-freed:
		case <-tooLong.C:
			patient = false
		case <-d.repository.closing:
			return // the load will be refused
		}
	}
}

// mayOpenLocked reports whether a model may be loaded beside others that are being loaded.
func (d *onDemand) mayOpenLocked(opening, bytes int64) bool {
	limit := d.growth.Limit(d.opts.Memory, bytes)
	return evict.MayOpen(limit-d.held, limit, opening, bytes)
}

// releaseLocked gives memory back.
func (d *onDemand) releaseLocked(bytes int64) {
	d.held -= bytes
	close(d.freed)
	d.freed = make(chan struct{})
}

// DemandCounts returns the counters of mode Demand; ok is false in other modes.
func (r *Repository) DemandCounts() (c DemandCounts, ok bool) {
	if r.demand == nil {
		return c, false
	}
	return r.demand.count(), true
}

func (d *onDemand) count() DemandCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts
	c.Models, c.Memory, c.Held = len(d.models), d.opts.Memory, d.held
	c.Room = max(d.room, min(d.opts.Memory, d.largestLocked()))
	for _, m := range d.models {
		if m.state == warm {
			c.Loaded++
		}
	}
	return c
}
