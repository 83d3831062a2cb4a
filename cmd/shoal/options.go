package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/servable"
)

// serveOptions are the flags of "shoal serve". Where Triton has a flag for the
// same thing, its name, unit and default are Triton's.
type serveOptions struct {
	settings     string
	repositories []string
	demo         bool

	store  storeOptions
	access accessOptions

	controlMode         string
	reload              bool
	pollSeconds         int
	loadModels          []string
	modelMemory         byteSize
	modelCache          string
	modelCacheSize      byteSize
	exitOnError         bool
	strictReadiness     bool
	fileConfig          string
	disableAutoComplete bool
	loadThreads         int
	loadRetries         int
	loadTimeout         int
	maxQueue            int
	maxQueueBytes       int64
	batching            string
	calibrationDir      string

	id             string
	zone           string
	nodeLabels     map[string]string
	address        string
	headerTimeout  int
	bodyTimeout    int
	memoryBudget   int64
	maxConnections int
	idleTimeout    int
	tritonStatus   bool
	allowedHosts   []string
	allowUploads   bool
	allowLogging   bool

	allowClientSHM bool

	allowHTTP    bool
	httpAddress  string
	httpPort     int
	maxInputSize int64
	httpHeaders  headerPattern

	allowGRPC         bool
	grpcAddress       string
	grpcPort          int
	keepaliveTime     int
	keepaliveTimeout  int
	connectionAge     int
	connectionAgeLeft int
	maxStreams        int
	grpcHeaders       headerPattern

	allowMetrics    bool
	dashboard       bool
	allowCPUMetrics bool
	metricsAddress  string
	metricsPort     int

	localSocket string
	localUnused int

	exitTimeout   int
	shutdownDelay int
	onnxLibrary   string
	backends      []string
	cacheConfig   []string
	traceConfig   []string
	computeNice   int
	record        string

	logRequests bool
	log         logOptions
}

