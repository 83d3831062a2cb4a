package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/logtest"
)

// The right that a route needs. Which callers have it is written out here, and not taken
// from package access: this is what must hold.
var rights = map[string][]string{
	"open":      {"none", "wrong", "expired", "infer", "read", "admin", "other"},
	"any":       {"infer", "read", "admin", "other"}, // answers what the caller may know
	"run":       {"infer", "admin"},
	"describe":  {"infer", "read", "admin"},
	"inspect":   {"read", "admin"},
	"observe":   {"read", "admin"},
	"manage":    {"admin"},
	"configure": {"admin"},
}

// callers are the credentials with which every route is called. The last is another tenant's,
// which may run its own models.
var callers = []string{"none", "wrong", "expired", "infer", "read", "admin", "other"}

// A keyring has the credentials by caller.
type keyring map[string]string

// newKeyring writes a file of keys, and returns its path and the keys.
func newKeyring(t *testing.T) (path string, keys keyring) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "keys.json")
	now := time.Now()
	add := func(k identity.Key, created time.Time) string {
		_, secret, err := identity.CreateKey(path, k, created)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + secret
	}
	grant := func(r access.Role, models ...string) []access.Grant {
		return []access.Grant{{Role: r, Models: models}}
	}
	return path, keyring{
		"none":    "",
		"wrong":   "Bearer shoal_aaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
		"expired": add(identity.Key{Name: "expired", Grants: grant(access.Admin), Expires: now.Add(-time.Minute)}, now.Add(-time.Hour)),
		"infer":   add(identity.Key{Name: "infer", Tenant: "blue", Grants: grant(access.Infer)}, now),
		"read":    add(identity.Key{Name: "read", Tenant: "blue", Grants: grant(access.Read)}, now),
		"admin":   add(identity.Key{Name: "admin", Tenant: "blue", Grants: grant(access.Admin)}, now),
		"other":   add(identity.Key{Name: "other", Tenant: "red", Grants: grant(access.Infer, "other-*")}, now),
	}
}

// A route is a request, the right that it needs, and the answer to a caller that has it.
type route struct {
	right  string
	status int // over HTTP
	code   codes.Code
	body   string // "" means {}
}

