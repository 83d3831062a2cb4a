package mmshttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/servable"
)

// manage handles the paths below /models.
func (h *handler) manage(w http.ResponseWriter, r *http.Request, id string, segments []string) error {
	if len(segments) == 0 {
		switch r.Method {
		case http.MethodGet:
			return h.list(w, r)
		case http.MethodPost:
			return h.register(w, r)
		}
		return errNoMethod
	}
	name, version := segments[0], ""
	if len(segments) > 1 && h.torch() {
		version = segments[1]
	}
	switch {
	case len(segments) == 3 && segments[2] == "set-default" && h.torch() && r.Method == http.MethodPut:
		return h.setDefault(w, r, name, version)
	case len(segments) > 2 || len(segments) == 2 && !h.torch():
		return errNoResource
	case r.Method == http.MethodGet && h.torch() && version != "all" && boolean(r.URL.Query(), "customized"):
		return h.describeCustomized(w, r, id, name, version)
	case r.Method == http.MethodGet:
		return h.describe(w, r, name, version)
	case r.Method == http.MethodPut:
		return h.scale(w, r, name, version)
	case r.Method == http.MethodDelete:
		return h.unregister(w, r, name, version)
	case r.Method == http.MethodOptions:
		return h.describeAPI(w)
	}
	return errNoMethod
}

// maxPage is the largest number of models in one response.
const maxPage = 100

func (h *handler) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	limit, err := number(q, "limit", maxPage)
	if err != nil {
		return err
	}
	from, err := number(q, "next_page_token", 0)
	if err != nil {
		return err
	}
	if limit < 0 || limit > maxPage {
		limit = maxPage
	}
	type entry struct {
		Name string `json:"modelName"`
		URL  string `json:"modelUrl"`
	}
	var page struct {
		Next   string  `json:"nextPageToken,omitempty"`
		Models []entry `json:"models"`
	}
	all := h.store.Visible(r.Context())
	from = min(max(0, from), len(all))
	to := from + limit
	if to <= len(all) { // even if the next page is empty, as in MMS
		page.Next = strconv.Itoa(to)
	}
	page.Models = []entry{}
	for _, v := range all[from:min(to, len(all))] {
		page.Models = append(page.Models, entry{v.Config.Name, mms.About(v).URL})
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// registrationRequest is a registration sent as JSON.
type registrationRequest struct {
	Name            string `json:"model_name"`
	Runtime         string `json:"runtime"`
	Handler         string `json:"handler"`
	URL             string `json:"url"`
	BatchSize       int    `json:"batch_size"`
	MaxBatchDelay   *int   `json:"max_batch_delay"`
	Workers         *int   `json:"initial_workers"`
	Synchronous     *bool  `json:"synchronous"`
	ResponseTimeout int    `json:"response_timeout"`
	StartupTimeout  int    `json:"startup_timeout"`
	RetryApart      bool   `json:"retry_apart"`
}

// maxRegistration is the maximum size of a registration in bytes.
const maxRegistration = 1 << 20

func (h *handler) register(w http.ResponseWriter, r *http.Request) error {
	var wish registrationRequest
	err := h.withBodyTimeout(w, r, func() (err error) {
		wish, err = readWish(w, r)
		return err
	})
	if err != nil {
		return err
	}
	done, err := h.store.Register(r.Context(), mms.Registration{
		URL: wish.URL, Name: wish.Name, Handler: wish.Handler, Runtime: wish.Runtime, BatchSize: wish.BatchSize, MaxBatchDelay: wish.MaxBatchDelay,
		Workers: wish.Workers, Asynchronous: wish.Synchronous != nil && !*wish.Synchronous,
		ResponseTimeout: wish.ResponseTimeout, StartupTimeout: wish.StartupTimeout, RetryApart: wish.RetryApart,
	})
	if err != nil {
		return err
	}
	v := done.Version
	switch {
	case done.Pending:
		writeJSON(w, http.StatusAccepted, status{"Processing worker updates..."})
	case h.torch() && done.Workers == 0:
		writeJSON(w, http.StatusOK, status{fmt.Sprintf("Model %q Version: %s registered with 0 initial workers. Use scale workers API to add workers for the model.", v.Config.Name, v.Name())})
	case h.torch():
		writeJSON(w, http.StatusOK, status{fmt.Sprintf("Model %q Version: %s registered with %d initial workers", v.Config.Name, v.Name(), done.Workers)})
	case done.Workers == 0:
		writeJSON(w, http.StatusOK, status{fmt.Sprintf("Model %q registered", v.Config.Name)})
	default:
		writeJSON(w, http.StatusOK, status{"Workers scaled"})
	}
	return nil
}

func readWish(w http.ResponseWriter, r *http.Request) (wish registrationRequest, err error) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRegistration))
		if err == nil {
			err = json.Unmarshal(text, &wish)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			err = badRequest("the body: " + err.Error())
		}
		return wish, err
	}
	q := r.URL.Query()
	wish.Name, wish.Runtime, wish.Handler, wish.URL = q.Get("model_name"), q.Get("runtime"), q.Get("handler"), q.Get("url")
	for name, to := range map[string]*int{
		"batch_size": &wish.BatchSize, "response_timeout": &wish.ResponseTimeout, "startup_timeout": &wish.StartupTimeout,
	} {
		if *to, err = number(q, name, 0); err != nil {
			return wish, err
		}
	}
	for name, to := range map[string]**int{"max_batch_delay": &wish.MaxBatchDelay, "initial_workers": &wish.Workers} {
		if q.Get(name) == "" {
			continue
		}
		n, err := number(q, name, 0)
		if err != nil {
			return wish, err
		}
		*to = &n
	}
	if q.Get("synchronous") != "" {
		wish.Synchronous = new(boolean(q, "synchronous"))
	}
	wish.RetryApart = boolean(q, "retry_apart")
	return wish, nil
}

