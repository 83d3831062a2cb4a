package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// A kind is how one of Triton's flags is handled. As with the fields of a config.pbtxt,
// a flag that would change what clients get is never ignored.
type kind uint8

const (
	ours      kind = iota // not one of Triton's
	supported             // means what it means in Triton
	ignored               // has no effect here, which is reported as a warning
	rejected              // an error, because ignoring it would change what the server does
)

func (k kind) String() string {
	return [...]string{"Shoal's own", "supported", "ignored", "rejected"}[k]
}

// A rule is the kind of a flag, and the reason: why an ignored flag has no effect, or why a
// rejected one is not supported, and what to do instead.
type rule struct {
	kind kind
	says string
	// harmless is the value of a rejected flag that asks for nothing. Empty means that
	// there is none.
	harmless string
}

// Reasons that several flags share.
const (
	noGPU      = "Shoal does not manage GPU memory or devices itself"
	noThreads  = "requests do not have a fixed number of threads"
	noPools    = "memory is allocated when it is needed"
	noPings    = "clients may send a keepalive ping every 10 s, with and without calls"
	noSharing  = "a port belongs to one server; start servers on different ports behind a load balancer"
	noGuard    = "give clients roles with --api-keys or --access instead"
	noLimit    = "instances do not wait for resources; set the instance count in config.pbtxt instead"
	noProtocol = "the protocol is not supported yet; clients use KServe v2 over HTTP or gRPC"
)

// tritonFlags has every flag of tritonserver.
var tritonFlags = map[string]rule{
	"model-repository":             {kind: supported},
	"exit-on-error":                {kind: supported},
	"strict-readiness":             {kind: supported},
	"disable-auto-complete-config": {kind: supported},
	"strict-model-config":          {kind: rejected, says: "use --disable-auto-complete-config instead", harmless: "false"},
	"model-control-mode":           {kind: supported},
	"repository-poll-secs":         {kind: supported},
	"load-model":                   {kind: supported},
	"model-config-name":            {kind: rejected, says: "a model has one configuration, config.pbtxt; keep variants in repositories of their own"},
	"model-load-thread-count":      {kind: supported},
	"model-load-retry-count":       {kind: supported},
	"model-namespacing":            {kind: rejected, says: "models are identified by name alone; give them different names", harmless: "false"},
	"enable-peer-access":           {kind: ignored, says: noGPU},

	"id":                {kind: supported},
	"exit-timeout-secs": {kind: supported},

	"allow-http":                  {kind: supported},
	"http-address":                {kind: supported},
	"http-port":                   {kind: supported},
	"reuse-http-port":             {kind: rejected, says: noSharing, harmless: "false"},
	"http-thread-count":           {kind: ignored, says: noThreads},
	"http-header-forward-pattern": {kind: supported},
	"http-max-input-size":         {kind: supported},
	"http-restricted-api":         {kind: rejected, says: noGuard},

	"allow-grpc":                                     {kind: supported},
	"grpc-address":                                   {kind: supported},
	"grpc-port":                                      {kind: supported},
	"reuse-grpc-port":                                {kind: rejected, says: noSharing, harmless: "false"},
	"grpc-infer-thread-count":                        {kind: ignored, says: noThreads},
	"grpc-infer-allocation-pool-size":                {kind: ignored, says: noPools},
	"grpc-max-response-pool-size":                    {kind: ignored, says: noPools},
	"grpc-use-ssl":                                   {kind: supported},
	"grpc-use-ssl-mutual":                            {kind: supported},
	"grpc-server-cert":                               {kind: supported},
	"grpc-server-key":                                {kind: supported},
	"grpc-root-cert":                                 {kind: supported},
	"grpc-infer-response-compression-level":          {kind: ignored, says: "small responses are compressed as their requests are"},
	"grpc-keepalive-time":                            {kind: supported},
	"grpc-keepalive-timeout":                         {kind: supported},
	"grpc-keepalive-permit-without-calls":            {kind: ignored, says: noPings},
	"grpc-http2-max-pings-without-data":              {kind: ignored, says: noPings},
	"grpc-http2-min-recv-ping-interval-without-data": {kind: ignored, says: noPings},
	"grpc-http2-max-ping-strikes":                    {kind: ignored, says: noPings},
	"grpc-max-connection-age":                        {kind: supported},
	"grpc-max-connection-age-grace":                  {kind: supported},
	"grpc-restricted-protocol":                       {kind: rejected, says: noGuard},
	"grpc-header-forward-pattern":                    {kind: supported},

	"allow-metrics":       {kind: supported},
	"allow-gpu-metrics":   {kind: ignored, says: noGPU},
	"allow-cpu-metrics":   {kind: supported},
	"metrics-address":     {kind: supported},
	"metrics-port":        {kind: supported},
	"metrics-interval-ms": {kind: ignored, says: "metrics are read at each scrape"},
	"metrics-config":      {kind: ignored, says: "latencies are always exported as sums and as histograms"},

	"trace-config": {kind: supported},
	"log-verbose":  {kind: supported},
	"log-info":     {kind: supported},
	"log-warning":  {kind: supported},
	"log-error":    {kind: supported},
	"log-format":   {kind: supported},
	"log-file":     {kind: supported},

	"cache-config":    {kind: supported},
	"cache-directory": {kind: ignored, says: "there are no cache libraries to load"},

	"rate-limit":                       {kind: rejected, says: noLimit, harmless: "off"},
	"rate-limit-resource":              {kind: rejected, says: noLimit},
	"pinned-memory-pool-byte-size":     {kind: ignored, says: noGPU},
	"cuda-memory-pool-byte-size":       {kind: ignored, says: noGPU},
	"cuda-virtual-address-size":        {kind: ignored, says: noGPU},
	"host-policy":                      {kind: ignored, says: "instances are not bound to cores or NUMA nodes"},
	"model-load-gpu-limit":             {kind: ignored, says: noGPU},
	"min-supported-compute-capability": {kind: ignored, says: noGPU},
	"buffer-manager-thread-count":      {kind: ignored, says: "requests copy their rows into the batch themselves"},

	"backend-directory":   {kind: ignored, says: "backends are built in"},
	"backend-config":      {kind: supported},
	"repoagent-directory": {kind: ignored, says: "there are no repository agents to load"},

	"allow-client-shm": {kind: supported},
	"allow-sagemaker":  {kind: rejected, says: noProtocol, harmless: "false"},
	"allow-vertex-ai":  {kind: rejected, says: noProtocol, harmless: "false"},
}

