package repository

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// chain has the configuration of an ensemble that passes a tensor through models with
// echoConfig, and through an ensemble with the name inner.
func chain(models ...string) string {
	var text strings.Builder
	text.WriteString("platform: \"ensemble\"\nmax_batch_size: 4\ninput { name: \"IN\" data_type: TYPE_FP32 dims: 2 }\noutput { name: \"OUT\" data_type: TYPE_FP32 dims: 2 }\nensemble_scheduling {\n")
	from := "IN"
	for i, m := range models {
		to := fmt.Sprintf("t%d", i)
		if i == len(models)-1 {
			to = "OUT"
		}
		in, out := "x", "x"
		if m == "inner" {
			in, out = "IN", "OUT"
		}
		fmt.Fprintf(&text, "step { model_name: %q model_version: -1 input_map { key: %q value: %q } output_map { key: %q value: %q } }\n", m, in, from, out, to)
		from = to
	}
	return text.String() + "}\n"
}

// askChain sends a row to ensemble a, and returns an error unless it comes back.
func askChain(t *testing.T, r *running) error {
	t.Helper()
	row := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	req := &infer.Request{Model: "a", Inputs: []tensor.Tensor{{Name: "IN", Type: tensor.FP32, Shape: []int64{1, 2}, Data: row}}}
	var resp infer.Response
	if err := r.Infer(t.Context(), req, &resp); err != nil {
		return err
	}
	defer resp.Release()
	if len(resp.Outputs) != 1 || string(resp.Outputs[0].Data) != string(row) {
		return fmt.Errorf("it answered %v, want the row that was sent", resp.Outputs)
	}
	return nil
}

