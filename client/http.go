package client

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

const (
	// jsonLengthHeader says how many bytes at the start of a body are JSON. Binary data
	// follows them.
	jsonLengthHeader = "Inference-Header-Content-Length"

	userAgent = "shoal-go-client"

	maxIdleConns   = 1024             // one for each call that was in flight at once
	idleTimeout    = 60 * time.Second // less than that of servers, so that none closes a connection that is about to be used
	connBuffer     = 64 << 10         // tensors are larger than the buffers of net/http
	firstRead      = 64 << 20         // the most memory that a response gets on the word of its Content-Length
	maxErrorPrefix = 256              // bytes of an error page that is not JSON
)

// httpTransport speaks KServe v2 over HTTP.
type httpTransport struct {
	client      *http.Client
	base        string // without a slash at its end
	header      map[string]string
	maxResponse int64
}

func newHTTP(address string, opts Options) (*httpTransport, error) {
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if opts.TLS != nil {
			scheme = "https://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, &Error{Code: Invalid, Message: err.Error(), Err: err}
	}
	if u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, invalid("%q is not an address for HTTP, such as http://localhost:8000", address)
	}
	dial := opts.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return &httpTransport{
		client: &http.Client{Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dial,
			TLSClientConfig:     opts.TLS,
			MaxIdleConnsPerHost: maxIdleConns,
			IdleConnTimeout:     idleTimeout,
			ReadBufferSize:      connBuffer,
			WriteBufferSize:     connBuffer,
			DisableCompression:  true, // costs more time than it saves for most tensors
		}},
		base:        strings.TrimSuffix(u.String(), "/"),
		header:      opts.Header,
		maxResponse: opts.MaxResponse,
	}, nil
}

func (h *httpTransport) close() error {
	h.client.CloseIdleConnections()
	return nil
}

// modelPath returns the path of a model, or of a version of it.
func modelPath(model, version, page string) string {
	path := "/v2/models/" + url.PathEscape(model)
	if version != "" {
		path += "/versions/" + url.PathEscape(version)
	}
	return path + page
}

// An answer is a response that has been read.
type answer struct {
	header http.Header
	body   []byte
}

// do sends a request, and reads the answer unless it is an error. header may be nil.
func (h *httpTransport) do(ctx context.Context, method, path string, header http.Header, content *payload) (*answer, error) {
	defer content.release()
	req, err := http.NewRequestWithContext(ctx, method, h.base+path, nil)
	if err != nil {
		return nil, &Error{Code: Invalid, Message: err.Error(), Err: err}
	}
	content.attach(req)
	for name, value := range h.header {
		req.Header.Set(name, value)
	}
	for name := range header {
		req.Header.Set(name, header.Get(name))
	}
	req.Header.Set("User-Agent", cmp.Or(req.Header.Get("User-Agent"), userAgent))
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, failed(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// Whatever its size, it has the code and the time to wait; only its text is cut.
		body, err := readAll(io.LimitReader(resp.Body, h.maxResponse), resp.ContentLength, h.maxResponse)
		if err != nil {
			return nil, failed(ctx, err)
		}
		return nil, httpError(resp, body, time.Now())
	}
	if resp.ContentLength > h.maxResponse {
		return nil, h.tooLarge(resp)
	}
	body, err := readAll(resp.Body, resp.ContentLength, h.maxResponse)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, h.tooLarge(resp)
	case err != nil:
		return nil, failed(ctx, err)
	}
	return &answer{header: resp.Header, body: body}, nil
}

func (h *httpTransport) tooLarge(resp *http.Response) *Error {
	return &Error{Code: TooLarge, Message: fmt.Sprintf("the response has more than the %d bytes of Options.MaxResponse", h.maxResponse), Status: resp.Status}
}

var errTooLarge = errors.New("the body is too large")

// readAll reads a body of up to limit bytes. length is that of its header, or -1.
func readAll(body io.Reader, length, limit int64) ([]byte, error) {
	const unknown = 4 << 10
	if length < 0 {
		length = unknown
	}
	b := make([]byte, 0, min(length, limit, firstRead)+1) // with room to find the end
	for {
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return nil, errTooLarge
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, err
		case len(b) == cap(b):
			b = append(b, 0)[:len(b)]
		}
	}
}

var httpCodes = map[int]Code{
	http.StatusBadRequest: Invalid, http.StatusUnauthorized: Denied, http.StatusForbidden: Denied, http.StatusNotFound: NotFound, http.StatusConflict: Invalid,
	http.StatusMethodNotAllowed: Unsupported, http.StatusRequestTimeout: Deadline, http.StatusRequestEntityTooLarge: TooLarge,
	http.StatusUnsupportedMediaType: Unsupported, http.StatusUnprocessableEntity: Invalid, http.StatusTooManyRequests: Overloaded,
	http.StatusRequestHeaderFieldsTooLarge: TooLarge, 499: Canceled,
	http.StatusInternalServerError: Internal, http.StatusNotImplemented: Unsupported, http.StatusBadGateway: Unavailable,
	http.StatusServiceUnavailable: Unavailable, http.StatusGatewayTimeout: Deadline,
}

