package modelconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// Parse parses a config.pbtxt. file is its name in errors. An error about a field comes
// with the configuration, for its [Config.Findings]. Its code is Unsupported if the field is
// valid in Triton, and not supported here.
func Parse(file string, text []byte) (*Config, error) {
	c := &Config{Proto: &configpb.ModelConfig{}, file: file}
	if err := prototext.Unmarshal(text, c.Proto); err != nil {
		return nil, parseError(file, text, err)
	}
	c.root = locate(text)
	return c, c.read()
}

// ParseJSON parses a configuration that a client sends as JSON, with the field names of
// config.pbtxt.
func ParseJSON(text []byte) (*Config, error) {
	c := &Config{Proto: &configpb.ModelConfig{}}
	if err := protojson.Unmarshal(text, c.Proto); err != nil {
		return nil, jsonError(err)
	}
	return c, c.read()
}

// read sets all other fields from Proto.
func (c *Config) read() error {
	c.Decoupled = c.Proto.GetModelTransactionPolicy().GetDecoupled()
	for _, read := range []func() error{c.checkSupport, c.readNames, c.readTensors, c.readRagged, c.readInstances, c.readVersions, c.readDynamic, c.readSequence, c.readCache, c.readWarmup, c.readEnsemble, c.checkMetricTags} {
		if err := read(); err != nil {
			return c.withPosition(err)
		}
	}
	return nil
}

// A mistake is an error about a field, before its line is known. Its code is Invalid, or
// Unsupported for a field that a later version may support.
type mistake struct {
	code        infer.Code
	field, text string
}

func (m *mistake) Error() string { return m.field + ": " + m.text }

// bad returns the error for a value of a field that is not one of those expected.
func bad(field string, found any, expected string, args ...any) error {
	return invalid(field, "found %v, expected %s", found, fmt.Sprintf(expected, args...))
}

// invalid returns an error about a field in the given words.
func invalid(field, format string, args ...any) error {
	return &mistake{infer.Invalid, field, fmt.Sprintf(format, args...)}
}

// withPosition adds the position in the file to a mistake.
func (c *Config) withPosition(err error) error {
	m, ok := errors.AsType[*mistake](err)
	if !ok {
		return err
	}
	return infer.Errorf(m.code, "%s%w", c.where(m.field), err)
}

// where returns the prefix of a field name in errors: FILE:LINE and a colon.
func (c *Config) where(field string) string {
	switch line := c.root.lineOf(field); {
	case c.file == "":
		return ""
	case line == 0:
		return c.file + ": "
	default:
		return fmt.Sprintf("%s:%d: ", c.file, line)
	}
}

// Where returns FILE:LINE of a field such as max_batch_size, or "" if the file does not
// contain it or does not exist.
func (c *Config) Where(field string) string {
	if line, exact := c.root.find(field); exact && c.file != "" {
		return fmt.Sprintf("%s:%d", c.file, line)
	}
	return ""
}

// Wrong returns an error about a field of the file, such as input[0].dims, with the line
// of the field or of the closest enclosing one. expected is a format.
func (c *Config) Wrong(field string, found any, expected string, args ...any) error {
	return c.withPosition(bad(field, found, expected, args...))
}

// Invalid returns an error about a field of the file in the given words, with the line of
// the field like Wrong.
func (c *Config) Invalid(field, format string, args ...any) error {
	return c.withPosition(invalid(field, format, args...))
}

// Unsupported is Invalid for what is valid in Triton, and not supported here.
func (c *Config) Unsupported(field, format string, args ...any) error {
	return c.withPosition(&mistake{infer.Unsupported, field, fmt.Sprintf(format, args...)})
}

// checkMetricTags returns an error for a key that cannot be a label. Labels are the keys with
// an underscore before them, and Prometheus keeps names with two for itself.
func (c *Config) checkMetricTags() error {
	for _, key := range slices.Sorted(maps.Keys(c.Proto.GetMetricTags())) {
		if !tagKey.MatchString(key) {
			return bad("metric_tags["+key+"]", fmt.Sprintf("%q", key), "a key of letters, digits and underscores that does not begin with an underscore")
		}
	}
	return nil
}

func (c *Config) readCache() error {
	c.CacheResponses = c.Proto.GetResponseCache().GetEnable()
	switch {
	case c.CacheResponses && c.Sequence != nil:
		return invalid("response_cache.enable", "a response of a model with sequence_batching depends on earlier requests, and cannot be cached; remove response_cache")
	case c.CacheResponses && c.Decoupled:
		return invalid("response_cache.enable", "only single responses are cached, and a decoupled model sends any number; remove response_cache")
	}
	return nil
}

