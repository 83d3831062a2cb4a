//go:build e2e && linux

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// maxDifferent is how many of the recorded exchanges may be answered differently.
const maxDifferent = 60

// An exchange is a line of testdata/exchanges/recorded.jsonl: a request, and the answer of
// tritonserver 2.51.0.
type exchange struct {
	Name    string `json:"name"`
	Server  int    `json:"server"` // 2 is the second server of the test
	Request struct {
		Method   string            `json:"method"`
		Path     string            `json:"path"`
		Port     string            `json:"port"`
		Headers  map[string]string `json:"headers"`
		Body     *content          `json:"body"`
		Metadata [][2]string       `json:"metadata"`
		Messages [][]byte          `json:"messages"`
	} `json:"request"`
	Answer struct {
		Status  string          `json:"status"`
		Body    json.RawMessage `json:"body"`
		Details string          `json:"details"`
		Keys    json.RawMessage `json:"keys"` // of a body whose values vary; null if it is not JSON
	} `json:"answer"`
}

// content is a body: text, or bytes in base64.
type content []byte

func (c *content) UnmarshalJSON(b []byte) error {
	var raw struct{ Base64 []byte }
	if json.Unmarshal(b, &raw) == nil {
		*c = raw.Base64
		return nil
	}
	var text string
	err := json.Unmarshal(b, &text)
	*c = []byte(text)
	return err
}

// different is testdata/exchanges/different.json: the exchanges that are answered
// differently, by the reason.
type different struct {
	Reasons map[string][]string `json:"reasons"`
	// Sometimes are those that depend on the time that a request takes.
	Sometimes map[string][]string `json:"sometimes"`
}

// TestRecordedExchangesOnTheRunningServer plays what was recorded of a real Triton. An
// exchange differs if its status or its body does. Members that only Shoal has are left out
// first, because clients of Triton do not read them: see extensions. A difference that the
// table does not have fails the test, and so does one that it has and that is gone.
func TestRecordedExchangesOnTheRunningServer(t *testing.T) {
	var exchanges []exchange
	for d := json.NewDecoder(bytes.NewReader(readTestdata(t, "recorded.jsonl"))); d.More(); {
		var e exchange
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		exchanges = append(exchanges, e)
	}
	var table different
	if err := json.Unmarshal(readTestdata(t, "different.json"), &table); err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for reason, names := range table.Reasons {
		for _, name := range names {
			listed[name] = reason
		}
	}
	sometimes := slices.Concat(slices.Collect(maps.Values(table.Sometimes))...)

	t.Setenv("PATH", filepath.Dir(servertest.PythonInterpreter(t))+":"+os.Getenv("PATH"))
	key, _ := kservetest.SharedMemory(t, append(servertest.Floats(1, 2, 3, 4), make([]byte, 240)...))
	flags := []string{"--batching=triton", "--triton-status", "--log-format=default", "--id=triton", "--allow-client-shm", "--allow-log-changes"}
	explicit := append(flags, "--model-control-mode=explicit")
	for _, m := range []string{"identity", "failing", "recorder", "repeat", "alltypes", "two"} {
		explicit = append(explicit, "--load-model="+m)
	}
	players := map[int]*player{0: newPlayer(servertest.Start(t, exchangeModels(t), explicit...), key)}
	// The second server has a model that fails to start.
	rest := exchangeModels(t)
	for _, m := range []string{"badconfig", "recorder", "repeat", "two"} {
		if err := os.RemoveAll(filepath.Join(rest, m)); err != nil {
			t.Fatal(err)
		}
	}
	second := servertest.Listening(t, rest, append(flags, "--exit-on-error=false")...)
	for patience := time.Now().Add(servertest.StartPatience); !strings.Contains(second.Log(), "msg=ready"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatalf("the second server has not tried to load its models\n%s", second.Log())
		}
	}
	players[2] = newPlayer(second, key)

	var differ, equal int
	for _, e := range exchanges {
		got := players[e.Server].play(t, &e)
		reason, isListed := listed[e.Name]
		why := e.compare(got)
		switch {
		case why == "":
			equal++
			if isListed {
				t.Errorf("%s is answered as by Triton: take it from different.json, where the reason is %q", e.Name, reason)
			}
		case slices.Contains(sometimes, e.Name):
			differ++
		default:
			differ++
			if !isListed {
				t.Errorf("%s is answered differently: %s\nIf that is on purpose, give the reason in different.json.", e.Name, why)
			}
		}
	}
	t.Logf("%d exchanges: %d equal, %d differ", len(exchanges), equal, differ)
	if differ > maxDifferent {
		t.Errorf("%d exchanges differ, at most %d may", differ, maxDifferent)
	}
	for name := range listed {
		if !slices.ContainsFunc(exchanges, func(e exchange) bool { return e.Name == name }) {
			t.Errorf("different.json lists %s, which is not recorded", name)
		}
	}
}

