package client

import (
	"context"
	"encoding/json"
	"time"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// Live reports whether the server runs. It is an error if the server cannot be reached.
func (c *Client) Live(ctx context.Context) (bool, error) { return c.transport.live(ctx) }

// Ready reports whether the server takes requests. It is an error if the server cannot be
// reached.
func (c *Client) Ready(ctx context.Context) (bool, error) { return c.transport.ready(ctx) }

// ModelReady reports whether a version of a model takes requests. Version is empty for
// the one that the server chooses. Of a model that does not exist some servers say that
// it is not ready, and others return [NotFound].
func (c *Client) ModelReady(ctx context.Context, model, version string) (bool, error) {
	if err := checkModel(model); err != nil {
		return false, err
	}
	return c.transport.modelReady(ctx, model, version)
}

// ServerMetadata is what a server says of itself.
type ServerMetadata struct {
	Name       string
	Version    string
	Extensions []string // the parts of the protocol beyond its core that the server has
}

// ServerMetadata returns what the server says of itself.
func (c *Client) ServerMetadata(ctx context.Context) (*ServerMetadata, error) {
	m, err := retried(ctx, c, false, func() (*kservepb.ServerMetadataResponse, error) { return c.transport.serverMetadata(ctx) })
	if err != nil {
		return nil, err
	}
	return &ServerMetadata{Name: m.GetName(), Version: m.GetVersion(), Extensions: m.GetExtensions()}, nil
}

// Metadata is what a server says of a model.
type Metadata struct {
	Name     string
	Versions []string
	Platform string
	Inputs   []TensorMetadata
	Outputs  []TensorMetadata
}

// TensorMetadata describes an input or an output of a model.
type TensorMetadata struct {
	Name  string
	Type  tensor.Type // [tensor.Invalid] if this package does not know the type
	Shape []int64     // with the batch dimension; -1 stands for any size
}

// Metadata returns the inputs and outputs of a model. Version is empty for the one that
// the server chooses.
func (c *Client) Metadata(ctx context.Context, model, version string) (*Metadata, error) {
	if err := checkModel(model); err != nil {
		return nil, err
	}
	m, err := retried(ctx, c, false, func() (*kservepb.ModelMetadataResponse, error) { return c.transport.metadata(ctx, model, version) })
	if err != nil {
		return nil, err
	}
	return &Metadata{
		Name: m.GetName(), Versions: m.GetVersions(), Platform: m.GetPlatform(),
		Inputs: tensorsOf(m.GetInputs()), Outputs: tensorsOf(m.GetOutputs()),
	}, nil
}

func tensorsOf(described []*kservepb.ModelMetadataResponse_TensorMetadata) []TensorMetadata {
	tensors := make([]TensorMetadata, len(described))
	for i, d := range described {
		t, _ := tensor.ParseType(d.GetDatatype())
		tensors[i] = TensorMetadata{Name: d.GetName(), Type: t, Shape: d.GetShape()}
	}
	return tensors
}

// Config returns the configuration of a model as JSON, with the field names of Triton's
// model_config.proto. Version is empty for the one that the server chooses.
func (c *Client) Config(ctx context.Context, model, version string) (json.RawMessage, error) {
	if err := checkModel(model); err != nil {
		return nil, err
	}
	return retried(ctx, c, false, func() (json.RawMessage, error) { return c.transport.config(ctx, model, version) })
}

// Explain returns what the server has measured of a model, and why it batches the model
// as it does, as JSON. It needs a Shoal server and HTTP: over gRPC it fails with
// [Unsupported], and other servers answer with [NotFound].
func (c *Client) Explain(ctx context.Context, model, version string) (json.RawMessage, error) {
	if err := checkModel(model); err != nil {
		return nil, err
	}
	return retried(ctx, c, false, func() (json.RawMessage, error) { return c.transport.explain(ctx, model, version) })
}

// Statistics are what one version of a model has done since it was loaded.
type Statistics struct {
	Model         string
	Version       string
	LastInference time.Time // zero if there was none
	Inferences    uint64    // rows
	Executions    uint64    // batches

	Success       Total // requests, from arrival to response
	Fail          Total
	Queue         Total
	ComputeInput  Total
	ComputeInfer  Total
	ComputeOutput Total

	CacheHit  Total // responses from the response cache
	CacheMiss Total // responses that it did not have

	Batches []BatchStatistics // one for each size that ran

	// Closed counts batches by why they were not made larger. Only Shoal has it.
	Closed map[string]uint64
}

// BatchStatistics are those of all batches of one size.
type BatchStatistics struct {
	Size          uint64 // rows
	ComputeInput  Total
	ComputeInfer  Total
	ComputeOutput Total
}

// A Total is how often something happened, and how long that took in all.
type Total struct {
	Count uint64
	Time  time.Duration
}

// Mean returns the time of one, and 0 if there was none.
func (t Total) Mean() time.Duration {
	if t.Count == 0 {
		return 0
	}
	return time.Duration(uint64(t.Time) / t.Count)
}

// Statistics returns the statistics of a model, one element for each version. Model is
// empty for all models, and version for all versions.
func (c *Client) Statistics(ctx context.Context, model, version string) ([]Statistics, error) {
	r, err := retried(ctx, c, false, func() (*kservepb.ModelStatisticsResponse, error) { return c.transport.statistics(ctx, model, version) })
	if err != nil {
		return nil, err
	}
	all := make([]Statistics, len(r.GetModelStats()))
	for i, s := range r.GetModelStats() {
		all[i] = statisticsOf(s)
	}
	return all, nil
}

func statisticsOf(s *kservepb.ModelStatistics) Statistics {
	in := s.GetInferenceStats()
	stats := Statistics{
		Model: s.GetName(), Version: s.GetVersion(), Inferences: s.GetInferenceCount(), Executions: s.GetExecutionCount(),
		Success: totalOf(in.GetSuccess()), Fail: totalOf(in.GetFail()), Queue: totalOf(in.GetQueue()),
		ComputeInput: totalOf(in.GetComputeInput()), ComputeInfer: totalOf(in.GetComputeInfer()), ComputeOutput: totalOf(in.GetComputeOutput()),
		CacheHit: totalOf(in.GetCacheHit()), CacheMiss: totalOf(in.GetCacheMiss()),
		Closed: s.GetCloseStats(),
	}
	if ms := s.GetLastInference(); ms > 0 {
		stats.LastInference = time.UnixMilli(int64(ms))
	}
	for _, b := range s.GetBatchStats() {
		stats.Batches = append(stats.Batches, BatchStatistics{
			Size: b.GetBatchSize(), ComputeInput: totalOf(b.GetComputeInput()), ComputeInfer: totalOf(b.GetComputeInfer()), ComputeOutput: totalOf(b.GetComputeOutput()),
		})
	}
	return stats
}

func totalOf(d *kservepb.StatisticDuration) Total {
	return Total{Count: d.GetCount(), Time: time.Duration(d.GetNs())}
}

// An IndexEntry is a version of a model in the repository of a server.
type IndexEntry struct {
	Model   string
	Version string // empty if the model was never loaded
	State   string // such as "READY", "LOADING" or "UNAVAILABLE"; empty if the model was never loaded
	Reason  string // why it is in that state
}

// Index returns the models in the repository of the server, loaded or not.
func (c *Client) Index(ctx context.Context) ([]IndexEntry, error) {
	r, err := retried(ctx, c, false, func() (*kservepb.RepositoryIndexResponse, error) { return c.transport.index(ctx) })
	if err != nil {
		return nil, err
	}
	entries := make([]IndexEntry, len(r.GetModels()))
	for i, m := range r.GetModels() {
		entries[i] = IndexEntry{Model: m.GetName(), Version: m.GetVersion(), State: m.GetState(), Reason: m.GetReason()}
	}
	return entries, nil
}

// LoadOptions say what to load a model with, instead of what is in the repository.
type LoadOptions struct {
	// Config is a configuration as JSON. Empty means the one in the repository.
	Config string

	// Files are files by their paths, such as "1/model.onnx". Config must be set, too.
	Files map[string][]byte
}

// Load loads a model, or loads it again if its files have changed, and returns when it is
// ready. The server must allow that, with --model-control-mode=explicit, or Shoal with demand.
func (c *Client) Load(ctx context.Context, model string, opts LoadOptions) error {
	if err := checkModel(model); err != nil {
		return err
	}
	_, err := retried(ctx, c, true, func() (struct{}, error) { return struct{}{}, c.transport.load(ctx, model, opts) })
	return err
}

// Unload unloads all versions of a model. The server must allow that, with
// --model-control-mode=explicit, or Shoal with demand.
func (c *Client) Unload(ctx context.Context, model string) error {
	if err := checkModel(model); err != nil {
		return err
	}
	_, err := retried(ctx, c, true, func() (struct{}, error) { return struct{}{}, c.transport.unload(ctx, model) })
	return err
}

func checkModel(model string) error {
	if model == "" {
		return invalid("the name of the model is empty")
	}
	return nil
}
