// Package modelconfig reads what is written about a model in its config.pbtxt,
// completes it with what the model says of itself, and checks requests against
// it.
//
// It is given both and looks for nothing. Whether the name is that of the
// model's directory, which versions there are and what the model's own file says
// is for others to find out. It starts no goroutine and reads no clock.
package modelconfig

import (
	"time"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// A Config says what a model takes and gives, and how its requests are queued
// and combined. It is not changed once requests are checked against it.
type Config struct {
	Name    string // "" means that the file does not say
	Backend string // what runs the model; "" means that the file does not say

	// MaxBatchSize is the most rows of a batch. Above 0, every input and output
	// has a batch dimension before its Dims; 0 means that the model has none.
	MaxBatchSize int

	Inputs  []Tensor
	Outputs []Tensor

	BatchInputs  []BatchInput // of the model, behind Inputs
	BatchOutputs []BatchOutput

	Instances     int               // how many batches may run at once; 0 means that the file does not say, and nobody has chosen yet
	Parameters    map[string]string // for the engine
	Objective     time.Duration     // how long after it came a request should be answered; 0 means any time
	VersionPolicy VersionPolicy
	Dynamic       *Dynamic // nil means that requests are never combined

	// Automatic says that what the file leaves out is to be found out, where Triton
	// has a default. Whoever completes the configuration sets it before.
	Automatic bool
	// Apart says why the model's rows are not computed by themselves, although its
	// shapes look like it; "" means that they may be. It is set before as well.
	Apart string

	Warmup []Sample // what is run on each instance before requests are

	Decoupled bool // the model answers a request as often as it likes

	// Warnings are in the order of the file. Whoever loads the model logs them
	// once.
	Warnings []Warning

	// Proto is the file as it was written, for what the fields above do not
	// tell: whether a 0 was written or left out.
	Proto *configpb.ModelConfig

	file   string // what errors call the file; "" means that there is none
	places *place // where in the file things are; nil means that there is none
}

// A Warning is about a setting that does not do what its author may think.
type Warning struct {
	Where string // FILE:LINE, or FILE if the setting is not in it, or nothing if there is no file
	Field string // such as optimization.eager_batching
	Text  string // such as "has no effect: the next batch is always prepared while one runs"
}

// String returns the warning as one line, worded as errors are.
func (w Warning) String() string {
	if w.Where == "" {
		return w.Field + ": " + w.Text
	}
	return w.Where + ": " + w.Field + ": " + w.Text
}

// A Tensor is an input or an output of a model. A dimension of -1 may have any
// size.
type Tensor struct {
	Name string
	Type tensor.Type
	Dims []int64 // as clients see it

	// Reshape is what the model has in place of Dims. Nil means Dims; one that is
	// empty means one element for each row.
	Reshape []int64

	Ragged   bool // requests of different sizes share a batch; see [Ragged]
	Optional bool // of an input: requests may leave it out
}

// A VersionPolicy says which of a model's versions are served. Exactly one of
// its fields is set.
type VersionPolicy struct {
	Latest   int // how many, those with the highest numbers
	All      bool
	Specific []int64
}

// Dynamic is how requests are combined into batches.
type Dynamic struct {
	Preferred        []int          // rows at which a batch runs at once, in the order of the file
	MaxDelay         *time.Duration // how long the oldest request may be held for others; nil means that the file does not say
	Added            bool           // the file does not have it, but leaves batching to the model
	PreserveOrdering bool           // answers leave in the order in which requests came

	Levels       int // priority levels, of which 1 is the highest; 0 means that there are none
	DefaultLevel int // of requests that name none
	Default      QueuePolicy
	PerLevel     map[int]QueuePolicy // for levels that differ from Default
}

// A QueuePolicy says what happens to requests that wait. The zero QueuePolicy
// lets them wait for any time.
type QueuePolicy struct {
	Written       bool          // the file has it, and be it empty
	Action        Action        // what is done with requests that have waited for Timeout
	Timeout       time.Duration // 0 means any time
	AllowOverride bool          // a request may ask for less than Timeout
	MaxSize       *int          // requests that may wait, of which 0 means any number; nil means that the file does not say
}

// An Action is what is done with a request that has waited too long.
type Action uint8

// Reject answers it with an error, and Delay lets it wait behind those that
// have not waited too long.
const (
	Reject Action = iota
	Delay
)

// A Sample is a request that a model is warmed up with.
type Sample struct {
	Name   string
	Rows   int // of each input, if the model has a batch dimension
	Count  int // how many times it is run
	Inputs []SampleInput
}

// A SampleInput is an input of a sample. Its data is that of File, or random, or
// zero.
type SampleInput struct {
	Tensor
	File   string // in the model's directory warmup
	Random bool
}
