package modelconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/reference"
)

// meanings describes the supported fields, for the reference.
var meanings = map[string]string{
	"name":                                  "must be the name of the directory; optional",
	"platform":                              "selects the backend; must agree with `backend` if both are set",
	"backend":                               "the engine that runs the model",
	"version_policy":                        "versions to serve; by default the one with the highest number",
	"version_policy.latest":                 "the versions with the highest numbers",
	"version_policy.latest.num_versions":    "at least 1",
	"version_policy.all":                    "all versions",
	"version_policy.specific":               "the listed versions that exist; at least one must",
	"version_policy.specific.versions":      "at least one number",
	"max_batch_size":                        "largest number of rows of a batch; 0 means that the tensors have no batch dimension; see [Omitted fields](#omitted-fields)",
	"input":                                 "the inputs; by default those of the model file",
	"input.name":                            "required and unique",
	"input.data_type":                       "required",
	"input.dims":                            "required; sizes of at least 1, or -1 for any size, without the batch dimension",
	"input.reshape":                         "the shape that the model gets, if it differs from the one that clients send; the batch dimension stays",
	"input.reshape.shape":                   "has as many elements as `dims`, also between dimensions of -1, which keep their order; an empty shape is one element per row, and needs a `max_batch_size`",
	"input.allow_ragged_batch":              "requests of different sizes share a batch; see [Ragged batches](#ragged-batches)",
	"input.optional":                        "requests may omit the input: of a `model.py`, whose requests share batches with those that omit the same inputs, and of an ONNX model with `max_batch_size: 0` and an initializer for it",
	"output":                                "the outputs; by default those of the model file",
	"output.name":                           "as for inputs",
	"output.data_type":                      "as for inputs",
	"output.dims":                           "as for inputs",
	"output.reshape":                        "the shape that clients get, if it differs from the one that the model returns",
	"output.reshape.shape":                  "as for inputs",
	"output.label_filename":                 "a file in the model's directory, with one class label per line",
	"batch_input":                           "inputs that Shoal computes and no client sends; see [Ragged batches](#ragged-batches)",
	"batch_input.kind":                      "all six kinds of Triton",
	"batch_input.target_name":               "at least one input of the model, each once",
	"batch_input.data_type":                 "`TYPE_INT32` or `TYPE_FP32`",
	"batch_input.source_input":              "one of `input`",
	"batch_output":                          "outputs that are split by the sizes of an input",
	"batch_output.kind":                     "`BATCH_SCATTER_WITH_INPUT_SHAPE`",
	"batch_output.target_name":              "at least one of `output`, each once",
	"batch_output.source_input":             "one of `input`",
	"optimization":                          "only `graph` has an effect",
	"optimization.graph":                    "graph optimization of ONNX models",
	"optimization.graph.level":              "0: all optimizations of ONNX Runtime; 1: extended; -1: basic; 2: none (Triton's numbers)",
	"dynamic_batching":                      "combines requests into batches; see [Compatibility with Triton](triton-compatibility.md)",
	"dynamic_batching.preferred_batch_size": "sizes from 1 to `max_batch_size`",
	"dynamic_batching.max_queue_delay_microseconds":                            "longest time that a request waits for others; if omitted, [measured](../explanation/automatic-tuning.md), or 0 with `--batching=triton`",
	"dynamic_batching.preserve_ordering":                                       "responses in the order of the requests; not with several priority levels, nor with the timeout action `DELAY`",
	"dynamic_batching.priority_levels":                                         "at most 1000; 0 means none",
	"dynamic_batching.default_priority_level":                                  "1 to `priority_levels`; required if there are levels",
	"dynamic_batching.default_queue_policy":                                    "if omitted, the queue is limited by `--max-queue-size` and the `timeout` of a request is its deadline",
	"dynamic_batching.default_queue_policy.timeout_action":                     "`REJECT` or `DELAY`",
	"dynamic_batching.default_queue_policy.default_timeout_microseconds":       "longest time in the queue; 0 means no limit",
	"dynamic_batching.default_queue_policy.allow_timeout_override":             "a request may ask for a shorter time",
	"dynamic_batching.default_queue_policy.max_queue_size":                     "limit in requests; 0 means no limit",
	"dynamic_batching.priority_queue_policy":                                   "policies of single levels; keys are 1 to `priority_levels`",
	"dynamic_batching.priority_queue_policy.timeout_action":                    "as in the default policy",
	"dynamic_batching.priority_queue_policy.default_timeout_microseconds":      "as in the default policy",
	"dynamic_batching.priority_queue_policy.allow_timeout_override":            "as in the default policy",
	"dynamic_batching.priority_queue_policy.max_queue_size":                    "as in the default policy",
	"optimization.execution_accelerators":                                      "how ONNX models use a GPU",
	"optimization.execution_accelerators.gpu_execution_accelerator":            "options of ONNX Runtime's providers for GPUs, without effect on the CPU; see [GPUs](#gpus)",
	"optimization.execution_accelerators.gpu_execution_accelerator.name":       "`cuda` or `tensorrt`",
	"optimization.execution_accelerators.gpu_execution_accelerator.parameters": "options of the provider",
	"instance_group":                                           "number and place of the instances; if omitted, Shoal chooses",
	"instance_group.name":                                      "shown, without other effect",
	"instance_group.kind":                                      "see [GPUs](#gpus)",
	"instance_group.count":                                     "instances of this group; the counts of all groups are added; 0 next to a group with a count means 1",
	"instance_group.rate_limiter":                              "its fields are unused",
	"instance_group.gpus":                                      "not with `KIND_CPU` or `KIND_MODEL`; `count` applies to each GPU; see [GPUs](#gpus)",
	"default_model_filename":                                   "name of the model file, or of a directory with `model.onnx` and its weights, without a path",
	"metric_tags":                                              "labels of the model's metrics; `team` is the label `_team`, as in Triton",
	"parameters":                                               "passed to the engine, except `slo_milliseconds`: the [latency objective](../explanation/service-levels.md)",
	"parameters.string_value":                                  "passed to the engine",
	"model_warmup":                                             "requests to run before the model is ready",
	"model_warmup.name":                                        "name of the sample, for errors",
	"model_warmup.batch_size":                                  "rows of the sample",
	"model_warmup.inputs":                                      "inputs of the sample",
	"model_warmup.inputs.data_type":                            "type of the input",
	"model_warmup.inputs.dims":                                 "shape of the input, without the batch dimension",
	"model_warmup.inputs.zero_data":                            "zeros",
	"model_warmup.inputs.random_data":                          "random values",
	"model_warmup.inputs.input_data_file":                      "file in `warmup/` of the model's directory",
	"model_warmup.count":                                       "number of runs",
	"sequence_batching":                                        "requests belong to sequences; see [Sequences](sequences.md)",
	"sequence_batching.max_sequence_idle_microseconds":         "after how long without a request a sequence ends; by default 1000000",
	"sequence_batching.iterative_sequence":                     "each request is a sequence, which the model may have run again",
	"sequence_batching.control_input":                          "an input that the server adds to each request",
	"sequence_batching.control_input.name":                     "name of the input",
	"sequence_batching.control_input.control":                  "what the input says, exactly one",
	"sequence_batching.control_input.control.kind":             "whether the request starts or ends its sequence, whether the row has a request, or the ID of the sequence",
	"sequence_batching.control_input.control.int32_false_true": "the values for no and yes of an `INT32` input",
	"sequence_batching.control_input.control.fp32_false_true":  "the values for no and yes of an `FP32` input",
	"sequence_batching.control_input.control.bool_false_true":  "the values for no and yes of a `BOOL` input",
	"sequence_batching.control_input.control.data_type":        "type of the ID: `TYPE_UINT64`, `TYPE_INT64`, `TYPE_UINT32`, `TYPE_INT32` or `TYPE_STRING`",
	"sequence_batching.direct":                                 "each sequence has a row of the batch to itself; the default",
	"sequence_batching.direct.max_queue_delay_microseconds":    "how long a batch waits for `minimum_slot_utilization`",
	"sequence_batching.direct.minimum_slot_utilization":        "part of the rows, from 0 to 1, that a batch waits for",
	"sequence_batching.oldest":                                 "a batch has the oldest request of each sequence",
	"sequence_batching.oldest.max_candidate_sequences":         "sequences of an instance at a time; by default `max_batch_size`",
	"sequence_batching.oldest.preferred_batch_size":            "sizes at which a batch runs immediately",
	"sequence_batching.oldest.max_queue_delay_microseconds":    "how long a batch waits for requests; not set, the server decides",
	"sequence_batching.state":                                  "an output that is an input of the sequence's next request",
	"sequence_batching.state.input_name":                       "name of the input",
	"sequence_batching.state.output_name":                      "name of the output; clients get it only if it is in `output`, too",
	"sequence_batching.state.data_type":                        "type of the state",
	"sequence_batching.state.dims":                             "shape of a row of the state; -1 for a dimension that changes, which begins with 1",
	"sequence_batching.state.initial_state":                    "what a sequence begins with, one at most; by default zeros",
	"sequence_batching.state.initial_state.data_type":          "type of the state",
	"sequence_batching.state.initial_state.dims":               "shape of the first value",
	"sequence_batching.state.initial_state.zero_data":          "begin with zeros",
	"sequence_batching.state.initial_state.data_file":          "file with the first value, in the directory `initial_state` of the model",
	"ensemble_scheduling":                                      "the model is a graph of requests to other models; see [Ensembles](ensembles.md)",
	"ensemble_scheduling.step":                                 "a request to a model, which starts when its inputs exist",
	"ensemble_scheduling.step.model_name":                      "name of the model",
	"ensemble_scheduling.step.model_version":                   "its version; -1 for the one that its version policy selects",
	"ensemble_scheduling.step.input_map":                       "the ensemble's tensor for each input of the model",
	"ensemble_scheduling.step.output_map":                      "the ensemble's tensor for outputs of the model",
	"model_operations":                                         "operators that a model has besides those of its engine",
	"model_operations.op_library_filename":                     "libraries of operators for an ONNX model: files in the directory of the version or the model, or names that the dynamic linker finds; unused for other backends",
	"model_transaction_policy":                                 "how often a model responds",
	"model_transaction_policy.decoupled":                       "the model sends any number of responses to a request; Python models only",
	"model_repository_agents":                                  "its field is rejected",
	"response_cache":                                           "whether responses are cached",
	"response_cache.enable":                                    "equal requests get the same response, if the server is started with `--cache-config`; see [Response cache](response-cache.md)",
}

