package mms

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/suggest"
)

// Settings are those of a config.properties. NewSettings returns the defaults.
type Settings struct {
	Inference, Management, Metrics string // addresses to listen on, as host:port
	Store                          string // directory of archives; "" means none
	Load                           []Load // models that are registered at startup
	All                            bool   // and all others of the store
	Workers                        int    // of models that are registered without a number; 0 means none
	Queue                          int    // requests that may wait for a model
	ResponseTimeout                time.Duration
	StartupTimeout                 time.Duration // of one worker; 0 means 2 minutes
	MaxRequest                     int64         // bytes of a request's body
	Decode                         bool          // bodies of JSON and text are decoded for the handler
	Handler                        string
	Allowed                        []*regexp.Regexp // addresses that archives may be loaded from
	Python                         string           // the interpreter; "" means the one in the PATH
	Install                        bool             // requirements of archives are installed
	Models                         map[string]map[string]Preset

	Ignored []string // keys that have no effect here
}

// A Load is a model to register at startup.
type Load struct{ Name, URL string } // Name is "" if the archive says

// A Preset is what config.properties of TorchServe says of a version of a model.
type Preset struct {
	Default         bool   `json:"defaultVersion"`
	Archive         string `json:"marName"`
	MinWorkers      int    `json:"minWorkers"`
	MaxWorkers      int    `json:"maxWorkers"`
	BatchSize       int    `json:"batchSize"`
	MaxBatchDelay   *int   `json:"maxBatchDelay"`
	ResponseTimeout int    `json:"responseTimeout"`
	StartupTimeout  int    `json:"startupTimeout"`
}

// presetKeys are the keys of a [Preset].
var presetKeys = strings.Fields("defaultVersion marName minWorkers maxWorkers batchSize maxBatchDelay responseTimeout startupTimeout")

// presets reads the value of the key models. unknown are keys in it that have no effect.
func presets(value string) (all map[string]map[string]Preset, unknown []string, err error) {
	if err := json.Unmarshal([]byte(value), &all); err != nil {
		return nil, nil, err
	}
	var raw map[string]map[string]map[string]json.RawMessage
	if err := json.Unmarshal([]byte(value), &raw); err != nil {
		return nil, nil, err
	}
	for _, versions := range raw {
		for _, preset := range versions {
			for key := range preset {
				known := slices.ContainsFunc(presetKeys, func(k string) bool { return strings.EqualFold(k, key) }) // as json reads it
				if name := "models." + key; !known && !slices.Contains(unknown, name) {
					unknown = append(unknown, name)
				}
			}
		}
	}
	slices.Sort(unknown)
	return all, unknown, nil
}

// NewSettings returns the defaults of MMS and TorchServe.
func NewSettings() *Settings {
	return &Settings{
		Inference: "127.0.0.1:8080", Management: "127.0.0.1:8081", Metrics: "127.0.0.1:8082",
		Queue: 100, ResponseTimeout: 120 * time.Second, MaxRequest: 6553500, Decode: true,
	}
}

// ignored are keys of MMS and TorchServe that have no effect in Shoal.
var ignored = strings.Fields(`
	number_of_netty_threads netty_client_threads number_of_gpu async_logging max_response_size preload_model prefer_direct_buffer
	blacklist_env_vars model_server_home vmargs use_native_io io_ratio metric_time_interval enable_envvars_config unregister_model_timeout
	grpc_inference_address grpc_management_address grpc_inference_port grpc_management_port
	grpc_inference_max_connection_age_ms grpc_management_max_connection_age_ms grpc_inference_max_connection_age_grace_ms
	grpc_management_max_connection_age_grace_ms metrics_config metrics_mode model_metrics_auto_detect disable_system_metrics
	system_metrics_cmd enable_metrics_api limit_max_image_pixels workflow_store initial_worker_port initial_distribution_port
	model_snapshot ipex_enable cpu_launcher_enable cpu_launcher_args cpp_log_config use_env_allowed_urls
	token_expiration_min disable_token_authorization enable_model_api`)

// Why keys are rejected that several keys share.
const (
	noTLS  = "TLS is not configured here; remove it, and encrypt all ports with --tls-cert and --tls-key"
	noCORS = "CORS is not supported yet; remove it, and let a proxy in front add the headers"
)

// rejected are keys that would be dangerous to ignore, or would change what clients see,
// with what to do instead.
var rejected = map[string]string{
	"keystore": noTLS, "keystore_pass": noTLS, "keystore_type": noTLS, "certificate_file": noTLS, "private_key_file": noTLS, "enable_grpc_ssl": noTLS,
	"cors_allowed_origin": noCORS, "cors_allowed_methods": noCORS, "cors_allowed_headers": noCORS,
	"service_envelope":           "request envelopes are not supported yet; remove it, and read the request in the handler",
	"ts_open_inference_protocol": "the open inference protocol is not served on the ports of MMS; remove it, and use --http-port and --grpc-port",
}

// supported are the keys that [Settings.set] carries out.
var supported = strings.Fields(`
	inference_address management_address metrics_address model_store load_models models default_workers_per_model job_queue_size
	default_response_timeout default_response_timeout_seconds default_startup_timeout max_request_size decode_input_request
	default_service_handler allowed_urls python_executable install_py_dep_per_model`)