func (h *handler) scale(w http.ResponseWriter, r *http.Request, name, version string) error {
	q := r.URL.Query()
	least, err := number(q, "min_worker", 1)
	if err != nil {
		return err
	}
	most, err := number(q, "max_worker", least)
	if err != nil {
		return err
	}
	if most < least {
		return badRequest("max_worker cannot be less than min_worker.")
	}
	if version == "" && h.torch() {
		version = q.Get("model_version")
	}
	synchronous := boolean(q, "synchronous")
	v, err := h.store.ScaleTo(r.Context(), name, version, least, most, synchronous)
	if err != nil {
		return err
	}
	switch {
	case !synchronous:
		writeJSON(w, http.StatusAccepted, status{"Processing worker updates..."})
	case h.torch() && version != "":
		writeJSON(w, http.StatusOK, status{fmt.Sprintf("Workers scaled to %d for model: %s, version: %s", least, v.Config.Name, version)})
	case h.torch():
		writeJSON(w, http.StatusOK, status{fmt.Sprintf("Workers scaled to %d for model: %s", least, v.Config.Name)})
	default:
		writeJSON(w, http.StatusOK, status{"Workers scaled"})
	}
	return nil
}

func (h *handler) unregister(w http.ResponseWriter, r *http.Request, name, version string) error {
	if err := h.store.Unregister(r.Context(), name, version); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, status{fmt.Sprintf("Model %q unregistered", name)})
	return nil
}

func (h *handler) setDefault(w http.ResponseWriter, r *http.Request, name, version string) error {
	if err := h.store.SetDefault(r.Context(), name, version); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, status{fmt.Sprintf("Default version successfully updated for model %q to %q", name, version)})
	return nil
}

// description is the description of a version. MMS and TorchServe share most of it.
type description struct {
	Name          string `json:"modelName"`
	Version       string `json:"modelVersion,omitempty"`
	URL           string `json:"modelUrl"`
	Engine        string `json:"engine,omitempty"`
	Runtime       string `json:"runtime"`
	MinWorkers    int    `json:"minWorkers"`
	MaxWorkers    int    `json:"maxWorkers"`
	BatchSize     int    `json:"batchSize"`
	MaxBatchDelay int64  `json:"maxBatchDelay"`
	*torchOnly           // nil for MMS
	AtStart       bool   `json:"loadedAtStartup"`
	Workers       []any  `json:"workers"`
	*torchQueue          // nil for MMS
	// Customized is what the handler says of the model, if the client asked for it.
	Customized json.RawMessage `json:"customizedMetadata,omitempty"`
}

// torchOnly has the fields that only TorchServe returns. Most of them describe features as
// unused, which is true here as well.
type torchOnly struct {
	ResponseTimeout   int64  `json:"responseTimeout"`
	StartupTimeout    int64  `json:"startupTimeout"`
	MaxRetryTimeout   int    `json:"maxRetryTimeoutInSec"`
	ClientTimeout     int64  `json:"clientTimeoutInMills"`
	ParallelType      string `json:"parallelType"`
	ParallelLevel     int    `json:"parallelLevel"`
	DeviceType        string `json:"deviceType"`
	Continuous        bool   `json:"continuousBatching"`
	Ticket            bool   `json:"useJobTicket"`
	Venv              bool   `json:"useVenv"`
	Stateful          bool   `json:"stateful"`
	SequenceIdle      int    `json:"sequenceMaxIdleMSec"`
	SequenceTimeout   int    `json:"sequenceTimeoutMSec"`
	Sequences         int    `json:"maxNumSequence"`
	SequenceQueueSize int    `json:"maxSequenceJobQueueSize"`
}

type torchQueue struct {
	Queue queueStatus `json:"jobQueueStatus"`
}

