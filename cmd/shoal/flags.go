package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// A kind is what becomes of one of Triton's flags. As with the fields of a
// config.pbtxt, one that would change what clients get is never ignored.
type kind uint8

const (
	ours       kind = iota // not one of Triton's
	carriedOut             // means what it means in Triton
	hint                   // has no effect here, which is said once
	refused                // is an error, because without it the server would do something else
)

func (k kind) String() string {
	return [...]string{"Shoal's own", "carried out", "hint", "refused"}[k]
}

// A rule is the kind of a flag, and the reason: for a hint why it has no effect,
// for a refused flag what is expected instead.
type rule struct {
	kind kind
	says string
	// harmless is the value of a refused flag that asks for nothing. Empty means
	// that there is none.
	harmless string
}

// Reasons that several flags share.
const (
	noGPU      = "nothing runs on a GPU here"
	noThreads  = "as many requests are worked on as there are"
	noPools    = "memory is taken when it is needed"
	noPings    = "clients may ask every 10 s whether the connection stands, with and without calls"
	noTLS      = "because connections are not encrypted; a proxy in front may do it"
	noHeaders  = "none, because models do not see the headers of requests"
	noSharing  = "false, because a port belongs to one server"
	noGuard    = "none, because whoever can connect may do everything; a proxy in front may forbid it"
	noCache    = "none, because every request is run"
	noLimit    = "because instances do not wait for resources"
	noProtocol = "false, because its protocol is not spoken here"
)