func readTestdata(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/exchanges", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// exchangeModels returns a copy of the models, because Python writes to their directories.
func exchangeModels(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/exchanges/models")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A player plays exchanges with one server.
type player struct {
	server *servertest.Server
	conn   *grpc.ClientConn
	web    http.Client
	key    string // of the shared memory that stands for that of the recording
}

func newPlayer(s *servertest.Server, key string) *player {
	return &player{server: s, conn: s.Dial(), web: http.Client{Transport: &http.Transport{DisableCompression: true}}, key: key}
}

// An answered exchange has a body, or messages, as JSON or text.
type answered struct {
	status  string
	body    []byte
	details string // of an error over gRPC
}

func (p *player) play(t *testing.T, e *exchange) answered {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var a answered
	if strings.HasPrefix(e.Name, "http/") {
		a = p.playHTTP(ctx, t, e)
	} else {
		a = p.playGRPC(ctx, t, e)
	}
	a.body = bytes.ReplaceAll(a.body, []byte(p.key), []byte(kservetest.RecordedKey))
	return a
}

func (p *player) playHTTP(ctx context.Context, t *testing.T, e *exchange) answered {
	url := p.server.HTTP
	if e.Request.Port == "metrics" {
		url = p.server.Metrics
	}
	var body io.Reader
	if e.Request.Body != nil {
		body = bytes.NewReader(bytes.ReplaceAll(*e.Request.Body, []byte(kservetest.RecordedKey), []byte(p.key)))
	}
	req, err := http.NewRequestWithContext(ctx, e.Request.Method, url+e.Request.Path, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range e.Request.Headers {
		req.Header.Set(name, value)
	}
	resp, err := p.web.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", e.Name, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	var read io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if read, err = gzip.NewReader(resp.Body); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
	}
	text, err := io.ReadAll(read)
	if err != nil {
		t.Fatalf("%s: %v", e.Name, err)
	}
	return answered{status: fmt.Sprint(resp.StatusCode), body: text}
}

func (p *player) playGRPC(ctx context.Context, t *testing.T, e *exchange) answered {
	header := metadata.MD{}
	for _, pair := range e.Request.Metadata {
		header.Append(pair[0], pair[1])
	}
	ctx = metadata.NewOutgoingContext(ctx, header)
	in, out := messagesOf(e.Request.Method)
	var messages []json.RawMessage
	err := func() error {
		stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, e.Request.Method)
		if err != nil {
			return err
		}
		for _, wire := range e.Request.Messages {
			m := in.New().Interface()
			if err := proto.Unmarshal(wire, m); err != nil {
				t.Fatalf("%s: %v", e.Name, err)
			}
			if err := stream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) { // EOF: the reason is received
				return err
			}
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		for {
			m := out.New().Interface()
			if err := stream.RecvMsg(m); err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			}
			text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
			if err != nil {
				t.Fatalf("%s: %v", e.Name, err)
			}
			messages = append(messages, text)
		}
	}()
	a := answered{status: recordedCode(status.Code(err)), details: status.Convert(err).Message()}
	switch {
	case strings.HasSuffix(e.Request.Method, "/ModelStreamInfer"):
		if messages == nil {
			messages = []json.RawMessage{}
		}
		a.body, _ = json.Marshal(messages) // they are JSON
	case len(messages) == 1:
		a.body = messages[0]
	}
	return a
}