// kserveRoutes are by method and path of openapi.yaml. A path may have several entries, which
// differ by what follows "#".
var kserveRoutes = map[string]route{
	"GET /":                {right: "any", status: 200},
	"GET /v2":              {right: "any", status: 200},
	"GET /v2/health/live":  {right: "open", status: 200},
	"GET /v2/health/ready": {right: "open", status: 200},

	"GET /dashboard/{file}":                             {right: "observe", status: 404}, // there is none of this name
	"GET /dashboard/events?count=1":                     {right: "observe", status: 200},
	"GET /v2/node":                                      {right: "observe", status: 200},
	"GET /v2/models/stats":                              {right: "any", status: 200},
	"GET /v2/models/{model}":                            {right: "describe", status: 200},
	"GET /v2/models/{model}/ready":                      {right: "describe", status: 200},
	"GET /v2/models/{model}/config":                     {right: "describe", status: 200},
	"GET /v2/models/{model}/stats":                      {right: "inspect", status: 200},
	"GET /v2/models/{model}/explain":                    {right: "inspect", status: 200},
	"GET /v2/models/{model}/versions/{version}":         {right: "describe", status: 200},
	"GET /v2/models/{model}/versions/{version}/ready":   {right: "describe", status: 200},
	"GET /v2/models/{model}/versions/{version}/config":  {right: "describe", status: 200},
	"GET /v2/models/{model}/versions/{version}/stats":   {right: "inspect", status: 200},
	"GET /v2/models/{model}/versions/{version}/explain": {right: "inspect", status: 200},

	"POST /v2/models/{model}/infer":                              {right: "run", status: 400, body: oneInput},
	"POST /v2/models/{model}/versions/{version}/infer":           {right: "run", status: 400, body: oneInput},
	"POST /v2/models/{model}/generate":                           {right: "run", status: 400, body: `{"input.1":1}`},
	"POST /v2/models/{model}/versions/{version}/generate":        {right: "run", status: 400, body: `{"input.1":1}`},
	"POST /v2/models/{model}/generate_stream":                    {right: "run", status: 400, body: `{"input.1":1}`},
	"POST /v2/models/{model}/versions/{version}/generate_stream": {right: "run", status: 400, body: `{"input.1":1}`},

	"POST /v2/repository/index":                              {right: "any", status: 200},
	"POST /v2/repository/models/{model}/load":                {right: "manage", status: 200},
	"POST /v2/repository/models/{model}/unload":              {right: "manage", status: 200},
	"POST /v2/repository/{repository}/index":                 {right: "any", status: 501},
	"POST /v2/repository/{repository}/models/{model}/load":   {right: "any", status: 501},
	"POST /v2/repository/{repository}/models/{model}/unload": {right: "any", status: 501},

	// The log of this test has no settings.
	"GET /v2/logging":                                        {right: "observe", status: 501},
	"POST /v2/logging":                                       {right: "observe", status: 501},
	"POST /v2/logging#change":                                {right: "configure", status: 501, body: `{"log_verbose_level":0}`},
	"GET /v2/trace/setting":                                  {right: "observe", status: 200},
	"POST /v2/trace/setting":                                 {right: "configure", status: 200},
	"GET /v2/models/{model}/trace/setting":                   {right: "observe", status: 200},
	"POST /v2/models/{model}/trace/setting":                  {right: "configure", status: 200},
	"GET /v2/systemsharedmemory/status":                      {right: "observe", status: 200},
	"POST /v2/systemsharedmemory/register":                   {right: "configure", status: 400, body: `{"key":"/none","byte_size":1}`},
	"POST /v2/systemsharedmemory/unregister":                 {right: "configure", status: 200},
	"GET /v2/systemsharedmemory/region/{region}/status":      {right: "observe", status: 404},
	"POST /v2/systemsharedmemory/region/{region}/register":   {right: "configure", status: 500, body: `{"key":"/none","byte_size":1}`},
	"POST /v2/systemsharedmemory/region/{region}/unregister": {right: "configure", status: 200},
	"GET /v2/cudasharedmemory/status":                        {right: "observe", status: 200},
	"POST /v2/cudasharedmemory/register":                     {right: "configure", status: 400},
	"POST /v2/cudasharedmemory/unregister":                   {right: "configure", status: 200},
	"GET /v2/cudasharedmemory/region/{region}/status":        {right: "observe", status: 404},
	"POST /v2/cudasharedmemory/region/{region}/register":     {right: "configure", status: 400},
	"POST /v2/cudasharedmemory/region/{region}/unregister":   {right: "configure", status: 200},
}

const oneInput = `{"inputs":[{"name":"input.1","datatype":"FP32","shape":[1],"data":[1]}]}`

// call sends a request over HTTP, and returns the status and the body.
func call(t *testing.T, method, url, authorization, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := (&http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("%s %s: 401 without WWW-Authenticate", method, url)
	}
	return resp.StatusCode, string(text)
}