// tritonFlags has every flag of tritonserver.
var tritonFlags = map[string]rule{
	"model-repository":             {kind: carriedOut},
	"exit-on-error":                {kind: carriedOut},
	"strict-readiness":             {kind: carriedOut},
	"disable-auto-complete-config": {kind: carriedOut},
	"strict-model-config":          {kind: refused, says: "false, because --disable-auto-complete-config has taken its place", harmless: "false"},
	"model-control-mode":           {kind: carriedOut},
	"repository-poll-secs":         {kind: carriedOut},
	"load-model":                   {kind: carriedOut},
	"model-config-name":            {kind: refused, says: "none, because a model has one config.pbtxt"},
	"model-load-thread-count":      {kind: carriedOut},
	"model-load-retry-count":       {kind: carriedOut},
	"model-namespacing":            {kind: refused, says: "false, because a model is known by its name alone", harmless: "false"},
	"enable-peer-access":           {kind: hint, says: noGPU},

	"id":                {kind: hint, says: "the server has the same name everywhere"},
	"exit-timeout-secs": {kind: carriedOut},

	"allow-http":                  {kind: carriedOut},
	"http-address":                {kind: carriedOut},
	"http-port":                   {kind: carriedOut},
	"reuse-http-port":             {kind: refused, says: noSharing, harmless: "false"},
	"http-thread-count":           {kind: hint, says: noThreads},
	"http-header-forward-pattern": {kind: refused, says: noHeaders},
	"http-max-input-size":         {kind: carriedOut},
	"http-restricted-api":         {kind: refused, says: noGuard},

	"allow-grpc":                                     {kind: carriedOut},
	"grpc-address":                                   {kind: carriedOut},
	"grpc-port":                                      {kind: carriedOut},
	"reuse-grpc-port":                                {kind: refused, says: noSharing, harmless: "false"},
	"grpc-infer-thread-count":                        {kind: hint, says: noThreads},
	"grpc-infer-allocation-pool-size":                {kind: hint, says: noPools},
	"grpc-max-response-pool-size":                    {kind: hint, says: noPools},
	"grpc-use-ssl":                                   {kind: refused, says: "false, " + noTLS, harmless: "false"},
	"grpc-use-ssl-mutual":                            {kind: refused, says: "false, " + noTLS, harmless: "false"},
	"grpc-server-cert":                               {kind: refused, says: "none, " + noTLS},
	"grpc-server-key":                                {kind: refused, says: "none, " + noTLS},
	"grpc-root-cert":                                 {kind: refused, says: "none, " + noTLS},
	"grpc-infer-response-compression-level":          {kind: hint, says: "answers are not compressed"},
	"grpc-keepalive-time":                            {kind: carriedOut},
	"grpc-keepalive-timeout":                         {kind: carriedOut},
	"grpc-keepalive-permit-without-calls":            {kind: hint, says: noPings},
	"grpc-http2-max-pings-without-data":              {kind: hint, says: noPings},
	"grpc-http2-min-recv-ping-interval-without-data": {kind: hint, says: noPings},
	"grpc-http2-max-ping-strikes":                    {kind: hint, says: noPings},
	"grpc-max-connection-age":                        {kind: carriedOut},
	"grpc-max-connection-age-grace":                  {kind: carriedOut},
	"grpc-restricted-protocol":                       {kind: refused, says: noGuard},
	"grpc-header-forward-pattern":                    {kind: refused, says: noHeaders},

	"allow-metrics":       {kind: carriedOut},
	"allow-gpu-metrics":   {kind: hint, says: noGPU},
	"allow-cpu-metrics":   {kind: carriedOut},
	"metrics-address":     {kind: carriedOut},
	"metrics-port":        {kind: carriedOut},
	"metrics-interval-ms": {kind: hint, says: "figures are read when they are asked for"},
	"metrics-config":      {kind: hint, says: "times are told as sums and as histograms, always"},

	"trace-config": {kind: refused, says: "none, because requests are not traced"},
	"log-verbose":  {kind: carriedOut},
	"log-info":     {kind: carriedOut},
	"log-warning":  {kind: carriedOut},
	"log-error":    {kind: carriedOut},
	"log-format":   {kind: carriedOut},
	"log-file":     {kind: carriedOut},

	"cache-config":    {kind: refused, says: noCache},
	"cache-directory": {kind: hint, says: "there is no cache whose library could be looked for"},

	"rate-limit":                       {kind: refused, says: "off, " + noLimit, harmless: "off"},
	"rate-limit-resource":              {kind: refused, says: "none, " + noLimit},
	"pinned-memory-pool-byte-size":     {kind: hint, says: noGPU},
	"cuda-memory-pool-byte-size":       {kind: hint, says: noGPU},
	"cuda-virtual-address-size":        {kind: hint, says: noGPU},
	"host-policy":                      {kind: hint, says: "instances are not bound to cores or memory"},
	"model-load-gpu-limit":             {kind: hint, says: noGPU},
	"min-supported-compute-capability": {kind: hint, says: noGPU},
	"buffer-manager-thread-count":      {kind: hint, says: "rows are copied by those who bring them"},

	"backend-directory":   {kind: hint, says: "backends are built in"},
	"backend-config":      {kind: refused, says: "none, because what an engine shall know stands in the parameters of a model's config.pbtxt"},
	"repoagent-directory": {kind: hint, says: "there is no agent whose library could be looked for"},

	"allow-client-shm": {kind: refused, says: "false, because no memory has a name here; Python programs share theirs over --local-socket", harmless: "false"},
	"allow-sagemaker":  {kind: refused, says: noProtocol, harmless: "false"},
	"allow-vertex-ai":  {kind: refused, says: noProtocol, harmless: "false"},
}

// defineForeign adds the flags that are there only to be named. They are in no
// help text.
func defineForeign(flags *pflag.FlagSet) {
	for _, name := range slices.Sorted(maps.Keys(tritonFlags)) {
		if r := tritonFlags[name]; r.kind != carriedOut {
			flags.AddFlag(&pflag.Flag{Name: name, Usage: r.says, Value: new(foreign), Hidden: true})
		}
	}
}

// checkForeign refuses what must not be ignored.
func checkForeign(settings []setting) error {
	var errs []error
	for _, s := range settings {
		r := tritonFlags[s.name]
		if r.kind != refused || s.source == fromDefault || r.harmless != "" && s.value == r.harmless {
			continue
		}
		where := s.at
		if s.source == fromFile {
			where += ": " + s.name
		}
		errs = append(errs, fmt.Errorf("%s: found %q, expected %s", where, s.value, r.says))
	}
	return errors.Join(errs...)
}

// A foreign value is that of a flag which nothing here reads. It takes any text,
// any number of times.
type foreign []string

func (v *foreign) String() string             { return strings.Join(*v, ",") }
func (v *foreign) Type() string               { return "text" }
func (v *foreign) Set(s string) error         { return v.Append(s) }
func (v *foreign) Append(s string) error      { *v = append(*v, s); return nil }
func (v *foreign) Replace(all []string) error { *v = all; return nil }
func (v *foreign) GetSlice() []string         { return *v }
