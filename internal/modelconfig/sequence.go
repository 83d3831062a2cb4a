package modelconfig

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// A Sequence configures a model that keeps a state from request to request of a sequence.
type Sequence struct {
	// Direct means that a sequence has a row of its own in the batches of its instance. A batch
	// then has all rows up to the last one that has a request, and the others are empty.
	Direct  bool
	MaxIdle time.Duration // after which a sequence without requests ends

	// Iterative means that each request is a sequence, which the model has run again until its
	// response is complete.
	Iterative bool

	Candidates int           // sequences of an instance at a time; 0 means max_batch_size. Not used if Direct
	Preferred  []int         // sizes in rows at which a batch runs immediately. Not used if Direct
	MaxDelay   time.Duration // how long the oldest request may be held; 0 if the file does not set it
	MinReady   float64       // part of the rows at which a batch runs immediately. Used if Direct

	Controls []Control // follow the inputs of requests
	States   []State   // follow the controls
}

// A ControlKind is what a control says about a request.
type ControlKind uint8

// Kinds of controls.
const (
	ControlStart ControlKind = iota // whether it is the first of its sequence
	ControlReady                    // whether the row has a request
	ControlEnd                      // whether it is the last of its sequence
	ControlID                       // the ID of its sequence
)

// A Control is an input of one element that the server adds to each request.
type Control struct {
	Name string
	Kind ControlKind
	Type tensor.Type

	False, True []byte // the values, unless the kind is ControlID
}

// A State is an input that has the value of an output of the sequence's previous request.
type State struct {
	Input, Output string
	Type          tensor.Type
	Dims          []int64 // a dimension of -1 may have any size, and begins with 1
	File          string  // initial value, in the directory initial_state of the model; "" means zeros
	Initial       []byte  // the initial value of a row; set by the package that reads the file

	listed bool // clients get the output, too
}

// Listed reports whether the state is also an output for clients.
func (s *State) Listed() bool { return s.listed }

// FirstDims returns the dimensions of the initial value.
func (s *State) FirstDims() []int64 {
	dims := slices.Clone(s.Dims)
	for i, d := range dims {
		if d == -1 {
			dims[i] = 1
		}
	}
	return dims
}

// defaultIdle is after how long a sequence ends if the file does not say it, as in Triton.
const defaultIdle = time.Second

func (c *Config) readSequence() error {
	p := c.Proto.GetSequenceBatching()
	if p == nil {
		return nil
	}
	s := &Sequence{MaxIdle: defaultIdle, Iterative: p.GetIterativeSequence()}
	switch {
	case len(c.BatchInputs)+len(c.BatchOutputs) > 0 || slices.ContainsFunc(c.Inputs, func(t Tensor) bool { return t.Ragged }):
		return &mistake{infer.Unsupported, "sequence_batching", "ragged batches of sequences are not supported yet; remove allow_ragged_batch, batch_input and batch_output"}
	case len(p.GetState()) > 0 && s.Iterative:
		return &mistake{infer.Unsupported, "sequence_batching.state", "states of iterative sequences are not supported yet; keep them in the model, by correlation ID"}
	case len(p.GetState()) > 0 && c.Decoupled:
		return &mistake{infer.Unsupported, "sequence_batching.state", "states of decoupled models are not supported yet; keep them in the model, by correlation ID"}
	case c.Backend == EnsembleBackend:
		return invalid("sequence_batching", "an ensemble computes nothing itself; remove it, and set it in the configurations of the models that are its steps")
	}
	if n := p.GetMaxSequenceIdleMicroseconds(); n > 0 {
		var err error
		if s.MaxIdle, err = microseconds("sequence_batching.max_sequence_idle_microseconds", n); err != nil {
			return err
		}
	}
	if err := c.readStrategy(s, p); err != nil {
		return err
	}
	if err := c.readControls(s, p); err != nil {
		return err
	}
	c.Sequence = s
	if err := c.checkSlots(); err != nil {
		return err
	}
	return c.readStates(s, p)
}

