package mms

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// A modelYAML is the model-config.yaml of an archive. Some of its keys are for the server,
// and the handler sees all of them.
type modelYAML struct {
	parameters
	File     string                // its name in the archive; "" if there is none
	JSON     []byte                // its content, for interpreters without a YAML parser; nil if JSON cannot represent it
	Findings []modelconfig.Finding // keys for the server that have no effect
	Others   []string              // keys that the server does not know, which only the handler reads
}

const (
	defaultYAML = "model-config.yaml" // name of the file in archives whose manifest names none
	maxYAML     = 1 << 20             // bytes of the file
)

// readYAML reads the model-config.yaml of an archive. The error is for the first key that
// would change what the model answers, and is not supported.
func readYAML(a *archive) (modelYAML, error) {
	name := cmp.Or(a.manifest.Model.ConfigFile, defaultYAML)
	text, err := readInside(a.dir, name, maxYAML)
	if errors.Is(err, fs.ErrNotExist) && a.manifest.Model.ConfigFile == "" {
		return modelYAML{}, nil
	}
	if err != nil {
		return modelYAML{}, invalidModel("%s, the configFile of %s, cannot be read: %v", name, manifestFile, err)
	}
	return parseYAML(name, text)
}

// readInside reads a file of an archive. Links do not lead out of dir.
func readInside(dir, name string, most int64) ([]byte, error) {
	f, err := os.OpenInRoot(dir, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return text, err
}

// parseYAML reads the text of a model-config.yaml. file is its name.
func parseYAML(file string, text []byte) (modelYAML, error) {
	y := modelYAML{File: file}
	var root yaml.Node
	var content map[string]any
	if err := errors.Join(yaml.Unmarshal(text, &root), yaml.Unmarshal(text, &content)); err != nil {
		return y, invalidModel("%s: %v", file, err)
	}
	y.JSON, _ = json.Marshal(content) // it has keys or numbers that JSON has not: the handler needs a parser
	if len(root.Content) == 0 {
		return y, nil // an empty file
	}
	var counts workerCounts
	pairs := root.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		if f := y.read(pairs[i].Value, pairs[i+1], &counts); f != nil {
			f.Where, f.Field = fmt.Sprintf("%s:%d", file, pairs[i].Line), pairs[i].Value
			y.Findings = append(y.Findings, *f)
		}
	}
	y.Workers = counts.scale()
	for _, f := range y.Findings {
		if f.Kind == modelconfig.Rejected {
			return y, invalidModel("%v", f)
		}
	}
	return y, nil
}

// workerCounts are minWorkers and maxWorkers; 0 means that the key is missing.
type workerCounts struct{ min, max int }

// scale returns the number of workers. TorchServe ignores minWorkers without maxWorkers;
// here one of them is enough.
func (c workerCounts) scale() *scale {
	if c.min == 0 && c.max == 0 {
		return nil
	}
	least := cmp.Or(c.min, 1)
	return &scale{least, max(least, c.max)}
}

// read reads a key. It returns a finding without a place if the key has no effect.
func (y *modelYAML) read(key string, value *yaml.Node, counts *workerCounts) *modelconfig.Finding {
	var n int
	var f *modelconfig.Finding
	switch key {
	case "minWorkers":
		counts.min, f = wholeValue(value, 1, maxWorkers)
	case "maxWorkers":
		counts.max, f = wholeValue(value, 1, maxWorkers)
	case "batchSize":
		y.BatchSize, f = wholeValue(value, 1, maxBatch)
	case "maxBatchDelay":
		if n, f = wholeValue(value, 0, maxSeconds); f == nil {
			y.MaxBatchDelay = milliseconds(&n)
		}
	case "responseTimeout":
		n, f = wholeValue(value, 1, maxSeconds)
		y.ResponseTimeout = time.Duration(n) * time.Second
	case "startupTimeout":
		n, f = wholeValue(value, 1, maxSeconds)
		y.StartupTimeout = time.Duration(n) * time.Second
	case "clientTimeoutInMills":
		n, f = wholeValue(value, 0, maxSeconds)
		y.ClientTimeout = time.Duration(n) * time.Millisecond
	case "jobQueueSize":
		y.Queue, f = wholeValue(value, 1, maxQueue)
	case "useVenv": // requirements are never installed elsewhere
	default:
		return y.readOther(key, value)
	}
	return f
}

