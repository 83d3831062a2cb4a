package bench

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/shoal-serving/shoal/tensor"
)

var mixed = Model{Name: "m", Inputs: []Input{{"n", tensor.Int16, []int64{-1, 2}}, {"s", tensor.Bytes, []int64{-1, -1}}}, MaxBatch: 8}

func TestSamplesAreReadInAllTheirForms(t *testing.T) {
	raw := base64.StdEncoding.EncodeToString(tensor.AppendString(tensor.AppendString(nil, "c"), "d"))
	samples, err := mixed.ReadJSON([]byte(`{"data":[
		{"n":[1,-2],"s":{"content":["a","b"],"shape":[2]}},
		{"n":{"b64":"BQAGAA=="},"s":{"content":{"b64":"` + raw + `"},"shape":[2]}},
		{"n":[[7],[8]],"s":{"content":["","é"],"shape":[2]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := mixed.Requests(Data{Rows: 2, Samples: samples}, 3)
	if err != nil || len(got) != 3 || got[0].Priority != 3 {
		t.Fatal(got, err)
	}
	// The last request has the last sample and then the first.
	if in := got[2].Inputs; in[0].Shape[0] != 2 || !bytes.Equal(in[0].Data, []byte{7, 0, 8, 0, 1, 0, 0xfe, 0xff}) {
		t.Errorf("got %v % x", in[0].Shape, in[0].Data)
	}
	if in := got[1].Inputs; string(in[1].Data) != "\x01\x00\x00\x00c\x01\x00\x00\x00d\x00\x00\x00\x00\x02\x00\x00\x00é" {
		t.Errorf("got %q", in[1].Data)
	}
}

func TestAFolderHasAFileForEachInput(t *testing.T) {
	folder := fstest.MapFS{"n": {Data: []byte{1, 0, 2, 0}}, "s": {Data: []byte("one\ntwo\r\n")}}
	samples, err := mixed.ReadFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	got, err := mixed.Requests(Data{Samples: samples, Shapes: map[string][]int64{"s": {2}}}, 0)
	if err != nil || string(got[0].Inputs[1].Data) != "\x03\x00\x00\x00one\x03\x00\x00\x00two" {
		t.Errorf("got %+v, %v", got, err)
	}
	delete(folder, "n")
	if _, err := mixed.ReadFolder(folder); err == nil || !strings.Contains(err.Error(), `input "n" of model "m" needs a file of that name`) {
		t.Errorf("got %v", err)
	}
}

func TestSamplesThatCannotBeSentAreToldWhy(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                     "found no samples",
		`[]`:                     "cannot unmarshal",
		`{"data":[[{"n":[]}]]}`:  "a list of samples for each sequence",
		`{"data":[{"n":[1,2]}]}`: `sample 1: found no values for input "s"`,
		`{"data":[{"n":[1,2],"s":["a"],"x":[1]}]}`:                   `found values for "x", but model "m" has the inputs "n", "s"`,
		`{"data":[{"n":[1,2.5],"s":["a"]}]}`:                         `input "n": found 2.5, expected a value of INT16`,
		`{"data":[{"n":[1,40000],"s":["a"]}]}`:                       `found 40000, expected a value of INT16`,
		`{"data":[{"n":["1",2],"s":["a"]}]}`:                         `found "1", expected a value of INT16`,
		`{"data":[{"n":[1,null],"s":["a"]}]}`:                        `expected a value of INT16`,
		`{"data":[{"n":{"shape":[2]},"s":["a"]}]}`:                   `expected a list, {"b64": …} or {"content": …, "shape": …}`,
		`{"data":[{"n":[1,2],"s":["a"]}]}`:                           `sample 1: input "s" has the variable shape [-1]`,
		`{"data":[{"n":[1],"s":{"content":["a"],"shape":[1]}}]}`:     `sample 1: input "n"`,
		`{"data":[{"n":[1,2],"s":{"content":["a"],"shape":[1,1]}}]}`: `the model requires [-1]`,
	} {
		samples, err := mixed.ReadJSON([]byte(text))
		if err == nil {
			_, err = mixed.Requests(Data{Samples: samples}, 0)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	samples := []Sample{
		{"n": {Data: make([]byte, 4)}, "s": {Shape: []int64{1}, Data: make([]byte, 4)}},
		{"n": {Data: make([]byte, 4)}, "s": {Shape: []int64{2}, Data: make([]byte, 8)}},
	}
	if _, err := mixed.Requests(Data{Rows: 2, Samples: samples}, 0); err == nil || !strings.Contains(err.Error(), "cannot be rows of one request") {
		t.Errorf("got %v", err)
	}
}

func TestNumbersOfEveryTypeAreEncoded(t *testing.T) {
	for ty, want := range map[tensor.Type][]byte{
		tensor.Bool: {1}, tensor.Uint8: {1}, tensor.Uint16: {1, 0}, tensor.Uint32: {1, 0, 0, 0}, tensor.Uint64: {1, 0, 0, 0, 0, 0, 0, 0},
		tensor.Int8: {1}, tensor.Int16: {1, 0}, tensor.Int32: {1, 0, 0, 0}, tensor.Int64: {1, 0, 0, 0, 0, 0, 0, 0},
		tensor.FP32: {0, 0, 0x80, 0x3f}, tensor.FP64: {0, 0, 0, 0, 0, 0, 0xf0, 0x3f},
	} {
		if got, err := readList([]byte("[1]"), ty); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: got % x, %v", ty, got, err)
		}
	}
	if got, err := readList([]byte("[true,false]"), tensor.Bool); err != nil || !bytes.Equal(got, []byte{1, 0}) {
		t.Errorf("got % x, %v", got, err)
	}
	if _, err := readList([]byte("[1]"), tensor.FP16); err == nil {
		t.Error("FP16 was read from a list")
	}
}
