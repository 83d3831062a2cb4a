package kservegrpc

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func parameter(value any) *kservepb.InferParameter {
	switch v := value.(type) {
	case bool:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_BoolParam{BoolParam: v}}
	case int:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: int64(v)}}
	case uint64:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Uint64Param{Uint64Param: v}}
	case float64:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_DoubleParam{DoubleParam: v}}
	case string:
		return &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_StringParam{StringParam: v}}
	}
	return &kservepb.InferParameter{}
}

func TestParametersOfAMessageAreRead(t *testing.T) {
	for _, tt := range []struct {
		name  string
		value any
		want  infer.Request
	}{
		{"priority", 3, infer.Request{Priority: 3}},
		{"priority", uint64(300), infer.Request{Priority: 300}},
		{"timeout", 1500, infer.Request{Timeout: 1500 * time.Microsecond}},
		{"sequence_id", -1, infer.Request{Correlation: 1<<64 - 1}},
		{"sequence_id", uint64(7), infer.Request{Correlation: 7}},
		{"sequence_id", "seven", infer.Request{CorrelationName: "seven"}},
		{"sequence_start", true, infer.Request{Flags: infer.SequenceStart}},
		{"sequence_end", true, infer.Request{Flags: infer.SequenceEnd}},
		{"sequence_end", false, infer.Request{}},
		{emptyFinal, true, infer.Request{}},
		{"binary_data_output", true, infer.Request{Parameters: []infer.Parameter{{Name: "binary_data_output", Value: true}}}},
		{"mine", -1, infer.Request{Parameters: []infer.Parameter{{Name: "mine", Value: int64(-1)}}}},
		{"mine", uint64(1), infer.Request{Parameters: []infer.Parameter{{Name: "mine", Value: uint64(1)}}}},
		{"mine", 0.5, infer.Request{Parameters: []infer.Parameter{{Name: "mine", Value: 0.5}}}},
		{"mine", "x", infer.Request{Parameters: []infer.Parameter{{Name: "mine", Value: "x"}}}},
		{"mine", nil, infer.Request{}},
	} {
		var got infer.Request
		if err := decodeParameters(&got, map[string]*kservepb.InferParameter{tt.name: parameter(tt.value)}); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %v: %v, %+v", tt.name, tt.value, err, got)
		}
	}
}

func TestAParameterOfTheWrongTypeIsNamed(t *testing.T) {
	const reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. " +
		"Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response"
	for _, tt := range []struct {
		name  string
		value any
		want  string
	}{
		{"priority", -1, "invalid value for 'priority', expected value >= 0."},
		{"priority", "1", "invalid value type for 'priority' parameter, expected int64_param."},
		{"timeout", nil, "invalid value type for 'timeout' parameter, expected int64_param."},
		{"sequence_id", true, "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."},
		{"sequence_id", nil, "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."},
		{"sequence_id", strings.Repeat("x", 129), "string correlation ID cannot be longer than 128 characters"},
		{"sequence_start", 1, "invalid value type for 'sequence_start' parameter, expected bool_param."},
		{emptyFinal, 1, "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."},
		{"triton_x", true, reserved},
		{"triton_", nil, reserved},
	} {
		err := decodeParameters(&infer.Request{}, map[string]*kservepb.InferParameter{tt.name: parameter(tt.value)})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s %v: %v, want %s", tt.name, tt.value, err, tt.want)
		}
	}
}

func TestParametersOfSharedMemoryAreChecked(t *testing.T) {
	f := func(parameters map[string]any, want string) {
		t.Helper()
		p := map[string]*kservepb.InferParameter{}
		for name, value := range parameters {
			p[name] = parameter(value)
		}
		in := &kservepb.ModelInferRequest{Inputs: []*kservepb.ModelInferRequest_InferInputTensor{{Name: "A", Parameters: p}}}
		if err := decodeInputs(&infer.Request{}, in, &kserve.SharedTensors{}, noLimits()); err == nil || err.Error() != want {
			t.Errorf("an input: %v, want %s", err, want)
		}
		out := []*kservepb.ModelInferRequest_InferRequestedOutputTensor{{Name: "A", Parameters: p}}
		if err := decodeOutputs(&infer.Request{}, out, &kserve.SharedTensors{}); err == nil || err.Error() != want {
			t.Errorf("an output: %v, want %s", err, want)
		}
	}
	f(map[string]any{"shared_memory_region": 1}, "invalid value type for 'shared_memory_region' parameter for tensor 'A', expected string_param.")
	f(map[string]any{"shared_memory_region": "r", "shared_memory_offset": "1"}, "invalid value type for 'shared_memory_offset' parameter for tensor 'A', expected int64_param.")
	f(map[string]any{"shared_memory_region": "r", "shared_memory_byte_size": true}, "invalid value type for 'shared_memory_byte_size' parameter for tensor 'A', expected int64_param.")
	f(map[string]any{"shared_memory_offset": 1}, "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'A'")
	f(map[string]any{"shared_memory_byte_size": 1}, "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'A'")
}
