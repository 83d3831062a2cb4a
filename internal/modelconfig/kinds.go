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
	carriedOut kind = iota + 1 // supported, with Triton's meaning
	hint                       // has no effect here, which is reported as a warning
	refused                    // an error, because ignoring it would change what the model does
)

func (k kind) String() string {
	return [...]string{"", "carried out", "hint", "refused"}[k]
}

// A rule is the kind of a field, and the reason: why a hint has no effect, or what is
// expected instead of a refused field.
type rule struct {
	kind kind
	says string
	// harmless reports whether a value that is set requests nothing. Nil means that no value
	// is harmless; a scalar with its default value is never set.
	harmless func(protoreflect.Value) bool
}

// Reasons that several fields share.
const (
	copied    = "tensors are in the memory they came in, and are copied to a GPU by its engine"
	onlyRT    = "only TensorRT looks at it, and it is not here"
	noMetrics = "metrics have the labels and buckets of all models"
)

// rules has every field of a configuration by its path. Fields inside a hint or a refused
// field have the same kind, and are not listed.
var rules = map[string]rule{
	"name":     {kind: carriedOut},
	"platform": {kind: carriedOut},
	"backend":  {kind: carriedOut},
	"runtime":  {kind: refused, says: "none, because backends are built in and have no libraries of their own"},

	"version_policy":                     {kind: carriedOut},
	"version_policy.latest":              {kind: carriedOut},
	"version_policy.latest.num_versions": {kind: carriedOut},
	"version_policy.all":                 {kind: carriedOut},
	"version_policy.specific":            {kind: carriedOut},
	"version_policy.specific.versions":   {kind: carriedOut},

	"max_batch_size": {kind: carriedOut},

	"input":                         {kind: carriedOut},
	"input.name":                    {kind: carriedOut},
	"input.data_type":               {kind: carriedOut},
	"input.format":                  {kind: refused, says: "FORMAT_NONE, because dimensions have no meaning of their own"},
	"input.dims":                    {kind: carriedOut},
	"input.reshape":                 {kind: carriedOut},
	"input.reshape.shape":           {kind: carriedOut},
	"input.is_shape_tensor":         {kind: refused, says: "false, because every input has rows"},
	"input.allow_ragged_batch":      {kind: carriedOut},
	"input.optional":                {kind: carriedOut},
	"input.is_non_linear_format_io": {kind: refused, says: "false, because bytes are in the order of the inference protocol"},

	"output":                         {kind: carriedOut},
	"output.name":                    {kind: carriedOut},
	"output.data_type":               {kind: carriedOut},
	"output.dims":                    {kind: carriedOut},
	"output.reshape":                 {kind: carriedOut},
	"output.reshape.shape":           {kind: carriedOut},
	"output.label_filename":          {kind: carriedOut},
	"output.is_shape_tensor":         {kind: refused, says: "false, because every output has rows"},
	"output.is_non_linear_format_io": {kind: refused, says: "false, because bytes are in the order of the inference protocol"},

	"batch_input":               {kind: carriedOut},
	"batch_input.kind":          {kind: carriedOut},
	"batch_input.target_name":   {kind: carriedOut},
	"batch_input.data_type":     {kind: carriedOut},
	"batch_input.source_input":  {kind: carriedOut},
	"batch_output":              {kind: carriedOut},
	"batch_output.kind":         {kind: carriedOut},
	"batch_output.target_name":  {kind: carriedOut},
	"batch_output.source_input": {kind: carriedOut},

	"optimization":                                {kind: carriedOut},
	"optimization.graph":                          {kind: carriedOut},
	"optimization.graph.level":                    {kind: carriedOut},
	"optimization.priority":                       {kind: hint, says: onlyRT},
	"optimization.cuda":                           {kind: hint, says: "a GPU is used as its engine does by itself"},
	"optimization.execution_accelerators":         {kind: hint, says: "instance_group.kind says what computes, and nothing else does"},
	"optimization.input_pinned_memory":            {kind: hint, says: copied},
	"optimization.output_pinned_memory":           {kind: hint, says: copied},
	"optimization.gather_kernel_buffer_threshold": {kind: hint, says: copied},
	"optimization.eager_batching":                 {kind: hint, says: "the next batch is always prepared while one runs"},

	"dynamic_batching":                                                    {kind: carriedOut},
	"dynamic_batching.preferred_batch_size":                               {kind: carriedOut},
	"dynamic_batching.max_queue_delay_microseconds":                       {kind: carriedOut},
	"dynamic_batching.preserve_ordering":                                  {kind: carriedOut},
	"dynamic_batching.priority_levels":                                    {kind: carriedOut},
	"dynamic_batching.default_priority_level":                             {kind: carriedOut},
	"dynamic_batching.default_queue_policy":                               {kind: carriedOut},
	"dynamic_batching.default_queue_policy.timeout_action":                {kind: carriedOut},
	"dynamic_batching.default_queue_policy.default_timeout_microseconds":  {kind: carriedOut},
	"dynamic_batching.default_queue_policy.allow_timeout_override":        {kind: carriedOut},
	"dynamic_batching.default_queue_policy.max_queue_size":                {kind: carriedOut},
	"dynamic_batching.priority_queue_policy":                              {kind: carriedOut},
	"dynamic_batching.priority_queue_policy.timeout_action":               {kind: carriedOut},
	"dynamic_batching.priority_queue_policy.default_timeout_microseconds": {kind: carriedOut},
	"dynamic_batching.priority_queue_policy.allow_timeout_override":       {kind: carriedOut},
	"dynamic_batching.priority_queue_policy.max_queue_size":               {kind: carriedOut},

	"sequence_batching":   {kind: refused, says: "dynamic_batching or none, because requests are not kept in sequences"},
	"ensemble_scheduling": {kind: refused, says: "dynamic_batching or none, because a model is not made of other models"},

	"instance_group":                        {kind: carriedOut},
	"instance_group.name":                   {kind: carriedOut},
	"instance_group.kind":                   {kind: carriedOut},
	"instance_group.count":                  {kind: carriedOut},
	"instance_group.rate_limiter":           {kind: carriedOut},
	"instance_group.rate_limiter.resources": {kind: refused, says: "none, because instances do not wait for resources"},
	"instance_group.rate_limiter.priority": {
		kind: refused, says: "1, because the instances of all models have the same right to run",
		harmless: func(v protoreflect.Value) bool { return v.Uint() <= 1 },
	},
	"instance_group.gpus":              {kind: carriedOut},
	"instance_group.secondary_devices": {kind: hint, says: onlyRT},
	"instance_group.profile":           {kind: hint, says: onlyRT},
	"instance_group.passive":           {kind: refused, says: "false, because every instance is given requests"},
	"instance_group.host_policy":       {kind: hint, says: "instances are not bound to cores or memory"},

	"default_model_filename":  {kind: carriedOut},
	"cc_model_filenames":      {kind: refused, says: "none, because one file serves on all devices"},
	"metric_tags":             {kind: hint, says: noMetrics},
	"parameters":              {kind: carriedOut},
	"parameters.string_value": {kind: carriedOut},

	"model_warmup":                        {kind: carriedOut},
	"model_warmup.name":                   {kind: carriedOut},
	"model_warmup.batch_size":             {kind: carriedOut},
	"model_warmup.inputs":                 {kind: carriedOut},
	"model_warmup.inputs.data_type":       {kind: carriedOut},
	"model_warmup.inputs.dims":            {kind: carriedOut},
	"model_warmup.inputs.zero_data":       {kind: carriedOut},
	"model_warmup.inputs.random_data":     {kind: carriedOut},
	"model_warmup.inputs.input_data_file": {kind: carriedOut},
	"model_warmup.count":                  {kind: carriedOut},

	"model_operations":                     {kind: carriedOut},
	"model_operations.op_library_filename": {kind: refused, says: "none, because an engine has only its own operations"},

	"model_transaction_policy":           {kind: carriedOut},
	"model_transaction_policy.decoupled": {kind: carriedOut},

	"model_repository_agents":        {kind: carriedOut},
	"model_repository_agents.agents": {kind: refused, says: "none, because nothing else is asked before a model is loaded"},

	"response_cache":        {kind: carriedOut},
	"response_cache.enable": {kind: refused, says: "false, because every request is run"},

	"model_metrics": {kind: hint, says: noMetrics},
}

