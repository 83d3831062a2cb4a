package kserve

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		req, err := DecodeRequest(t.Context(), b, DecodeOptions{Model: "m"}, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Memory.Release()
	}
	encode := func(n int) {
		resp := &infer.Response{Outputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{int64(n)}, Data: make([]byte, n)}}}
		if _, err := new(Request).AppendResponse(t.Context(), nil, resp); err != nil {
			t.Error(err)
		}
	}
	for name, large := range map[string]func(){
		"decoding": func() { decode(body(elements)) },
		"encoding": func() { encode(2 * elements) },
		"generate": func() {
			if _, err := DecodeGenerate(t.Context(), body(elements), nil, DecodeOptions{Model: "m"}, nil); err == nil {
				t.Error("a parameter that is an array of objects was decoded")
			}
		},
	} {
		limit := documentLimit()
		for range cap(limit) {
			if err := limit.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
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

func TestACallerThatLeavesDoesNotWaitForACore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := make(CoreLimit, 1)
		if err := limit.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, leave := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, leave)
		late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		time.AfterFunc(time.Minute, limit.Release) // the other message is decoded
		began := time.Now()
		waits := func(ctx context.Context, until time.Duration, want infer.Code) {
			err := limit.Acquire(ctx)
			if took := time.Since(began); err == nil || infer.CodeOf(err) != want || took != until {
				t.Errorf("it got %v after %v, want the code %v after %v", err, took, want, until)
			}
		}
		waits(left, 10*time.Millisecond, infer.Cancelled)
		waits(late, 20*time.Millisecond, infer.Deadline)
		if err := limit.Acquire(t.Context()); err != nil || time.Since(began) != time.Minute {
			t.Errorf("a caller that stays got %v after %v, want a core after a minute", err, time.Since(began))
		}
	})
}

func TestLargeDocumentsOfCallersThatLeftDoNotWaitForACore(t *testing.T) {
	limit := documentLimit()
	for range cap(limit) {
		if err := limit.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for range cap(limit) {
			limit.Release()
		}
	}()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	large := &buf.Buf{B: make([]byte, largeDocument+1)}
	resp := &infer.Response{Outputs: []tensor.Tensor{{Name: "x", Type: tensor.Uint8, Shape: []int64{4 * largeDocument}, Data: make([]byte, 4*largeDocument)}}}
	for name, call := range map[string]func() error{
		"decoding":                    func() error { _, err := DecodeRequest(ctx, large, DecodeOptions{Model: "m"}, nil); return err },
		"generate":                    func() error { _, err := DecodeGenerate(ctx, large, nil, DecodeOptions{Model: "m"}, nil); return err },
		"encoding":                    func() error { _, err := new(Request).AppendResponse(ctx, nil, resp); return err },
		"encoding what was generated": func() error { _, err := new(Request).AppendGenerated(ctx, nil, resp); return err },
	} {
		if err := call(); err == nil || infer.CodeOf(err) != infer.Cancelled {
			t.Errorf("%s: %v, want that the request was cancelled", name, err)
		}
	}
}

func TestAFreeCoreCostsNoAllocation(t *testing.T) {
	limit, ctx := make(CoreLimit, 1), t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if limit.Acquire(ctx) == nil {
			limit.Release()
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