func TestAnEnsembleIsLoadedAfterItsMembers(t *testing.T) {
	d := newDisk(t).model("a", chain("inner", "z"), "1").model("inner", chain("y", "z"), "1").model("y", echoConfig, "1").model("z", echoConfig, "1")
	for _, c := range []struct {
		name string
		opts setup
	}{
		{"all at startup", setup{}},
		{"all at startup, one load at a time", setup{Loads: 1}},
		{"the outermost by its name", setup{Mode: Explicit, Models: []string{"a"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mustStart(t, d, &tracked{}, c.opts)
			if got, want := index(r), "a 1 READY; inner 1 READY; y 1 READY; z 1 READY"; got != want {
				t.Errorf("index %q, want %q", got, want)
			}
			if err := askChain(t, r); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnEnsembleWithoutAMemberIsNotReady(t *testing.T) {
	d := newDisk(t).model("a", chain("y", "z"), "1").model("y", echoConfig, "1").model("z", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit})
	if err := r.Load(t.Context(), "a", override{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Unload("z"); err != nil {
		t.Fatal(err)
	}
	if r.ModelReady("a", "") {
		t.Error("it is ready without a member")
	}
	if err := askChain(t, r); err == nil || !strings.HasPrefix(err.Error(), "in ensemble 'a', ") {
		t.Errorf("it answered with %v, want an error that names the ensemble", err)
	}
	if err := r.Load(t.Context(), "z", override{}); err != nil {
		t.Fatal(err)
	}
	if err := askChain(t, r); err != nil || !r.ModelReady("a", "") {
		t.Errorf("with the member back: %v", err)
	}
	if err := r.Unload("a"); err != nil {
		t.Fatal(err)
	}
	if !r.ModelReady("y", "") || !r.ModelReady("z", "") {
		t.Error("its members were unloaded with it")
	}
}

func TestMembersThatNothingElseNeedsAreUnloadedWithTheirEnsemble(t *testing.T) {
	d := newDisk(t).model("a", chain("inner", "y", "z"), "1").model("inner", chain("x"), "1").model("other", chain("z"), "1")
	for _, name := range []string{"x", "y", "z"} {
		d.model(name, echoConfig, "1")
	}
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"y"}})
	unload := func(name string, want ...string) {
		t.Helper()
		if err := r.source.Unload(t.Context(), name, catalog.UnloadOptions{Dependents: true}); err != nil {
			t.Fatal(err)
		}
		var ready []string
		for _, e := range r.Index(true) {
			ready = append(ready, e.Name)
		}
		if !slices.Equal(ready, want) {
			t.Errorf("without %s and what it needed, %v are ready, want %v", name, ready, want)
		}
	}
	for _, name := range []string{"a", "other"} {
		if err := r.Load(t.Context(), name, override{}); err != nil {
			t.Fatal(err)
		}
	}
	unload("a", "other", "y", "z") // y was loaded by its name
	unload("other", "y")
	unload("y")
}

func TestAMemberThatAnotherEnsembleIsBeingLoadedWithIsNotUnloaded(t *testing.T) {
	d := newDisk(t).model("a", chain("m"), "1").model("b", chain("m", "n"), "1").model("m", echoConfig, "1").model("n", echoConfig, "1")
	gate := make(chan struct{})
	r := mustStart(t, d, &tracked{gates: map[string]chan struct{}{"n": gate}}, setup{Mode: Explicit, Models: []string{"a"}})
	unload := func(name string) {
		t.Helper()
		if err := r.source.Unload(t.Context(), name, catalog.UnloadOptions{Dependents: true}); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() { done <- r.Load(t.Context(), "b", override{}) }()
	<-gate // m serves, and n is being loaded
	unload("a")
	gate <- struct{}{}
	if err := <-done; err != nil || !r.ModelReady("b", "") {
		t.Errorf("the other ensemble: %v", err)
	}
	unload("b")
	if r.ModelReady("m", "") || r.ModelReady("n", "") {
		t.Error("members that nothing needs any more still serve")
	}
}

// Such as a Python model whose initialize calls load_model.
func TestAModelThatIsBeingLoadedLoadsAnEnsembleAlthoughOneLoadIsAllowed(t *testing.T) {
	d := newDisk(t).model("a", echoConfig, "1").model("e", chain("m"), "1").model("m", echoConfig, "1")
	gate := make(chan struct{})
	r := mustStart(t, d, &tracked{gates: map[string]chan struct{}{"a": gate}}, setup{Mode: Explicit, Loads: 1})
	done := make(chan error)
	go func() { done <- r.Load(t.Context(), "a", override{}) }()
	<-gate
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it ends at once
	defer cancel()
	if err := r.source.LoadModel(ctx, "e", "", nil); err != nil || !r.ModelReady("e", "") {
		t.Errorf("it loads another one with %v", err)
	}
	gate <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestUnloadingAnEnsembleDoesNotWaitForTheLoadOfAMember(t *testing.T) {
	d := newDisk(t).model("a", chain("y"), "1").model("y", echoConfig, "1")
	eng := &tracked{loading: make(chan struct{})}
	r := mustStart(t, d, eng, setup{Mode: Explicit})
	done := make(chan error)
	go func() { done <- r.Load(t.Context(), "a", override{}) }()
	<-eng.loading
	if err := r.Unload("a"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "unloaded while it was being loaded") {
		t.Errorf("the load ended with %v", err)
	}
	if got, want := index(r), "a; y 1 LOADING"; got != want {
		t.Errorf("index %q, want %q", got, want)
	}
	if err := r.Unload("y"); err != nil { // which ends its load
		t.Fatal(err)
	}
}

func TestAnEnsembleThatCannotBeLoadedSaysWhichMemberIsWrong(t *testing.T) {
	d := newDisk(t).model("self", chain("self"), "1").model("x", chain("y"), "1").model("y", chain("x"), "1").model("lost", chain("gone"), "1").
		model("bad", "max_batch_size: -1", "1").model("around", chain("bad"), "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit})
	for name, want := range map[string]string{
		"self":   "the ensemble is a step of itself: self → self",
		"x":      "the ensemble is a step of itself: x → y → x",
		"lost":   "in ensemble 'lost', model \"gone\" cannot be loaded: no directory gone",
		"around": "in ensemble 'around', model \"bad\" cannot be loaded: ",
	} {
		if err := r.Load(t.Context(), name, override{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// The files of two ensembles change places: the one that serves still contains the other one.
func TestAnEnsembleIsRefusedWhileAMemberThatServesContainsIt(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(16 << 20)) // of 1 GiB: a readiness check of both went round and round
	outer := func(inner string) string {
		return strings.ReplaceAll(chain("inner"), "\"inner\"", strconv.Quote(inner))
	}
	d := newDisk(t).model("a", outer("b"), "1").model("b", chain("x"), "1").model("x", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"a"}})
	d.model("a", chain("x"), "1").model("b", outer("a"), "1")
	err := r.Load(t.Context(), "b", override{})
	if err == nil || !strings.Contains(err.Error(), `load "a" first`) {
		t.Errorf("loaded with %v", err)
	}
	if !r.Ready() || !r.ModelReady("b", "") {
		t.Error("the ensembles that served are not ready")
	}
	for _, name := range []string{"a", "b"} {
		if err := r.Load(t.Context(), name, override{}); err != nil {
			t.Errorf("%s, in the right order: %v", name, err)
		}
	}
	if !r.Ready() {
		t.Error("not ready in the end")
	}
}

func TestReplacingAMemberFailsNoRequestOfItsEnsembles(t *testing.T) {
	d := newDisk(t).model("a", chain("y", "z"), "1").model("y", echoConfig, "1").model("z", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"a"}})
	var clients sync.WaitGroup
	stop := make(chan struct{})
	var answered atomic.Int64
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := askChain(t, r); err != nil {
					t.Error(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	for n, began := 0, time.Now(); n < 50 || answered.Load() < 50; n++ {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d requests were answered while the member was replaced %d times", answered.Load(), n)
		}
		d.model("z", echoConfig+fmt.Sprintf("parameters { key: \"n\" value { string_value: \"%d\" } }", n), "1")
		if err := r.Load(t.Context(), "z", override{}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	clients.Wait()
}

func TestAnEnsembleIsRefusedWhereRequestsLoadModels(t *testing.T) {
	d := newDisk(t).model("a", chain("y"), "1").model("y", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Demand})
	if err := askChain(t, r); err == nil || !strings.Contains(err.Error(), "mode demand") {
		t.Errorf("it answered with %v, want that it is not supported", err)
	}
}

func TestLoadingAnEnsembleChecksItAgainstMembersThatHaveChanged(t *testing.T) {
	d := newDisk(t).model("a", chain("y", "z"), "1").model("y", echoConfig, "1").model("z", echoConfig, "1")
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"a"}})
	first := r.Versions("a")[0]
	load := func(name string) {
		t.Helper()
		if err := r.Load(t.Context(), name, override{}); err != nil {
			t.Fatal(err)
		}
	}
	if load("a"); r.Versions("a")[0] != first {
		t.Error("it was loaded again although nothing has changed")
	}
	d.model("y", strings.ReplaceAll(echoConfig, "[ 2 ]", "[ 3 ]"))
	load("y")
	if err := r.Load(t.Context(), "a", override{}); err == nil || !strings.Contains(err.Error(), "cannot be used as") {
		t.Errorf("with a member that does not fit: %v", err)
	}
	d.model("y", strings.NewReplacer("size: 4", "size: 0", "[ 2 ]", "[ -1, 2 ]").Replace(echoConfig))
	load("y")
	if load("a"); r.Versions("a")[0] == first {
		t.Error("it was not loaded again")
	}
	if err := askChain(t, r); err != nil {
		t.Error(err)
	}
}