// defineForeign adds the flags that exist only to be ignored or rejected. They are not in
// the help text.
func defineForeign(flags *pflag.FlagSet) {
	for _, name := range slices.Sorted(maps.Keys(tritonFlags)) {
		if r := tritonFlags[name]; r.kind != supported {
			flags.AddFlag(&pflag.Flag{Name: name, Usage: r.says, Value: new(foreign), Hidden: true})
		}
	}
}

// checkForeign returns an error for each setting that must not be ignored.
func checkForeign(settings []setting) error {
	var errs []error
	for _, s := range settings {
		r := tritonFlags[s.name]
		if r.kind != rejected || s.source == fromDefault || r.harmless != "" && s.value == r.harmless {
			continue
		}
		where := s.at
		if s.source == fromFile {
			where += ": " + s.name
		}
		errs = append(errs, fmt.Errorf("%s: %q is not supported: %s", where, s.value, r.says))
	}
	return errors.Join(errs...)
}

// A foreign value is that of a flag that Shoal does not use. It takes any text, any number
// of times.
type foreign []string

func (v *foreign) String() string             { return strings.Join(*v, ",") }
func (v *foreign) Type() string               { return "text" }
func (v *foreign) Set(s string) error         { return v.Append(s) }
func (v *foreign) Append(s string) error      { *v = append(*v, s); return nil }
func (v *foreign) Replace(all []string) error { *v = all; return nil }
func (v *foreign) GetSlice() []string         { return *v }