// A setting is a field of the file that is a hint or refused.
type setting struct {
	field string
	value protoreflect.Value
	desc  protoreflect.FieldDescriptor
	rule  rule
	line  int
}

// sortFields returns an error for the first refused field, in the order of the file, and
// adds warnings for hints.
func (c *Config) sortFields() error {
	var found []setting
	visit(c.Proto.ProtoReflect(), step{}, func(s setting) {
		s.line = c.places.lineOf(s.field)
		found = append(found, s)
	})
	slices.SortStableFunc(found, func(a, b setting) int { return cmp.Compare(a.line, b.line) })
	for _, s := range found {
		if s.rule.kind == refused {
			return bad(s.field, describeValue(s.desc, s.value), "%s", s.rule.says)
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

// visit calls f for each field of a message that is set and is not carriedOut.
func visit(m protoreflect.Message, at step, f func(setting)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		to, v := step{at.field + string(fd.Name()), at.rule + string(fd.Name())}, m.Get(fd)
		switch r := rules[to.rule]; {
		case r.kind == carriedOut:
			visitInside(fd, v, to, f)
		case r.harmless == nil || !r.harmless(v):
			f(setting{field: to.field, value: v, desc: fd, rule: r})
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

// describeValue describes the value of a refused field.
func describeValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case fd.IsMap():
		return fmt.Sprintf("%d of them", v.Map().Len())
	case fd.IsList():
		return fmt.Sprintf("%d of them", v.List().Len())
	case fd.Message() != nil:
		return "a block"
	case fd.Enum() != nil:
		if value := fd.Enum().Values().ByNumber(v.Enum()); value != nil {
			return string(value.Name())
		}
		return fmt.Sprint(v.Enum())
	case fd.Kind() == protoreflect.StringKind:
		return fmt.Sprintf("%q", v.String())
	default:
		return fmt.Sprint(v.Interface())
	}
}