// checkHTTP calls each route as each caller. paths are the methods by path that the server
// says it has.
func checkHTTP(t *testing.T, base string, paths map[string][]string, routes map[string]route, keys keyring) {
	t.Helper()
	for path, methods := range paths {
		for _, method := range methods {
			name := method + " " + path
			if !slices.ContainsFunc(slices.Collect(maps.Keys(routes)), func(r string) bool { return r == name || strings.HasPrefix(r, name+"?") }) {
				t.Errorf("%s %s has no entry: say which right it needs", method, path)
			}
		}
	}
	fill := strings.NewReplacer("{model}", "seed_none", "{model_name}", "seed_none", "{version}", "1", "{model_version}", "1", "{region}", "r", "{repository}", "x")
	for name, want := range routes {
		method, path, _ := strings.Cut(name, " ")
		path, _, _ = strings.Cut(path, "#")
		if named, _, _ := strings.Cut(path, "?"); !slices.Contains(paths[named], method) {
			t.Errorf("%s is not a route", name)
		}
		for _, caller := range callers {
			expected, phrase := expectation(caller, want.right, want.status, http.StatusForbidden, http.StatusUnauthorized)
			body := want.body
			if body == "" && method != http.MethodGet {
				body = "{}"
			}
			if strings.HasSuffix(path, "/unload") {
				path = strings.Replace(path, "{model}", "seed_two", 1) // which no other route uses
			}
			got, text := call(t, method, base+fill.Replace(path), keys[caller], body)
			if got != expected || !strings.Contains(text, phrase) {
				t.Errorf("%s as %s: %d %.200s, expected %d %q", name, caller, got, text, expected, phrase)
			}
		}
	}
}

// documented returns the methods by path of an OpenAPI document.
func documented(t *testing.T, text []byte) map[string][]string {
	t.Helper()
	var document struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	paths := map[string][]string{}
	for path, operations := range document.Paths {
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			paths[path] = append(paths[path], strings.ToUpper(method))
		}
	}
	return paths
}

// changing are flags that let clients change everything that some flag lets them change.
var changing = []string{"--model-control-mode=explicit", "--load-model=*", "--allow-log-changes", "--allow-client-shm"}

func awaitReady(t *testing.T, at map[string]string) {
	t.Helper()
	for getStatus(t, "http://"+at["http"]+"/v2/health/ready") != http.StatusOK {
		time.Sleep(5 * time.Millisecond) // the test's own timeout ends it
	}
}