// httpError returns the error that an answer is. Retry-After may be a time, so now counts.
func httpError(resp *http.Response, body []byte, now time.Time) *Error {
	e := &Error{Code: httpCodes[resp.StatusCode], Status: resp.Status, RetryAfter: retryAfter(resp.Header.Get("Retry-After"), now)}
	var doc struct{ Error string }
	if json.Unmarshal(body, &doc) == nil && doc.Error != "" {
		e.Message = doc.Error
		return e
	}
	text := strings.ToValidUTF8(string(body[:min(len(body), maxErrorPrefix)]), "")
	e.Message = cmp.Or(strings.TrimSpace(text), "the server gives no reason")
	return e
}

// retryAfter returns the time in a header of that name: seconds, or a date.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// ask answers a question whose answer is in the status.
func (h *httpTransport) ask(ctx context.Context, path string) (bool, error) {
	_, err := h.do(ctx, http.MethodGet, path, nil, nil)
	if e, ok := errors.AsType[*Error](err); ok && e.Err == nil && (e.Code == Invalid || e.Code == Unavailable) {
		return false, nil // 400 is how servers say no, and 503 how those in front of them do
	}
	return err == nil, err
}

// document returns a document as the server sent it.
func (h *httpTransport) document(ctx context.Context, path string) (json.RawMessage, error) {
	a, err := h.do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, err
	}
	if !json.Valid(a.body) {
		return nil, malformed(errors.New("it is not JSON"))
	}
	return a.body, nil
}

// message reads a document into a message.
func message[M proto.Message](body []byte, into M) (M, error) {
	// A newer server may send fields that this package does not know.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, into); err != nil {
		return into, malformed(err)
	}
	return into, nil
}

func (h *httpTransport) live(ctx context.Context) (bool, error) {
	return h.ask(ctx, "/v2/health/live")
}

func (h *httpTransport) ready(ctx context.Context) (bool, error) {
	return h.ask(ctx, "/v2/health/ready")
}

func (h *httpTransport) modelReady(ctx context.Context, model, version string) (bool, error) {
	return h.ask(ctx, modelPath(model, version, "/ready"))
}

func (h *httpTransport) serverMetadata(ctx context.Context) (*kservepb.ServerMetadataResponse, error) {
	body, err := h.document(ctx, "/v2")
	if err != nil {
		return nil, err
	}
	return message(body, &kservepb.ServerMetadataResponse{})
}

func (h *httpTransport) metadata(ctx context.Context, model, version string) (*kservepb.ModelMetadataResponse, error) {
	body, err := h.document(ctx, modelPath(model, version, ""))
	if err != nil {
		return nil, err
	}
	return message(body, &kservepb.ModelMetadataResponse{})
}

func (h *httpTransport) config(ctx context.Context, model, version string) (json.RawMessage, error) {
	return h.document(ctx, modelPath(model, version, "/config"))
}

func (h *httpTransport) explain(ctx context.Context, model, version string) (json.RawMessage, error) {
	return h.document(ctx, modelPath(model, version, "/explain"))
}

func (h *httpTransport) statistics(ctx context.Context, model, version string) (*kservepb.ModelStatisticsResponse, error) {
	path := "/v2/models/stats"
	if model != "" {
		path = modelPath(model, version, "/stats")
	}
	body, err := h.document(ctx, path)
	if err != nil {
		return nil, err
	}
	return message(body, &kservepb.ModelStatisticsResponse{})
}

func (h *httpTransport) index(ctx context.Context) (*kservepb.RepositoryIndexResponse, error) {
	a, err := h.do(ctx, http.MethodPost, "/v2/repository/index", nil, nil)
	if err != nil {
		return nil, err
	}
	// Over HTTP the index is a list, and a message has to be an object.
	return message(fmt.Appendf(nil, `{"models":%s}`, a.body), &kservepb.RepositoryIndexResponse{})
}

func (h *httpTransport) load(ctx context.Context, model string, opts LoadOptions) error {
	parameters := map[string]string{}
	if opts.Config != "" {
		parameters["config"] = opts.Config
	}
	for path, content := range opts.Files {
		parameters["file:"+path] = base64.StdEncoding.EncodeToString(content)
	}
	body, err := json.Marshal(map[string]any{"parameters": parameters})
	if err != nil {
		return &Error{Code: Invalid, Message: err.Error(), Err: err}
	}
	_, err = h.do(ctx, http.MethodPost, "/v2/repository/models/"+url.PathEscape(model)+"/load", nil, &payload{parts: [][]byte{body}})
	return err
}

func (h *httpTransport) unload(ctx context.Context, model string) error {
	_, err := h.do(ctx, http.MethodPost, "/v2/repository/models/"+url.PathEscape(model)+"/unload", nil, nil)
	return err
}

func (h *httpTransport) infer(ctx context.Context, req *Request) (*Response, error) {
	head, err := encodeRequest(req)
	if err != nil {
		return nil, err
	}
	content := &payload{parts: [][]byte{head}}
	for i := range req.Inputs {
		content.parts = append(content.parts, req.Inputs[i].Data)
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}, jsonLengthHeader: {strconv.Itoa(len(head))}}
	a, err := h.do(ctx, http.MethodPost, modelPath(req.Model, req.Version, "/infer"), header, content)
	if err != nil {
		return nil, err
	}
	resp, err := decodeResponse(a.body, a.header.Get(jsonLengthHeader))
	if err != nil {
		return nil, malformed(err)
	}
	return resp, nil
}

func (h *httpTransport) stream(context.Context) (*Stream, error) {
	return nil, &Error{Code: Unsupported, Message: "streams are not supported over HTTP; use NewGRPC"}
}
