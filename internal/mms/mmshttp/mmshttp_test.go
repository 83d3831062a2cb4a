package mmshttp

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
)

func TestMain(m *testing.M) { leak.Main(m) }

// client has a timeout that is long enough for a worker to start on a busy machine.
var client = http.Client{Timeout: 2 * time.Minute}

// writeMar writes an archive as model-archiver does.
func writeMar(t *testing.T, dir, name, version, handler string, files map[string]string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"runtime": "python", "engine": map[string]string{"engineName": "E"},
		"model": map[string]string{"modelName": name, "modelVersion": version, "handler": handler},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	write := func(name, content string) {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("MAR-INF/MANIFEST.json", string(text))
	for name, content := range files {
		write(name, content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+"-"+version+".mar"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A fixture is a server with its two ports.
type fixture struct {
	t      *testing.T
	models *mms.Store
	store  string
	infer  string
	manage string
}

func start(t *testing.T, dialect mms.Dialect, change func(*mms.Settings)) *fixture {
	t.Helper()
	return startWithLog(t, dialect, change, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func startWithLog(t *testing.T, dialect mms.Dialect, change func(*mms.Settings), log *slog.Logger) *fixture {
	t.Helper()
	interpreter := pythontest.Interpreter(t)
	f := &fixture{t: t, store: t.TempDir()}
	settings := mms.NewSettings()
	settings.Store, settings.Python = f.store, interpreter
	if change != nil {
		change(settings)
	}
	engine, pace := python.New(python.Options{Log: log}), pacer.New()
	held := server.New(servable.NewEnv(servable.Options{
		Automatic: true, Runners: map[string]servable.Runner{python.Name: {Engine: engine}}, Pacer: pace, Log: log,
	}), server.Options{Log: log})
	s, err := mms.New(held, mms.Options{Settings: settings, Dialect: dialect, Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	f.models = s
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	held.MarkStarted()
	a, b := httptest.NewServer(Inference(s, Options{Log: log})), httptest.NewServer(Management(s, Options{Log: log}))
	f.infer, f.manage = a.URL, b.URL
	t.Cleanup(func() {
		a.Close()
		b.Close()
		s.Close()
		if err := errors.Join(held.Close(), s.RemoveFiles()); err != nil {
			t.Error(err)
		}
		_ = engine.Close()
		pace.Close()
		client.CloseIdleConnections()
	})
	return f
}

// ask returns the status and the body.
func (f *fixture) ask(method, url, kind, body string) (int, string) {
	f.t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	resp, err := client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func (f *fixture) want(method, url, body string, code int, parts ...string) {
	f.t.Helper()
	got, text := f.ask(method, url, "", body)
	if got != code {
		f.t.Errorf("%s %s: status %d, want %d: %s", method, url, got, code, text)
	}
	for _, p := range parts {
		if !strings.Contains(text, p) {
			f.t.Errorf("%s %s: found %s, want one with %s", method, url, text, p)
		}
	}
}

// noop responds in the way that the request selects.
const noop = `
import json, os, time
from mms.service import PredictionException

def handle(data, context):
    if data is None:
        assert context.system_properties["batch_size"] >= 1
        return None
    answers = []
    for i, d in enumerate(data):
        body = d.get("body")
        text = body if isinstance(body, str) else body.decode() if isinstance(body, bytearray) else json.dumps(body)
        if text == "raise":
            raise RuntimeError("no")
        if text == "prediction":
            raise PredictionException("that is wrong", 513)
        if text == "die":
            os._exit(3)
        if text == "none":
            return None
        if text == "short":
            return []
        if text == "odd":
            return [object() for _ in data]
        if text == "bad":
            context.set_response_status(422, "Unprocessable", i)
        if text.startswith("began "):
            open(text[6:], "w").close()
            while os.path.exists(text[6:]):
                time.sleep(0.001)
        context.set_response_content_type(i, "text/special")
        answers.append(text + "/" + str(len(data)) + "/" + context.get_request_header(i, "content-type") + "/" + str(len(context.get_request_id(i))))
    return answers
`

func TestAHandlerIsServedAsInMMS(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "noop", "1.0", "service:handle", map[string]string{"service.py": noop})
	f.want("GET", f.infer+"/ping", "", 200, `"status": "Healthy"`)
	f.want("POST", f.manage+"/models?url=noop-1.0.mar", "", 200, `"status": "Model \"noop\" registered"`)
	f.want("POST", f.infer+"/predictions/noop", "a", 503, "ServiceUnavailableException", "No worker is available to serve request for model: noop.")
	f.want("PUT", f.manage+"/models/noop?min_worker=1&synchronous=true", "", 200, "Workers scaled")
	f.want("GET", f.manage+"/models/noop", "", 200, `"modelName": "noop"`, `"modelVersion": "1.0"`, `"modelUrl": "noop-1.0.mar"`, `"engine": "E"`, `"runtime": "python"`,
		`"minWorkers": 1`, `"maxWorkers": 1`, `"batchSize": 1`, `"maxBatchDelay": 100`, `"loadedAtStartup": false`, `"id": "9000"`, `"status": "READY"`)
	f.want("GET", f.manage+"/models?limit=1", "", 200, `"nextPageToken": "1"`)
	f.want("GET", f.manage+"/models", "", 200, `"modelName": "noop"`, `"modelUrl": "noop-1.0.mar"`)
	for _, tt := range []struct {
		kind, body string
		status     int
		want       string
	}{
		{"application/octet-stream", "a", 200, "a/1/application/octet-stream/36"},
		{"text/plain", "bad", 422, "bad/1/text/plain/36"},
		{"application/json", `{"x": 1}`, 200, `{"x": 1}/1/application/json/36`},
		{"application/json", `not json`, 200, `not json/1/application/json/36`},
		{"text/plain", "raise", 503, `"message": "Prediction failed"`},
		{"text/plain", "prediction", 513, `"message": "that is wrong"`},
		{"text/plain", "none", 503, `"message": "Invalid model predict output"`},
		{"text/plain", "short", 503, `"message": "number of batch response mismatched"`},
		{"text/plain", "odd", 503, `"message": "Unsupported model output data type."`},
		{"text/plain", "die", 500, `"message": "Worker died."`},
		{"text/plain", "again", 200, "again/1/text/plain/36"},
	} {
		status, got := f.ask("POST", f.infer+"/predictions/noop", tt.kind, tt.body)
		if status != tt.status || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %d %s, want %d %s", tt.body, status, got, tt.status, tt.want)
		}
	}
	f.want("POST", f.infer+"/predictions/absent", "", 404, `"code": 404`, `"type": "ModelNotFoundException"`, `"message": "Model not found: absent"`)
	f.want("POST", f.infer+"/invocations", "", 400, "Parameter model_name is required.")
	f.want("POST", f.infer+"/nowhere", "", 404, "ResourceNotFoundException")
	f.want("PATCH", f.manage+"/models", "", 405, "MethodNotAllowedException")
	f.want("POST", f.manage+"/models", "", 400, "Parameter url is required.")
	f.want("POST", f.manage+"/models?url=../x", "", 404)
	f.want("POST", f.manage+"/models?url=http://127.0.0.1/x.mar", "", 400, "allowed_urls")
	f.want("POST", f.manage+"/models?url=noop-1.0.mar", "", 409, "Model noop is already registered.")
	f.want("PUT", f.manage+"/models/noop?min_worker=2&max_worker=1", "", 400, "max_worker cannot be less than min_worker.")
	f.want("PUT", f.manage+"/models/noop?min_worker=0&synchronous=true", "", 200, "Workers scaled")
	f.want("GET", f.manage+"/models/noop", "", 200, `"workers": []`)
	f.want("DELETE", f.manage+"/models/noop", "", 200, `Model \"noop\" unregistered`)
	f.want("DELETE", f.manage+"/models/noop", "", 404)
	f.want("OPTIONS", f.infer+"/", "", 200, `"openapi": "3.0.1"`, "/predictions/{model_name}")
}

func TestRequestsShareABatchAndABadOneFailsAlone(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "noop", "1.0", "service:handle", map[string]string{"service.py": noop})
	f.want("POST", f.manage+"/models?url=noop-1.0.mar&batch_size=8&max_batch_delay=5000&initial_workers=1&retry_apart=true", "", 200, "Workers scaled")
	f.want("GET", f.manage+"/models/noop", "", 200, `"batchSize": 8`, `"maxBatchDelay": 5000`)
	for _, tt := range []struct {
		odd    string
		status int
		want   string
	}{
		{"bad", 422, "bad/8/"},
		{"raise", 503, "Prediction failed"}, // and the others are retried
	} {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				body, status, want := "a", 200, "a/"
				if i == 3 {
					body, status, want = tt.odd, tt.status, tt.want
				}
				got, text := f.ask("POST", f.infer+"/predictions/noop", "text/plain", body)
				if got != status || !strings.Contains(text, want) {
					t.Errorf("%s beside %s: %d %s", body, tt.odd, got, text)
				}
			})
		}
		all.Wait()
	}
}

// echo is a class with the usual steps of a handler.
const echo = `
class Echo:
    def initialize(self, context):
        self.properties = context.system_properties
        self.manifest = context.manifest

    def preprocess(self, data):
        return [sorted(d.items()) for d in data]

    def inference(self, rows):
        return rows

    def postprocess(self, rows):
        return [{"fields": [[k, v if isinstance(v, str) else v.decode()] for k, v in row], "version": self.manifest["model"]["modelVersion"],
                 "batch": self.properties["batch_size"]} for row in rows]
`

func TestVersionsAreServedAsInTorchServe(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	for _, version := range []string{"1.0", "2.0"} {
		writeMar(t, f.store, "echo", version, "echo.py", map[string]string{"echo.py": echo})
	}
	f.want("POST", f.manage+"/models?url=echo-1.0.mar&initial_workers=1", "", 200, `Model \"echo\" Version: 1.0 registered with 1 initial workers`)
	f.want("POST", f.manage+"/models?url=echo-2.0.mar", "", 200, `Version: 2.0 registered with 0 initial workers. Use scale workers API`)
	f.want("POST", f.manage+"/models?url=echo-2.0.mar", "", 409, "Model version 2.0 is already registered for model echo")
	f.want("PUT", f.manage+"/models/echo/2.0?min_worker=1&synchronous=true", "", 200, "Workers scaled to 1 for model: echo, version: 2.0")
	f.want("GET", f.manage+"/models/echo/all", "", 200, `"modelVersion": "1.0"`, `"modelVersion": "2.0"`, `"pendingRequests": 0`)
	f.want("POST", f.infer+"/predictions/echo", "x", 200, `"version": "1.0"`, `"batch": 1`)
	f.want("POST", f.infer+"/predictions/echo/2.0", "x", 200, `"version": "2.0"`)
	f.want("POST", f.infer+"/predictions/echo/3.0", "x", 404, "ModelVersionNotFoundException")
	f.want("PUT", f.manage+"/models/echo/2.0/set-default", "", 200, `Default version successfully updated for model \"echo\" to \"2.0\"`)
	f.want("POST", f.infer+"/predictions/echo", "x", 200, `"version": "2.0"`)
	f.want("DELETE", f.manage+"/models/echo/2.0", "", 403, "Cannot remove default version for model echo")
	f.want("DELETE", f.manage+"/models/echo/1.0", "", 200)
	f.want("GET", f.infer+"/ping", "", 200, "Healthy")

	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	_ = form.WriteField("name", "value")
	file, _ := form.CreateFormFile("data", "kitten.jpg")
	_, _ = file.Write([]byte("picture"))
	_ = form.Close()
	status, got := f.ask("POST", f.infer+"/predictions/echo", form.FormDataContentType(), b.String())
	var answer struct{ Fields [][2]string }
	if err := json.Unmarshal([]byte(got), &answer); err != nil || status != 200 || len(answer.Fields) != 2 ||
		answer.Fields[0] != [2]string{"data", "picture"} || answer.Fields[1] != [2]string{"name", "value"} {
		t.Errorf("a form: %d %s", status, got)
	}
}

// The server numbers versions, and a label may look like the number of another one.
func TestWorkersAreThoseOfTheVersionThatIsRegistered(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	for _, version := range []string{"2", "3"} {
		writeMar(t, f.store, "echo", version, "echo.py", map[string]string{"echo.py": echo})
		f.want("POST", f.manage+"/models?url=echo-"+version+".mar&initial_workers=1", "", 200, "Version: "+version)
	}
	for _, version := range []string{"2", "3"} {
		f.want("POST", f.infer+"/predictions/echo/"+version, "x", 200, `"version": "`+version+`"`)
	}
}

func TestSageMakerRegistersAndInvokes(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "noop", "1.0", "service:handle", map[string]string{"service.py": noop})
	both := httptest.NewServer(Both(f.models, Options{}))
	defer both.Close()
	status, got := f.ask("POST", both.URL+"/models", "application/json", `{"model_name": "mine", "url": "noop-1.0.mar", "initial_workers": 1}`)
	if status != 200 {
		t.Fatalf("register: %d %s", status, got)
	}
	if status, got := f.ask("POST", both.URL+"/models/mine/invoke", "text/plain", "x"); status != 200 || !strings.HasPrefix(got, "x/1/") {
		t.Errorf("invoke: %d %s", status, got)
	}
	if status, got := f.ask("POST", both.URL+"/invocations?model_name=mine", "text/plain", "x"); status != 200 || !strings.HasPrefix(got, "x/1/") {
		t.Errorf("invocations: %d %s", status, got)
	}
	f.want("GET", both.URL+"/models/mine", "", 200, `"modelName": "mine"`)
	f.want("DELETE", both.URL+"/models/mine", "", 200)
}

func TestAHandlerThatCannotBeLoadedSaysWhy(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "broken", "1.0", "service:handle", map[string]string{"service.py": "import nothing_of_this_name\n"})
	f.want("POST", f.manage+"/models?url=broken-1.0.mar&initial_workers=1", "", 500, "Failed to start workers for model broken version: 1.0", "No module named 'nothing_of_this_name'")
	f.want("GET", f.manage+"/models/broken", "", 404)
	f.want("POST", f.manage+"/models?url=broken-1.0.mar&initial_workers=1&synchronous=false", "", 202, "Processing worker updates...")
	for range 600 {
		if status, _ := f.ask("GET", f.manage+"/models/broken", "", ""); status == 404 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the model stays registered")
}

func TestAWorkerThatDoesNotStartIsNotWaitedFor(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "stuck", "1.0", "service:handle", map[string]string{"service.py": "import time\ntime.sleep(3600)\n"})
	f.want("POST", f.manage+"/models?url=stuck-1.0.mar&initial_workers=1&startup_timeout=1", "", 500, "no worker has started after 1s; raise startup_timeout")
	f.want("GET", f.manage+"/models/stuck", "", 404)
}

// crowd sends the given number of concurrent requests to the model noop, and returns
// their statuses in the order in which they are answered.
func (f *fixture) crowd(n int) <-chan int {
	statuses := make(chan int, n)
	for range n {
		go func() {
			status, _ := f.ask("POST", f.infer+"/predictions/noop", "text/plain", "a")
			statuses <- status
		}()
	}
	return statuses
}

// occupy gives the worker of the model noop a request that its handler keeps until
// release is called. The request has to be answered well.
func (f *fixture) occupy() (release func()) {
	began := filepath.Join(f.t.TempDir(), "began")
	var taken sync.WaitGroup
	taken.Go(func() {
		if status, text := f.ask("POST", f.infer+"/predictions/noop", "text/plain", "began "+began); status != 200 {
			f.t.Errorf("the request that the worker had taken is answered with %d %s", status, text)
		}
	})
	for {
		if _, err := os.Stat(began); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return func() {
		if err := os.Remove(began); err != nil {
			f.t.Error(err)
		}
		taken.Wait()
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	f := start(t, mms.MultiModelServer, func(s *mms.Settings) { s.Queue = 1 })
	writeMar(t, f.store, "noop", "1.0", "service:handle", map[string]string{"service.py": noop})
	f.want("POST", f.manage+"/models?url=noop-1.0.mar&initial_workers=1", "", 200)
	release := f.occupy()
	statuses := f.crowd(8)
	for range 7 {
		if status := <-statuses; status != 503 {
			t.Errorf("status %d for one of seven that found the queue full", status)
		}
	}
	release()
	if status := <-statuses; status != 200 {
		t.Errorf("status %d for the one that could wait", status)
	}
}

func TestWhoWaitsIsToldWhenTheLastWorkerLeaves(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "noop", "1.0", "service:handle", map[string]string{"service.py": noop})
	f.want("POST", f.manage+"/models?url=noop-1.0.mar&initial_workers=1", "", 200)
	release := f.occupy()
	statuses := f.crowd(6)
	v, err := f.models.Find("noop", "")
	if err != nil {
		t.Fatal(err)
	}
	for v.Scheduler.Waiting() < 6 {
		time.Sleep(time.Millisecond)
	}
	f.want("PUT", f.manage+"/models/noop?min_worker=0", "", 202, "Processing worker updates...")
	for v.Scheduler.Alive() > 0 {
		time.Sleep(time.Millisecond)
	}
	release()
	for range 6 {
		if status := <-statuses; status != 503 {
			t.Errorf("status %d for one that waited", status)
		}
	}
	f.want("GET", f.infer+"/ping", "", 200, `"status": "Healthy"`) // because none are wanted
	f.want("PUT", f.manage+"/models/noop?min_worker=1&synchronous=true", "", 200)
	if status, text := f.ask("POST", f.infer+"/predictions/noop", "text/plain", "a"); status != 200 {
		t.Errorf("a worker that came again answers %d %s", status, text)
	}
}

func TestModelsOfTheStoreAreThereFromTheStart(t *testing.T) {
	dir := t.TempDir()
	writeMar(t, dir, "echo", "3.0", "echo.py", map[string]string{"echo.py": echo})
	delay := 0
	f := start(t, mms.TorchServe, func(s *mms.Settings) {
		s.Store, s.All, s.Workers = dir, true, 1
		s.Models = map[string]map[string]mms.Preset{"mine": {"3.0": {Archive: "echo-3.0.mar", MinWorkers: 2, BatchSize: 4, MaxBatchDelay: &delay}}}
	})
	f.want("GET", f.manage+"/models/mine", "", 200, `"loadedAtStartup": true`, `"minWorkers": 2`, `"batchSize": 4`, `"maxBatchDelay": 0`)
	f.want("POST", f.infer+"/invocations", "x", 200, `"version": "3.0"`, `"batch": 4`)
	f.want("GET", f.infer+"/ping", "", 200, "Healthy")
}

func TestTheSettingsChooseTheDefaultVersion(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"1.0", "2.0"} {
		writeMar(t, dir, "echo", version, "echo.py", map[string]string{"echo.py": echo})
	}
	f := start(t, mms.TorchServe, func(s *mms.Settings) {
		s.Store, s.All, s.Workers = dir, true, 1
		s.Models = map[string]map[string]mms.Preset{"echo": {"2.0": {Default: true}}}
	})
	f.want("POST", f.infer+"/predictions/echo", "x", 200, `"version": "2.0"`)
}

func TestABodyThatIsTooLongIsRefused(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	small := httptest.NewServer(Inference(f.models, Options{MaxRequest: 10, BodyTimeout: time.Minute}))
	defer small.Close()
	f.want("POST", small.URL+"/predictions/m", "0123456789", 404)
	f.want("POST", small.URL+"/predictions/m", "0123456789a", 413, "max_request_size")
	f.want("POST", f.manage+"/models?url=m.mar", strings.Repeat("x", 300<<10), 400, "more than 262144 bytes follow")
}

func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	hasty := httptest.NewServer(Both(f.models, Options{BodyTimeout: 50 * time.Millisecond}))
	defer hasty.Close()
	for head, body := range map[string]string{
		"POST /predictions/m HTTP/1.1\r\nHost: x\r\nContent-Length: 100":                                                  "",
		"POST /predictions/m HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked":                                           "",
		"POST /models HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100":                       "",
		"POST /models?url=m.mar HTTP/1.1\r\nHost: x\r\nContent-Length: 100":                                               "", // it is not used
		"POST /predictions/m HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100": "--b--\r\n",
	} {
		conn, err := net.Dial("tcp", hasty.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(head + "\r\n\r\n" + body)); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn) // until the server closes
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408") || !strings.Contains(string(answer), "did not arrive within 50ms") {
			t.Errorf("%s: %s, %v", head, answer, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A client that has sent all may close its half of the connection, and still read.
func TestARequestThatIsCancelledDoesNotSucceed(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "noop", "1.0", "service:handle", map[string]string{"service.py": noop})
	f.want("POST", f.manage+"/models?url=noop-1.0.mar&initial_workers=1", "", 200)
	release := f.occupy()
	defer release()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.infer, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte("POST /predictions/noop HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\na"))
	if err := errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 499 ") || !strings.Contains(string(answer), `"code": 499`) {
		t.Errorf("answered with %q, %v", answer, err)
	}
}