// messagesOf returns the types of the messages of a method. A method that does not exist
// has empty ones.
func messagesOf(method string) (in, out protoreflect.MessageType) {
	name := protoreflect.Name(filepath.Base(method))
	if strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return (&grpc_health_v1.HealthCheckRequest{}).ProtoReflect().Type(), (&grpc_health_v1.HealthCheckResponse{}).ProtoReflect().Type()
	}
	desc := kservepb.File_grpc_service_proto.Services().ByName("GRPCInferenceService").Methods().ByName(name)
	if desc == nil {
		empty := (&emptypb.Empty{}).ProtoReflect().Type()
		return empty, empty
	}
	return dynamicpb.NewMessageType(desc.Input()), dynamicpb.NewMessageType(desc.Output())
}

var upperLetter = regexp.MustCompile(`[a-z][A-Z]`)

// recordedCode returns a code as it is recorded: INVALID_ARGUMENT.
func recordedCode(c codes.Code) string {
	if c == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(upperLetter.ReplaceAllStringFunc(c.String(), func(s string) string { return s[:1] + "_" + s[1:] }))
}

// compare returns what differs, or "".
func (e *exchange) compare(got answered) string {
	if got.status != e.Answer.Status {
		return fmt.Sprintf("status %s, want %s: %s%s, want %s%s", got.status, e.Answer.Status, got.body, got.details, e.Answer.Body, e.Answer.Details)
	}
	if e.Answer.Keys != nil {
		want, have := parse(e.Answer.Keys), keysOf(parse(got.body))
		if want != nil && !reflect.DeepEqual(have, want) {
			return fmt.Sprintf("members %v, want %v", have, want)
		}
		return ""
	}
	if got.details != e.Answer.Details {
		return fmt.Sprintf("%q, want %q", got.details, e.Answer.Details)
	}
	want := parse(e.Answer.Body)
	if text, ok := want.(string); ok { // the body of an HTTP response
		want = parse([]byte(text))
	}
	if raw, ok := want.(map[string]any); ok && raw["base64"] != nil { // the same, in binary
		b, _ := base64.StdEncoding.DecodeString(fmt.Sprint(raw["base64"])) // nothing equals what is invalid
		want = parse(b)
	}
	have := parse(got.body)
	if !reflect.DeepEqual(have, want) {
		return fmt.Sprintf("%v, want %v", have, want)
	}
	return ""
}

// extensions are the members that only Shoal has: of errors, and of statistics.
var extensions = []string{"hint", "example", "close_stats"}

// parse returns the value of a JSON text without extensions, the text itself if it is not
// JSON, or nil if it is empty.
func parse(text []byte) any {
	if len(text) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || d.More() {
		return string(text)
	}
	return plain(v)
}

// plain removes extensions from a value. Floats are equal if their values are.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if slices.Contains(extensions, name) {
				delete(v, name)
			} else {
				v[name] = plain(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case json.Number:
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return f
		}
	}
	return v
}

// keysOf returns the members of a value, with the kinds of their values; those of a list
// are those of its first element.
func keysOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		keys := map[string]any{}
		for name, value := range v {
			keys[name] = keysOf(value)
		}
		return keys
	case []any:
		if len(v) == 0 {
			return []any{}
		}
		return []any{keysOf(v[0])}
	case json.Number, float64:
		return "number"
	case bool:
		return "bool"
	case nil:
		return "null"
	}
	return "text"
}
