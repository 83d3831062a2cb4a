package kserve

import (
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestLargeDocumentsLeaveCoresToSmallOnes(t *testing.T) {
	const elements = 3 << 20
	body := func(n int) *buf.Buf {
		return &buf.Buf{B: []byte(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[` + strconv.Itoa(n) + `],"data":[0` + strings.Repeat(",0", n-1) + `]}]}`)}
	}
	small := body(1)
	decode := func(b *buf.Buf) {
		req, err := DecodeRequest(b, DecodeOptions{Model: "m"}, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Memory.Release()
	}
	encode := func(n int) {
		resp := &infer.Response{Outputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{int64(n)}, Data: make([]byte, n)}}}
		if _, err := new(Request).AppendResponse(nil, resp); err != nil {
			t.Error(err)
		}
	}
	for name, large := range map[string]func(){
		"decoding": func() { decode(body(elements)) },
		"encoding": func() { encode(2 * elements) },
		"generate": func() {
			if _, err := DecodeGenerate(body(elements), nil, DecodeOptions{Model: "m"}, nil); err == nil {
				t.Error("a parameter that is an array of objects was decoded")
			}
		},
	} {
		limit := documentLimit()
		for range cap(limit) {
			limit.Acquire()
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			large()
		}()
		for range 50_000 { // takes longer than a large document
			decode(small)
			encode(1)
		}
		select {
		case <-ended:
			t.Errorf("%s: a large document did not wait for a core", name)
		default:
		}
		for range cap(limit) {
			limit.Release()
		}
		<-ended
	}
}
