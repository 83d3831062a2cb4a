package onnx

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/tensor"
)

func TestTheEndOfAnEarlierContextDoesNotStopALaterBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i instance
		stopped := func() bool {
			synctest.Wait() // for callbacks of contexts
			i.mu.Lock()
			defer i.mu.Unlock()
			return i.stopped
		}
		first, endFirst := context.WithCancel(t.Context())
		second, endSecond := context.WithCancel(t.Context())
		i.watchContext(first, first.Done())
		i.unwatch = func() bool { return false } // the callback has started, and does not hold the lock yet
		i.watchContext(second, second.Done())
		endFirst()
		if stopped() {
			t.Error("the second batch was stopped by the end of the first context")
		}
		endSecond()
		if !stopped() {
			t.Error("the second batch was not stopped by its own context")
		}
		i.watchContext(t.Context(), nil)
		if stopped() {
			t.Error("the third batch is stopped, although its context never ends")
		}
	})
}

func TestAnInstanceKeepsNoReferenceToItsInputs(t *testing.T) {
	inst := open(t, sources["mlp"]()).(*instance)
	run(t, inst, tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)})
	for _, in := range inst.in[:1] {
		if in.Data != nil || in.Shape != nil {
			t.Errorf("the instance still has %v", in)
		}
	}
}

func TestAnExclusiveBatchDoesNotUseTheSharedSession(t *testing.T) {
	src := sources["mlp"]()
	src.ExclusiveThreads = 2
	inst := open(t, src).(*instance)
	shared := inst.calls[0]
	inst.calls[0] = call{} // using it would panic
	defer func() { inst.calls[0] = shared }()
	var out engine.Outputs
	in := tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, 32}, Data: make([]byte, 128)}
	if err := inst.RunExclusive(t.Context(), []tensor.Tensor{in}, &out); err != nil {
		t.Fatal(err)
	}
	out.Memory.Release()
}
