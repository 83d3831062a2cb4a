// Package kservetest is a server without models, for tests of protocol frontends: it
// answers a request with its own inputs as outputs.
package kservetest

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Recorded are models of the server whose responses are recorded in the testdata of the
// protocol packages.
var Recorded = []string{
	`name: "failing" max_batch_size: 8 backend: "python"
	 input { name: "INPUT" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT" data_type: TYPE_FP32 dims: 4 }`,
	`name: "identity" max_batch_size: 64 backend: "python" dynamic_batching { } instance_group { }
	 input { name: "INPUT" data_type: TYPE_FP32 dims: 16 } output { name: "OUTPUT" data_type: TYPE_FP32 dims: 16 }`,
	`name: "two" max_batch_size: 4 backend: "python" instance_group { }
	 input { name: "INa" data_type: TYPE_INT32 dims: 2 } input { name: "INb" data_type: TYPE_STRING dims: 1 }
	 output { name: "OUTa" data_type: TYPE_INT32 dims: 2 label_filename: "labels.txt" } output { name: "OUTb" data_type: TYPE_STRING dims: 1 }`,
	`name: "repeat" backend: "python"
	 input { name: "COUNT" data_type: TYPE_INT32 dims: 1 } output { name: "INDEX" data_type: TYPE_INT32 dims: 1 }`,
	`name: "d" backend: "python"
	 input { name: "SCRIPT" data_type: TYPE_STRING dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: -1 }`,
	`name: "alltypes" backend: "python"`,
	`name: "strings" backend: "python"
	 input { name: "IN_STRING" data_type: TYPE_STRING dims: -1 } output { name: "OUT_STRING" data_type: TYPE_STRING dims: -1 }`,
}

// A Server has one version, 1, of each of its models.
type Server struct {
	// NotReady makes the server report that it is not ready.
	NotReady atomic.Bool
	// ReadyCalls counts how often it was asked.
	ReadyCalls atomic.Int64

	// Unloaded are models that no longer have a version.
	Unloaded []string

	// Before, if not nil, is called before a request is answered, in the role of the instance
	// that runs it. It may wait, panic, or return the error to answer with.
	Before func(ctx context.Context, req *infer.Request) error

	// Stream, if not nil, answers requests to decoupled models. If it returns nil, the model is
	// not decoupled.
	Stream func(req *infer.Request) infer.ResponseStream

	// Entries are the repository index, and Stats the statistics. Their models need not be
	// those of the server.
	Entries []catalog.IndexEntry
	Stats   []catalog.Statistics

	// Loading and Unloading, if not nil, are called for requests to load or unload a model.
	// The server does nothing else, and returns their error.
	Loading   func(model string, opts catalog.LoadOptions) error
	Unloading func(model string, opts catalog.UnloadOptions) error

	// Stop, if not nil, is closed when the server begins to stop.
	Stop chan struct{}

	// Log are the log settings that the server reports.
	Log kserve.LogSettings

	models map[string]*modelconfig.Config
}