// openapi.yaml has every route of the handler: package kservehttp tests that.
func TestEveryRouteOfKServeNeedsItsRight(t *testing.T) {
	path, keys := newKeyring(t)
	at := running(t, 3, slog.DiscardHandler, append(changing, "--api-keys="+path)...)
	awaitReady(t, at)
	text, err := os.ReadFile("../../docs/reference/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checkHTTP(t, "http://"+at["http"], documented(t, text), kserveRoutes, keys)
	checkHTTP(t, "http://"+at["metrics"], map[string][]string{"/metrics": {http.MethodGet}}, map[string]route{"GET /metrics": {right: "observe", status: 200}}, keys)

	// What is not a route, or not written like one, is not a way past authentication.
	for _, path := range []string{"/nothing", "/v2/", "//v2/health/live", "/v2/health/../models/seed_none", "/V2/health/live", "/v2/health/live/", "/v2/health/live%2f..", "/ping/x"} {
		for _, port := range []string{"http", "metrics"} {
			if got, text := call(t, http.MethodGet, "http://"+at[port]+path, "", ""); got != http.StatusUnauthorized {
				t.Errorf("%s on port %s without a credential: %d %s", path, port, got, text)
			}
		}
	}
}

// grpcRoutes are by full method. The message has the model or the region.
var grpcRoutes = map[string]route{
	"/grpc.health.v1.Health/Check":                {right: "open", code: codes.OK},
	"/grpc.health.v1.Health/List":                 {right: "any", code: codes.Unimplemented},
	"/grpc.health.v1.Health/Watch":                {right: "open", code: codes.OK},
	"/inference.GRPCInferenceService/ServerLive":  {right: "open", code: codes.OK},
	"/inference.GRPCInferenceService/ServerReady": {right: "open", code: codes.OK},

	"/inference.GRPCInferenceService/ServerMetadata":   {right: "any", code: codes.OK},
	"/inference.GRPCInferenceService/ModelReady":       {right: "describe", code: codes.OK},
	"/inference.GRPCInferenceService/ModelMetadata":    {right: "describe", code: codes.OK},
	"/inference.GRPCInferenceService/ModelConfig":      {right: "describe", code: codes.OK},
	"/inference.GRPCInferenceService/ModelStatistics":  {right: "inspect", code: codes.OK},
	"/inference.GRPCInferenceService/ModelInfer":       {right: "run", code: codes.InvalidArgument},
	"/inference.GRPCInferenceService/ModelStreamInfer": {right: "run", code: codes.OK},

	"/inference.GRPCInferenceService/RepositoryIndex":       {right: "any", code: codes.OK},
	"/inference.GRPCInferenceService/RepositoryModelLoad":   {right: "manage", code: codes.OK},
	"/inference.GRPCInferenceService/RepositoryModelUnload": {right: "manage", code: codes.OK},

	"/inference.GRPCInferenceService/TraceSetting":        {right: "observe", code: codes.OK},
	"/inference.GRPCInferenceService/TraceSetting#change": {right: "configure", code: codes.OK, body: `settings{key:"trace_count" value{value:"-1"}}`},
	"/inference.GRPCInferenceService/LogSettings":         {right: "observe", code: codes.Unimplemented},
	"/inference.GRPCInferenceService/LogSettings#change":  {right: "configure", code: codes.Unimplemented, body: `settings{key:"log_verbose_level" value{uint32_param:0}}`},

	"/inference.GRPCInferenceService/SystemSharedMemoryStatus":     {right: "observe", code: codes.NotFound},
	"/inference.GRPCInferenceService/SystemSharedMemoryRegister":   {right: "configure", code: codes.InvalidArgument},
	"/inference.GRPCInferenceService/SystemSharedMemoryUnregister": {right: "configure", code: codes.OK},
	"/inference.GRPCInferenceService/CudaSharedMemoryStatus":       {right: "observe", code: codes.NotFound},
	"/inference.GRPCInferenceService/CudaSharedMemoryRegister":     {right: "configure", code: codes.InvalidArgument},
	"/inference.GRPCInferenceService/CudaSharedMemoryUnregister":   {right: "configure", code: codes.OK},
}

func TestEveryMethodOfGRPCNeedsItsRight(t *testing.T) {
	path, keys := newKeyring(t)
	at := running(t, 3, slog.DiscardHandler, append(changing, "--api-keys="+path)...)
	awaitReady(t, at)
	conn, err := grpc.NewClient(at["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	methods := map[string]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{kservepb.File_grpc_service_proto, grpc_health_v1.File_grpc_health_v1_health_proto} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				full := fmt.Sprintf("/%s/%s", s.FullName(), m.Name())
				methods[full] = m
				if _, ok := grpcRoutes[full]; !ok {
					t.Errorf("%s has no entry: say which right it needs", full)
				}
			}
		}
	}
	for name, want := range grpcRoutes {
		full, _, _ := strings.Cut(name, "#")
		if methods[full] == nil {
			t.Errorf("%s is not a method", name)
			continue
		}
		for _, caller := range callers {
			expected, phrase := expectation(caller, want.right, want.code, codes.PermissionDenied, codes.Unauthenticated)
			got, text := callGRPC(t, conn, full, methods[full], keys[caller], want.body)
			if got != expected || !strings.Contains(text, phrase) {
				t.Errorf("%s as %s: %v %s, expected %v %q", name, caller, got, text, expected, phrase)
			}
		}
	}
	if got, _ := callGRPC(t, conn, "/inference.GRPCInferenceService/Nothing", methods["/inference.GRPCInferenceService/ServerLive"], "", ""); got != codes.Unauthenticated {
		t.Errorf("an unknown method without a credential: %v", got)
	}
}