func (c *Config) readStrategy(s *Sequence, p *configpb.ModelSequenceBatching) (err error) {
	oldest := p.GetOldest()
	if s.Direct = oldest == nil; s.Direct {
		s.MinReady = float64(p.GetDirect().GetMinimumSlotUtilization())
		if !(s.MinReady >= 0 && s.MinReady <= 1) {
			return bad("sequence_batching.direct.minimum_slot_utilization", s.MinReady, "0 to 1")
		}
		s.MaxDelay, err = microseconds("sequence_batching.direct.max_queue_delay_microseconds", p.GetDirect().GetMaxQueueDelayMicroseconds())
		return err
	}
	s.Candidates = int(max(0, oldest.GetMaxCandidateSequences()))
	for i, n := range oldest.GetPreferredBatchSize() {
		field := fmt.Sprintf("sequence_batching.oldest.preferred_batch_size[%d]", i)
		switch {
		case n < 1:
			return bad(field, n, "at least 1")
		case int(n) > c.MaxBatchSize && !c.batchSizeFromModel():
			return bad(field, n, "at most max_batch_size (%d)", c.MaxBatchSize)
		}
		s.Preferred = append(s.Preferred, int(n))
	}
	s.MaxDelay, err = microseconds("sequence_batching.oldest.max_queue_delay_microseconds", oldest.GetMaxQueueDelayMicroseconds())
	return err
}

// controlKinds are the kinds by those of the file.
var controlKinds = map[configpb.ModelSequenceBatching_Control_Kind]ControlKind{
	configpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_START:  ControlStart,
	configpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_READY:  ControlReady,
	configpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_END:    ControlEnd,
	configpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID: ControlID,
}

func (c *Config) readControls(s *Sequence, p *configpb.ModelSequenceBatching) error {
	for i, in := range p.GetControlInput() {
		field := fmt.Sprintf("sequence_batching.control_input[%d]", i)
		switch {
		case in.GetName() == "":
			return bad(field+".name", "no name", "the name of an input of the model")
		case slices.ContainsFunc(c.Inputs, func(t Tensor) bool { return t.Name == in.GetName() }):
			return invalid(field+".name", "%q is also in input, and clients do not send it; remove it there", in.GetName())
		case slices.ContainsFunc(s.Controls, func(other Control) bool { return other.Name == in.GetName() }):
			return invalid(field+".name", "%q has a control already", in.GetName())
		case len(in.GetControl()) != 1:
			return bad(field+".control", fmt.Sprintf("%d controls", len(in.GetControl())), "1")
		}
		control, err := readControl(field+".control[0]", in.GetControl()[0])
		if err != nil {
			return err
		}
		if slices.ContainsFunc(s.Controls, func(other Control) bool { return other.Kind == control.Kind }) {
			return invalid(field+".control[0].kind", "another input has a control of this kind; remove one")
		}
		if s.Iterative && control.Kind == ControlID && control.Type == tensor.Bytes {
			return invalid(field+".control[0].data_type", "the server numbers iterative sequences, and their ID is not a string; set TYPE_UINT64")
		}
		control.Name = in.GetName()
		s.Controls = append(s.Controls, control)
	}
	return nil
}

func readControl(field string, p *configpb.ModelSequenceBatching_Control) (Control, error) {
	kind, ok := controlKinds[p.GetKind()]
	if !ok {
		return Control{}, bad(field+".kind", p.GetKind(), "CONTROL_SEQUENCE_START, _READY, _END or _CORRID")
	}
	control := Control{Kind: kind}
	pairs := [][2][]byte{}
	for _, pair := range []struct {
		typ   tensor.Type
		field string
		size  int
		at    func(int) []byte
	}{
		{tensor.Int32, "int32_false_true", len(p.GetInt32FalseTrue()), func(i int) []byte {
			return binary.LittleEndian.AppendUint32(nil, uint32(p.GetInt32FalseTrue()[i]))
		}},
		{tensor.FP32, "fp32_false_true", len(p.GetFp32FalseTrue()), func(i int) []byte {
			return binary.LittleEndian.AppendUint32(nil, math.Float32bits(p.GetFp32FalseTrue()[i]))
		}},
		{tensor.Bool, "bool_false_true", len(p.GetBoolFalseTrue()), func(i int) []byte {
			if p.GetBoolFalseTrue()[i] {
				return []byte{1}
			}
			return []byte{0}
		}},
	} {
		switch pair.size {
		case 0:
			continue
		case 2:
			control.Type = pair.typ
			pairs = append(pairs, [2][]byte{pair.at(0), pair.at(1)})
		default:
			return Control{}, bad(field+"."+pair.field, fmt.Sprintf("%d values", pair.size), "2, for false and for true")
		}
	}
	if kind == ControlID {
		control.Type = tensor.Type(p.GetDataType())
		switch {
		case len(pairs) > 0:
			return Control{}, invalid(field, "the ID of a sequence is neither true nor false; set data_type instead")
		case !slices.Contains([]tensor.Type{tensor.Uint64, tensor.Int64, tensor.Uint32, tensor.Int32, tensor.Bytes}, control.Type):
			return Control{}, bad(field+".data_type", p.GetDataType(), "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING")
		}
		return control, nil
	}
	if len(pairs) != 1 {
		return Control{}, bad(field, fmt.Sprintf("%d pairs of values", len(pairs)), "one of int32_false_true, fp32_false_true and bool_false_true")
	}
	control.False, control.True = pairs[0][0], pairs[0][1]
	return control, nil
}