func TestAHandlerSeesWhereItWasAsked(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "where", "1.0", "service:handle", map[string]string{"service.py": `
def handle(data, context):
    return data and [[context.get_request_header(i, "url_path"), context.get_request_header(i, "host")] for i in range(len(data))]
`})
	f.want("POST", f.manage+"/models?url=where-1.0.mar&initial_workers=1", "", 200)
	f.want("POST", f.infer+"/predictions/where/1.0/some/place", "", 200, `"some/place"`, strings.TrimPrefix(f.infer, "http://"))
	f.want("POST", f.infer+"/predictions/where/1.0", "", 200, `"",`)
	f.want("POST", f.infer+"/predictions/where/1.0/a%0Ab", "", 404)
}

func TestTheLogHasWhatAHandlerLogs(t *testing.T) {
	var log logtest.Log
	f := startWithLog(t, mms.TorchServe, nil, slog.New(slog.NewTextHandler(&log, nil)))
	writeMar(t, f.store, "m", "1.0", "service:handle", map[string]string{"service.py": `
import logging
logging.getLogger("mine").info("imported %d", 1)

def handle(data, context):
    logging.info("called with %s", data)
    logging.debug("not for the log")
`})
	f.want("POST", f.manage+"/models?url=m-1.0.mar&initial_workers=1", "", 200)
	f.want("DELETE", f.manage+"/models/m", "", 200) // by then its output is in the log
	text := log.String()
	if !strings.Contains(text, `level=INFO msg="imported 1"`) || !strings.Contains(text, `level=INFO msg="called with None"`) || strings.Contains(text, "not for the log") {
		t.Errorf("the log has\n%s", text)
	}
}