func (o *serveOptions) define(f *pflag.FlagSet) {
	f.StringVar(&o.settings, settingsFlag, "", "YAML `file` of settings, keyed by flag name; flags and environment variables take precedence")
	topic(f, "Settings")

	f.StringSliceVar(&o.repositories, repositoryFlag, nil, "`path` of a model repository, of a bucket such as s3://BUCKET/PREFIX, of a repository such as hf://ORGANIZATION/NAME, or of a file such as model.onnx or app.py; may be repeated, or given as an argument")
	f.BoolVar(&o.demo, "demo", false, "serve the model that comes with Shoal's packages, which recognises types of files")
	choiceVar(f, &o.controlMode, "model-control-mode", []string{"none", "poll", "explicit", "demand"}, "none: load all models at startup; poll: also follow changes on disk; explicit: load the models that --load-model and clients name; demand: load a model when a request asks for it, and unload others for it")
	f.Var(&o.modelMemory, "model-memory", "memory for models in mode demand, such as 16GiB; 0 means half of the memory of the container or the machine")
	f.StringVar(&o.modelCache, "model-cache", "auto", "`directory` for files of models that are fetched from buckets and the Hugging Face Hub; auto means the user's cache directory")
	f.Var(&o.modelCacheSize, "model-cache-size", "size of --model-cache, such as 100GiB; 0 means half of what is free on its disk")
	f.IntVar(&o.pollSeconds, "repository-poll-secs", 15, "interval between checks for changes in modes poll and demand, in seconds")
	f.BoolVar(&o.reload, "reload", false, "development mode: reload models as soon as their files change (mode poll, four times a second)")
	f.StringSliceVar(&o.loadModels, "load-model", nil, "`name` of a model to load at startup in mode explicit; may be repeated; * means all")
	trueVar(f, &o.exitOnError, "exit-on-error", "exit if a model fails to load at startup")
	trueVar(f, &o.strictReadiness, "strict-readiness", "report ready only if all models are ready; otherwise as soon as the server answers")
	f.BoolVar(&o.disableAutoComplete, "disable-auto-complete-config", false, "do not complete a config.pbtxt from the model file")
	f.StringVar(&o.fileConfig, "file-config", "", "configuration of models that are given as a file, as `JSON` such as {\"max_batch_size\": 8}")
	f.IntVar(&o.loadThreads, "model-load-thread-count", 4, "number of models loaded in parallel")
	f.IntVar(&o.loadRetries, "model-load-retry-count", 0, "number of retries when a model fails to load")

	f.IntVar(&o.loadTimeout, "model-load-timeout-secs", 600, "time limit for loading and warming up a version, in seconds; 0 means none")
	topic(f, "Models")

	f.IntVar(&o.maxQueue, "max-queue-size", servable.DefaultQueue.Requests, "queue limit in requests, for models whose config.pbtxt has no max_queue_size")
	f.Int64Var(&o.maxQueueBytes, "max-queue-byte-size", servable.DefaultQueue.Bytes, "queue limit in bytes of input, for the same models")
	choiceVar(f, &o.batching, "batching", []string{"automatic", "triton"}, "automatic: measure what a config.pbtxt leaves out of batching, instances and threads; triton: use Triton's defaults")
	f.StringVar(&o.calibrationDir, "calibration-dir", "auto", "`directory` for calibration results; auto means the user's cache directory, empty means none")
	f.IntVar(&o.computeNice, "compute-nice", 10, "niceness of compute threads, so that they do not delay network threads; 0 leaves it unchanged")
	f.StringVar(&o.onnxLibrary, "onnxruntime-library", "", "`path` of the ONNX Runtime library; defaults to SHOAL_ONNXRUNTIME, the program's directory, or ../lib")
	f.StringArrayVar(&o.cacheConfig, cacheFlag, nil, "response `cache` for models with response_cache, as local,size=BYTES")
	f.StringArrayVar(&o.backends, backendFlag, nil, "`setting` of a backend, as BACKEND,KEY=VALUE; may be repeated; carried out are default-max-batch-size of onnxruntime or of all, and the thread counts of onnxruntime")
	topic(f, "Batching and computing")

	f.StringVar(&o.address, "address", "127.0.0.1", "address to listen on")
	f.Bool(insecureFlag, false, "allow listening on non-loopback addresses without TLS and authentication")
	f.StringSliceVar(&o.allowedHosts, "allowed-hosts", nil, "`name` by which HTTP clients may call the server, besides localhost and addresses; may be repeated; * means any")
	f.BoolVar(&o.allowUploads, "allow-model-uploads", false, "let clients load model files and choose the Python interpreter: every client can then run code")
	f.BoolVar(&o.allowClientSHM, "allow-client-shm", false, "let clients register shared memory regions; every client can then use all shared memory of this machine that the server can open")
	f.BoolVar(&o.allowLogging, "allow-log-changes", false, "let clients change the log settings")
	topic(f, "Network")

	o.access.define(f)
	topic(f, "Authentication and encryption")

	f.Int64Var(&o.memoryBudget, "memory-budget", 0, "memory for all requests in flight together, in bytes; 0 means half of the memory of the container or the machine")
	f.IntVar(&o.maxConnections, "max-connections", 0, "TCP connections of all ports together; 0 means three quarters of the files that the process may open, and at most 16384")
	f.IntVar(&o.headerTimeout, "header-timeout-secs", 5, "time limit for receiving an HTTP request header, from its first byte, or a gRPC handshake, in seconds")
	f.IntVar(&o.bodyTimeout, "body-timeout-secs", 60, "time limit for receiving each 64 KiB of an HTTP request body, in seconds; 0 means none")
	f.IntVar(&o.idleTimeout, "idle-timeout-secs", 120, "idle time after which a connection is closed, also before its first request, in seconds; 0 means never")
	topic(f, "Limits")

	f.StringVar(&o.id, "id", kserve.ServerName, "name of the server in its metadata")
	f.StringVar(&o.zone, "zone", "", "`name` of the zone that the server is in, for programs that read /v2/node")
	f.StringToStringVar(&o.nodeLabels, "node-label", nil, "label of the server, for the same programs, as KEY=VALUE; may be repeated")
	f.BoolVar(&o.tritonStatus, "triton-status", false, "report a full queue as Triton does, with 503 and UNAVAILABLE instead of 429 and RESOURCE_EXHAUSTED")
	trueVar(f, &o.allowHTTP, "allow-http", "serve HTTP")
	f.StringVar(&o.httpAddress, "http-address", "", "HTTP address; defaults to --address")
	f.IntVar(&o.httpPort, "http-port", 8000, "HTTP port; 0 picks a free one")
	f.Int64Var(&o.maxInputSize, "http-max-input-size", kserve.Limits{}.WithDefaults().Body, "maximum size of an HTTP request body, and of its decoded tensors, in bytes")
	f.Var(&o.httpHeaders, "http-header-forward-pattern", "regular expression for the names of HTTP headers that models get as request parameters; empty means none")
	trueVar(f, &o.allowGRPC, "allow-grpc", "serve gRPC")
	f.StringVar(&o.grpcAddress, "grpc-address", "", "gRPC address; defaults to --address")
	f.IntVar(&o.grpcPort, "grpc-port", 8001, "gRPC port; 0 picks a free one")
	f.IntVar(&o.keepaliveTime, "grpc-keepalive-time", 7200000, "gRPC keepalive ping interval, in milliseconds")
	f.IntVar(&o.keepaliveTimeout, "grpc-keepalive-timeout", 20000, "gRPC keepalive ping timeout, in milliseconds")
	f.IntVar(&o.connectionAge, "grpc-max-connection-age", 0, "maximum age of a gRPC connection, in milliseconds; 0 means none")
	f.IntVar(&o.connectionAgeLeft, "grpc-max-connection-age-grace", 0, "grace period for requests on a connection that reached its maximum age, in milliseconds; 0 means none")
	f.IntVar(&o.maxStreams, "grpc-max-concurrent-streams", 256, "maximum number of concurrent requests per gRPC connection")
	f.Var(&o.grpcHeaders, "grpc-header-forward-pattern", "the same for gRPC metadata")
	topic(f, "HTTP and gRPC")

	trueVar(f, &o.allowMetrics, "allow-metrics", "serve Prometheus metrics")
	trueVar(f, &o.dashboard, "allow-dashboard", "serve the dashboard to browsers, at / of the HTTP port")
	trueVar(f, &o.allowCPUMetrics, "allow-cpu-metrics", "export CPU and memory metrics")
	f.StringVar(&o.metricsAddress, "metrics-address", "", "metrics address; defaults to the HTTP address")
	f.IntVar(&o.metricsPort, "metrics-port", 8002, "metrics port; 0 picks a free one")
	topic(f, "Metrics")

	f.StringVar(&o.localSocket, "local-socket", "", "`path` of a Unix socket for Python programs of this user; auto means the path where they look for it, empty means none")
	f.IntVar(&o.localUnused, "local-unused-secs", 0, "exit when no program was connected to --local-socket for this time, in seconds; 0 means never")
	topic(f, "Python programs on this machine")

	f.IntVar(&o.shutdownDelay, "shutdown-delay", 0, "time between SIGTERM, when the server reports not ready, and draining, in seconds")
	f.IntVar(&o.exitTimeout, "exit-timeout-secs", 30, "time limit for in-flight requests during shutdown, in seconds")
	topic(f, "Shutdown")

	f.StringArrayVar(&o.traceConfig, traceFlag, nil, "`setting` of traces, as mode=opentelemetry, level=TIMESTAMPS, rate=N, count=N or opentelemetry,url=URL; may be repeated")
	f.StringVar(&o.record, "record-arrivals", "", "`file` for a recording of arrivals (time, model, rows, priority); overwritten if no other server records to it")
	choiceVar(f, &o.log.format, "log-format", []string{"auto", "text", "json", "default", "ISO8601"}, "auto: short lines for people on a terminal, and text elsewhere; Triton's default and ISO8601 mean text")
	f.BoolVar(&o.logRequests, "log-requests", false, "log every request in one line, with its id and latency")
	f.IntVar(&o.log.verbose, "log-verbose", 0, "log details, such as every setting and every request, if greater than 0")
	trueVar(f, &o.log.info, "log-info", "log informational messages")
	trueVar(f, &o.log.warning, "log-warning", "log warnings")
	trueVar(f, &o.log.err, "log-error", "log errors")
	f.StringVar(&o.log.file, "log-file", "", "`file` to append the log to, reopened on SIGHUP; defaults to stderr, with which SIGHUP ends the server as SIGTERM does")
	topic(f, "Logging, traces and recording")

	o.store.define(f)
	topic(f, "MMS and TorchServe")

	defineForeign(f)
}

