package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// endpoints are addresses that a person may give to a command.
type endpoints struct {
	http, grpc string // of a server
	other      string // speaks HTTP, but not KServe v2
	down       string // nothing listens there
}

// startEndpoints starts a server with models that are ready, that failed to load, and that
// were never loaded.
func startEndpoints(t *testing.T) (e endpoints) {
	t.Helper()
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Entries = kservetest.RecordedIndex
	address := func(s *httptest.Server) string {
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	e.http = address(httptest.NewServer(kservehttp.New(backend, backend, backend, kservehttp.Options{})))
	e.other = address(httptest.NewServer(http.NotFoundHandler()))
	e.down = unusedAddress
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.grpc = l.Addr().String()
	s := kservegrpc.New(backend, backend, backend, kservegrpc.Options{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

// unusedAddress is an address at which no program listens. A port that was just closed may belong to
// another program by the time of the call.
const unusedAddress = "127.0.0.1:1"

// clientCommands are the commands that call a server, about the given model.
func clientCommands(model string) [][]string {
	return [][]string{
		{"ls"},
		{"health"},
		{"health", model},
		{"infer", model, "--random"},
		{"load", model},
		{"unload", model},
		{"explain", model},
		{"bench", model, "--quick"},
	}
}

func TestCommandsSayWhatToDoIfThePortIsWrong(t *testing.T) {
	at := startEndpoints(t)
	for _, tt := range []struct{ name, address, protocol, want string }{
		{"a server that is down", at.down, "http", "no server answers at " + at.down + `; start one with "shoal serve", or name its address with -u`},
		{"a server that is down, over gRPC", at.down, "grpc", "no server answers at " + at.down + `; start one with "shoal serve", or name its address with -u`},
		{"the gRPC port", at.grpc, "http", at.grpc + " is not an HTTP port, but probably a gRPC port: use -i grpc, or name the HTTP port with -u"},
		{"the HTTP port, over gRPC", at.http, "grpc", at.http + " is not a gRPC port, but probably an HTTP port: use -i http, or name the gRPC port with -u"},
		{"another program", at.other, "http", at.other + ` does not speak KServe v2 over HTTP: it answered "404 Not Found"; -u must name the HTTP port of an inference server, by default 8000`},
	} {
		for _, command := range clientCommands("identity") {
			if command[0] == "explain" && tt.protocol == "grpc" {
				continue // it needs HTTP
			}
			text, status := shoal(t, append(command, "-u", tt.address, "-i", tt.protocol)...)
			if status != exitFailed || !strings.Contains(text, tt.want) {
				t.Errorf("%v at %s: status %d, %swant %s", command, tt.name, status, text, tt.want)
			}
		}
	}
	for _, address := range []string{"http://", "::"} {
		if text, status := shoal(t, "ls", "-u", address); status == exitOK {
			t.Errorf("-u %s: %s", address, text)
		}
	}
}

func TestAnAddressWithoutAPortIsAnsweredWithOne(t *testing.T) {
	for protocol, want := range map[string]string{"http": "as in -u localhost:8000", "grpc": "as in -u localhost:8001"} {
		r := &remote{address: "localhost", protocol: protocol}
		if err := r.notAnswered(&client.Error{Code: client.Unavailable}, time.Second); !strings.Contains(err.Error(), want) {
			t.Errorf("over %s: %v, want %s", protocol, err, want)
		}
	}
}

func TestCommandsSayWhatIsWrongWithTheModel(t *testing.T) {
	at := startEndpoints(t)
	for model, want := range map[string]string{
		"nosuch":    `there is no model "nosuch"; the server has alltypes, badconfig, broken, failing, identity, recorder, repeat, two`,
		"idntity":   `there is no model "idntity"; did you mean "identity"?`,
		"badconfig": `model "badconfig" is not loaded; load it with "shoal load badconfig"`,
		"broken":    `model "broken" is not ready: version 1 is UNAVAILABLE: Internal: RuntimeError: cannot start`,
	} {
		for _, command := range clientCommands(model) {
			if len(command) == 1 || command[0] == "load" || command[0] == "unload" && !strings.HasPrefix(want, "there is no") {
				continue // they do not depend on the model's state
			}
			if text, status := shoal(t, append(command, "-u", at.http)...); status != exitFailed || !strings.Contains(text, want) {
				t.Errorf("%v: status %d, %swant %s", command, status, text, want)
			}
		}
	}
}

func TestVersionsThatWereUnloadedAreNotToBlame(t *testing.T) {
	const gone, broken = "unloaded", "its file is damaged"
	backend := kservetest.New(t)
	backend.Entries = []catalog.IndexEntry{
		{Name: "left", Version: "1", State: "UNAVAILABLE", Reason: gone},
		{Name: "never"},
		{Name: "replaced", Version: "1", State: "UNAVAILABLE", Reason: gone},
		{Name: "replaced", Version: "2", State: "READY"},
		{Name: "worse", Version: "1", State: "UNAVAILABLE", Reason: gone},
		{Name: "worse", Version: "2", State: "UNAVAILABLE", Reason: broken},
		{Name: "falls back", Version: "1", State: "READY"},
		{Name: "falls back", Version: "2", State: "UNAVAILABLE", Reason: broken},
	}
	full := errors.New("the server answered: the queue is full")
	var index []client.IndexEntry
	for _, e := range backend.Entries {
		index = append(index, client.IndexEntry{Model: e.Name, Version: e.Version, State: e.State, Reason: e.Reason})
	}
	for _, tt := range []struct{ model, version, want string }{
		{"left", "", `model "left" is not loaded; load it with "shoal load left"`},
		{"left", "1", `version 1 of model "left" is not loaded; "shoal ls" lists the versions that are`},
		{"never", "", `model "never" is not loaded; load it with "shoal load never"`},
		{"never", "1", `model "never" is not loaded; load it with "shoal load never"`},
		{"replaced", "", full.Error()},
		{"replaced", "1", `version 1 of model "replaced" is not loaded; "shoal ls" lists the versions that are`},
		{"replaced", "2", full.Error()},
		{"replaced", "stable", full.Error()},
		{"left", "stable", `model "left" is not loaded; load it with "shoal load left"`},
		{"replaced", "3", `model "replaced" has no version 3; it has 1, 2`},
		{"worse", "", `model "worse" is not ready: version 2 is UNAVAILABLE: its file is damaged; fix it, and load it again, with "shoal load worse" if the server allows it`},
		{"falls back", "", full.Error()},
		{"falls back", "2", `model "falls back" is not ready: version 2 is UNAVAILABLE: its file is damaged; fix it, and load it again, with "shoal load falls back" if the server allows it`},
	} {
		if err := missing(index, tt.model, tt.version, full); err.Error() != tt.want {
			t.Errorf("%s %s: %v\nwant %s", tt.model, tt.version, err, tt.want)
		}
	}

	backend.Entries = backend.Entries[:4]
	backend.NotReady.Store(true)
	server := httptest.NewServer(kservehttp.New(backend, backend, backend, kservehttp.Options{}))
	defer server.Close()
	if text, status := shoal(t, "health", "-u", server.URL); status != exitFailed || !strings.Contains(text, "the server is not ready: it is starting or stopping; try again") {
		t.Errorf("status %d: %s", status, text)
	}
}

func TestCommandsUseARunningServer(t *testing.T) {
	at := startEndpoints(t)
	for protocol, address := range map[string]string{"http": at.http, "grpc": at.grpc} {
		for _, tt := range []struct {
			args []string
			want string // a regular expression
		}{
			{[]string{"ls"}, `(?m)^identity +1 +READY +INPUT FP32\[n,16\] → OUTPUT FP32\[n,16\]$`},
			{[]string{"ls"}, `(?m)^broken +1 +UNAVAILABLE +Internal: RuntimeError: cannot start`},
			{[]string{"ls"}, `(?m)^badconfig +not loaded$`},
			{[]string{"health"}, `^the server is ready\n$`},
			{[]string{"health", "--live"}, `^the server is live\n$`},
			{[]string{"health", "identity"}, `^model "identity" is ready\n$`},
			{[]string{"infer", "identity", "--random", "--seed", "2"}, `^OUTPUT FP32\[1,16\] = \[0\.\d+, .*…\]\nidentity, version 1, in [0-9.]+ ms\n$`},
			{[]string{"load", "identity"}, `^loaded identity, version 1: INPUT FP32\[n,16\] → OUTPUT FP32\[n,16\]\n$`},
			{[]string{"unload", "identity"}, `^unloaded identity\n$`},
		} {
			text, status := shoal(t, append(tt.args, "-u", address, "-i", protocol)...)
			if status != exitOK || !regexp.MustCompile(tt.want).MatchString(text) {
				t.Errorf("%v over %s: status %d, %s", tt.args, protocol, status, text)
			}
		}
	}
}

func TestAnAddressOverGRPCMayBeAURL(t *testing.T) {
	at := startEndpoints(t)
	for _, address := range []string{"http://" + at.grpc, "http://" + at.grpc + "/"} {
		for _, args := range [][]string{{"health", "identity"}, {"bench", "identity", "--request-count", "1"}} {
			if text, status := shoal(t, append(args, "-i", "grpc", "-u", address)...); status != exitOK {
				t.Errorf("%v -u %s: status %d: %s", args, address, status, text)
			}
		}
	}
}

func TestInferReadsItsInputs(t *testing.T) {
	at := startEndpoints(t)
	row := "[" + strings.Repeat("1,", 15) + "2]"
	npy := "\x93NUMPY\x01\x00" + "\x46\x00" + "{'descr': '<f4', 'fortran_order': False, 'shape': (16,), }" + strings.Repeat(" ", 11) + "\n" + strings.Repeat("\x00\x00\x80\x3f", 16)
	dir := directory(t, map[string]string{
		"body.json":  `{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 16], "data": ` + row + `}]}`,
		"all.json":   `{"id": "5", "parameters": {"sequence_end": false, "n": 3, "x": 1.5}, "inputs": [{"name": "INPUT", "shape": [1, 16], "data": ` + row + `}], "outputs": [{"name": "OUTPUT"}]}`,
		"none.json":  `{"inputs": [{"name": "INPUT", "shape": [1, 16], "data": ` + row + `}], "outputs": [{"name": "OTHER"}]}`,
		"typo.json":  `{"inputs": [{"name": "INPUT", "shape": [1, 16], "data": ` + row + `}], "parameter": {}}`,
		"named.json": `{"INPUT": [` + row + `, ` + row + `]}`,
		"a.npy":      npy,
		"wide.npy":   strings.Replace(npy, "<f4", "<f8", 1) + strings.Repeat("\x00", 64),
		"wrong.json": `{"instances": [1]}`,
		"short.json": `{"inputs": [{"name": "INPUT", "shape": [1, 16], "data": [1, 2]}]}`,
		"text.npy":   "hello",
		"row.json":   `{"INPUT": ` + row + `}`,
		"rows.json":  `{"INPUT": [` + row + `, [1, 2]]}`,
		"deep.json":  `{"INPUT": [` + row + `, 3]}`,
		"cut.json":   `{"INPUT": [` + row,
	})
	for _, tt := range []struct{ flag, file, want string }{
		{"--json", "body.json", `OUTPUT FP32\[1,16\] = \[1, 1, .*2\]`},
		{"--json", "all.json", `OUTPUT FP32\[1,16\] = \[1, 1, .*2\]`},
		{"--json", "none.json", `'OTHER'`},
		{"--json", "typo.json", `unknown field "parameter"; a request has id, parameters, inputs and outputs`},
		{"--json", "named.json", `OUTPUT FP32\[2,16\] = \[1, 1, `},
		{"--npy", "a.npy", `OUTPUT FP32\[1,16\] = \[1, 1, .*1\]`},
		{"--npy", "INPUT=a.npy", `OUTPUT FP32\[1,16\] = \[1, 1, .*1\]`},
		{"--npy", "X=a.npy", `the model has no input "X"; it has INPUT`},
		{"--npy", "wide.npy", `has elements of type FP64, but input "INPUT" takes FP32; save a.astype\(numpy.float32\)`},
		{"--npy", "text.npy", `not an array that numpy.save wrote`},
		{"--json", "wrong.json", `model "identity" has no input "instances"; expected something like {"inputs":\[{"name":"INPUT","datatype":"FP32","shape":\[1,16\],"data":\[0,0`},
		{"--json", "short.json", `input "INPUT": `},
		{"--json", "row.json", `OUTPUT FP32\[1,16\] = \[1, 1, `},
		{"--json", "rows.json", `input "INPUT": lists have different lengths; the first have the shape \[2,16\], which all must have`},
		{"--json", "deep.json", `input "INPUT": lists have different lengths`},
		{"--json", "cut.json", `not a JSON object: .*; expected something like {"inputs":`},
		{"--json", "absent.json", `no such file or directory; check the path`},
	} {
		name, file, found := strings.Cut(tt.file, "=")
		path := filepath.Join(dir, tt.file)
		if found {
			path = name + "=" + filepath.Join(dir, file)
		}
		text, status := shoal(t, "infer", "identity", tt.flag, path, "-u", at.http)
		if fails := !strings.HasPrefix(tt.want, "OUTPUT"); fails != (status != exitOK) || !regexp.MustCompile(tt.want).MatchString(text) {
			t.Errorf("%s %s: status %d, %swant %s", tt.flag, tt.file, status, text, tt.want)
		}
	}
	text, status := shoal(t, "infer", "identity", "--json", filepath.Join(dir, "body.json"), "-u", at.http, "-o", "json", "--request-id", "7")
	var doc struct {
		ID      string
		Outputs []struct {
			Name string
			Data []float64
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || status != exitOK || doc.ID != "7" || len(doc.Outputs) != 1 || len(doc.Outputs[0].Data) != 16 || doc.Outputs[0].Data[15] != 2 {
		t.Errorf("status %d, %v: %s", status, err, text)
	}
}

func TestModelsOfDirectoriesAreListed(t *testing.T) {
	model, err := os.ReadFile("../../internal/engine/onnx/testdata/mlp.onnx")
	if err != nil {
		t.Fatal(err)
	}
	dir := directory(t, map[string]string{
		"good/1/model.onnx": "x", "good/3/model.onnx": string(model), "alone.onnx": string(model), "text.onnx": "x",
		"bad/config.pbtxt": "max_batch_sise: 8", "bad/1/model.onnx": "x", "code/1/model.py": "x",
		"declared/1/model.py": "x", "declared/config.pbtxt": `backend: "python" max_batch_size: 8
			input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ] output [ { name: "y" data_type: TYPE_STRING dims: [ -1, 2 ] } ]`,
	})
	text, status := shoal(t, "ls", dir)
	for _, want := range []string{
		`^good +3 +onnxruntime +x FP32\[n,32\] → y FP32\[n,4\]$`,
		`^alone +1 +onnxruntime +x FP32\[n,32\] → y FP32\[n,4\]$`,
		`^text +1 +INVALID +.*text.onnx`,
		`^bad +INVALID +.*bad/config.pbtxt:1:1:`,
		`^code +1 +python$`,
		`^declared +1 +python +x FP32\[n,3\] → y BYTES\[n,\?,2\]$`,
	} {
		if status != exitOK || !regexp.MustCompile(`(?m)`+want).MatchString(text) {
			t.Errorf("status %d, no %s in\n%s", status, want, text)
		}
	}
	if text, status := shoal(t, "ls", dir+"x"); status != exitFailed || !strings.Contains(text, "does not exist") {
		t.Errorf("status %d:\n%s", status, text)
	}
}

func TestTheVersionNamesItsParts(t *testing.T) {
	text, status := shoal(t, "version")
	if status != exitOK || !regexp.MustCompile(`^Shoal `+regexp.QuoteMeta(version)+`\nCommit: .*\nGo: go1\..*\nONNX Runtime: .*\n$`).MatchString(text) {
		t.Errorf("status %d:\n%s", status, text)
	}
	text, _ = shoal(t, "version", "--json", "--onnxruntime-library", "no/such/library")
	var b build
	if err := json.Unmarshal([]byte(text), &b); err != nil || b.Version != version || b.ONNX.Error == "" {
		t.Errorf("%v: %s", err, text)
	}
	b = build{Version: "1", Commit: "abc", Time: "today", Modified: true, ONNX: onnxLibrary{Version: "1.30", Library: "lib.so", Providers: []string{"CPU", "CUDA"}}}
	if got, want := b.String(), "Shoal 1\nCommit: abc today (modified)\nGo:  \nONNX Runtime: 1.30 (CPU, CUDA) at lib.so\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWrongUsageIsAnsweredWithWhatWasMeant(t *testing.T) {
	for args, want := range map[string]string{
		"serve --port 1":                 "unknown flag --port; did you mean --http-port?",
		"serve --htttp-port 1":           "unknown flag --htttp-port; did you mean --http-port?",
		"serve --host 1":                 "unknown flag --host; did you mean --address?",
		"serve --zzz":                    `unknown flag --zzz; "shoal serve --help" lists all flags`,
		"serve -Z":                       `unknown flag -Z; "shoal serve --help" lists all flags`,
		"serve --http-port":              "--http-port needs a value: expected a whole number",
		"serve --http-port many m":       `--http-port: "many" is not valid: expected a whole number`,
		"bench a --concurrency 8":        "unknown flag --concurrency; did you mean --concurrency-range?",
		"ls --port 1":                    "unknown flag --port; did you mean --url?",
		"srve":                           `unknown command "srve"; did you mean "shoal serve"?`,
		"list":                           `unknown command "list"; did you mean "shoal ls"?`,
		"models":                         `unknown command "models"; did you mean "shoal ls"?`,
		"predict":                        `unknown command "predict"; did you mean "shoal infer"?`,
		"run":                            `unknown command "run"; did you mean "shoal infer"?`,
		"../../examples/onnx":            `unknown command "../../examples/onnx"; did you mean "shoal serve ../../examples/onnx"?`,
		"zzz":                            `unknown command "zzz"; "shoal --help" lists all commands`,
		"explain":                        `name a model, as in "shoal explain resnet50"; "shoal ls" lists the models of a server`,
		"infer":                          `name a model, as in "shoal infer resnet50"`,
		"infer m":                        "no inputs given; use --random to try the model, or --json FILE or --npy FILE for real inputs",
		"infer m --random --json x":      "--random cannot be combined with --json",
		"load":                           `name a model, as in "shoal load resnet50"`,
		"unload":                         `name a model, as in "shoal unload resnet50"`,
		"simulate":                       `name a scenario, as in "shoal simulate examples/scenarios/a-to-e.yaml"`,
		"simulate a b":                   `unexpected argument "b"; "shoal simulate --help" shows the usage`,
		"bench":                          `name a model, as in "shoal bench resnet50"`,
		"bench compare":                  `name the files to compare`,
		"version x":                      `unexpected argument "x"`,
		"keys lsit":                      `unknown command "lsit"; did you mean "shoal keys list"?`,
		"keys revoke":                    `name the ID of a key`,
		"keys create x":                  `unexpected argument "x"`,
		"rollout starts m 2":             `unknown command "starts"; did you mean "shoal rollout start"?`,
		"ls --tls -u http://a:8000":      "connections to http://a:8000 are not encrypted; write https://",
		"health a b":                     `unexpected argument "b"`,
		"serve":                          "no models given; name a model file or a directory of models",
		"serve m --load-model a":         "--load-model needs --model-control-mode=explicit",
		"serve m --address 0.0.0.0":      "can be reached from other machines; use 127.0.0.1, or set --tls-cert and --tls-key",
		"serve m --cache-config local,1": `--cache-config: "local,1" is not valid: expected local,size=BYTES, such as local,size=1048576`,
		"ls -i smoke":                    `--protocol: "smoke" is not valid: expected one of http, grpc`,
		"explain m -i grpc":              "explain needs HTTP: leave out -i grpc",
		"doctor --http-port x":           `--http-port: "x" is not valid: expected a whole number`,
		"infer m --timeout 5":            `--timeout: "5" is not valid: expected a time with its unit, such as 500ms, 10s or 1h`,
		"infer m --seed -1":              `--seed: "-1" is not valid: expected a whole number that is not negative`,
		"infer m --classes":              "--classes needs a value: expected a whole number that is not negative",
		"bench m --percentile high":      `--percentile: "high" is not valid: expected a number`,
		"rollout start m 2 --steps few":  `--steps: "few" is not valid: expected whole numbers that are not negative, such as 1,10,50,100`,
		"keys create --role boss":        `--role: "boss" is not valid: expected one of infer, read, admin`,
		"serve m --node-label a":         `--node-label: "a" is not valid: expected KEY=VALUE`,
	} {
		if text, status := shoal(t, strings.Fields(args)...); status != exitMisuse || !strings.Contains(text, want) || strings.Contains(text, "expected nothing") {
			t.Errorf("shoal %s: status %d, %swant %s", args, status, text, want)
		}
	}
}

func TestHelpFitsTheTerminal(t *testing.T) {
	commands := [][]string{nil, {"bench", "compare"}, {"completion"}}
	for _, c := range newRootCommand().Commands() {
		commands = append(commands, []string{c.Name()})
	}
	if len(commands) < 13 {
		t.Errorf("there are only the commands %v", commands)
	}
	for _, width := range []string{"80", "120"} {
		t.Setenv("COLUMNS", width)
		for _, command := range commands {
			text, status := shoal(t, append(slices.Clone(command), "--help")...)
			if status != exitOK || !strings.Contains(text, "Usage:\n  shoal") {
				t.Errorf("shoal %v --help: status %d\n%s", command, status, text)
			}
			checkWidth(t, strings.Join(command, " ")+" --help", text, width)
		}
	}
}

// checkWidth checks that lines are not wider than the terminal.
func checkWidth(t *testing.T, what, text, width string) {
	t.Helper()
	most := map[string]int{"80": 80, "120": 120}[width]
	for line := range strings.Lines(text) {
		if n := console.Columns(strings.TrimSuffix(line, "\n")); n > most {
			t.Errorf("%s at %s columns has a line of %d:\n%s", what, width, n, line)
		}
	}
}

func TestPagesFitTheTerminal(t *testing.T) {
	at := startEndpoints(t)
	scenarios, err := filepath.Glob("../../examples/scenarios/*.yaml")
	if err != nil || len(scenarios) == 0 {
		t.Fatal(scenarios, err)
	}
	commands := [][]string{{"explain", "identity", "-u", at.http}, {"ls", "-u", at.http}, {"infer", "identity", "--random", "-u", at.http}}
	for _, s := range scenarios {
		if filepath.Base(s) != "overload.yaml" { // it takes longer than all others
			commands = append(commands, []string{"simulate", s})
		}
	}
	for _, width := range []string{"80", "120"} {
		t.Setenv("COLUMNS", width)
		for _, command := range commands {
			text, status := shoal(t, command...)
			if status != exitOK || len(text) < 40 {
				t.Errorf("shoal %v: status %d\n%s", command, status, text)
			}
			if command[0] == "ls" {
				text = strings.ReplaceAll(text, "REPO/broken/1/model.py(3):", "") // a path is not broken
			}
			checkWidth(t, strings.Join(command, " "), text, width)
		}
	}
}

func TestShellsCompleteModelsAndFlags(t *testing.T) {
	at := startEndpoints(t)
	text, status := shoal(t, "__complete", "infer", "-u", at.http, "")
	if status != exitOK || !strings.Contains(text, "identity\n") || !strings.Contains(text, "broken\n") {
		t.Errorf("status %d: %s", status, text)
	}
	text, _ = shoal(t, "__complete", "serve", "--http-p")
	if !strings.Contains(text, "--http-port") {
		t.Error(text)
	}
	for _, sh := range []string{"bash", "zsh", "fish"} {
		if text, status := shoal(t, "completion", sh); status != exitOK || len(text) < 1000 {
			t.Errorf("%s: status %d, %d bytes", sh, status, len(text))
		}
	}
}

func TestTheManualListsEveryCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range newRootCommand().Commands() {
		if !strings.Contains(string(page), "`shoal "+c.Name()) {
			t.Errorf("docs/reference/cli.md does not name shoal %s", c.Name())
		}
	}
}
