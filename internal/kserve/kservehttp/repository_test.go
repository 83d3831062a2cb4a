package kservehttp_test

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
)

const loadPath, unloadPath = "/v2/repository/models/failing/load", "/v2/repository/models/failing/unload"

func TestParametersReachTheControl(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	var loaded []catalog.LoadOptions
	backend.Loading = func(model string, opts catalog.LoadOptions) error {
		if model != "failing" {
			t.Errorf("model %q", model)
		}
		loaded = append(loaded, opts)
		return nil
	}
	var unloaded []catalog.UnloadOptions
	backend.Unloading = func(model string, opts catalog.UnloadOptions) error {
		if model != "failing" {
			t.Errorf("model %q", model)
		}
		unloaded = append(unloaded, opts)
		return nil
	}
	for _, body := range []string{"", `{"parameters":{"config":"{\"backend\":\"x\"}","file:1/model.onnx":"AP8B","file:1/empty":""}}`} {
		do(t, server, http.MethodPost, loadPath, nil, strings.NewReader(body))
	}
	for _, body := range []string{"", `{"parameters":{"unload_dependents":true}}`} {
		do(t, server, http.MethodPost, unloadPath, nil, strings.NewReader(body))
	}
	if want := []catalog.LoadOptions{{}, {
		Config: `{"backend":"x"}`,
		Files:  map[string][]byte{"1/model.onnx": {0, 255, 1}, "1/empty": nil},
	}}; !reflect.DeepEqual(loaded, want) {
		t.Errorf("loaded with %v, want %v", loaded, want)
	}
	if want := []catalog.UnloadOptions{{}, {Dependents: true}}; !reflect.DeepEqual(unloaded, want) {
		t.Errorf("unloaded with %v, want %v", unloaded, want)
	}
}

func TestTheReasonOfAFailedLoadReachesTheClient(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	const reason = "DIR/failing/config.pbtxt:3: max_batch_size: found -1, expected at least 0"
	err := fmt.Errorf("load failed for model 'failing': %w", infer.Errorf(infer.Invalid, reason))
	backend.Loading = func(string, catalog.LoadOptions) error { return err }
	backend.Unloading = func(string, catalog.UnloadOptions) error { return err }
	for _, path := range []string{loadPath, unloadPath} {
		a := do(t, server, http.MethodPost, path, nil, nil)
		if want := `{"error":"load failed for model 'failing': ` + reason + `"}`; a.status != http.StatusBadRequest || a.body != want {
			t.Errorf("%s: status %d, %s, want %s", path, a.status, a.body, want)
		}
	}
}

func TestAnAnswerSaysWhetherTheServerCannotLoadTheModel(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	unavailable := func(reason infer.Reason) error {
		cause := infer.Errorf(infer.Unavailable, "not now").WithReason(reason, "failing", "")
		return infer.Errorf(infer.Unavailable, "it cannot be loaded: %w", cause)
	}
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"it is loaded":               {nil, ""},
		"its files are invalid":      {infer.Errorf(infer.Invalid, "no such operator"), "true"},
		"there is no such model":     {infer.Errorf(infer.NotFound, "no directory"), "true"},
		"the server failed":          {infer.Errorf(infer.Internal, "a panic"), "true"},
		"its files cannot be read":   {unavailable(infer.LoadRefused), "true"},
		"others have the memory":     {unavailable(infer.NoMemory), "true"},
		"others are being loaded":    {unavailable(infer.NotInMemory), ""},
		"the server stops":           {unavailable(infer.ShuttingDown), ""},
		"many loads are under way":   {infer.Errorf(infer.Overloaded, "1024 loads"), ""},
		"the caller may not load it": {infer.Errorf(infer.Forbidden, "not you"), ""},
		"its credentials expired":    {infer.Errorf(infer.Unauthenticated, "who are you"), ""},
		"the epoch is lower":         {infer.Errorf(infer.Outdated, "another"), ""},
	} {
		backend.Loading = func(string, catalog.LoadOptions) error { return c.err }
		if a := do(t, server, http.MethodPost, loadPath, nil, nil); a.header.Get(kserve.LoadFailedHeader) != c.want {
			t.Errorf("%s: the header of %d is %q, want %q", what, a.status, a.header.Get(kserve.LoadFailedHeader), c.want)
		}
	}
}

func TestTheEpochOfAControlRequestReachesTheServer(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	var got uint64
	outdated := infer.Errorf(infer.Outdated, "the server has seen another")
	backend.Loading = func(_ string, o catalog.LoadOptions) error { got = o.Epoch; return outdated }
	backend.Unloading = func(_ string, o catalog.UnloadOptions) error { got = o.Epoch; return outdated }
	for _, path := range []string{loadPath, unloadPath} {
		for text, want := range map[string]struct {
			epoch  uint64
			status int
		}{"7": {7, http.StatusConflict}, "": {0, http.StatusConflict}, "0": {99, http.StatusBadRequest}, "-1": {99, http.StatusBadRequest}, "new": {99, http.StatusBadRequest}} {
			got = 99
			a := do(t, server, http.MethodPost, path, http.Header{kserve.EpochHeader: {text}}, nil)
			if a.status != want.status || got != want.epoch {
				t.Errorf("%s with %q: status %d, epoch %d", path, text, a.status, got)
			}
		}
	}
}

func TestAnIndexWithoutModelsIsAList(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	backend.Entries = nil
	if a := do(t, server, http.MethodPost, "/v2/repository/index", nil, nil); a.status != http.StatusOK || a.body != "[]" {
		t.Errorf("status %d, %s", a.status, a.body)
	}
}

func TestBodiesOfLoadsAreLimitedAndGivenBack(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{Limits: kserve.Limits{Body: 100}})
	before := buf.Live()
	for size, want := range map[int]int{2: 200, 100: 200, 101: 400} {
		a := do(t, server, http.MethodPost, loadPath, nil, strings.NewReader("{}"+strings.Repeat(" ", size-2)))
		if a.status != want {
			t.Errorf("%d bytes: status %d, %s, want %d", size, a.status, a.body, want)
		}
	}
	if after := buf.Live(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}
