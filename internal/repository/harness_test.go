package repository

import (
	"context"
	"log/slog"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
)

// A setup is the options of a repository and of what loads its models.
type setup struct {
	Paths     []string
	Buckets   []*bucket.Bucket
	Cache     *bucket.Cache
	Mode      Mode
	Models    []string
	Demand    DemandOptions
	Poll      time.Duration
	FileConf  string
	NoCode    bool // clients cannot send code
	Loads     int
	Retries   int
	Timeout   time.Duration
	Queue     batching.Bound
	Lenient   bool
	Strict    bool
	Automatic bool
	Store     *calibrate.Store
	CPU       string
	Runners   map[string]servable.Runner
	Cores     int
	EpochFile string
	Memory    func() machine.Memory
	Waited    func() time.Duration
	Pacer     *pacer.Pacer
	Log       *slog.Logger
}

// running is a repository with the server that has its models.
type running struct {
	*server.Server
	source *Repository
	closed bool
}

func (o setup) open() *running {
	env := servable.NewEnv(servable.Options{
		Retries: o.Retries, Timeout: o.Timeout, Queue: o.Queue, Strict: o.Strict, Automatic: o.Automatic, Store: o.Store, CPU: o.CPU,
		Runners: o.Runners, Cores: o.Cores, Memory: o.Memory, Waited: o.Waited, Pacer: o.Pacer, Log: o.Log,
	})
	s := server.New(env, server.Options{Loads: o.Loads, Lenient: o.Lenient, Log: o.Log})
	return &running{Server: s, source: New(s, Options{Paths: o.Paths, Buckets: o.Buckets, Cache: o.Cache, Mode: o.Mode, Models: o.Models, Demand: o.Demand, Poll: o.Poll, FileConfig: o.FileConf, ClientCode: !o.NoCode, EpochFile: o.EpochFile, Log: o.Log})}
}

func (r *running) Start(ctx context.Context) error {
	defer r.MarkStarted()
	return r.source.Start(ctx)
}

func (r *running) Load(ctx context.Context, name string, with override) error {
	return r.source.Load(ctx, name, catalog.LoadOptions(with))
}

func (r *running) Unload(name string) error {
	return r.source.Unload(context.Background(), name, catalog.UnloadOptions{})
}

// unloadA unloads the model a, and waits until its memory is free.
func (r *running) unloadA() {
	wait, _ := r.source.unload("a")
	wait()
}

func (r *running) Index(ready bool) []catalog.IndexEntry {
	return r.source.Index(context.Background(), ready)
}

// Close closes the repository and the server, if a test has not done so.
func (r *running) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	r.source.Close()
	err := r.Server.Close()
	r.source.Wait()
	return err
}

// Clients load and unload through it.
var _ kserve.Control = (*Repository)(nil)