type queueStatus struct {
	Left    int `json:"remainingCapacity"`
	Waiting int `json:"pendingRequests"`
}

type workerLine struct {
	ID      string `json:"id"`
	Started string `json:"startTime"`
	Status  string `json:"status"`
	GPU     bool   `json:"gpu"`
	Memory  int64  `json:"memoryUsage"`
}

// torchWorker has the same fields in another order, and additional ones.
type torchWorker struct {
	ID       string `json:"id"`
	Started  string `json:"startTime"`
	Status   string `json:"status"`
	Memory   int64  `json:"memoryUsage"`
	PID      int    `json:"pid"`
	GPU      bool   `json:"gpu"`
	GPUUsage string `json:"gpuUsage"`
}

func (h *handler) describe(w http.ResponseWriter, r *http.Request, name, version string) error {
	if err := h.store.Authorize(r.Context(), access.Inspect, name); err != nil {
		return err
	}
	all, err := h.versions(name, version)
	if err != nil {
		return err
	}
	if !h.torch() {
		writeJSON(w, http.StatusOK, h.description(all[0]))
		return nil
	}
	told := []description{}
	for _, v := range all {
		told = append(told, h.description(v))
	}
	writeJSON(w, http.StatusOK, told)
	return nil
}

// describeCustomized describes a version with what its handler says of it. The handler runs
// like for a prediction without data, with the header describe.
func (h *handler) describeCustomized(w http.ResponseWriter, r *http.Request, id, name, version string) error {
	if err := h.store.Authorize(r.Context(), access.Inspect, name); err != nil {
		return err
	}
	v, err := h.store.Find(name, version)
	if err != nil {
		return err
	}
	r.Header["describe"] = []string{"True"}
	var resp infer.Response
	answer, err := h.store.Predict(r.Context(), &mms.Request{ID: id, Model: name, Version: version, Client: kserve.ClientID(r.RemoteAddr), Header: r.Header}, &resp)
	if err != nil {
		return err
	}
	defer resp.Release()
	d := h.description(v)
	d.Customized = json.RawMessage("{}") // as in TorchServe, if it is no object
	if object := map[string]any{}; json.Unmarshal(answer.Body, &object) == nil {
		d.Customized = answer.Body
	}
	writeJSON(w, http.StatusOK, []description{d})
	return nil
}

// versions returns the versions that a path names.
func (h *handler) versions(name, version string) ([]*servable.Version, error) {
	if version == "all" {
		return h.store.Versions(name)
	}
	v, err := h.store.Find(name, version)
	return []*servable.Version{v}, err
}

func (h *handler) description(v *servable.Version) description {
	about := mms.About(v)
	least, most := v.Scale()
	d := description{
		Name: v.Config.Name, Version: about.Written, URL: about.URL, Engine: about.Engine, Runtime: about.Runtime, MinWorkers: least, MaxWorkers: most,
		BatchSize: v.Config.MaxBatchSize, MaxBatchDelay: about.MaxBatchDelay.Milliseconds(), AtStart: about.AtStart, Workers: []any{},
	}
	if h.torch() {
		waiting := v.Scheduler.Waiting()
		d.Version = v.Name()
		d.torchOnly = &torchOnly{
			ResponseTimeout: int64(about.ResponseTimeout.Seconds()), StartupTimeout: int64(about.StartupTimeout.Seconds()), MaxRetryTimeout: 300,
			ClientTimeout: about.ClientTimeout.Milliseconds(), DeviceType: "cpu", Venv: about.Venv,
		}
		d.torchQueue = &torchQueue{queueStatus{about.Queue - waiting, waiting}}
	}
	for _, worker := range v.Workers() {
		line := workerLine{
			ID: strconv.FormatInt(firstWorker+worker.Number, 10), Started: worker.Started.UTC().Format("2006-01-02T15:04:05.000Z"), Status: "READY",
			Memory: python.Resident(worker.Process),
		}
		if !worker.Ready {
			line.Status = "UNLOADING"
		}
		if h.torch() {
			d.Workers = append(d.Workers, torchWorker{line.ID, line.Started, line.Status, line.Memory, worker.Process, line.GPU, "N/A"})
		} else {
			d.Workers = append(d.Workers, line)
		}
	}
	return d
}

// firstWorker is the id of the first worker. MMS uses its port.
const firstWorker = 9000

func badRequest(message string) error {
	return newError(http.StatusBadRequest, "BadRequestException", message)
}

// number parses a numeric parameter. It returns missing if the parameter is not set.
func number(q url.Values, name string, missing int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, badRequest(fmt.Sprintf("%s: found %q, expected a whole number", name, text))
	}
	return n, nil
}

// boolean parses a boolean parameter. Anything but true is false.
func boolean(q url.Values, name string) bool {
	ok, _ := strconv.ParseBool(q.Get(name))
	return ok
}
