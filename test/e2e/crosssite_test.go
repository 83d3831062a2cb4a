//go:build e2e && linux

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A crossSite is a kind of request that a web page can make a browser send, without asking
// the server first.
type crossSite struct {
	name   string
	host   string
	header map[string]string
	want   int
}

// crossSites are the two ways of an attack, and a program of the same user as a control.
var crossSites = []crossSite{
	{"a page of another site", "", map[string]string{"Origin": "http://attacker.example", "Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
	{"a page in an older browser", "", map[string]string{"Origin": "http://attacker.example"}, http.StatusForbidden},
	{"DNS rebinding", "attacker.example", map[string]string{"Origin": "http://attacker.example", "Sec-Fetch-Site": "same-origin"}, http.StatusMisdirectedRequest},
	{"a program", "", nil, http.StatusOK},
}

// send returns the status of a POST that needs no preflight. Headers are what it is about.
func (c crossSite) send(t *testing.T, url, body string) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = c.host
	req.Header.Set("Content-Type", "text/plain")
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	code, _, answer, err := servertest.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	if code != http.StatusOK && len(answer) == 0 {
		t.Errorf("%s: status %d without a reason: %s", c.name, code, answer)
	}
	return code
}

func TestAWebPageCannotLoadCodeOrSilenceTheLog(t *testing.T) {
	dir := servertest.PythonRepository(t, "", pythonIdentity)
	proof := filepath.Join(t.TempDir(), "ran")
	s := servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=m", "--allow-model-uploads", "--allow-log-changes")
	load := uploadOf(t, "open("+quoted(proof)+", 'w')\n"+pythonIdentity)
	for _, c := range crossSites {
		for path, body := range map[string]string{
			"/v2/repository/models/innocent/load": load,
			"/v2/repository/models/m/load":        "",
			"/v2/logging":                         `{"log_verbose_level":0}`,
		} {
			if got := c.send(t, s.HTTP+path, body); got != c.want {
				t.Errorf("%s to %s: status %d, want %d\n%s", c.name, path, got, c.want, s.Log())
			}
		}
		if _, err := os.Stat(proof); (err == nil) != (c.want == http.StatusOK) {
			t.Errorf("%s: the code that was sent ran: %v", c.name, err == nil)
		}
	}
	for _, address := range []string{s.HTTP + "/v2/models/stats", s.Metrics + "/metrics"} {
		req, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "attacker.example"
		if code, _, body, err := servertest.Fetch(req); err != nil || code != http.StatusMisdirectedRequest {
			t.Errorf("%s for another host: status %d, %v: %s", address, code, err, body)
		}
	}
}

func TestAWebPageCannotRegisterAModel(t *testing.T) {
	s := serveStore(t, t.TempDir(), "shoal serve --model-store . --mms-config "+writeProperties(t))
	for _, c := range crossSites {
		want := c.want
		if want == http.StatusOK {
			want = http.StatusNotFound // there is no such archive
		}
		if got := c.send(t, s.manage+"/models?url=good.mar", ""); got != want {
			t.Errorf("%s: status %d, want %d", c.name, got, want)
		}
	}
}

func TestClientsSendNoCodeAndChangeNoLogByDefault(t *testing.T) {
	s := servertest.Start(t, servertest.PythonRepository(t, "", pythonIdentity), "--model-control-mode=explicit", "--load-model=m")
	program := crossSite{name: "a program"}
	for path, body := range map[string]string{
		"/v2/repository/models/sent/load": uploadOf(t, pythonIdentity),
		"/v2/repository/models/m/load":    `{"parameters":{"config":"{\"backend\":\"python\",\"parameters\":{\"python\":{\"string_value\":\"/bin/ls\"}}}"}}`,
		"/v2/logging":                     `{"log_error":false,"log_warning":false,"log_info":false}`,
	} {
		if got := program.send(t, s.HTTP+path, body); got != http.StatusForbidden {
			t.Errorf("%s: status %d, want 403", path, got)
		}
	}
	c := s.Client()
	err := c.Load(t.Context(), "sent", client.LoadOptions{Config: "{}", Files: map[string][]byte{"1/model.py": []byte(pythonIdentity)}})
	if !errors.Is(err, client.Denied) {
		t.Errorf("files over gRPC: %v", err)
	}
	// The public client has no call for the log.
	_, err = kservepb.NewGRPCInferenceServiceClient(s.Dial()).LogSettings(t.Context(), &kservepb.LogSettingsRequest{Settings: map[string]*kservepb.LogSettingsRequest_SettingValue{
		"log_error": {ParameterChoice: &kservepb.LogSettingsRequest_SettingValue_BoolParam{}},
	}})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("log settings over gRPC: %v", err)
	}
	if code, body := s.Get("/v2/logging"); code != http.StatusOK || !strings.Contains(body, `"log_error":true`) {
		t.Errorf("log settings: status %d, %s", code, body)
	}
	if err := servertest.Ask(t.Context(), c, "m", 1); err != nil {
		t.Errorf("the model: %v", err)
	}
}

func quoted(text string) string { b, _ := json.Marshal(text); return string(b) }

// uploadOf returns the body of a load that brings a Python model with the given code.
func uploadOf(t *testing.T, code string) string {
	t.Helper()
	config := `{"backend":"python","max_batch_size":8,"input":[{"name":"INPUT","data_type":"TYPE_FP32","dims":[4]}],` +
		`"output":[{"name":"OUTPUT","data_type":"TYPE_FP32","dims":[4]}],"parameters":{"python":{"string_value":` + quoted(servertest.PythonInterpreter(t)) + `}}}`
	body, err := json.Marshal(map[string]any{"parameters": map[string]string{
		"config": config, "file:1/model.py": base64.StdEncoding.EncodeToString([]byte("import triton_python_backend_utils as pb_utils\n" + code)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// writeProperties writes a config.properties with free ports.
func writeProperties(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.properties")
	text := "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}
