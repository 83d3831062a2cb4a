package mmshttp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/mms"
)

// explainer is a handler as TorchServe's documentation has it: the first request says what
// all are for.
const explainer = `
class Explainer:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [{"labels": 3}]
        word = "explained" if context.get_request_header(0, "explain") == "True" else "predicted"
        bodies = [d.get("body") for d in data]
        return [{word: b.decode() if isinstance(b, bytearray) else b, "together": len(data)} for b in bodies]
`

// steps is a handler without handle.
const steps = `
class Steps:
    def initialize(self, context):
        pass

    def preprocess(self, data):
        return [d["body"] for d in data]

    def inference(self, rows):
        return ["predicted " + str(r) for r in rows]

    def explain_handle(self, rows, data):
        return ["explained " + str(r) + " of " + str(len(data)) for r in rows]

    def describe_handle(self):
        return {"labels": 4}
`

func TestTorchServesPathsReachTheHandler(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "m", "1.0", "service", map[string]string{"service.py": explainer})
	writeMar(t, f.store, "steps", "1.0", "service", map[string]string{"service.py": steps})
	f.want("GET", f.manage+"/v1/models/m", "", 404, "Model not found: m")
	f.want("POST", f.manage+"/models?url=m-1.0.mar", "", 200)
	f.want("GET", f.manage+"/v1/models/m", "", 200, `"name": "m"`, `"ready": false`)
	f.want("GET", f.manage+"/models/m?customized=true", "", 503, "has no worker")
	f.want("PUT", f.manage+"/models/m?min_worker=1&synchronous=true", "", 200)
	f.want("POST", f.manage+"/models?url=steps-1.0.mar&initial_workers=1", "", 200)
	f.want("GET", f.manage+"/v1/models/m", "", 200, `"ready": true`)
	for path, want := range map[string]string{
		"/predictions/m": "predicted", "/predictions/m/1.0": "predicted", "/explanations/m": "explained", "/explanations/m/1.0": "explained",
		"/v1/models/m:predict": "predicted", "/v1/models/m:explain": "explained", "/v2/models/m/infer": "predicted", "/v2/models/m/explain": "explained",
	} {
		status, text := f.ask("POST", f.infer+path, "application/json", `{"instances": [1]}`)
		if status != 200 || !strings.Contains(text, `"`+want+`": {`) || !strings.Contains(text, `"instances": [`) {
			t.Errorf("%s: %d %s, want %s", path, status, text, want)
		}
	}
	for path, status := range map[string]int{
		"/v1/models/m:train": 404, "/v1/models/m": 404, "/v1/models/absent:predict": 404, "/v2/models/absent/infer": 404, "/v2/health/ready": 404,
		"/explanations": 404, "/explanations/m/9": 404,
	} {
		f.want("POST", f.infer+path, "{}", status)
	}
	f.want("POST", f.infer+"/explanations/steps", "x", 200, "explained bytearray(b'x') of 1")
	f.want("POST", f.infer+"/predictions/steps", "x", 200, "predicted bytearray(b'x')")
	f.want("GET", f.manage+"/models/steps?customized=true", "", 200, `"customizedMetadata": {`, `"labels": 4`)
	f.want("GET", f.manage+"/models/m/1.0?customized=true", "", 200, `"modelName": "m"`, `"batchSize": 1`, `"customizedMetadata": {`, `"labels": 3`)
	f.want("GET", f.manage+"/models/m?customized=true", "", 200, `"labels": 3`)
	for _, path := range []string{"/models/m", "/models/m/all?customized=true", "/models/m?customized=false"} {
		if _, text := f.ask("GET", f.manage+path, "", ""); strings.Contains(text, "customizedMetadata") {
			t.Errorf("%s is customized: %s", path, text)
		}
	}
}

func TestPathsOfTorchServeAreNotThoseOfMMS(t *testing.T) {
	f := start(t, mms.MultiModelServer, nil)
	for _, path := range []string{"/explanations/m", "/v1/models/m:predict", "/v2/models/m/infer"} {
		f.want("POST", f.infer+path, "{}", 404, "ResourceNotFoundException")
	}
}

// Handlers read headers without regard to case, and a description needs another right.
func TestAClientCannotChooseAKindByAHeader(t *testing.T) {
	for _, dialect := range []mms.Dialect{mms.TorchServe, mms.MultiModelServer} {
		f := start(t, dialect, nil)
		writeMar(t, f.store, "m", "1.0", "service", map[string]string{"service.py": explainer})
		f.want("POST", f.manage+"/models?url=m-1.0.mar&initial_workers=1&synchronous=true", "", 200)
		for _, name := range []string{"Describe", "explain"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.infer+"/predictions/m", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(name, "True")
			resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			if _ = resp.Body.Close(); err != nil || !strings.Contains(string(text), "predicted") {
				t.Errorf("%v with %s: %s, %v", dialect, name, text, err)
			}
		}
	}
}

// A batch holds predictions, explanations and descriptions, and its handler looks at the first
// request alone.
func TestRequestsOfSeveralKindsInOneBatchAreAnsweredEachByItsKind(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "m", "1.0", "service", map[string]string{"service.py": explainer})
	f.want("POST", f.manage+"/models?url=m-1.0.mar&initial_workers=1&batch_size=8&max_batch_delay=5000", "", 200)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			switch i % 4 {
			case 0, 1:
				f.want("POST", f.infer+"/predictions/m", "", 200, `"predicted"`, `"together": 4`)
			case 2:
				f.want("POST", f.infer+"/explanations/m", "", 200, `"explained"`, `"together": 2`)
			case 3:
				f.want("GET", f.manage+"/models/m?customized=true", "", 200, `"labels": 3`)
			}
		})
	}
	all.Wait()
}

// Models that were not registered, and paths without a registered model, are those of KServe's
// protocol.
func TestPathsOfKServeAreForwarded(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	kserve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("kserve " + r.URL.Path)) })
	port := httptest.NewServer(Inference(f.models, Options{KServe: kserve}))
	defer port.Close()
	for _, path := range []string{"/v2/health/ready", "/v2", "/v2/models/m", "/v2/models/m/versions/1/infer"} {
		f.want("GET", port.URL+path, "", 200, "kserve "+path)
	}
	f.want("POST", port.URL+"/v2/models/absent/infer", "", 404, "Model not found: absent")
}

func TestAHandlerOfTorchServeThatIsMissingSaysWhatToInstall(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "m", "1.0", "image_classifier", map[string]string{"index_to_name.json": "{}"})
	writeMar(t, f.store, "base", "1.0", "service", map[string]string{"service.py": "from ts.torch_handler.base_handler import BaseHandler\n"})
	writeMar(t, f.store, "util", "1.0", "service", map[string]string{"service.py": "import ts.utils.secret\n"})
	writeMar(t, f.store, "other", "1.0", "service", map[string]string{"service.py": "import surely_absent.deep\n"})
	for name, want := range map[string][]string{
		"m":     {"handler image_classifier is part of TorchServe", "-m pip install torchserve torch torchvision captum", "put a handler of your own into the archive"},
		"base":  {"handler base_handler is part of TorchServe", "-m pip install torchserve torch,"},
		"util":  {"only some modules of package ts are built in", "-m pip install torchserve"},
		"other": {"No module named 'surely_absent'", "-m pip install surely_absent", "install_py_dep_per_model=true"},
	} {
		f.want("POST", f.manage+"/models?url="+name+"-1.0.mar&initial_workers=1", "", 500, want...)
	}
}