// New returns a server for models with the given configurations. A model whose
// configuration has no inputs accepts any.
func New(t testing.TB, configs ...string) *Server {
	t.Helper()
	s := &Server{
		models: map[string]*modelconfig.Config{},
		Log:    kserve.LogSettings{Info: true, Warning: true, Error: true, Format: "default"},
	}
	for _, text := range configs {
		c, err := modelconfig.Parse("config.pbtxt", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		s.models[c.Name] = c
	}
	return s
}

// Infer checks req, and answers it with its inputs. The name of an output is that of the
// input with OUT in place of IN: INPUT becomes OUTPUT.
func (s *Server) Infer(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	resp.Times = infer.Timeline{}
	c, err := s.find(req.Model, req.Version)
	if err != nil {
		return err
	}
	if len(c.Inputs) > 0 {
		if err := c.Check(req); err != nil {
			return err
		}
	}
	resp.Times.Taken = time.Now()
	if s.Before != nil {
		if err := s.Before(ctx, req); err != nil {
			return err
		}
	}
	resp.Model, resp.Version = req.Model, "1"
	resp.Stream = nil
	if s.Stream != nil {
		resp.Stream = s.Stream(req)
	}
	switch {
	case resp.Stream != nil && !req.AcceptStream:
		resp.Stream = nil
		return infer.Errorf(infer.Unsupported, "%w", infer.ErrDecoupled)
	case resp.Stream != nil:
		return nil
	}
	echo(req, resp)
	if req.Convert == nil {
		return nil
	}
	return req.Convert(resp, c.MaxBatchSize > 0, labels)
}

// labels are those in the recorded server's labels.txt.
var labels = map[string][]string{"OUTa": {"zero", "one"}}

// echo copies the inputs, so that tests detect a protocol that uses a response after
// releasing it, or never releases it.
func echo(req *infer.Request, resp *infer.Response) {
	resp.Memory = buf.Get(int(infer.DataSize(req.Inputs)))
	resp.Shapes = resp.Shapes[:0]
	free := resp.Memory.B
	for _, in := range req.Inputs {
		name := "OUT" + strings.TrimPrefix(in.Name, "IN")
		if len(req.Outputs) > 0 && !slices.Contains(req.Outputs, name) {
			continue
		}
		n := copy(free, in.Data)
		first := len(resp.Shapes)
		resp.Shapes = append(resp.Shapes, in.Shape...)
		resp.Outputs = append(resp.Outputs, tensor.Tensor{
			Name: name, Type: in.Type, Shape: resp.Shapes[first:len(resp.Shapes):len(resp.Shapes)], Data: free[:n:n],
		})
		free = free[n:]
	}
}

// Authorize is part of [kserve.Authorizer]. Everyone may do everything.
func (s *Server) Authorize(context.Context, access.Action, string) error { return nil }

// Change is part of [kserve.Authorizer].
func (s *Server) Change(_ context.Context, _ access.Change, do func() error) error { return do() }

// Ready is part of [kserve.Catalog].
func (s *Server) Ready() bool {
	s.ReadyCalls.Add(1)
	return !s.NotReady.Load()
}

// Accepting is part of [kserve.Catalog].
func (s *Server) Accepting() bool { return s.Ready() }

// Stopping is part of [kserve.Stopper].
func (s *Server) Stopping() <-chan struct{} { return s.Stop }

// ModelReady is part of [kserve.Catalog].
func (s *Server) ModelReady(model, version string) bool {
	_, err := s.find(model, version)
	return err == nil
}

// Model is part of [kserve.Catalog].
func (s *Server) Model(_ context.Context, model, version string) (*catalog.Metadata, error) {
	c, err := s.find(model, version)
	if err != nil {
		return nil, err
	}
	return catalog.Describe(c, "1"), nil
}

// Config is part of [kserve.Catalog].
func (s *Server) Config(_ context.Context, model, version string) (*modelconfig.Config, error) {
	return s.find(model, version)
}

// Statistics is part of [kserve.Catalog].
func (s *Server) Statistics(_ context.Context, model, version string) ([]catalog.Statistics, error) {
	return slices.DeleteFunc(slices.Clone(s.Stats), func(c catalog.Statistics) bool {
		return model != "" && model != c.Model || version != "" && version != c.Version
	}), nil
}

// Explain is part of [kserve.Explainer]. It returns little more than the name.
func (s *Server) Explain(_ context.Context, model, version string) (*explain.Model, error) {
	c, err := s.find(model, version)
	if err != nil {
		return nil, err
	}
	m := &explain.Model{Name: c.Name, Version: "1", Backend: c.Backend}
	m.Batching.MaxRows, m.Batching.Safety.Verdict, m.Instances.Count = c.MaxBatchSize, explain.NotChecked, 1
	return m, nil
}

// ChangeLog is part of [kserve.Logging].
func (s *Server) ChangeLog(c kserve.LogChange) (_ kserve.LogSettings, err error) {
	s.Log, err = s.Log.With(c)
	return s.Log, err
}

// Index is part of [kserve.Control].
func (s *Server) Index(_ context.Context, ready bool) []catalog.IndexEntry {
	return slices.DeleteFunc(slices.Clone(s.Entries), func(e catalog.IndexEntry) bool { return ready && e.State != "READY" })
}

// Load is part of [kserve.Control].
func (s *Server) Load(_ context.Context, model string, opts catalog.LoadOptions) error {
	if s.Loading == nil {
		return nil
	}
	return s.Loading(model, opts)
}

// Unload is part of [kserve.Control].
func (s *Server) Unload(_ context.Context, model string, opts catalog.UnloadOptions) error {
	if s.Unloading == nil {
		return nil
	}
	return s.Unloading(model, opts)
}

func (s *Server) find(model, version string) (*modelconfig.Config, error) {
	c, ok := s.models[model]
	missing := infer.Errorf(infer.NotFound, "not found")
	switch {
	case slices.Contains(s.Unloaded, model):
		return nil, missing.WithReason(infer.NoVersionServes, model, version)
	case !ok:
		return nil, missing.WithReason(infer.UnknownModel, model, version)
	case version != "" && version != "1":
		return nil, missing.WithReason(infer.UnknownVersion, model, version)
	}
	return c, nil
}
