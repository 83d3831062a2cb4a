package kserve

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
)

// long is an array that is worth removing.
var long = "[" + strings.Repeat("1.5, ", 299) + "2 ]"

// whole decodes a document without removing arrays.
func whole(text string) (*Request, error) {
	limits := Limits{}.WithDefaults()
	body := buf.Get(len(text))
	defer body.Release()
	copy(body.B, text)
	o := DecodeOptions{Model: "m"}
	d := decoder{document: openDocument(body.B, &limits), req: o.request()}
	return d.decode(body, nil)
}

func TestADocumentIsReadTheSameWithoutItsArrays(t *testing.T) {
	input := func(data string) string {
		return `{"inputs":[{"name":"x","shape":[1,300],"datatype":"FP32","data":` + data + `}]}`
	}
	for _, text := range []string{
		input(long),
		input(" \n" + long),
		input("[" + long + "]"),
		input(strings.Replace(long, "2 ]", `"2" ]`, 1)),
		input(strings.Replace(long, "2 ]", "true ]", 1)),
		input(strings.Replace(long, "2 ]", "2, ]", 1)),
		input(strings.Replace(long, "2 ]", "02 ]", 1)),
		input(strings.Replace(long, "2 ]", "2 } ]", 1)),
		input(strings.Replace(long, "2 ]", "2, 3 ]", 1)),
		input(strings.TrimSuffix(long, "]")),
		input(long) + "x",
		input(long + "," + `"data":` + long),
		`{"id":"data","parameters":{"data":` + long + `},` + input(long)[1:],
		`{"parameters":{"data":` + strings.Replace(long, "2 ]", "2 2 ]", 1) + `},` + input(long)[1:],
		`{"id":"\"data\":` + long + `",` + input(long)[1:],
		`{"inputs":[{"data":` + long + `,"name":"x","shape":[300],"datatype":"FP64"},{"name":"y","shape":[300],"datatype":"INT32","data":` + strings.ReplaceAll(long, "1.5", "7") + `}]}`,
		input(long)[:len(input(long))-1] + `,"parameters":{"data":` + long + `}}`,
		`{"data":` + long + `}`,
		`"data":` + long,
		`"data"`, `"data" :`, `"data":[`,
	} {
		want, wrong := whole(text)
		body := buf.Get(len(text))
		copy(body.B, text)
		got, err := DecodeRequest(t.Context(), body, DecodeOptions{Model: "m"}, nil)
		if fmt.Sprint(err) != fmt.Sprint(wrong) {
			t.Errorf("%.80s…: %v, want %v", text, err, wrong)
		}
		if err == nil && wrong == nil {
			if !reflect.DeepEqual(got.Inputs, want.Inputs) || got.ID != want.ID {
				t.Errorf("%.80s…: other inputs than without cutting", text)
			}
		}
		if err == nil {
			got.Memory.Release()
		}
		if wrong == nil {
			want.Memory.Release()
		}
		body.Release()
	}
}

func TestLongArraysAreCutOut(t *testing.T) {
	text := `{"data":` + long + `,"x":1,"data":` + long + `}`
	short, cuts := extractLongArrays(nil, []byte(text))
	if string(short) != `{"data":[],"x":1,"data":[]}` || len(cuts) != 2 || string(cuts[1].text) != long || cuts[1].offset != int64(strings.LastIndex(text, "[")) {
		t.Errorf("left %s, and %d cuts", short, len(cuts))
	}
}

// A million brackets open, and the closing one is far away: searching for it each time
// would take minutes.
func TestCuttingLooksAtADocumentOnce(t *testing.T) {
	open := strings.Repeat(`"data":[`, 1<<20)
	for _, text := range []string{open, open + "]", strings.Repeat(`"data":[1 `, 1<<20) + `"]`} {
		if _, cuts := extractLongArrays(nil, []byte(text)); cuts != nil {
			t.Errorf("%d cuts", len(cuts))
		}
	}
}
