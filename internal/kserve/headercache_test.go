package kserve

import (
	"fmt"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
)

// again decodes a body twice, the second time possibly from the cache.
func again(t *testing.T, b *buf.Buf, o DecodeOptions) (first, second *Request) {
	t.Helper()
	first, err := DecodeRequest(t.Context(), b, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(first.Memory.Release)
	second, err = DecodeRequest(t.Context(), b, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Memory.Release)
	return first, second
}

func TestAHeadThatComesAgainMeansTheSame(t *testing.T) {
	const inputs = `"inputs":[{"name":"A","shape":[2],"datatype":"UINT8","parameters":{"binary_data_size":2}},` +
		`{"name":"B","shape":[1,3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]`
	for _, doc := range []string{
		`{` + inputs + `}`,
		`{` + inputs + `,"parameters":{"binary_data_output":true,"priority":2,"timeout":5,"mine":"x"}}`,
		`{` + inputs + `,"outputs":[{"name":"Y","parameters":{"binary_data":true,"classification":3}}]}`,
		`{"id":"7",` + inputs + `}`,
	} {
		b, o := body(doc, "12345")
		t.Cleanup(b.Release)
		first, second := again(t, b, o)
		if !alike(*first, *second) {
			t.Errorf("%s: first\n%+v, then\n%+v", doc, first, second)
		}
	}
}

func TestAHeadThatComesAgainHasOtherData(t *testing.T) {
	const doc = `{"inputs":[{"name":"A","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]}`
	for _, data := range []string{"abc", "def"} {
		b, o := body(doc, data)
		o.Model = "model of " + data
		req, err := DecodeRequest(t.Context(), b, o, nil)
		b.Release()
		if err != nil {
			t.Fatal(err)
		}
		if got := string(req.Inputs[0].Data); got != data || req.Model != o.Model {
			t.Errorf("%s of %s, want %s", got, req.Model, data)
		}
		req.Memory.Release()
	}
	for _, data := range []string{"", "ab", "abcd"} {
		b, o := body(doc, data)
		if _, err := DecodeRequest(t.Context(), b, o, nil); err == nil {
			t.Errorf("%d bytes of data are taken for 3", len(data))
		}
		b.Release()
	}
}

func TestForwardedHeadersStayWithTheirRequest(t *testing.T) {
	const inputs = `"inputs":[{"name":"A","shape":[1],"datatype":"UINT8","parameters":{"binary_data_size":1}}]`
	pattern, err := ParseHeaderPattern("^x-user$")
	if err != nil {
		t.Fatal(err)
	}
	forward := func(req *Request, user string) { pattern.Forward(&req.Request, map[string][]string{"X-User": {user}}) }
	for _, test := range []struct{ parameters, alice, bob, none string }{
		{`{"x-user":"self","a":1}`, "[{a 1} {x-user alice}]", "[{a 1} {x-user bob}]", "[{x-user self} {a 1}]"},
		{`{"a":1,"b":2,"c":3}`, "[{a 1} {b 2} {c 3} {x-user alice}]", "[{a 1} {b 2} {c 3} {x-user bob}]", "[{a 1} {b 2} {c 3}]"}, // append has room
	} {
		b, o := body(`{`+inputs+`,"parameters":`+test.parameters+`}`, "1")
		t.Cleanup(b.Release)
		first, second := again(t, b, o)
		forward(first, "alice")
		forward(second, "bob")
		third, _ := again(t, b, o)
		for _, got := range []struct {
			req  *Request
			want string
		}{{first, test.alice}, {second, test.bob}, {third, test.none}} {
			if parameters := fmt.Sprint(got.req.Parameters); parameters != got.want {
				t.Errorf("%s: %s, want %s", test.parameters, parameters, got.want)
			}
		}
	}
}

func TestAHeadIsHeldAgainstItsOwnLimits(t *testing.T) {
	const doc = `{"inputs":[{"name":"A","shape":[1,1,3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]}`
	b, o := body(doc, "abc")
	defer b.Release()
	again(t, b, o)
	o.Limits.Dims = 2
	if _, err := DecodeRequest(t.Context(), b, o, nil); err == nil {
		t.Error("a head that others may send was taken from one who may not")
	}
}

func TestStringsAreLimitedEachTime(t *testing.T) {
	const doc = `{"inputs":[{"name":"A","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":12}}]}`
	for data, want := range map[string]bool{"\x08\x00\x00\x0012345678": false, "\x01\x00\x00\x00a\x03\x00\x00\x00xyz": true} {
		b, o := body(doc, data)
		o.Limits.String = 4
		for range 2 {
			req, err := DecodeRequest(t.Context(), b, o, nil)
			if (err == nil) != want {
				t.Errorf("%q: %v", data, err)
			}
			if err == nil {
				req.Memory.Release()
			}
		}
		b.Release()
	}
}
