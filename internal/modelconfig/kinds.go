package modelconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A kind is how a field that is set is handled. Fields that would change a model's
// responses are never ignored.
type kind uint8

const (
	supported kind = iota + 1 // supported, with Triton's meaning
	ignored                   // has no effect here, which is reported as a warning
	rejected                  // an error, because ignoring it would change what the model does
)

func (k kind) String() string {
	return [...]string{"", "supported", "ignored", "rejected"}[k]
}

// A rule is the kind of a field, and the reason: why an ignored field has no effect, or what
// to do instead of setting a rejected one.
type rule struct {
	kind kind
	says string
	// harmless reports whether a value that is set requests nothing. Nil means that no value
	// is harmless; a scalar with its default value is never set.
	harmless func(protoreflect.Value) bool
}

// Reasons that several fields share.
const (
	copied      = "the engine copies tensors to a GPU by itself"
	onlyRT      = "only TensorRT uses it, which is not supported"
	noEnsembles = "ensembles are not supported yet; call the models from a Python model instead (docs/python.md)"
	noMetrics   = "all models have the same metric labels and buckets"
)

// rules has every field of a configuration by its path. Fields inside an ignored or a rejected
// one have the same kind, and are not listed.
var rules = map[string]rule{
	"name":     {kind: supported},
	"platform": {kind: supported},
	"backend":  {kind: supported},
	"runtime":  {kind: rejected, says: "backend libraries of your own are not supported; remove runtime, and set backend to one of those that Shoal has"},

	"version_policy":                     {kind: supported},
	"version_policy.latest":              {kind: supported},
	"version_policy.latest.num_versions": {kind: supported},
	"version_policy.all":                 {kind: supported},
	"version_policy.specific":            {kind: supported},
	"version_policy.specific.versions":   {kind: supported},

	"max_batch_size": {kind: supported},

	"input":                         {kind: supported},
	"input.name":                    {kind: supported},
	"input.data_type":               {kind: supported},
	"input.format":                  {kind: rejected, says: "input formats are not supported; remove it, because dims alone describe an input"},
	"input.dims":                    {kind: supported},
	"input.reshape":                 {kind: supported},
	"input.reshape.shape":           {kind: supported},
	"input.is_shape_tensor":         {kind: rejected, says: "shape tensors of TensorRT are not supported; export the model to ONNX"},
	"input.allow_ragged_batch":      {kind: supported},
	"input.optional":                {kind: supported},
	"input.is_non_linear_format_io": {kind: rejected, says: "the non-linear formats of TensorRT are not supported; export the model to ONNX"},

	"output":                         {kind: supported},
	"output.name":                    {kind: supported},
	"output.data_type":               {kind: supported},
	"output.dims":                    {kind: supported},
	"output.reshape":                 {kind: supported},
	"output.reshape.shape":           {kind: supported},
	"output.label_filename":          {kind: supported},
	"output.is_shape_tensor":         {kind: rejected, says: "shape tensors of TensorRT are not supported; export the model to ONNX"},
	"output.is_non_linear_format_io": {kind: rejected, says: "the non-linear formats of TensorRT are not supported; export the model to ONNX"},

	"batch_input":               {kind: supported},
	"batch_input.kind":          {kind: supported},
	"batch_input.target_name":   {kind: supported},
	"batch_input.data_type":     {kind: supported},
	"batch_input.source_input":  {kind: supported},
	"batch_output":              {kind: supported},
	"batch_output.kind":         {kind: supported},
	"batch_output.target_name":  {kind: supported},
	"batch_output.source_input": {kind: supported},

	"optimization":                                {kind: supported},
	"optimization.graph":                          {kind: supported},
	"optimization.graph.level":                    {kind: supported},
	"optimization.priority":                       {kind: ignored, says: onlyRT},
	"optimization.cuda":                           {kind: ignored, says: "the engine chooses how it uses a GPU"},
	"optimization.execution_accelerators":         {kind: ignored, says: "accelerators such as TensorRT and OpenVINO are not supported yet, and the model runs without them, which may be several times slower"},
	"optimization.input_pinned_memory":            {kind: ignored, says: copied},
	"optimization.output_pinned_memory":           {kind: ignored, says: copied},
	"optimization.gather_kernel_buffer_threshold": {kind: ignored, says: copied},
	"optimization.eager_batching":                 {kind: ignored, says: "the next batch is always prepared while one runs"},

	"dynamic_batching":                                                    {kind: supported},
	"dynamic_batching.preferred_batch_size":                               {kind: supported},
	"dynamic_batching.max_queue_delay_microseconds":                       {kind: supported},
	"dynamic_batching.preserve_ordering":                                  {kind: supported},
	"dynamic_batching.priority_levels":                                    {kind: supported},
	"dynamic_batching.default_priority_level":                             {kind: supported},
	"dynamic_batching.default_queue_policy":                               {kind: supported},
	"dynamic_batching.default_queue_policy.timeout_action":                {kind: supported},
	"dynamic_batching.default_queue_policy.default_timeout_microseconds":  {kind: supported},
	"dynamic_batching.default_queue_policy.allow_timeout_override":        {kind: supported},
	"dynamic_batching.default_queue_policy.max_queue_size":                {kind: supported},
	"dynamic_batching.priority_queue_policy":                              {kind: supported},
	"dynamic_batching.priority_queue_policy.timeout_action":               {kind: supported},
	"dynamic_batching.priority_queue_policy.default_timeout_microseconds": {kind: supported},
	"dynamic_batching.priority_queue_policy.allow_timeout_override":       {kind: supported},
	"dynamic_batching.priority_queue_policy.max_queue_size":               {kind: supported},

	"sequence_batching":   {kind: rejected, says: "sequences are not supported yet; send the state with each request, or keep it in a Python model with one instance (docs/python.md)"},
	"ensemble_scheduling": {kind: rejected, says: noEnsembles},

	"instance_group":                        {kind: supported},
	"instance_group.name":                   {kind: supported},
	"instance_group.kind":                   {kind: supported},
	"instance_group.count":                  {kind: supported},
	"instance_group.rate_limiter":           {kind: supported},
	"instance_group.rate_limiter.resources": {kind: rejected, says: "rate limiting is not supported yet; remove it, and limit concurrency with instance_group.count"},
	"instance_group.rate_limiter.priority": {
		kind: rejected, says: "priorities between models are not supported yet; remove it, or prioritize requests with dynamic_batching.priority_levels",
		harmless: func(v protoreflect.Value) bool { return v.Uint() <= 1 },
	},
	"instance_group.gpus":              {kind: supported},
	"instance_group.secondary_devices": {kind: ignored, says: onlyRT},
	"instance_group.profile":           {kind: ignored, says: onlyRT},
	"instance_group.passive":           {kind: rejected, says: "passive instances are not supported; remove the instance group"},
	"instance_group.host_policy":       {kind: ignored, says: "instances are not bound to cores or memory"},

	"default_model_filename":  {kind: supported},
	"cc_model_filenames":      {kind: rejected, says: "a file for each kind of GPU is not supported; name the file with default_model_filename"},
	"metric_tags":             {kind: ignored, says: noMetrics},
	"parameters":              {kind: supported},
	"parameters.string_value": {kind: supported},

	"model_warmup":                        {kind: supported},
	"model_warmup.name":                   {kind: supported},
	"model_warmup.batch_size":             {kind: supported},
	"model_warmup.inputs":                 {kind: supported},
	"model_warmup.inputs.data_type":       {kind: supported},
	"model_warmup.inputs.dims":            {kind: supported},
	"model_warmup.inputs.zero_data":       {kind: supported},
	"model_warmup.inputs.random_data":     {kind: supported},
	"model_warmup.inputs.input_data_file": {kind: supported},
	"model_warmup.count":                  {kind: supported},

	"model_operations":                     {kind: supported},
	"model_operations.op_library_filename": {kind: rejected, says: "custom operators are not supported yet; export the model with standard operators, or run it from a Python model (docs/python.md)"},

	"model_transaction_policy":           {kind: supported},
	"model_transaction_policy.decoupled": {kind: supported},

	"model_repository_agents":        {kind: supported},
	"model_repository_agents.agents": {kind: rejected, says: "repository agents are not supported yet; check or decrypt the files before Shoal reads them"},

	"response_cache":        {kind: supported},
	"response_cache.enable": {kind: rejected, says: "the response cache is not supported yet; set enable: false, and cache responses in the client or in a proxy"},

	"model_metrics": {kind: ignored, says: noMetrics},
}