// modes are the values of --model-control-mode.
var modes = map[string]repository.Mode{"none": repository.None, "poll": repository.Poll, "explicit": repository.Explicit, "demand": repository.Demand}

// reloadEvery is the poll interval of --reload: short, because the user has saved a file and
// waits for the result.
const reloadEvery = 250 * time.Millisecond

// changes returns the model control mode and the poll interval.
func (o *serveOptions) changes() (repository.Mode, time.Duration) {
	if o.reload {
		return repository.Poll, reloadEvery
	}
	return modes[o.controlMode], seconds(o.pollSeconds)
}

// check returns an error for settings that are out of range or contradict each other.
func (o *serveOptions) check() error {
	const most = math.MaxInt32
	var errs []error
	for _, n := range []struct {
		flag             string
		value, low, high int
	}{
		{"repository-poll-secs", o.pollSeconds, 1, most},
		{"model-load-thread-count", o.loadThreads, 1, most},
		{"model-load-retry-count", o.loadRetries, 0, most},
		{"model-load-timeout-secs", o.loadTimeout, 0, most},
		{"max-queue-size", o.maxQueue, 1, most},
		{"max-queue-byte-size", int(o.maxQueueBytes), 1, math.MaxInt},
		{"http-port", o.httpPort, 0, math.MaxUint16},
		{"http-max-input-size", int(o.maxInputSize), 1, math.MaxInt},
		{"grpc-port", o.grpcPort, 0, math.MaxUint16},
		{"grpc-keepalive-time", o.keepaliveTime, 1, most},
		{"grpc-keepalive-timeout", o.keepaliveTimeout, 1, most},
		{"grpc-max-connection-age", o.connectionAge, 0, most},
		{"grpc-max-connection-age-grace", o.connectionAgeLeft, 0, most},
		{"metrics-port", o.metricsPort, 0, math.MaxUint16},
		{"grpc-max-concurrent-streams", o.maxStreams, 1, most},
		{"local-unused-secs", o.localUnused, 0, most},
		{"memory-budget", int(o.memoryBudget), 0, math.MaxInt},
		{"max-connections", o.maxConnections, 0, most},
		{"header-timeout-secs", o.headerTimeout, 1, most},
		{"body-timeout-secs", o.bodyTimeout, 0, most},
		{"idle-timeout-secs", o.idleTimeout, 0, most},
		{"exit-timeout-secs", o.exitTimeout, 0, most},
		{"shutdown-delay", o.shutdownDelay, 0, most},
	} {
		if n.value < n.low || n.value > n.high {
			errs = append(errs, fmt.Errorf("--%s: %d is not valid: expected %d to %d", n.flag, n.value, n.low, n.high))
		}
	}
	if len(o.loadModels) > 0 && o.controlMode != "explicit" {
		errs = append(errs, fmt.Errorf("--load-model needs --model-control-mode=explicit; in mode %s %s", o.controlMode, map[bool]string{true: "requests load models", false: "all models are loaded"}[o.controlMode == "demand"]))
	}
	if o.modelMemory > 0 && o.controlMode != "demand" {
		errs = append(errs, errors.New("--model-memory needs --model-control-mode=demand"))
	}
	if o.fileConfig != "" {
		if _, err := modelconfig.ParseJSON([]byte(o.fileConfig)); err != nil {
			errs = append(errs, fmt.Errorf("--file-config: %w", err))
		}
	}
	if o.localUnused > 0 && o.localSocket == "" {
		errs = append(errs, errors.New("--local-unused-secs needs --local-socket"))
	}
	if _, err := parseBackendSettings(o.backends); err != nil {
		errs = append(errs, err)
	}
	if _, err := newCache(o.cacheConfig); err != nil {
		errs = append(errs, err)
	}
	if _, err := readTraceConfig(o.traceConfig, os.Getenv); err != nil {
		errs = append(errs, err)
	}
	if o.reload && (o.controlMode == "explicit" || o.controlMode == "demand") {
		errs = append(errs, fmt.Errorf("--reload cannot be combined with --model-control-mode=%s, in which clients decide what is loaded", o.controlMode))
	}
	return errors.Join(append(errs, o.store.check(), o.access.check())...)
}