// callGRPC calls a method, and returns its code and its text. An error within a stream counts
// as the error of the call.
func callGRPC(t *testing.T, conn *grpc.ClientConn, full string, m protoreflect.MethodDescriptor, authorization, text string) (codes.Code, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if authorization != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", authorization)
	}
	in := dynamicpb.NewMessage(m.Input())
	if err := prototext.Unmarshal([]byte(text), in); err != nil {
		t.Fatal(err)
	}
	model := "seed_none"
	if m.Name() == "RepositoryModelUnload" {
		model = "seed_two" // which no other method uses
	}
	for _, field := range []protoreflect.Name{"name", "model_name"} {
		if f := m.Input().Fields().ByName(field); f != nil {
			in.Set(f, protoreflect.ValueOfString(model))
		}
	}
	out := dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() {
		err := conn.Invoke(ctx, full, in, out)
		return status.Code(err), status.Convert(err).Message()
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, full)
	if err == nil {
		err = stream.SendMsg(in)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(out); err != nil {
		return status.Code(err), status.Convert(err).Message()
	}
	if f := m.Output().Fields().ByName("error_message"); f != nil {
		failure := out.Get(f).String()
		if strings.Contains(failure, " may not ") {
			return codes.PermissionDenied, failure
		}
		return codes.OK, failure
	}
	return codes.OK, ""
}

// mmsRoutes are those of both dialects. The store has no models: what the caller may do is
// checked before that matters. The server has other models, which forward to KServe.
var mmsRoutes = map[string]map[string]route{
	"mms inference": {
		"GET /ping":                         {right: "open", status: 200},
		"GET /api-description":              {right: "any", status: 200},
		"POST /predictions/{model_name}":    {right: "run", status: 400, body: oneInput},
		"POST /invocations":                 {right: "any", status: 400, body: oneInput},
		"POST /models/{model_name}/invoke":  {right: "run", status: 400, body: oneInput},
		"POST /invocations?model_name=none": {right: "run", status: 404, body: oneInput},
	},
	"mms management": {
		"GET /models":                 {right: "any", status: 200},
		"POST /models":                {right: "manage", status: 400},
		"GET /models/{model_name}":    {right: "inspect", status: 409},
		"PUT /models/{model_name}":    {right: "manage", status: 409},
		"DELETE /models/{model_name}": {right: "manage", status: 409},
	},
	"torchserve inference": {
		"GET /ping":                                       {right: "open", status: 200},
		"GET /api-description":                            {right: "any", status: 200},
		"POST /predictions/{model_name}":                  {right: "run", status: 400, body: oneInput},
		"POST /predictions/{model_name}/{model_version}":  {right: "run", status: 400, body: oneInput},
		"POST /invocations":                               {right: "any", status: 400, body: oneInput},
		"POST /models/{model_name}/invoke":                {right: "run", status: 400, body: oneInput},
		"POST /explanations/{model_name}":                 {right: "run", status: 400, body: oneInput},
		"POST /explanations/{model_name}/{model_version}": {right: "run", status: 400, body: oneInput},
		"POST /v1/models/{model_name}:predict":            {right: "run", status: 400, body: oneInput},
		"POST /v1/models/{model_name}:explain":            {right: "run", status: 400, body: oneInput},
		"POST /v2/models/{model_name}/infer":              {right: "run", status: 400, body: oneInput},
		"POST /v2/models/{model_name}/explain":            {right: "any", status: 405},
	},
	"torchserve management": {
		"GET /models":                                              {right: "any", status: 200},
		"POST /models":                                             {right: "manage", status: 400},
		"GET /models/{model_name}":                                 {right: "inspect", status: 409},
		"PUT /models/{model_name}":                                 {right: "manage", status: 409},
		"DELETE /models/{model_name}":                              {right: "manage", status: 409},
		"GET /v1/models/{model_name}":                              {right: "describe", status: 409},
		"GET /models/{model_name}/{model_version}":                 {right: "inspect", status: 409},
		"GET /models/{model_name}/{model_version}?customized=true": {right: "inspect", status: 409},
		"PUT /models/{model_name}/{model_version}":                 {right: "manage", status: 409},
		"DELETE /models/{model_name}/{model_version}":              {right: "manage", status: 409},
		"PUT /models/{model_name}/{model_version}/set-default":     {right: "manage", status: 409},
	},
}