// maxInitial is how many bytes the initial values of all states may have. A client can send
// the configuration.
const maxInitial = 1 << 30

func (c *Config) readStates(s *Sequence, p *configpb.ModelSequenceBatching) error {
	left := int64(maxInitial)
	for i, in := range p.GetState() {
		field := fmt.Sprintf("sequence_batching.state[%d]", i)
		state := State{Input: in.GetInputName(), Output: in.GetOutputName(), Type: tensor.Type(in.GetDataType()), Dims: in.GetDims()}
		switch {
		case state.Input == "":
			return bad(field+".input_name", "no name", "the name of an input of the model")
		case state.Output == "":
			return bad(field+".output_name", "no name", "the name of an output of the model")
		case slices.ContainsFunc(c.ModelInputs(), func(t Tensor) bool { return t.Name == state.Input }):
			return invalid(field+".input_name", "%q is already an input; clients do not send a state", state.Input)
		case slices.ContainsFunc(s.States, func(other State) bool { return other.Output == state.Output }):
			return invalid(field+".output_name", "%q is the output of another state; each state has its own", state.Output)
		case state.Type == tensor.Invalid:
			return bad(field+".data_type", "no type", "the type of the state")
		case state.Type == tensor.Bytes:
			return &mistake{infer.Unsupported, field + ".data_type", "states of strings are not supported yet"}
		}
		for k, d := range state.Dims {
			if d < 1 && d != -1 {
				return bad(fmt.Sprintf("%s.dims[%d]", field, k), d, "at least 1, or -1 for any size")
			}
		}
		if err := state.readInitial(field, in.GetInitialState(), left); err != nil {
			return err
		}
		left -= int64(len(state.Initial))
		s.States = append(s.States, state)
	}
	c.listStates()
	return nil
}

// listStates sets which states are outputs, too.
func (c *Config) listStates() {
	if c.Sequence == nil {
		return
	}
	for i := range c.Sequence.States {
		s := &c.Sequence.States[i]
		s.listed = slices.ContainsFunc(c.Outputs, func(t Tensor) bool { return t.Name == s.Output })
	}
}

