package main

import "testing"

func TestASizeMayHaveAUnit(t *testing.T) {
	for text, want := range map[string]string{
		"16GiB": "16GiB", "0": "0", "1536 MiB": "1536MiB", "1.5GiB": "1536MiB", "2GB": "1953125KiB", "1048576": "1MiB", "10B": "10", "1001": "1001", "2TiB": "2TiB",
	} {
		var b byteSize
		if err := b.Set(text); err != nil || b.String() != want {
			t.Errorf("%q is %s, want %s: %v", text, b.String(), want, err)
		}
	}
	for _, text := range []string{"", "GiB", "-1", "many", "1PiB", "9e18GiB", "NaN"} {
		var b byteSize
		if err := b.Set(text); err == nil {
			t.Errorf("%q was accepted as %s", text, b.String())
		}
	}
}

func TestMemoryOfModelsIsForModeDemand(t *testing.T) {
	o := serveOptions{controlMode: "none", modelMemory: 1}
	if err := o.check(); err == nil {
		t.Error("--model-memory was accepted in mode none")
	}
}

func TestThisProcessHoldsMemory(t *testing.T) {
	if residentMemory() == 0 {
		t.Error("the memory of the process is not known")
	}
}
