package kserve

import (
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
)

func TestParametersThatTheProtocolDefinesAreNotForModels(t *testing.T) {
	req := decode(t, `{"parameters":{"binary_data_output":true,"sequence_start":true,"sequence_end":false,"a":true,"b":-1,"c":18446744073709551615,`+
		`"d":0.5,"e":"x","f":null,"g":[1],"priority":300},"inputs":[]}`)
	want := []infer.Parameter{{Name: "a", Value: true}, {Name: "b", Value: int64(-1)}, {Name: "c", Value: uint64(1<<64 - 1)}, {Name: "d", Value: 0.5}, {Name: "e", Value: "x"}}
	if !reflect.DeepEqual(req.Parameters, want) || req.Flags != infer.SequenceStart || !req.binary || req.Priority != 300 {
		t.Errorf("%+v, flags %d, binary %v, priority %d", req.Parameters, req.Flags, req.binary, req.Priority)
	}
}

func TestAParameterOfTheWrongKindIsNamed(t *testing.T) {
	natural := func(name string) string {
		return "Unable to parse '" + name + "': attempt to access JSON non-unsigned-integer as unsigned-integer"
	}
	for parameter, want := range map[string]string{
		`"priority":-1`:                             natural("priority"),
		`"priority":-0`:                             natural("priority"),
		`"priority":1.0`:                            natural("priority"),
		`"priority":"1"`:                            natural("priority"),
		`"priority":{"a":[]}`:                       natural("priority"),
		`"timeout":null`:                            natural("timeout"),
		`"sequence_id":-1`:                          natural("sequence_id"),
		`"sequence_id":true`:                        natural("sequence_id"),
		`"sequence_start":1`:                        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
		`"sequence_end":"true"`:                     "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean",
		`"binary_data_output":1`:                    "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
		`"triton_":1`:                               "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
		`"triton_enable_empty_final_response":true`: "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
		`"sequence_id":"` + strings.Repeat("x", 129) + `"`:                "string correlation ID cannot be longer than 128 characters",
		`"priority":"` + strings.Repeat("x", 1<<17) + `"`:                 natural("priority"),
		`"priority":` + strings.Repeat("1", 1<<17):                        natural("priority"),
		`"priority":` + strings.Repeat(`[`, 20) + strings.Repeat(`]`, 20): natural("priority"),
	} {
		b, o := body(`{"parameters":{`+parameter+`},"inputs":[]}`, "")
		_, err := DecodeRequest(t.Context(), b, o, nil)
		b.Release()
		if err == nil || err.Error() != want {
			t.Errorf("%.40s: %v, want %s", parameter, err, want)
		}
	}
}