// readInitial reads the initial value, which may have limit bytes.
func (s *State) readInitial(field string, all []*configpb.ModelSequenceBatching_InitialState, limit int64) error {
	size, err := tensor.ByteSize(s.Type, s.FirstDims())
	switch {
	case err != nil:
		return invalid(field+".dims", "%v", err)
	case size > limit:
		return invalid(field+".dims", "the states of a row have more than %d MiB", maxInitial>>20)
	}
	s.Initial = make([]byte, size)
	switch len(all) {
	case 0:
		return nil
	case 1:
	default:
		return bad(field+".initial_state", fmt.Sprintf("%d values", len(all)), "one")
	}
	p, field := all[0], field+".initial_state[0]"
	switch first := s.FirstDims(); {
	case tensor.Type(p.GetDataType()) != s.Type:
		return bad(field+".data_type", p.GetDataType(), "%s, as the state has", typeName(s.Type))
	case len(p.GetDims()) != len(first) || !matches(p.GetDims(), s.Dims):
		return bad(field+".dims", tensor.ShapeText(p.GetDims()), "%s, as the state has", tensor.ShapeText(s.Dims))
	case !slices.Equal(p.GetDims(), first):
		return &mistake{infer.Unsupported, field + ".dims", "a first value whose variable dimensions are not 1 is not supported yet; set dims: " + tensor.ShapeText(first)}
	}
	s.File = p.GetDataFile()
	if strings.ContainsAny(s.File, `/\`) || s.File == "." || s.File == ".." {
		return bad(field+".data_file", fmt.Sprintf("%q", s.File), "a name without a path, in the directory initial_state")
	}
	return nil
}

// matches reports whether a shape has the sizes of dims that are fixed.
func matches(shape, dims []int64) bool {
	for i, d := range dims {
		if d != -1 && shape[i] != d {
			return false
		}
	}
	return true
}

// Iterative reports whether the model may have its requests run again.
func (c *Config) Iterative() bool { return c.Sequence != nil && c.Sequence.Iterative }

// Slots returns how many sequences an instance has at a time.
func (c *Config) Slots() int {
	if !c.Sequence.Direct && c.Sequence.Candidates > 0 {
		return c.Sequence.Candidates
	}
	return max(1, c.MaxBatchSize)
}

// maxSlots is how many sequences all instances of a model may have at a time. Memory is allocated
// for each when the model is loaded, and a client can send the configuration.
const maxSlots = 1 << 16

// checkSlots returns an error if the instances have too many sequences.
func (c *Config) checkSlots() error {
	if c.Sequence == nil {
		return nil
	}
	n, field := c.Slots(), "max_batch_size"
	if !c.Sequence.Direct && c.Sequence.Candidates > 0 {
		field = "sequence_batching.oldest.max_candidate_sequences"
	}
	if instances := max(1, c.Instances, c.ActiveGroups()); n > maxSlots/instances {
		return bad(field, n, "at most %d: the instances of a model have up to %d sequences together", maxSlots/instances, maxSlots)
	}
	return nil
}

// TunesSequences reports whether the automatic policy decides how long requests of sequences
// are held for others to join.
func (c *Config) TunesSequences() bool {
	return c.Automatic && c.Sequence != nil && c.Sequence.MaxDelay == 0 && c.MaxBatchSize > 1
}

// sequencePolicy returns Triton's rule for batches of sequences.
func (c *Config) sequencePolicy() batching.Policy {
	s := c.Sequence
	if !s.Direct {
		return batching.Triton{MaxRows: c.MaxBatchSize, Preferred: slices.Sorted(slices.Values(s.Preferred)), MaxDelay: s.MaxDelay}
	}
	p := batching.Triton{MaxRows: c.MaxBatchSize}
	if s.MinReady > 0 { // otherwise the delay has no effect, as in Triton
		p.MaxDelay = s.MaxDelay
		for rows := max(1, int(math.Ceil(s.MinReady*float64(c.MaxBatchSize)))); rows <= c.MaxBatchSize; rows++ {
			p.Preferred = append(p.Preferred, rows)
		}
	}
	return p
}

// ModelInputs returns the inputs that an engine gets from the scheduler for each request:
// those of clients, controls, and states.
func (c *Config) ModelInputs() []Tensor {
	if c.Sequence == nil {
		return c.Inputs
	}
	all := slices.Clone(c.Inputs)
	for _, control := range c.Sequence.Controls {
		all = append(all, Tensor{Name: control.Name, Type: control.Type, Dims: []int64{1}})
	}
	for _, s := range c.Sequence.States {
		all = append(all, Tensor{Name: s.Input, Type: s.Type, Dims: s.Dims})
	}
	return all
}

// ModelOutputs returns the outputs that the scheduler needs from an engine: those for
// clients, and the other states.
func (c *Config) ModelOutputs() []Tensor {
	if c.Sequence == nil {
		return c.Outputs
	}
	all := slices.Clone(c.Outputs)
	for _, s := range c.Sequence.States {
		if !s.listed {
			all = append(all, Tensor{Name: s.Output, Type: s.Type, Dims: s.Dims})
		}
	}
	return all
}

// checkSequence returns an error if the request cannot belong to a sequence.
func (c *Config) checkSequence(req *infer.Request, rows int) error {
	switch {
	case req.Correlation == 0 && req.CorrelationName == "" && !c.Sequence.Iterative:
		return infer.Errorf(infer.Invalid, "inference request to model '%s' must specify a non-zero or non-empty correlation ID", c.Name)
	case rows != 1:
		return infer.Errorf(infer.Invalid, "inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher", c.Name)
	}
	if c.Sequence.Iterative {
		return nil // the server gives it an ID
	}
	for i := range c.Sequence.Controls {
		if control := &c.Sequence.Controls[i]; control.Kind == ControlID && !control.holds(req) {
			return infer.Errorf(infer.Invalid, "the correlation ID of the request does not fit into input '%s' of model '%s', which has data type %s", control.Name, c.Name, control.Type)
		}
	}
	return nil
}

// holds reports whether a control can have the value of the request's ID.
func (c *Control) holds(req *infer.Request) bool {
	if c.Type == tensor.Bytes || req.CorrelationName != "" {
		return c.Type == tensor.Bytes && req.CorrelationName != ""
	}
	switch signed := int64(req.Correlation); c.Type {
	case tensor.Int32:
		return signed >= math.MinInt32 && signed <= math.MaxInt32
	case tensor.Uint32:
		return req.Correlation <= math.MaxUint32
	}
	return true
}

// Value returns the value of the control for a request, or for an empty row if that is nil.
func (c *Control) Value(req *infer.Request) []byte {
	set := req != nil
	switch c.Kind {
	case ControlStart:
		set = set && req.Flags&infer.SequenceStart != 0
	case ControlEnd:
		set = set && req.Flags&infer.SequenceEnd != 0
	case ControlReady:
	case ControlID:
		return c.id(req)
	}
	if set {
		return c.True
	}
	return c.False
}

func (c *Control) id(req *infer.Request) []byte {
	if req == nil {
		req = &infer.Request{}
	}
	switch c.Type {
	case tensor.Bytes:
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(req.CorrelationName))), req.CorrelationName...)
	case tensor.Int32, tensor.Uint32:
		return binary.LittleEndian.AppendUint32(nil, uint32(req.Correlation))
	default:
		return binary.LittleEndian.AppendUint64(nil, req.Correlation)
	}
}

// compareSequence checks the controls and states against the inputs and outputs of the model,
// and returns the model without them.
func (c *Config) compareSequence(model Description) (Description, error) {
	if c.Sequence == nil {
		return model, nil
	}
	extra := c.ModelInputs()[len(c.Inputs):]
	for i, t := range extra {
		field := "sequence_batching.control_input[" + strconv.Itoa(i) + "]"
		if n := len(c.Sequence.Controls); i >= n {
			field = "sequence_batching.state[" + strconv.Itoa(i-n) + "]"
		}
		if err := c.comparePort(field, "input", t, model.Inputs); err != nil {
			return model, err
		}
	}
	for i, s := range c.Sequence.States {
		if err := c.comparePort("sequence_batching.state["+strconv.Itoa(i)+"]", "output", Tensor{Name: s.Output, Type: s.Type, Dims: s.Dims}, model.Outputs); err != nil {
			return model, err
		}
	}
	model.Inputs = slices.DeleteFunc(slices.Clone(model.Inputs), func(p Port) bool {
		return slices.ContainsFunc(extra, func(t Tensor) bool { return t.Name == p.Name })
	})
	model.Outputs = slices.DeleteFunc(slices.Clone(model.Outputs), func(p Port) bool {
		return slices.ContainsFunc(c.Sequence.States, func(s State) bool { return s.Output == p.Name && !s.listed })
	})
	return model, nil
}

func (c *Config) comparePort(field, kind string, t Tensor, ports []Port) error {
	at := slices.IndexFunc(ports, func(p Port) bool { return p.Name == t.Name })
	switch {
	case at < 0:
		return c.Wrong(field, fmt.Sprintf("%q", t.Name), "one of the model's %ss, %s", kind, quoted(ports, portName))
	case ports[at].Type != t.Type:
		return c.Wrong(field, typeName(t.Type), "%s, as %s %q of the model has", typeName(ports[at].Type), kind, t.Name)
	case ports[at].AnyShape:
		return nil
	}
	want := c.dimsOf(ports[at])
	if c.MaxBatchSize > 0 && (len(ports[at].Dims) == 0 || ports[at].Dims[0] != -1) || len(want) != len(t.Dims) {
		return c.Wrong(field, tensor.ShapeText(t.Dims), "the shape of %s %q of the model, %s, whose first dimension is that of the batch if max_batch_size is at least 1", kind, t.Name, tensor.ShapeText(ports[at].Dims))
	}
	for i, d := range want {
		if d != -1 && t.Dims[i] != d {
			return c.Wrong(field, tensor.ShapeText(t.Dims), "%s, as %s %q of the model has", tensor.ShapeText(want), kind, t.Name)
		}
	}
	return nil
}