var tagKey = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_]*$`)

// Backends by platform, which is Triton's older setting.
var platforms = map[string]string{
	"ensemble":              EnsembleBackend,
	"onnxruntime_onnx":      "onnxruntime",
	"tensorrt_plan":         "tensorrt",
	"pytorch_libtorch":      "pytorch",
	"tensorflow_graphdef":   "tensorflow",
	"tensorflow_savedmodel": "tensorflow",
}

func (c *Config) readNames() error {
	c.Name, c.Backend = c.Proto.GetName(), c.Proto.GetBackend()
	if c.Name != "" && !ValidName(c.Name) {
		return bad("name", fmt.Sprintf("%q", c.Name), NameRule)
	}
	if file := c.Proto.GetDefaultModelFilename(); strings.ContainsAny(file, `/\`) || file == "." || file == ".." {
		return bad("default_model_filename", fmt.Sprintf("%q", file), "a name without a path")
	}
	c.Parameters = make(map[string]string, len(c.Proto.GetParameters()))
	for key, value := range c.Proto.GetParameters() {
		c.Parameters[key] = value.GetStringValue()
	}
	if err := c.readObjective(); err != nil {
		return err
	}
	return c.readPlatform()
}

// objectiveKey is the parameter with the latency objective. Triton has no field for it,
// and ignores unknown parameters.
const objectiveKey = "slo_milliseconds"

func (c *Config) readObjective() error {
	value, ok := c.Parameters[objectiveKey]
	if !ok {
		return nil
	}
	const longest = 24 * 60 * 60 * 1000
	n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(n > 0 && n <= longest) {
		return bad("parameters["+objectiveKey+"]", fmt.Sprintf("%q", value), "milliseconds above 0, such as 50")
	}
	c.Objective = time.Duration(n * float64(time.Millisecond))
	delete(c.Parameters, objectiveKey) // not meant for the engine
	return nil
}

func (c *Config) readPlatform() error {
	platform := c.Proto.GetPlatform()
	if platform == "" {
		return nil
	}
	backend, ok := platforms[platform]
	switch {
	case !ok:
		return bad("platform", fmt.Sprintf("%q", platform), "one of %s; or remove it, and set backend", quoted(slices.Sorted(maps.Keys(platforms)), func(p string) string { return p }))
	case c.Backend != "" && c.Backend != backend:
		return bad("backend", fmt.Sprintf("%q", c.Backend), "%q, which runs platform %q", backend, platform)
	}
	c.Backend = backend
	return nil
}

func (c *Config) readTensors() (err error) {
	if n := c.Proto.GetMaxBatchSize(); n < 0 {
		return bad("max_batch_size", n, "at least 0")
	}
	c.MaxBatchSize = int(c.Proto.GetMaxBatchSize())
	if c.Inputs, err = tensors("input", c.Proto.GetInput(), c.MaxBatchSize); err != nil {
		return err
	}
	for i, p := range c.Proto.GetInput() {
		c.Inputs[i].Optional = p.GetOptional()
		if n := len(p.GetDims()); p.GetFormat() != configpb.ModelInput_FORMAT_NONE && n != 3 {
			return bad(fmt.Sprintf("input[%d].dims", i), fmt.Sprintf("%d dimensions", n), "3, because format is %v; or remove format", p.GetFormat())
		}
	}
	if c.Outputs, err = tensors("output", c.Proto.GetOutput(), c.MaxBatchSize); err != nil {
		return err
	}
	return c.checkLabels()
}

// checkLabels returns an error if a label file is outside of the model's directory. A
// client may send a configuration, and could otherwise read any file as labels.
func (c *Config) checkLabels() error {
	for i, out := range c.Proto.GetOutput() {
		if file := out.GetLabelFilename(); file != "" && (!fs.ValidPath(file) || file == ".") {
			return bad(fmt.Sprintf("output[%d].label_filename", i), fmt.Sprintf("%q", file), "a path below the model's directory, such as labels.txt")
		}
	}
	return nil
}

// described is implemented by inputs and outputs.
type described interface {
	GetName() string
	GetDataType() configpb.DataType
	GetDims() []int64
	GetReshape() *configpb.ModelTensorReshape
}

func tensors[T described](kind string, protos []T, maxBatch int) ([]Tensor, error) {
	names := make(map[string]bool, len(protos))
	var ts []Tensor
	for i, p := range protos {
		field := fmt.Sprintf("%s[%d]", kind, i)
		name, dataType := p.GetName(), p.GetDataType()
		_, known := configpb.DataType_name[int32(dataType)]
		switch {
		case name == "":
			return nil, bad(field+".name", "no name", "one")
		case names[name]:
			return nil, invalid(field+".name", "%q is already the name of another %s; each needs a name of its own", name, kind)
		case !known || dataType == configpb.DataType_TYPE_INVALID:
			return nil, bad(field+".data_type", dataType, "a type such as TYPE_FP32")
		case len(p.GetDims()) == 0:
			return nil, bad(field+".dims", "no dimension", "at least one")
		}
		for i, d := range p.GetDims() {
			if d < 1 && d != -1 {
				return nil, bad(fmt.Sprintf("%s.dims[%d]", field, i), d, "at least 1, or -1 for any size")
			}
		}
		reshape, err := reshapeOf(field, p.GetDims(), p.GetReshape(), maxBatch)
		if err != nil {
			return nil, err
		}
		names[name] = true
		// The two enumerations have the same values.
		ts = append(ts, Tensor{Name: name, Type: tensor.Type(dataType), Dims: p.GetDims(), Reshape: reshape})
	}
	return ts, nil
}

// maxInstances is how many instances a model may have. Each costs memory, and a client can send
// the configuration.
const maxInstances = 1024

// readInstances adds up the counts of all groups that are not passive. As in Triton, a
// count of 0 means that it is not set, but is 1 if another group has a count. The count
// applies to each GPU of a group.
func (c *Config) readInstances() error {
	uncounted := 0
	for i, g := range c.Proto.GetInstanceGroup() {
		field := fmt.Sprintf("instance_group[%d]", i)
		if _, ok := configpb.ModelInstanceGroup_Kind_name[int32(g.GetKind())]; !ok {
			return bad(field+".kind", g.GetKind(), "a kind such as KIND_CPU")
		}
		if err := checkGPUs(field, g); err != nil {
			return err
		}
		if g.GetPassive() {
			continue
		}
		places := max(1, len(g.GetGpus()))
		switch n := g.GetCount(); {
		case n < 0:
			return bad(field+".count", n, "at least 0")
		case n == 0:
			uncounted += places
		default:
			c.Instances += int(n) * places
		}
	}
	if len(c.Proto.GetInstanceGroup()) > 0 && c.ActiveGroups() == 0 {
		return invalid("instance_group", "all groups are passive, so that no instance would run requests; remove passive from one of them")
	}
	if n := c.Instances + uncounted; n > maxInstances {
		return bad("instance_group", fmt.Sprintf("%d instances", n), "at most %d", maxInstances)
	}
	if c.Instances > 0 {
		c.Instances += uncounted
	}
	return nil
}

// ActiveGroups returns the number of instance groups that are not passive.
func (c *Config) ActiveGroups() (n int) {
	for _, g := range c.Proto.GetInstanceGroup() {
		if !g.GetPassive() {
			n++
		}
	}
	return n
}

func checkGPUs(field string, g *configpb.ModelInstanceGroup) error {
	kind := g.GetKind()
	runsOn := kind == configpb.ModelInstanceGroup_KIND_GPU || kind == configpb.ModelInstanceGroup_KIND_AUTO
	if len(g.GetGpus()) > 0 && !runsOn {
		return invalid(field+".gpus", "an instance group of %v uses no GPUs; set kind: KIND_GPU, or remove gpus", kind)
	}
	for i, gpu := range g.GetGpus() {
		if gpu < 0 {
			return bad(fmt.Sprintf("%s.gpus[%d]", field, i), gpu, "the index of a GPU, starting at 0")
		}
	}
	return nil
}

func (c *Config) readVersions() error {
	switch p := c.Proto.GetVersionPolicy().GetPolicyChoice().(type) {
	case *configpb.ModelVersionPolicy_Latest_:
		if p.Latest.GetNumVersions() == 0 {
			return bad("version_policy.latest.num_versions", 0, "at least 1")
		}
		c.VersionPolicy.Latest = int(p.Latest.GetNumVersions())
	case *configpb.ModelVersionPolicy_All_:
		c.VersionPolicy.All = true
	case *configpb.ModelVersionPolicy_Specific_:
		c.VersionPolicy.Specific = p.Specific.GetVersions()
		if len(c.VersionPolicy.Specific) == 0 {
			return bad("version_policy.specific.versions", "no version", "at least one")
		}
		for i, v := range c.VersionPolicy.Specific {
			if v < 0 {
				return bad(fmt.Sprintf("version_policy.specific.versions[%d]", i), v, "at least 0")
			}
		}
	default:
		c.VersionPolicy.Latest = 1
	}
	return nil
}

func (c *Config) readDynamic() error {
	p := c.Proto.GetDynamicBatching()
	if p == nil {
		return nil
	}
	d := &Dynamic{PreserveOrdering: p.GetPreserveOrdering()}
	for i, n := range p.GetPreferredBatchSize() {
		field := fmt.Sprintf("dynamic_batching.preferred_batch_size[%d]", i)
		switch {
		case n < 1:
			return bad(field, n, "at least 1")
		case int(n) > c.MaxBatchSize && !c.batchSizeFromModel():
			return bad(field, n, "at most max_batch_size (%d)", c.MaxBatchSize)
		}
		d.Preferred = append(d.Preferred, int(n))
	}
	if p.MaxQueueDelayMicroseconds != nil {
		delay, err := microseconds("dynamic_batching.max_queue_delay_microseconds", p.GetMaxQueueDelayMicroseconds())
		if err != nil {
			return err
		}
		d.MaxDelay = &delay
	}
	c.Dynamic = d
	if err := d.readQueues(p); err != nil {
		return err
	}
	return d.checkOrdering()
}

// maxLevels is the maximum number of priority levels of a model. Each has a queue of its
// own, and real configurations have a handful.
const maxLevels = 1000

func (d *Dynamic) readQueues(p *configpb.ModelDynamicBatching) (err error) {
	if d.Default, err = queuePolicy("dynamic_batching.default_queue_policy", p.GetDefaultQueuePolicy()); err != nil {
		return err
	}
	levels, level := p.GetPriorityLevels(), p.GetDefaultPriorityLevel()
	switch {
	case levels == 0:
		return nil // settings of single levels are then ignored, as in Triton
	case levels > maxLevels:
		return bad("dynamic_batching.priority_levels", levels, "at most %d", maxLevels)
	case level < 1 || level > levels:
		return bad("dynamic_batching.default_priority_level", level, "1 to priority_levels (%d)", levels)
	}
	d.Levels, d.DefaultLevel = int(levels), int(level)
	d.PerLevel = make(map[int]QueuePolicy, len(p.GetPriorityQueuePolicy()))
	for _, level := range slices.Sorted(maps.Keys(p.GetPriorityQueuePolicy())) {
		policy := p.GetPriorityQueuePolicy()[level]
		field := fmt.Sprintf("dynamic_batching.priority_queue_policy[%d]", level)
		if level < 1 || level > levels {
			return bad(field, fmt.Sprintf("level %d", level), "1 to priority_levels (%d)", levels)
		}
		if d.PerLevel[int(level)], err = queuePolicy(field, policy); err != nil {
			return err
		}
	}
	return nil
}

func queuePolicy(field string, p *configpb.ModelQueuePolicy) (QueuePolicy, error) {
	q := QueuePolicy{Written: p != nil, AllowOverride: p.GetAllowTimeoutOverride()}
	if p != nil && p.MaxQueueSize != nil {
		size := int(p.GetMaxQueueSize())
		q.MaxSize = &size
	}
	switch p.GetTimeoutAction() {
	case configpb.ModelQueuePolicy_REJECT:
	case configpb.ModelQueuePolicy_DELAY:
		q.Action = Delay
	default:
		return q, bad(field+".timeout_action", p.GetTimeoutAction(), "REJECT or DELAY")
	}
	var err error
	q.Timeout, err = microseconds(field+".default_timeout_microseconds", p.GetDefaultTimeoutMicroseconds())
	return q, err
}

// checkOrdering rejects settings that would reorder requests although responses must be
// sent in order.
func (d *Dynamic) checkOrdering() error {
	const field = "dynamic_batching.preserve_ordering"
	if !d.PreserveOrdering {
		return nil
	}
	if d.Levels > 1 {
		return bad(field, true, "false, because there are %d priority levels", d.Levels)
	}
	delays := d.Default.delays()
	for _, q := range d.PerLevel {
		delays = delays || q.delays()
	}
	if delays {
		return bad(field, true, "false, because a queue policy has timeout_action DELAY")
	}
	return nil
}

func (q QueuePolicy) delays() bool { return q.Action == Delay && q.Timeout > 0 }

func microseconds(field string, n uint64) (time.Duration, error) {
	const most = math.MaxInt64 / uint64(time.Microsecond)
	if n > most {
		return 0, bad(field, n, "at most %d", most)
	}
	return time.Duration(n) * time.Microsecond, nil
}