// maxQueue is the largest jobQueueSize.
const maxQueue = 1 << 20

// wholeValue returns a number, or 0 and a finding if the value is none from least to most.
func wholeValue(value *yaml.Node, least, most int) (int, *modelconfig.Finding) {
	n, err := strconv.Atoi(value.Value)
	if value.Tag != "!!int" || err != nil || n < least || n > most {
		return 0, &modelconfig.Finding{Kind: modelconfig.Unused, What: fmt.Sprintf("found %q, expected a whole number from %d to %d", value.Value, least, most)}
	}
	return n, nil
}

// An unsupportedKey is a key of TorchServe that is not carried out.
type unsupportedKey struct {
	kind          modelconfig.Kind
	what, instead string
	off           []string // values that request nothing
}

const (
	oneProcess  = "models that run in several processes are not supported yet"
	noSequences = "sequences are not supported yet"
	noDevices   = "the server assigns no GPUs, and gpu_id of the handler's system_properties is None"
	ownDevice   = "let the handler choose its device"
	keepState   = "keep the state of a sequence outside of the worker, such as in Redis"
)

// unsupportedKeys are rejected if the model would answer otherwise without them.
var unsupportedKeys = map[string]unsupportedKey{
	"deviceType":              {modelconfig.Ignored, noDevices, ownDevice, []string{"cpu"}},
	"deviceIds":               {modelconfig.Ignored, noDevices, ownDevice, nil},
	"parallelType":            {modelconfig.Rejected, oneProcess, "serve a model that fits into one process", []string{"none", ""}},
	"parallelLevel":           {modelconfig.Ignored, oneProcess, "", []string{"0", "1"}},
	"torchrun":                {modelconfig.Rejected, oneProcess, "serve a model that fits into one process", nil},
	"maxRetryTimeoutInSec":    {modelconfig.Ignored, "a worker that ended is restarted until the model is unregistered", "", nil},
	"useJobTicket":            {modelconfig.Ignored, "requests wait in the queue while all workers are busy", "limit the queue with jobQueueSize", []string{"false"}},
	"sequenceBatching":        {modelconfig.Rejected, noSequences, keepState, []string{"false"}},
	"sequenceMaxIdleMSec":     {modelconfig.Rejected, noSequences, keepState, []string{"0"}},
	"sequenceTimeoutMSec":     {modelconfig.Ignored, noSequences, "", []string{"0"}},
	"maxSequenceJobQueueSize": {modelconfig.Ignored, noSequences, "", []string{"1"}},
	"maxNumSequence":          {modelconfig.Ignored, noSequences, "", []string{"1"}},
	"continuousBatching":      {modelconfig.Rejected, "continuous batching is not supported yet", "use a server for language models, such as vLLM", []string{"false"}},
	"asyncCommunication":      {modelconfig.Rejected, "handlers that answer asynchronously are not supported yet", "return the answers from handle", []string{"false"}},
}

// supportedKeys are those that [modelYAML.read] carries out.
var supportedKeys = []string{
	"minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout", "clientTimeoutInMills", "jobQueueSize", "useVenv",
}

// readOther handles a key that is not carried out. One that TorchServe does not have either is
// meant for the handler, unless it resembles one of TorchServe.
func (y *modelYAML) readOther(key string, value *yaml.Node) *modelconfig.Finding {
	if u, ok := unsupportedKeys[key]; ok {
		if value.Kind == yaml.ScalarNode && slices.Contains(u.off, value.Value) {
			return nil
		}
		return &modelconfig.Finding{Kind: u.kind, What: u.what, Instead: u.instead}
	}
	known := slices.Concat(supportedKeys, slices.Sorted(maps.Keys(unsupportedKeys)))
	if meant := suggest.Nearest(key, known); meant != "" {
		return &modelconfig.Finding{Kind: modelconfig.Unused, What: "unknown key, which only the handler can read", Instead: "did you mean " + meant + "?"}
	}
	y.Others = append(y.Others, key)
	return nil
}
