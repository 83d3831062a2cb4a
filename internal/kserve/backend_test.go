package kserve_test

import (
	"context"
	"errors"
	"testing"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/tensor"
)

func TestWhatAnAnswerWillTakeIsChargedWhileTheModelRuns(t *testing.T) {
	const size = 1 << 20
	all := budget.New(5 * size) // a model gets 2.5 MiB
	ran, running := 0, int64(0)
	backend := kservetest.New(t, `name: "large" input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	backend.Before = func(context.Context, *infer.Request) error {
		ran, running = ran+1, all.State().Used
		return nil
	}
	run := func(charge *budget.Charge) error {
		resp := kserve.GetResponse()
		defer kserve.PutResponse(resp)
		err := kserve.Infer(t.Context(), backend, &infer.Request{
			Model: "large", Inputs: []tensor.Tensor{{Name: "INPUT", Type: tensor.Uint8, Shape: []int64{size}, Data: make([]byte, size)}},
		}, resp, charge)
		if err == nil {
			resp.Release()
		}
		return err
	}
	for _, want := range []int64{0, size} { // the first answer shows how large they are
		charge := all.Open("large")
		if err := run(&charge); err != nil || running != want || charge.Bytes() != size {
			t.Errorf("%d bytes are charged while the model runs, want %d, and %d afterwards: %v", running, want, charge.Bytes(), err)
		}
		charge.Close()
	}
	other, charge := all.Open("large"), all.Open("large")
	if !other.Grow(2 * size) {
		t.Fatal("2 MiB do not fit")
	}
	if err := run(&charge); !errors.Is(err, kserve.ErrOverBudget) || ran != 2 {
		t.Errorf("a request whose answer will not fit ran %d times: %v", ran-2, err)
	}
	other.Close()
	charge.Close()
}
