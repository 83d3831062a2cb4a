package modelconfig

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Kind is how a field that is set is handled. Fields that would change a model's
// responses are never ignored.
type Kind uint8

// Kinds of fields, from the least consequence to the greatest.
const (
	Supported Kind = iota + 1 // supported, with Triton's meaning
	Unused                    // has no effect, neither here nor in Triton with its default flags
	Ignored                   // has no effect here, but has one in Triton
	Rejected                  // an error, because ignoring it would change what the model does
)

func (k Kind) String() string {
	return [...]string{"", "supported", "unused", "ignored", "rejected"}[k]
}

// A rule is the kind of a field, what Shoal and Triton do with it, and what to do instead of
// setting it.
type rule struct {
	kind    Kind
	what    string // empty for a supported field
	instead string // may be empty unless the field is rejected
	only    string // the backend that uses a supported field, which is unused for others; "" means all
	// harmless reports whether a value that is set requests nothing. Nil means that no value
	// is harmless; a scalar with its default value is never set.
	harmless func(protoreflect.Value) bool
}

// says returns the rule as one sentence.
func (r rule) says() string { return joinText(r.what, r.instead) }

// Texts that several fields share.
const (
	copied       = "the engine copies tensors to a GPU by itself"
	onlyRT       = "only TensorRT plans use it, in Triton, too"
	noShapes     = "shape tensors of TensorRT are not supported"
	noNonLinear  = "the non-linear formats of TensorRT are not supported"
	exportModel  = "export the model to ONNX"
	noRateLimits = "Triton uses it only with --rate-limit, which is not supported yet"
)

