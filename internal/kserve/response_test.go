package kserve

import (
	"math"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestParametersOfAResponseAreWritten(t *testing.T) {
	for _, tt := range []struct {
		parameters []infer.Parameter
		want       string
	}{
		{nil, ""},
		{[]infer.Parameter{{Name: "a", Value: true}}, `,"parameters":{"a":true}`},
		{
			[]infer.Parameter{{Name: "a", Value: false}, {Name: `"b"`, Value: int64(-7)}, {Name: "c", Value: uint64(math.MaxUint64)}},
			`,"parameters":{"a":false,"\"b\"":-7,"c":18446744073709551615}`,
		},
		{[]infer.Parameter{{Name: "a", Value: 0.5}, {Name: "b", Value: "x\n"}}, `,"parameters":{"a":0.5,"b":"x\n"}`},
		{[]infer.Parameter{{Name: "a", Value: math.NaN()}, {Name: "b", Value: math.Inf(-1)}}, `,"parameters":{"a":null,"b":null}`},
	} {
		var req Request
		got, err := req.AppendResponse(t.Context(), nil, &infer.Response{Model: "m", Version: "1", Parameters: tt.parameters, Outputs: []tensor.Tensor{}})
		if want := `{"model_name":"m","model_version":"1"` + tt.want + `,"outputs":[]}`; err != nil || string(got) != want {
			t.Errorf("%v: %s, %v, want %s", tt.parameters, got, err, want)
		}
	}
}

func TestSequenceParametersAreRead(t *testing.T) {
	name := strings.Repeat("x", maxSequenceName)
	req := decode(t, `{"parameters":{"sequence_id":"`+name+`","sequence_end":true},"inputs":[]}`)
	if req.CorrelationName != name || req.Flags != infer.SequenceEnd {
		t.Errorf("sequence %q with flags %d, want a name of %d characters and %d", req.CorrelationName, req.Flags, maxSequenceName, infer.SequenceEnd)
	}
	if req := decode(t, `{"parameters":{"sequence_id":3,"sequence_start":true,"sequence_end":true},"inputs":[]}`); req.Flags != infer.SequenceStart|infer.SequenceEnd {
		t.Errorf("flags %d, want both", req.Flags)
	}
}

func TestAnInputHasOneSourceOfData(t *testing.T) {
	const wrong = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But "
	for members, want := range map[string]string{
		``: wrong + "no field is set",
		`,"data":[1],"parameters":{"binary_data_size":1}`:                                 wrong + "set 'data' 'binary_data_size'",
		`,"data":[1],"parameters":{"shared_memory_region":"r"}`:                           wrong + "set 'data' 'shared_memory_region'",
		`,"parameters":{"binary_data_size":1,"shared_memory_region":"r"}`:                 wrong + "set 'binary_data_size' 'shared_memory_region'",
		`,"data":[1],"parameters":{"binary_data_size":1,"shared_memory_region":"region"}`: wrong + "set 'data' 'binary_data_size' 'shared_memory_region'",
	} {
		b, o := body(`{"inputs":[{"name":"A","shape":[1],"datatype":"UINT8"`+members+`}]}`, "")
		_, err := DecodeRequest(t.Context(), b, o, nil)
		b.Release()
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", members, err, want)
		}
	}
}

// The decoded data of the first request is as long as what follows the second.
func TestAHeaderWithJSONDataIsNotTakenForOneWithout(t *testing.T) {
	const doc = `{"inputs":[{"name":"A","shape":[2],"datatype":"INT32","data":[1,2]}]}`
	decode(t, doc)
	b, o := body(doc, "12345678")
	defer b.Release()
	req, err := DecodeRequest(t.Context(), b, o, nil)
	if err == nil {
		req.Memory.Release()
	}
	if infer.CodeOf(err) != infer.Invalid {
		t.Errorf("data in JSON and behind it: %v", err)
	}
}
