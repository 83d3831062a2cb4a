package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// listed are the flags that tritonserver 2.51.0 and its followers have.
var listed = strings.Fields(`
	model-repository exit-on-error strict-readiness disable-auto-complete-config strict-model-config model-control-mode
	repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count model-namespacing
	enable-peer-access id exit-timeout-secs
	allow-http http-address http-port reuse-http-port http-thread-count http-header-forward-pattern http-max-input-size
	http-restricted-api
	allow-grpc grpc-address grpc-port reuse-grpc-port grpc-infer-thread-count grpc-infer-allocation-pool-size
	grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
	grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls
	grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
	grpc-max-connection-age grpc-max-connection-age-grace grpc-restricted-protocol grpc-header-forward-pattern
	allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config
	trace-config log-verbose log-info log-warning log-error log-format log-file
	cache-config cache-directory
	rate-limit rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
	host-policy model-load-gpu-limit min-supported-compute-capability buffer-manager-thread-count
	backend-directory backend-config repoagent-directory
	allow-client-shm allow-sagemaker allow-vertex-ai`)

func TestEveryFlagOfTritonHasAKind(t *testing.T) {
	flags := newServeCommand().Flags()
	for _, name := range listed {
		r, ok := tritonFlags[name]
		if !ok {
			t.Errorf("--%s has no kind: give it one in flags.go, and a line in docs/reference/flags.md", name)
			continue
		}
		if (r.says == "") != (r.kind == supported) {
			t.Errorf("--%s is %v and says %q: a reason is for those that are not carried out", name, r.kind, r.says)
		}
		f := flags.Lookup(name)
		if f == nil {
			t.Errorf("--%s is %v, but there is no such flag: define it in options.go", name, r.kind)
			continue
		}
		if _, ok := f.Value.(*foreign); ok != (r.kind != supported) {
			t.Errorf("--%s is %v, but its value is a %T", name, r.kind, f.Value)
		}
	}
	for name := range tritonFlags {
		if !slices.Contains(listed, name) {
			t.Errorf("--%s has a kind, but is not one of Triton's flags", name)
		}
	}
}

func TestAnIgnoredFlagIsAcceptedAndNamedOnce(t *testing.T) {
	_, s, err := serveFlags([]string{"SHOAL_BACKEND_DIRECTORY=/opt"}, "--http-thread-count=8",
		"--cuda-memory-pool-byte-size", "0:1", "--cuda-memory-pool-byte-size", "1:1", "models")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s.log(t.Context(), newLog(logOptions{warning: true, format: "json"}, &out))
	var names []string
	for _, r := range records(t, &out) {
		name := r["name"].(string)
		names = append(names, name)
		if r["reason"] != tritonFlags[name].says {
			t.Errorf("told %v", r)
		}
	}
	if want := []string{"backend-directory", "cuda-memory-pool-byte-size", "http-thread-count"}; !slices.Equal(names, want) {
		t.Errorf("warned of %v, want %v", names, want)
	}
}

func TestAFlagThatWouldChangeTheServerIsRejected(t *testing.T) {
	file := settingsFile(t, "rate-limit: execution_count\nmodel-namespacing: true")
	_, _, err := serveFlags([]string{"SHOAL_REUSE_GRPC_PORT=true"}, "--http-restricted-api=shm:a=b", "--settings", file)
	want := `--http-restricted-api: "shm:a=b" is not supported: give clients roles with --api-keys or --access instead
FILE:2: model-namespacing: "true" is not supported: models are identified by name alone; give them different names
FILE:1: rate-limit: "execution_count" is not supported: instances do not wait for resources; set the instance count in config.pbtxt instead
SHOAL_REUSE_GRPC_PORT: "true" is not supported: a port belongs to one server; start servers on different ports behind a load balancer`
	if err == nil || strings.ReplaceAll(err.Error(), file, "FILE") != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestARejectedFlagMayAskForNothing(t *testing.T) {
	_, _, err := serveFlags(nil, "--rate-limit=off", "--reuse-grpc-port", "false", "--model-namespacing=false", "--allow-client-shm=false", "models")
	if err != nil {
		t.Error(err)
	}
}