// A setting is a field of the file that is ignored or rejected.
type setting struct {
	field string
	rule  rule
	line  int
}

// checkSupport returns an error for the first rejected field, in the order of the file, and
// adds warnings for ignored ones.
func (c *Config) checkSupport() error {
	var found []setting
	visit(c.Proto.ProtoReflect(), step{}, func(s setting) {
		s.line = c.root.lineOf(s.field)
		found = append(found, s)
	})
	slices.SortStableFunc(found, func(a, b setting) int { return cmp.Compare(a.line, b.line) })
	for _, s := range found {
		if s.rule.kind == rejected {
			return invalid(s.field, "%s", s.rule.says)
		}
		c.warn(s.field, "has no effect: "+s.rule.says)
	}
	return nil
}

func (c *Config) warn(field, text string) {
	where := strings.TrimSuffix(c.where(field), ": ")
	c.Warnings = append(c.Warnings, Warning{Where: where, Field: field, Text: text})
}

// A step is the position of visit: the path of a message with indices and keys, for
// messages, and without them, for the rules.
type step struct{ field, rule string }

// visit calls f for each field of a message that is set and is not supported.
func visit(m protoreflect.Message, at step, f func(setting)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		to, v := step{at.field + string(fd.Name()), at.rule + string(fd.Name())}, m.Get(fd)
		switch r := rules[to.rule]; {
		case r.kind == supported:
			visitInside(fd, v, to, f)
		case r.harmless == nil || !r.harmless(v):
			f(setting{field: to.field, rule: r})
		}
	}
}

func visitInside(fd protoreflect.FieldDescriptor, v protoreflect.Value, at step, f func(setting)) {
	enter := func(m protoreflect.Message, index string) { visit(m, step{at.field + index + ".", at.rule + "."}, f) }
	switch {
	case fd.IsMap():
		if fd.MapValue().Message() != nil {
			v.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				enter(v.Message(), fmt.Sprintf("[%v]", key))
				return true
			})
		}
	case fd.Message() == nil:
	case fd.IsList():
		for i := range v.List().Len() {
			enter(v.List().Get(i).Message(), fmt.Sprintf("[%d]", i))
		}
	default:
		enter(v.Message(), "")
	}
}
