package modelconfig_test

import (
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// encoder is a text encoder with a mask. PAD is the place of further settings.
const encoder = `
name: "encoder" max_batch_size: 8 backend: "simulated"
input { name: "ids" data_type: TYPE_INT64 dims: -1 }
input { name: "attention_mask" data_type: TYPE_INT64 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { }
PAD`

func encoderWith(t *testing.T, settings string) *modelconfig.Config {
	t.Helper()
	c := parse(t, strings.Replace(encoder, "PAD", settings, 1))
	c.Automatic = true
	if err := c.CompletePadding(); err != nil {
		t.Fatal(err)
	}
	return c
}

func pad(value string) string {
	return `parameters { key: "pad" value { string_value: "` + value + `" } }`
}

func TestPaddingIsWhatTheParameterSays(t *testing.T) {
	for _, test := range []struct {
		settings         string
		padded, detected bool
	}{
		{settings: pad("off")},
		{settings: pad("auto"), padded: true, detected: true},
		{settings: pad("ids=1 attention_mask=0"), padded: true},
	} {
		p := encoderWith(t, test.settings).Padding
		if (p != nil) != test.padded || p != nil && p.Detected != test.detected {
			t.Errorf("%s: padding is %+v", test.settings, p)
		}
	}
}

// tokens returns a request of one row, whose inputs have the given lengths.
func tokens(lengths ...int64) *infer.Request {
	req := &infer.Request{}
	for i, name := range []string{"ids", "attention_mask"} {
		req.Inputs = append(req.Inputs, tensor.Tensor{Name: name, Type: tensor.Int64, Shape: []int64{1, lengths[i]}, Data: make([]byte, 8*lengths[i])})
	}
	return req
}

func TestRequestsOfDifferentLengthsAreOneGroup(t *testing.T) {
	c := encoderWith(t, pad("auto"))
	groupOf := func(lengths ...int64) uint64 {
		req := tokens(lengths...)
		if err := c.Check(req); err != nil {
			t.Fatal(err)
		}
		return req.PadGroup
	}
	if a, b := groupOf(3, 3), groupOf(200, 200); a == 0 || a != b {
		t.Errorf("requests of 3 and 200 tokens are in groups %d and %d, want the same", a, b)
	}
	if group := groupOf(3, 4); group != 0 {
		t.Errorf("a request whose mask has another length is in group %d, want none", group)
	}
	if group := groupOf(0, 0); group != 0 {
		t.Errorf("a request of length 0 is in group %d, want none: nothing says what its padding is", group)
	}
}