// checkModels returns an error if there is nothing to serve.
func (o *serveOptions) checkModels() error {
	if len(o.repositories) > 0 || o.store.used() {
		return nil
	}
	return errors.New(`no models given; name a model file or a directory of models, as in "shoal serve model.onnx" or "shoal serve models"`)
}

// An endpoint is an address that the server listens on.
type endpoint struct{ protocol, address, hint string }

// addresses returns the endpoints that the flags ask for, apart from those of a store.
func (o *serveOptions) addresses() (all []endpoint) {
	for _, p := range []struct {
		allowed  bool
		protocol string
		port     int
		hosts    []string
	}{
		{o.allowHTTP, "http", o.httpPort, []string{o.httpAddress, o.address}},
		{o.allowGRPC, "grpc", o.grpcPort, []string{o.grpcAddress, o.address}},
		{o.allowMetrics, "metrics", o.metricsPort, []string{o.metricsAddress, o.httpAddress, o.address}},
	} {
		if p.allowed {
			all = append(all, endpoint{p.protocol, net.JoinHostPort(cmp.Or(p.hosts...), strconv.Itoa(p.port)), "choose another with --" + p.protocol + "-port"})
		}
	}
	if o.access.admin != "" {
		all = append(all, endpoint{"admin", o.access.admin, "choose another with --" + adminFlag})
	}
	return all
}