// With its headers a handler gets those of the parts of a form, under the names of the parts.
func TestAFieldDoesNotSayWhatARequestIsFor(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	writeMar(t, f.store, "count", "1.0", "service:handle", map[string]string{"service.py": `
def handle(data, context):
    return data and ["%s of %d" % (", ".join(d), len(data)) for d in data]
`})
	f.want("POST", f.manage+"/models?url=count-1.0.mar&initial_workers=1&batch_size=3&max_batch_delay=60000", "", 200)
	var all sync.WaitGroup
	for query, want := range map[string]string{"": "body of 3", "?explain=1": "explain, body of 3", "?describe=1": "describe, body of 3"} {
		all.Go(func() {
			if status, text := f.ask("POST", f.infer+"/count/predict"+query, "", "x"); status != 200 || text != want {
				t.Errorf("%q: %d %s, want %s", query, status, text, want)
			}
		})
	}
	all.Wait()
}

func TestAHandlerRunsInTheDirectoryOfItsModel(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	files := map[string]string{"word.txt": "here", "service.py": `
import os
first = open("word.txt").read()

def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == b"die":
        os._exit(3)
    return [first + " " + open("word.txt").read() + " " + str(os.getcwd() == context.system_properties["model_dir"])]
`}
	writeMar(t, f.store, "packed", "1.0", "service:handle", files)
	for name, text := range files {
		path := filepath.Join(f.store, "folder", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, archive := range map[string]string{"packed": "packed-1.0.mar", "folder": "folder&handler=service:handle"} {
		f.want("POST", f.manage+"/models?model_name="+name+"&initial_workers=1&url="+archive, "", 200)
		for range 2 {
			f.want("POST", f.infer+"/predictions/"+name, "x", 200, "here here True")
			f.want("POST", f.infer+"/predictions/"+name, "die", 500) // and the next worker has it as well
		}
	}
}