// Parse reads the text of a config.properties into the settings. file is its name in
// errors, and getenv returns what $$NAME$$ stands for. It continues after a mistake, and
// the error joins all of them.
func (s *Settings) Parse(file, text string, getenv func(string) string) error {
	var errs []error
	for _, l := range logicalLines(text) {
		key, value, found := cutProperty(l.text)
		err := fmt.Errorf("found %q, expected a key and its value, such as job_queue_size=100", l.text)
		if found {
			err = s.set(key, substitute(value, getenv))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", file, l.number, err))
		}
	}
	return errors.Join(errs...)
}

type property struct {
	number int // of its first line, from 1
	text   string
}

// logicalLines joins lines that end in a backslash with those that follow, and omits
// comments.
func logicalLines(text string) []property {
	var all []property
	goesOn := false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if !goesOn && (line == "" || line[0] == '#' || line[0] == '!') {
			continue
		}
		next := strings.HasSuffix(line, `\`) && !strings.HasSuffix(line, `\\`)
		line = strings.TrimSuffix(line, `\`)
		if goesOn {
			all[len(all)-1].text += line
		} else {
			all = append(all, property{i + 1, line})
		}
		goesOn = next
	}
	return all
}

func cutProperty(line string) (key, value string, ok bool) {
	at := strings.IndexAny(line, "=:")
	if at < 0 {
		return "", "", false
	}
	return strings.TrimSpace(line[:at]), strings.TrimSpace(line[at+1:]), true
}

var variable = regexp.MustCompile(`\$\$(\w+)\$\$`)

func substitute(value string, getenv func(string) string) string {
	return variable.ReplaceAllStringFunc(value, func(v string) string { return getenv(strings.Trim(v, "$")) })
}

// set sets a property.
func (s *Settings) set(key, value string) (err error) {
	switch key {
	case "inference_address":
		s.Inference, err = address(key, value)
	case "management_address":
		s.Management, err = address(key, value)
	case "metrics_address":
		s.Metrics, err = address(key, value)
	case "model_store":
		s.Store = value
	case "load_models":
		s.Load, s.All = ParseLoad(strings.Split(value, ","))
	case "models":
		var unknown []string
		if s.Models, unknown, err = presets(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		s.Ignored = append(s.Ignored, unknown...)
	case "default_workers_per_model":
		s.Workers, err = wholeNumber(key, value)
	case "job_queue_size":
		s.Queue, err = wholeNumber(key, value)
	case "default_response_timeout", "default_response_timeout_seconds":
		s.ResponseTimeout, err = wholeSeconds(key, value)
	case "default_startup_timeout":
		s.StartupTimeout, err = wholeSeconds(key, value)
	case "max_request_size":
		var n int
		n, err = wholeNumber(key, value)
		s.MaxRequest = int64(n)
	case "decode_input_request":
		s.Decode = value != "false"
	case "default_service_handler":
		s.Handler = value
	case "install_py_dep_per_model":
		s.Install = strings.EqualFold(value, "true")
	case "allowed_urls":
		s.Allowed, err = patterns(key, value)
	case "python_executable", "PYTHON_EXECUTABLE":
		s.Python = value
	default:
		if why, ok := rejected[key]; ok {
			return fmt.Errorf("%s: %s", key, why)
		}
		if !slices.Contains(ignored, key) {
			return unknownKey(key)
		}
		s.Ignored = append(s.Ignored, key)
	}
	return err
}

// unknownKey returns the error for a key that neither MMS nor TorchServe has.
func unknownKey(key string) error {
	if meant := suggest.Nearest(key, slices.Concat(supported, ignored)); meant != "" {
		return fmt.Errorf("%s: unknown key; did you mean %s?", key, meant)
	}
	return fmt.Errorf("%s: unknown key; docs/how-to/migrate-from-mms.md lists the known ones", key)
}

// ParseLoad reads models as they stand behind --models and load_models: archives, or
// names with their archives, or ALL.
func ParseLoad(entries []string) (load []Load, all bool) {
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		name, archive, named := strings.Cut(entry, "=")
		switch {
		case entry == "" || strings.EqualFold(entry, "NONE"):
		case strings.EqualFold(entry, "ALL"):
			all = true
		case named:
			load = append(load, Load{name, archive})
		default:
			load = append(load, Load{"", entry})
		}
	}
	return load, all
}

// address parses an address that is written as a URL.
func address(key, value string) (string, error) {
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" {
		return "", fmt.Errorf("%s: found %q, expected an address such as http://127.0.0.1:8080", key, value)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")), nil
}

func wholeNumber(key, value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s: found %q, expected a whole number of at least 0", key, value)
	}
	return n, nil
}

// maxSeconds is the longest duration in seconds that a [time.Duration] holds: 292 years.
const maxSeconds = int(math.MaxInt64 / time.Second)

func wholeSeconds(key, value string) (time.Duration, error) {
	n, err := wholeNumber(key, value)
	if n > maxSeconds {
		return 0, fmt.Errorf("%s: found %q, expected at most %d seconds", key, value, maxSeconds)
	}
	return time.Duration(n) * time.Second, err
}

func patterns(key, value string) ([]*regexp.Regexp, error) {
	var all []*regexp.Regexp
	for one := range strings.SplitSeq(value, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		r, err := regexp.Compile("^(?:" + one + ")$")
		if err != nil {
			return nil, fmt.Errorf("%s: found %q, expected a list of regular expressions, separated by commas: %w", key, one, err)
		}
		all = append(all, r)
	}
	return all, nil
}
