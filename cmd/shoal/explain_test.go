package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// explains runs the command against a server, and returns what it prints.
func explains(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newRootCommand()
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"explain", "-u", url}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestExplainPrintsWhatTheServerKnows(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	server := httptest.NewServer(kservehttp.New(backend, backend, backend, kservehttp.Options{}))
	defer server.Close()
	text, err := explains(t, server.URL, "identity")
	if err != nil || !strings.HasPrefix(text, "identity, version 1, run by python\n\nBatching\n") || !strings.Contains(text, "The maximum batch size is 64 rows") {
		t.Errorf("%v\n%s", err, text)
	}
	text, err = explains(t, strings.TrimPrefix(server.URL, "http://"), "identity", "-x", "1", "--json")
	var m struct{ Name string }
	if err != nil || json.Unmarshal([]byte(text), &m) != nil || m.Name != "identity" || !strings.HasPrefix(text, "{\n  \"name\": ") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestExplainSaysWhyItCannot(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Entries = kservetest.RecordedIndex
	server := httptest.NewServer(kservehttp.New(backend, backend, backend, kservehttp.Options{}))
	defer server.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for _, tt := range []struct{ url, model, version, want string }{
		{server.URL, "nosuch", "", `there is no model "nosuch"; the server has alltypes, badconfig, broken, failing, identity, recorder, repeat, two`},
		{server.URL, "identity", "7", `model "identity" has no version 7; it has 1`},
		{server.URL, "badconfig", "", `model "badconfig" is not loaded; load it with "shoal load badconfig"`},
		{server.URL, "broken", "", `model "broken" is not ready: version 1 is UNAVAILABLE: Internal: RuntimeError: cannot start`},
		{server.URL, "recorder", "", `the server answered: Request for unknown model: 'recorder' is not found (404 Not Found)`},
		{other.URL, "identity", "", other.URL + ` does not speak KServe v2 over HTTP: it answered "404 Not Found"`},
		{"http://" + unusedAddress, "identity", "", `no server answers at http://` + unusedAddress + `; start one with "shoal serve", or name its address with -u`},
	} {
		if _, err := explains(t, tt.url, tt.model, "-x", tt.version); err == nil || !strings.HasPrefix(err.Error(), tt.want) || exitStatus(err) != 1 {
			t.Errorf("%s %s: got %v, want %s", tt.model, tt.version, err, tt.want)
		}
	}
	if _, err := explains(t, "http://", "identity"); err == nil || exitStatus(err) != 2 {
		t.Errorf("an address that is none: %v", err)
	}
	index := []client.IndexEntry{{Model: "a", Version: "1", State: "LOADING"}, {Model: "b", Version: "1", State: "UNLOADING"}}
	for model, want := range map[string]string{
		"a": `model "a" is still loading; wait until "shoal health a" succeeds, and try again`,
		"b": `model "b" is being unloaded; load it again with "shoal load b" if the server allows it`,
	} {
		if err := missing(index, model, "", nil); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := missing(nil, "a", "", errors.New("no")); err.Error() != `there is no model "a": the server has no models` {
		t.Error(err)
	}
}
