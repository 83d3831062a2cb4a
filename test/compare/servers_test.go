package main

import (
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

func TestAModelIsSettledOnceItWasMeasuredAsItIsAsked(t *testing.T) {
	const (
		guessed = `msg="model measured" model=` + modelName + ` version=1 in_use=true shape=x[3,64,64]` + "\n"
		seen    = `msg="model measured" model=` + modelName + ` version=1 in_use=false shape=x[3,48,320]` + "\n"
		fixed   = `msg="model measured" model=` + modelName + ` version=1 in_use=false shape=""` + "\n"
		manner  = `msg="reloaded with tuned settings" model=` + modelName + ` version=1` + "\n"
		settled = `msg="model measured" model=` + modelName + ` version=1 in_use=true shape=x[3,48,320]` + "\n"
	)
	for _, tt := range []struct {
		name, log       string
		measured, known bool
	}{
		{"nothing yet", "", false, false},
		{"a part of a line", guessed[:len(guessed)-1], false, false},
		{"with another shape", guessed, true, false},
		{"with its own, and about to run otherwise", guessed + seen, false, true},
		{"and it runs so", guessed + seen + manner, true, true},
		{"with its own, once it runs so", fixed + manner + settled, true, true},
		{"a shape of which there is but one", fixed + manner, true, true},
	} {
		l := &launch{subject: &subject{in: []tensor.Tensor{{Name: "x", Shape: []int64{1, 3, 48, 320}}}}}
		if measured, known := l.measured(tt.log); measured != tt.measured || known != tt.known {
			t.Errorf("%s: measured %t, known %t, want %t and %t", tt.name, measured, known, tt.measured, tt.known)
		}
	}
}