func TestTheReferenceOfFieldsIsCurrent(t *testing.T) {
	sections := []struct {
		kind  Kind
		title string
		intro string
	}{
		{Supported, "Supported", "They mean the same as in Triton. An explicit 0 is 0."},
		{Unused, "Unused", "They have no effect, neither in Shoal nor in Triton with its default flags. The model is loaded,\nand a warning in the log names the file, the line and the field."},
		{Ignored, "Ignored", "They have no effect in Shoal, but have one in Triton. The model is loaded, with a warning."},
		{Rejected, "Rejected", "The model is not loaded, because it would behave differently without the field. A rejected\n" +
			"field with its default value, such as `enable: false`, is accepted.\n\n" +
			"A server starts without such a model as long as another one serves, and is ready: the log and the\n" +
			"index say which model is missing, and why. A model whose configuration is wrong ends the start,\n" +
			"as in Triton, unless `--exit-on-error=false` is given."},
	}
	var out strings.Builder
	for _, s := range sections {
		fmt.Fprintf(&out, "### %s\n\n%s\n\n", s.title, s.intro)
		for _, path := range slices.Sorted(maps.Keys(rules)) {
			r := rules[path]
			if r.kind != s.kind {
				continue
			}
			says := r.says()
			if r.kind == Supported {
				says = meanings[path]
			}
			if says == "" {
				t.Errorf("%s has no meaning: give it one in meanings", path)
			}
			out.WriteString(reference.Item("`"+path+"`", says))
		}
		out.WriteString("\n")
	}
	for path := range meanings {
		if rules[path].kind != Supported {
			t.Errorf("%s has a meaning, but is not a supported field", path)
		}
	}
	reference.Section(t, "configuration.md", "fields", out.String())
}