// connections returns the gRPC options for connections.
func (o *serveOptions) connections() []grpc.ServerOption {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: ms(o.keepaliveTime), Timeout: ms(o.keepaliveTimeout), MaxConnectionIdle: seconds(o.idleTimeout),
			MaxConnectionAge: ms(o.connectionAge), MaxConnectionAgeGrace: ms(o.connectionAgeLeft),
		}),
		grpc.ConnectionTimeout(seconds(o.headerTimeout)),
		grpc.MaxConcurrentStreams(uint32(o.maxStreams)),
	}
}

// A truth is the value of a flag that is true or false. The flag always takes a value, as in
// Triton: if it did not, the false of "--exit-on-error false" would be read as the path of a
// model.
type truth bool

// trueVar defines a flag that is true by default.
func trueVar(f *pflag.FlagSet, p *bool, name, usage string) {
	*p = true
	f.Var((*truth)(p), name, usage)
}

// falseVar defines a flag that is false by default and takes a value.
func falseVar(f *pflag.FlagSet, p *bool, name, usage string) { f.Var((*truth)(p), name, usage) }

func (v *truth) String() string { return strconv.FormatBool(bool(*v)) }
func (v *truth) Type() string   { return "true|false" }

func (v *truth) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return err
	}
	*v = truth(b)
	return nil
}

// A byteSize is the value of a flag that is a number of bytes, with or without a unit.
type byteSize int64

// byteUnits are the units of a byteSize, the longest first, because B ends all of them.
var byteUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}

func (b *byteSize) String() string {
	for _, u := range []int{3, 2, 1, 0} {
		if unit := byteUnits[u]; *b > 0 && int64(*b)%unit.bytes == 0 {
			return strconv.FormatInt(int64(*b)/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) Set(s string) error {
	for _, unit := range byteUnits {
		text, ok := strings.CutSuffix(s, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(n >= 0) || n*float64(unit.bytes) >= math.MaxInt64 {
			return errUnfit
		}
		*b = byteSize(n * float64(unit.bytes))
		return nil
	}
	return errUnfit
}

// A headerPattern is the value of a flag that selects headers. It selects none unless it is
// set.
type headerPattern struct {
	*kserve.HeaderPattern

	text string
}

func (p *headerPattern) String() string { return p.text }
func (p *headerPattern) Type() string   { return "regexp" }

func (p *headerPattern) Set(s string) (err error) {
	if p.text, p.HeaderPattern = s, nil; s != "" {
		p.HeaderPattern, err = kserve.ParseHeaderPattern(s)
	}
	return err
}

// A choice is the value of a flag that takes one of a few words.
type choice struct {
	p  *string
	of []string
}

// choiceVar defines a flag whose default is the first of its words.
func choiceVar(f *pflag.FlagSet, p *string, name string, of []string, usage string) {
	choiceVarP(f, p, name, "", of, usage)
}

// choiceVarP is choiceVar with a short name.
func choiceVarP(f *pflag.FlagSet, p *string, name, short string, of []string, usage string) {
	*p = of[0]
	f.VarP(&choice{p, of}, name, short, usage)
}

func (c *choice) String() string { return *c.p }
func (c *choice) Type() string   { return strings.Join(c.of, "|") }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return errUnfit
	}
	*c.p = s
	return nil
}
