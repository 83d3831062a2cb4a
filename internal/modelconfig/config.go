// Package modelconfig parses a model's config.pbtxt, completes it with the description of
// the model, and validates requests against it.
//
// It does no I/O: the caller reads the file, checks that the name is that of the model's
// directory, lists the versions, and describes the model. It starts no goroutines and does
// not read the clock.
package modelconfig

import (
	"time"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// A Config is the configuration of a model: its inputs and outputs, and how its requests
// are queued and combined. It must not be modified once requests are checked against it.
type Config struct {
	Name    string // "" if the file does not set it
	Backend string // "" if the file does not set it

	// MaxBatchSize is the maximum number of rows of a batch. If it is greater than 0, every
	// input and output has a batch dimension before its Dims; 0 means that the model has none.
	MaxBatchSize int
	// ModelSetsBatchSize is whether MaxBatchSize comes from the model's code, not from the file.
	ModelSetsBatchSize bool

	Inputs  []Tensor
	Outputs []Tensor

	// Padding says how requests of different lengths share a batch; nil if they do not. Complete
	// sets it to what the file or the model's inputs suggest. Who serves the model checks
	// whether the model bears it, and sets it to nil if not.
	Padding *Padding

	BatchInputs  []BatchInput // follow Inputs
	BatchOutputs []BatchOutput

	Instances     int               // number of concurrent batches; 0 if the file does not set it and none has been chosen
	Parameters    map[string]string // for the engine
	Objective     time.Duration     // latency objective of a request; 0 means none
	VersionPolicy VersionPolicy
	Dynamic       *Dynamic // nil if requests are never combined

	// Automatic makes the server measure what the file omits, where Triton has a default. It
	// must be set before Complete.
	Automatic bool
	// DefaultMaxBatch is the max_batch_size of a model whose file leaves it to the model. 0
	// means [DefaultMaxBatch], or AutomaticMaxBatch. It must be set before Complete.
	DefaultMaxBatch int
	// CombineUnsafeReason is why requests must not share a batch although the model has a
	// batch dimension; "" if they may. It must be set before Complete.
	CombineUnsafeReason string

	Warmup []Sample // run on each instance before it serves requests

	Steps []Step // of an ensemble, each after those that make its inputs; nil if it is none

	Sequence *Sequence // nil if requests do not belong to sequences

	Decoupled bool // the model may send any number of responses to a request

	CacheResponses bool // equal requests get the same response, if the server has a cache

	// Proto is the file as written, for what the other fields do not show: whether a 0 was
	// written or omitted.
	Proto *configpb.ModelConfig

	file string // name of the file in errors; "" if there is none
	root *node  // fields of the file with their positions; nil if there is none
}

// A Tensor is an input or an output of a model. A dimension of -1 may have any size.
type Tensor struct {
	Name string
	Type tensor.Type
	Dims []int64 // as clients see it

	// Reshape is the shape that the model uses in place of Dims. Nil means Dims; an empty one
	// means one element per row.
	Reshape []int64

	Ragged   bool // requests of different sizes may share a batch; see [Ragged]
	Optional bool // requests may omit the input
}

// A VersionPolicy says which versions of a model are served. Exactly one of its fields is
// set.
type VersionPolicy struct {
	Latest   int // number of versions, those with the highest numbers
	All      bool
	Specific []int64
}

// Dynamic configures how requests are combined into batches.
type Dynamic struct {
	Preferred        []int          // sizes in rows at which a batch runs immediately, in the order of the file
	MaxDelay         *time.Duration // how long the oldest request may be queued for others to join; nil if the file does not set it
	Added            bool           // the file does not contain it, but leaves batching to the model
	PreserveOrdering bool           // responses are sent in the order of the requests

	Levels       int // number of priority levels, of which 1 is the highest; 0 means none
	DefaultLevel int // of requests without a priority
	Default      QueuePolicy
	PerLevel     map[int]QueuePolicy // for levels that differ from Default
}

// A QueuePolicy configures requests in the queue. The zero QueuePolicy sets no limits.
type QueuePolicy struct {
	Written       bool          // the file contains it, even if it is empty
	Action        Action        // applied to requests that have waited for Timeout
	Timeout       time.Duration // 0 means no timeout
	AllowOverride bool          // a request may set a shorter timeout
	MaxSize       *int          // maximum number of requests in the queue, 0 for no limit; nil if the file does not set it
}

// An Action is applied to a request whose timeout in the queue has expired.
type Action uint8

// Reject fails the request, and Delay moves it behind those whose timeout has not expired.
const (
	Reject Action = iota
	Delay
)

// A Sample is a request that warms up a model.
type Sample struct {
	Name   string
	Rows   int // of each input, if the model has a batch dimension
	Count  int // how often it is run
	Inputs []SampleInput
}

// A SampleInput is an input of a sample. Its data is read from File, random, or zero.
type SampleInput struct {
	Tensor
	File   string // in the model's warmup directory
	Random bool
}