// rules has every field of a configuration by its path. Fields inside an ignored or a rejected
// one have the same kind, and are not listed.
var rules = map[string]rule{
	"name":     {kind: Supported},
	"platform": {kind: Supported},
	"backend":  {kind: Supported},
	"runtime":  {kind: Rejected, what: "backend libraries of your own are not supported", instead: "remove runtime, and set backend to one of those that Shoal has"},

	"version_policy":                     {kind: Supported},
	"version_policy.latest":              {kind: Supported},
	"version_policy.latest.num_versions": {kind: Supported},
	"version_policy.all":                 {kind: Supported},
	"version_policy.specific":            {kind: Supported},
	"version_policy.specific.versions":   {kind: Supported},

	"max_batch_size": {kind: Supported},

	"input":                         {kind: Supported},
	"input.name":                    {kind: Supported},
	"input.data_type":               {kind: Supported},
	"input.format":                  {kind: Unused, what: "the backends for ONNX and Python do not use it in Triton either", instead: "dims describe an input"},
	"input.dims":                    {kind: Supported},
	"input.reshape":                 {kind: Supported},
	"input.reshape.shape":           {kind: Supported},
	"input.is_shape_tensor":         {kind: Rejected, what: noShapes, instead: exportModel},
	"input.allow_ragged_batch":      {kind: Supported},
	"input.optional":                {kind: Supported},
	"input.is_non_linear_format_io": {kind: Rejected, what: noNonLinear, instead: exportModel},

	"output":                         {kind: Supported},
	"output.name":                    {kind: Supported},
	"output.data_type":               {kind: Supported},
	"output.dims":                    {kind: Supported},
	"output.reshape":                 {kind: Supported},
	"output.reshape.shape":           {kind: Supported},
	"output.label_filename":          {kind: Supported},
	"output.is_shape_tensor":         {kind: Rejected, what: noShapes, instead: exportModel},
	"output.is_non_linear_format_io": {kind: Rejected, what: noNonLinear, instead: exportModel},

	"batch_input":               {kind: Supported},
	"batch_input.kind":          {kind: Supported},
	"batch_input.target_name":   {kind: Supported},
	"batch_input.data_type":     {kind: Supported},
	"batch_input.source_input":  {kind: Supported},
	"batch_output":              {kind: Supported},
	"batch_output.kind":         {kind: Supported},
	"batch_output.target_name":  {kind: Supported},
	"batch_output.source_input": {kind: Supported},

	"optimization":                        {kind: Supported},
	"optimization.graph":                  {kind: Supported},
	"optimization.graph.level":            {kind: Supported},
	"optimization.priority":               {kind: Unused, what: onlyRT},
	"optimization.cuda":                   {kind: Ignored, what: "the engine chooses how it uses a GPU"},
	"optimization.execution_accelerators": {kind: Supported},

	"optimization.execution_accelerators.gpu_execution_accelerator":            {kind: Supported, only: "onnxruntime"},
	"optimization.execution_accelerators.gpu_execution_accelerator.name":       {kind: Supported},
	"optimization.execution_accelerators.gpu_execution_accelerator.parameters": {kind: Supported},
	"optimization.execution_accelerators.cpu_execution_accelerator":            {kind: Ignored, what: "accelerators of CPUs such as OpenVINO are not supported yet, and the model runs without them"},

	"optimization.input_pinned_memory":            {kind: Ignored, what: copied},
	"optimization.output_pinned_memory":           {kind: Ignored, what: copied},
	"optimization.gather_kernel_buffer_threshold": {kind: Ignored, what: copied},
	"optimization.eager_batching":                 {kind: Unused, what: onlyRT},

	"dynamic_batching":                                                    {kind: Supported},
	"dynamic_batching.preferred_batch_size":                               {kind: Supported},
	"dynamic_batching.max_queue_delay_microseconds":                       {kind: Supported},
	"dynamic_batching.preserve_ordering":                                  {kind: Supported},
	"dynamic_batching.priority_levels":                                    {kind: Supported},
	"dynamic_batching.default_priority_level":                             {kind: Supported},
	"dynamic_batching.default_queue_policy":                               {kind: Supported},
	"dynamic_batching.default_queue_policy.timeout_action":                {kind: Supported},
	"dynamic_batching.default_queue_policy.default_timeout_microseconds":  {kind: Supported},
	"dynamic_batching.default_queue_policy.allow_timeout_override":        {kind: Supported},
	"dynamic_batching.default_queue_policy.max_queue_size":                {kind: Supported},
	"dynamic_batching.priority_queue_policy":                              {kind: Supported},
	"dynamic_batching.priority_queue_policy.timeout_action":               {kind: Supported},
	"dynamic_batching.priority_queue_policy.default_timeout_microseconds": {kind: Supported},
	"dynamic_batching.priority_queue_policy.allow_timeout_override":       {kind: Supported},
	"dynamic_batching.priority_queue_policy.max_queue_size":               {kind: Supported},

	"sequence_batching": {kind: Supported},
	"sequence_batching.max_sequence_idle_microseconds":         {kind: Supported},
	"sequence_batching.control_input":                          {kind: Supported},
	"sequence_batching.control_input.name":                     {kind: Supported},
	"sequence_batching.control_input.control":                  {kind: Supported},
	"sequence_batching.control_input.control.kind":             {kind: Supported},
	"sequence_batching.control_input.control.int32_false_true": {kind: Supported},
	"sequence_batching.control_input.control.fp32_false_true":  {kind: Supported},
	"sequence_batching.control_input.control.bool_false_true":  {kind: Supported},
	"sequence_batching.control_input.control.data_type":        {kind: Supported},
	"sequence_batching.direct":                                 {kind: Supported},
	"sequence_batching.direct.max_queue_delay_microseconds":    {kind: Supported},
	"sequence_batching.direct.minimum_slot_utilization":        {kind: Supported},
	"sequence_batching.oldest":                                 {kind: Supported},
	"sequence_batching.oldest.max_candidate_sequences":         {kind: Supported},
	"sequence_batching.oldest.preferred_batch_size":            {kind: Supported},
	"sequence_batching.oldest.max_queue_delay_microseconds":    {kind: Supported},
	"sequence_batching.oldest.preserve_ordering":               {kind: Unused, what: "the requests of a sequence are answered in their order in any case"},
	"sequence_batching.state":                                  {kind: Supported},
	"sequence_batching.state.input_name":                       {kind: Supported},
	"sequence_batching.state.output_name":                      {kind: Supported},
	"sequence_batching.state.data_type":                        {kind: Supported},
	"sequence_batching.state.dims":                             {kind: Supported},
	"sequence_batching.state.initial_state":                    {kind: Supported},
	"sequence_batching.state.initial_state.data_type":          {kind: Supported},
	"sequence_batching.state.initial_state.dims":               {kind: Supported},
	"sequence_batching.state.initial_state.zero_data":          {kind: Supported},
	"sequence_batching.state.initial_state.data_file":          {kind: Supported},
	"sequence_batching.state.initial_state.name":               {kind: Unused, what: "only Triton's log has it"},
	"sequence_batching.iterative_sequence":                     {kind: Supported},
	"sequence_batching.state.use_same_buffer_for_input_output": {kind: Ignored, what: "states are copied from the output to the input"},
	"sequence_batching.state.use_growable_memory":              {kind: Ignored, what: "states are copied from the output to the input"},

	"ensemble_scheduling":                       {kind: Supported},
	"ensemble_scheduling.step":                  {kind: Supported},
	"ensemble_scheduling.step.model_name":       {kind: Supported},
	"ensemble_scheduling.step.model_version":    {kind: Supported},
	"ensemble_scheduling.step.input_map":        {kind: Supported},
	"ensemble_scheduling.step.output_map":       {kind: Supported},
	"ensemble_scheduling.step.model_namespace":  {kind: Unused, what: "Triton reserves it for itself"},
	"ensemble_scheduling.max_inflight_requests": {kind: Ignored, what: "decoupled steps, whose responses it limits, are not supported yet"},

	"instance_group":                        {kind: Supported},
	"instance_group.name":                   {kind: Supported},
	"instance_group.kind":                   {kind: Supported},
	"instance_group.count":                  {kind: Supported},
	"instance_group.rate_limiter":           {kind: Supported},
	"instance_group.rate_limiter.resources": {kind: Unused, what: noRateLimits, instead: "limit concurrency with instance_group.count"},
	"instance_group.rate_limiter.priority": {
		kind: Unused, what: noRateLimits, instead: "prioritize requests with dynamic_batching.priority_levels",
		harmless: func(v protoreflect.Value) bool { return v.Uint() <= 1 },
	},
	"instance_group.gpus":              {kind: Supported},
	"instance_group.secondary_devices": {kind: Unused, what: onlyRT},
	"instance_group.profile":           {kind: Unused, what: onlyRT},
	"instance_group.passive":           {kind: Unused, what: "the group has no instances here, and Triton sends no requests to its instances", instead: "remove the group"},
	"instance_group.host_policy":       {kind: Unused, what: "Triton binds instances to cores only with --host-policy, which has no effect here"},

	"default_model_filename":  {kind: Supported},
	"cc_model_filenames":      {kind: Ignored, what: "Triton uses it on a GPU to choose the file, and the default file is used here", instead: "name the file with default_model_filename"},
	"metric_tags":             {kind: Supported},
	"parameters":              {kind: Supported},
	"parameters.string_value": {kind: Supported},

	"model_warmup":                        {kind: Supported},
	"model_warmup.name":                   {kind: Supported},
	"model_warmup.batch_size":             {kind: Supported},
	"model_warmup.inputs":                 {kind: Supported},
	"model_warmup.inputs.data_type":       {kind: Supported},
	"model_warmup.inputs.dims":            {kind: Supported},
	"model_warmup.inputs.zero_data":       {kind: Supported},
	"model_warmup.inputs.random_data":     {kind: Supported},
	"model_warmup.inputs.input_data_file": {kind: Supported},
	"model_warmup.count":                  {kind: Supported},

	"model_operations":                     {kind: Supported},
	"model_operations.op_library_filename": {kind: Supported, only: "onnxruntime"},

	"model_transaction_policy":           {kind: Supported},
	"model_transaction_policy.decoupled": {kind: Supported},

	"model_repository_agents":        {kind: Supported},
	"model_repository_agents.agents": {kind: Rejected, what: "repository agents are not supported yet", instead: "check or decrypt the files before Shoal reads them"},

	"response_cache":        {kind: Supported},
	"response_cache.enable": {kind: Supported},

	"model_metrics": {kind: Ignored, what: "all models have the same histogram buckets"},
}

// A step is the position of visit: the path of a message with indices and keys, for
// messages, and without them, for the rules.
type step struct{ field, rule string }

// visit calls f for each field of a message that is set and is not supported for all
// backends.
func visit(m protoreflect.Message, at step, f func(field string, r rule)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		to, v := step{at.field + string(fd.Name()), at.rule + string(fd.Name())}, m.Get(fd)
		switch r := rules[to.rule]; {
		case r.only != "":
			f(to.field, rule{kind: Unused, what: fmt.Sprintf("only models of backend %q use it, in Triton, too", r.only), only: r.only})
		case r.kind == Supported:
			visitInside(fd, v, to, f)
		case r.harmless == nil || !r.harmless(v):
			f(to.field, r)
		}
	}
}

func visitInside(fd protoreflect.FieldDescriptor, v protoreflect.Value, at step, f func(field string, r rule)) {
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