// Each port describes its own paths.
func TestEveryRouteOfMMSNeedsItsRight(t *testing.T) {
	for _, dialect := range []string{"mms", "torchserve"} {
		path, keys := newKeyring(t)
		properties := filepath.Join(t.TempDir(), "config.properties")
		text := "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
		if err := os.WriteFile(properties, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := running(t, 6, slog.DiscardHandler, append(changing, "--api-keys="+path, "--model-store="+t.TempDir(), "--mms-config="+properties, "--model-server="+dialect)...)
		awaitReady(t, at)
		for _, port := range []string{"inference", "management"} {
			base := "http://" + at[port]
			got, description := call(t, http.MethodOptions, base+"/", keys["infer"], "")
			if got != http.StatusOK {
				t.Fatalf("%s: %d %s", port, got, description)
			}
			if got, _ := call(t, http.MethodOptions, base+"/", "", ""); got != http.StatusUnauthorized {
				t.Errorf("%s: the description without a credential: %d", port, got)
			}
			checkHTTP(t, base, documented(t, []byte(description)), mmsRoutes[dialect+" "+port], keys)
		}
		checkHTTP(t, "http://"+at["mms_metrics"], map[string][]string{"/metrics": {http.MethodGet}}, map[string]route{"GET /metrics": {right: "observe", status: 200}}, keys)
	}
}

// The audit log has every change over HTTP and gRPC, whether it was made, denied, or came
// without a credential.
func TestEveryChangeIsInTheAuditLog(t *testing.T) {
	path, keys := newKeyring(t)
	log := filepath.Join(t.TempDir(), "audit.log")
	at := running(t, 3, slog.DiscardHandler, append(changing, "--api-keys="+path, "--audit-log="+log)...)
	awaitReady(t, at)
	conn, err := grpc.NewClient(at["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	change := func(r route) bool { return r.right == "manage" || r.right == "configure" }
	fill := strings.NewReplacer("{model}", "seed_two", "{region}", "r")
	made := 0
	for name, r := range kserveRoutes {
		method, path, _ := strings.Cut(name, " ")
		path, _, _ = strings.Cut(path, "#")
		if !change(r) {
			continue
		}
		made++
		for _, caller := range []string{"admin", "infer", "none"} {
			call(t, method, "http://"+at["http"]+fill.Replace(path), keys[caller], cmp.Or(r.body, "{}"))
		}
	}
	overHTTP := made
	service := kservepb.File_grpc_service_proto.Services().Get(0)
	for name, r := range grpcRoutes {
		full, _, _ := strings.Cut(name, "#")
		if !change(r) {
			continue
		}
		made++
		m := service.Methods().ByName(protoreflect.Name(filepath.Base(full)))
		for _, caller := range []string{"admin", "infer", "none"} {
			callGRPC(t, conn, full, m, keys[caller], r.body)
		}
	}
	if overHTTP < 10 || made-overHTTP < 8 {
		t.Fatalf("only %d changes over HTTP and %d over gRPC were found", overHTTP, made-overHTTP)
	}
	expectRecords(t, log, made)
}

// expectRecords checks that the audit log has as many changes that an admin made, that were
// denied to a caller, and that were refused without a credential.
func expectRecords(t *testing.T, log string, made int) {
	t.Helper()
	count := map[string]int{}
	for _, r := range auditRecords(t, log) {
		who := r["caller"].(string)
		if r["from"] == nil || r["what"] == "" {
			t.Errorf("a record does not say from where, or what: %v", r)
		}
		switch outcome := r["outcome"].(string); {
		case who == "key:admin" && outcome != "denied":
			count["made"]++
		case who == "key:infer" && outcome == "denied":
			count["denied"]++
		case who == "anonymous" && outcome == "denied":
			omitted, _ := r["omitted"].(float64)
			count["refused"] += 1 + int(omitted)
		default:
			t.Errorf("unexpected record: %v", r)
		}
	}
	for _, kind := range []string{"made", "denied", "refused"} {
		if count[kind] != made {
			t.Errorf("%d changes were %s, and %d are in the audit log", made, kind, count[kind])
		}
	}
}

func TestWithAnAdminAddressOtherPortsRefuseChanges(t *testing.T) {
	path, keys := newKeyring(t)
	for name, flags := range map[string][]string{"with keys": {"--api-keys=" + path}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			at := running(t, 4, slog.DiscardHandler, append(slices.Concat(changing, flags), "--admin-address=127.0.0.1:0")...)
			awaitReady(t, at)
			conn, err := grpc.NewClient(at["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			const load = "/v2/repository/models/seed_two/load"
			if status, body := call(t, "POST", "http://"+at["http"]+load, keys["admin"], "{}"); status != http.StatusForbidden || !strings.Contains(body, "--admin-address") {
				t.Errorf("a load over the HTTP port: %d %s, want 403 with the flag", status, body)
			}
			_, err = kservepb.NewGRPCInferenceServiceClient(conn).RepositoryModelLoad(
				metadata.AppendToOutgoingContext(t.Context(), "authorization", keys["admin"]), &kservepb.RepositoryModelLoadRequest{ModelName: "seed_two"})
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("a load over the gRPC port: %v, want PERMISSION_DENIED", err)
			}
			if status, body := call(t, "POST", "http://"+at["admin"]+load, keys["admin"], "{}"); status != http.StatusOK {
				t.Errorf("a load over the admin port: %d %s", status, body)
			}
			if flags == nil {
				return
			}
			if status, _ := call(t, "POST", "http://"+at["admin"]+load, keys["infer"], "{}"); status != http.StatusForbidden {
				t.Errorf("a load over the admin port without the right: %d, want 403", status)
			}
		})
	}
}

func TestAFullDiskUnderTheAuditLogStopsNothingAndIsReported(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	path, keys := newKeyring(t)
	var log logtest.Log
	at := running(t, 3, slog.NewTextHandler(&log, nil), append(changing, "--api-keys="+path, "--audit-log=/dev/full")...)
	awaitReady(t, at)
	for range 2 {
		if got, text := call(t, http.MethodPost, "http://"+at["http"]+"/v2/repository/models/seed_two/load", keys["admin"], "{}"); got != http.StatusOK {
			t.Errorf("the load: %d %s", got, text)
		}
	}
	if got := strings.Count(log.String(), "audit log cannot be written"); got != 1 {
		t.Errorf("the log says %d times that the audit log cannot be written, expected once: %s", got, log.String())
	}
	if _, text := call(t, http.MethodGet, "http://"+at["metrics"]+"/metrics", keys["read"], ""); !strings.Contains(text, "\nshoal_audit_records_lost_total 2\n") {
		t.Error("the metrics do not count 2 lost records")
	}
}

func TestEveryChangeOfMMSIsInTheAuditLog(t *testing.T) {
	for _, dialect := range []string{"mms", "torchserve"} {
		path, keys := newKeyring(t)
		log := filepath.Join(t.TempDir(), "audit.log")
		properties := filepath.Join(t.TempDir(), "config.properties")
		text := "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
		if err := os.WriteFile(properties, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := running(t, 6, slog.DiscardHandler, append(changing, "--api-keys="+path, "--audit-log="+log, "--model-store="+t.TempDir(), "--mms-config="+properties, "--model-server="+dialect)...)
		awaitReady(t, at)
		fill := strings.NewReplacer("{model_name}", "seed_two", "{model_version}", "1")
		made := 0
		for name, r := range mmsRoutes[dialect+" management"] {
			if r.right != "manage" {
				continue
			}
			made++
			method, path, _ := strings.Cut(name, " ")
			for _, caller := range []string{"admin", "infer", "none"} {
				call(t, method, "http://"+at["management"]+fill.Replace(path), keys[caller], cmp.Or(r.body, "{}"))
			}
		}
		if made < 3 {
			t.Fatalf("only %d changes of %s were found", made, dialect)
		}
		expectRecords(t, log, made)
	}
}

// expectation returns the status of a caller's answer, and a part of its text, if a route
// needs the given right and answers those that have it with the given status.
func expectation[T any](caller, right string, status, denied, unauthenticated T) (T, string) {
	switch {
	case slices.Contains(rights[right], caller):
		return status, ""
	case slices.Contains(rights["any"], caller):
		return denied, " may not "
	case caller == "none":
		return unauthenticated, "authentication is required"
	}
	return unauthenticated, "the API key is unknown, expired or revoked"
}

// auditRecords reads an audit log.
func auditRecords(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		all = append(all, record)
	}
	return all
}

func TestTheFirstKeyIsForThoseWhoSetNothingElse(t *testing.T) {
	for args, want := range map[string]string{
		"":                           "",
		"--first-key=f":              "f",
		"--first-key=":               "",
		"--first-key=f --access=a":   "",
		"--first-key=f --api-keys=k": "k",
		"--first-key=f --tls-cert=c --tls-key=k --tls-client-ca=a": "",
	} {
		opts, _, err := serveFlags(nil, append(strings.Fields(args), "models")...)
		if err != nil {
			t.Fatal(err)
		}
		opts.access.useFirstKey()
		if opts.access.keys != want {
			t.Errorf("%q: the keys are those of %q, want %q", args, opts.access.keys, want)
		}
		if used := opts.access.firstKey != ""; used != (want == "f") {
			t.Errorf("%q: a first key is made: %v", args, used)
		}
	}
}

func TestTheFirstKeyIsPrintedOnceAndIsRequired(t *testing.T) {
	o := accessOptions{firstKey: filepath.Join(t.TempDir(), "keys.json")}
	o.useFirstKey()
	var out strings.Builder
	if err := o.printFirstKey(&out, time.Now()); err != nil {
		t.Fatal(err)
	}
	at := running(t, 3, slog.DiscardHandler, "--api-keys="+o.keys)
	awaitReady(t, at)
	secret := strings.Split(out.String(), "\n")[1]
	for authorization, want := range map[string]int{"": http.StatusUnauthorized, "Bearer " + secret: http.StatusOK} {
		if status, body := call(t, "GET", "http://"+at["http"]+"/v2/models/seed_two", authorization, ""); status != want {
			t.Errorf("with %q: %d %s, want %d", authorization, status, body, want)
		}
	}
	out.Reset()
	if err := o.printFirstKey(&out, time.Now()); err != nil || out.Len() > 0 {
		t.Errorf("at the second start it prints %q, %v", out.String(), err)
	}
}

// TestNoCredentialIsLogged calls every route of KServe with every credential, with the log at
// its most verbose.
func TestNoCredentialIsLogged(t *testing.T) {
	path, keys := newKeyring(t)
	audit := filepath.Join(t.TempDir(), "audit.log")
	var log logtest.Log
	handler := slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 10})
	at := running(t, 3, handler, append(changing, "--api-keys="+path, "--audit-log="+audit, "--log-verbose=2")...)
	awaitReady(t, at)
	fill := strings.NewReplacer("{model}", "seed_two", "{region}", "r", "{version}", "1", "{repository}", "x")
	for name, r := range kserveRoutes {
		method, path, _ := strings.Cut(name, " ")
		path, _, _ = strings.Cut(path, "#")
		if strings.HasSuffix(path, "/unload") {
			continue // the others need the model
		}
		for _, authorization := range keys {
			call(t, method, "http://"+at["http"]+fill.Replace(path), authorization, cmp.Or(r.body, "{}"))
		}
	}
	recorded, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"log": log.String(), "audit log": string(recorded)} {
		if !strings.Contains(text, "seed_two") {
			t.Errorf("the %s does not have the requests, so that nothing was tested", where)
		}
		for name, authorization := range keys {
			if secret := authorization[strings.LastIndex(authorization, "_")+1:]; secret != "" && strings.Contains(text, secret) {
				t.Errorf("the %s has the key of %q", where, name)
			}
		}
		if strings.Contains(text, "Bearer shoal") {
			t.Errorf("the %s has an Authorization header", where)
		}
	}
}
