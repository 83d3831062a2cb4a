package plainjson_test

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/plainjson"
)

// Whole configurations are printed in the tests of package modelconfig, and
// statistics in those of the face.
func TestMessagesArePrinted(t *testing.T) {
	for name, test := range map[string]struct {
		message proto.Message
		want    string
	}{
		"what is not set": {
			&kservepb.ModelStatistics{},
			`{"name":"","version":"","last_inference":0,"inference_count":0,"execution_count":0,"response_stats":{},"batch_stats":[],"memory_usage":[]}`,
		},
		"64-bit integers": {
			&kservepb.MemoryUsage{Type: "CPU", Id: math.MinInt64, ByteSize: math.MaxUint64},
			`{"type":"CPU","id":-9223372036854775808,"byte_size":18446744073709551615}`,
		},
		"what Triton does not have": {
			&kservepb.ModelStatistics{CloseStats: map[string]uint64{"waited": 2, "full": 1}},
			`{"name":"","version":"","last_inference":0,"inference_count":0,"execution_count":0,"response_stats":{},"batch_stats":[],"memory_usage":[],"close_stats":{"full":1,"waited":2}}`,
		},
		"maps, in the order of their keys": {
			&kservepb.ModelStatistics{ResponseStats: map[string]*kservepb.InferResponseStatistics{
				"b": {Cancel: &kservepb.StatisticDuration{Count: 1}}, "a": {},
			}},
			`{"name":"","version":"","last_inference":0,"inference_count":0,"execution_count":0,"response_stats":{"a":{},"b":{"cancel":{"count":1,"ns":0}}},"batch_stats":[],"memory_usage":[]}`,
		},
		"one of several, although it is zero": {
			&kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_BoolParam{}},
			`{"bool_param":false}`,
		},
		"none of several": {&kservepb.InferParameter{}, `{}`},
		"text": {
			&kservepb.ServerMetadataResponse{Name: "a \"quoted\"\n\x00é", Extensions: []string{"", "not UTF-8: \xff"}},
			`{"name":"a \"quoted\"\n\u0000é","version":"","extensions":["","not UTF-8: ` + "\ufffd" + `"]}`,
		},
		"bytes": {
			&kservepb.ModelRepositoryParameter{ParameterChoice: &kservepb.ModelRepositoryParameter_BytesParam{BytesParam: []byte{0, 255, 1}}},
			`{"bytes_param":"AP8B"}`,
		},
		"floats": {
			&kservepb.InferTensorContents{Fp32Contents: []float32{0.1, 1e30}, Fp64Contents: []float64{0.1, math.Inf(1), math.Inf(-1), math.NaN()}},
			`{"bool_contents":[],"int_contents":[],"int64_contents":[],"uint_contents":[],"uint64_contents":[],` +
				`"fp32_contents":[0.1,1e+30],"fp64_contents":[0.1,"Infinity","-Infinity","NaN"],"bytes_contents":[]}`,
		},
		"an enumeration, and a number that it has no name for": {
			&configpb.ModelInput{DataType: configpb.DataType_TYPE_FP32, Format: 99},
			`{"name":"","data_type":"TYPE_FP32","format":99,"dims":[],"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}`,
		},
	} {
		if got := plainjson.Append(nil, test.message); string(got) != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
	}
	if got := plainjson.Append([]byte("before"), &kservepb.ServerLiveRequest{}); string(got) != "before{}" {
		t.Errorf("appended as %s", got)
	}
}
