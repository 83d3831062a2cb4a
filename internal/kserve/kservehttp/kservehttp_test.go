package kservehttp_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/script"
)

func TestMain(m *testing.M) { leak.Main(m) }

func newServer(t testing.TB, opts kservehttp.Options) (*kservetest.Server, *httptest.Server) {
	t.Helper()
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Entries, backend.Stats = kservetest.RecordedIndex, kservetest.RecordedStatistics
	opts.Logging = backend
	server := listen(kservehttp.New(backend, backend, backend, opts))
	server.Client().Transport.(*http.Transport).DisableCompression = true // responses are compared as sent
	t.Cleanup(server.Close)
	return backend, server
}

// listen starts a server as the binary does.
func listen(h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Listener = kservehttp.Listener(server.Config, server.Listener, &kservehttp.Drain{})
	server.Start()
	return server
}

// The scripts were recorded from Triton 2.51.0, and changed where their comments say so. A
// block is a request and its response: the status, the relevant headers, and the
// decompressed body. A body that is not plain text is written as a Go string.
func TestClientsOfTritonGetTheSameAnswers(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) func([]string) string {
		backend, server := newServer(t, kservehttp.Options{Version: "1.2.3"})
		backend.Before, backend.Stream, backend.Unloaded = kservetest.RecordedFailure, kservetest.RecordedStream, []string{"recorder"}
		return func(lines []string) string { return exchange(t, server, lines) }
	})
}

func TestClientsShareMemory(t *testing.T) {
	script.Run(t, "testdata/regions/*.txt", func(t *testing.T) func([]string) string {
		data, _ := binary.Append(nil, binary.LittleEndian, []float32{1, 2, 3, 4})
		key, _ := kservetest.SharedMemory(t, append(data, make([]byte, 240)...))
		_, server := newServer(t, kservehttp.Options{Version: "1.2.3", Regions: kserve.NewRegions(kserve.RegionOptions{})})
		return func(lines []string) string {
			return kservetest.WithKey(key, lines, func(lines []string) string { return exchange(t, server, lines) })
		}
	})
}

func exchange(t *testing.T, server *httptest.Server, lines []string) string {
	method, path, _ := strings.Cut(lines[0], " ")
	header, body := http.Header{}, ""
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ": ")
		if !ok || strings.ContainsAny(name, `{["`) {
			body = plain(t, line)
			continue
		}
		header.Set(name, value)
	}
	a := do(t, server, method, path, header, strings.NewReader(body))
	a.body = decompressed(t, a.header.Get("Content-Encoding"), a.body)
	return describe(a)
}

func plain(t *testing.T, line string) string {
	if !strings.HasPrefix(line, `"`) {
		return line
	}
	s, err := strconv.Unquote(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return s
}

func describe(a answer) string {
	text := fmt.Sprintf("%d\n", a.status)
	for _, name := range []string{"Accept-Encoding", "Allow", "Content-Encoding", "Content-Type", kserve.JSONLengthHeader, "Retry-After"} {
		if value := a.header.Get(name); value != "" {
			text += name + ": " + value + "\n"
		}
	}
	if strings.ContainsFunc(a.body, func(r rune) bool { return r < ' ' || r == utf8.RuneError }) {
		return text + strconv.Quote(a.body)
	}
	return text + a.body
}

const (
	inferPath = "/v2/models/failing/infer"
	inferBody = `{"inputs":[{"name":"INPUT","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`
)

// An answer is a response that has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

func do(t *testing.T, server *httptest.Server, method, path string, header http.Header, body io.Reader) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func post(t *testing.T, server *httptest.Server, body io.Reader) answer {
	t.Helper()
	return do(t, server, http.MethodPost, inferPath, http.Header{}, body)
}

func TestErrorsOfTheBackendHaveTheirStatus(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	for code, want := range map[infer.Code]int{
		infer.Internal: 500, infer.Invalid: 400, infer.NotFound: 404, infer.Unsupported: 501, infer.Unavailable: 503,
		infer.Overloaded: 429, infer.Late: 429, infer.QueueTimeout: 503, infer.Deadline: 504, infer.Cancelled: 499, infer.Forbidden: 403,
	} {
		backend.Before = func(context.Context, *infer.Request) error {
			return fmt.Errorf("wrapped: %w", infer.Errorf(code, "the %v reason", code))
		}
		a := post(t, server, strings.NewReader(inferBody))
		if text := fmt.Sprintf(`{"error":"wrapped: the %v reason"}`, code); a.status != want || a.body != text {
			t.Errorf("%v: status %d, %s, want %d, %s", code, a.status, a.body, want, text)
		}
	}
}

func TestAnOverloadedServerSaysWhenToComeBack(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	for wait, want := range map[time.Duration]string{0: "1", time.Millisecond: "1", 1500 * time.Millisecond: "2", time.Minute: "60"} {
		backend.Before = func(context.Context, *infer.Request) error {
			err := infer.Errorf(infer.Overloaded, "full")
			err.RetryAfter = wait
			return err
		}
		a := post(t, server, strings.NewReader(inferBody))
		if got := a.header.Get("Retry-After"); a.status != http.StatusTooManyRequests || got != want {
			t.Errorf("%v: status %d, Retry-After %s, want %s", wait, a.status, got, want)
		}
	}
}

func TestALogThatIsNotForClientsIsNotTold(t *testing.T) {
	backend := kservetest.New(t)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		w := httptest.NewRecorder()
		kservehttp.New(backend, backend, backend, kservehttp.Options{}).ServeHTTP(w, httptest.NewRequest(method, "/v2/logging", nil))
		if w.Code != http.StatusNotImplemented {
			t.Errorf("%s: status %d, %s", method, w.Code, w.Body)
		}
	}
}

func TestAFullQueueMayHaveTritonsStatus(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{TritonStatus: true})
	for code, want := range map[infer.Code]int{infer.Overloaded: 503, infer.Late: 503, infer.Unavailable: 503, infer.Deadline: 504} {
		backend.Before = func(context.Context, *infer.Request) error { return infer.Errorf(code, "no") }
		a := post(t, server, strings.NewReader(inferBody))
		if again := a.header.Get("Retry-After") != ""; a.status != want || again != (code == infer.Overloaded || code == infer.Late) {
			t.Errorf("%v: status %d, %v, want %d", code, a.status, a.header, want)
		}
	}
}

func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{BodyTimeout: 50 * time.Millisecond})
	before := buf.Live()
	var whole strings.Builder // which a Content-Length says more about
	z := zlib.NewWriter(&whole)
	if _, err := io.WriteString(z, inferBody); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for header, body := range map[string]string{
		"Content-Length: 100": "", "Transfer-Encoding: chunked": "", "Content-Encoding: gzip\r\nContent-Length: 100": "",
		"Content-Encoding: deflate\r\nContent-Length: 1000": whole.String(),
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", inferPath, header, body); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn) // until the server closes
		if want := "the body of the request did not arrive within 50ms"; err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") || !strings.Contains(string(answer), want) {
			t.Errorf("%s: %s, %v", header, answer, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if after := buf.Live(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

func TestAModelMayTakeLongerThanABody(t *testing.T) {
	const wait = 500 * time.Millisecond
	backend, server := newServer(t, kservehttp.Options{BodyTimeout: wait})
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		time.Sleep(wait + 50*time.Millisecond)
		return ctx.Err()
	}
	if a := post(t, server, strings.NewReader(inferBody)); a.status != http.StatusOK {
		t.Errorf("status %d, %s", a.status, a.body)
	}
}

func TestReadinessIsThatOfTheCatalog(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	for notReady, want := range map[bool]int{false: 200, true: 400} {
		backend.NotReady.Store(notReady)
		if a := do(t, server, http.MethodGet, "/v2/health/ready", nil, nil); a.status != want {
			t.Errorf("not ready %t: status %d, want %d", notReady, a.status, want)
		}
	}
}

func TestParametersReachTheBackend(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if req.Priority != 2 || req.Timeout != 3*time.Millisecond || req.ID != "x" || req.Version != "1" {
			t.Errorf("request %+v", req)
		}
		return nil
	}
	do(t, server, http.MethodPost, "/v2/models/failing/versions/1/infer", nil,
		strings.NewReader(`{"id":"x","parameters":{"priority":2,"timeout":3000},`+inferBody[1:]))
}

func TestAHeaderHasTheVersionOfRequestsThatNameNone(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	var versions []string
	backend.Before = func(_ context.Context, req *infer.Request) error {
		versions = append(versions, req.Version)
		return nil
	}
	for _, c := range []struct {
		path, version string
		status        int
	}{{"", "1", http.StatusOK}, {"/versions/1", "2", http.StatusOK}, {"", "2", http.StatusNotFound}, {"", "x", http.StatusBadRequest}} {
		a := do(t, server, http.MethodPost, "/v2/models/failing"+c.path+"/infer", http.Header{kserve.VersionHeader: {c.version}}, strings.NewReader(inferBody))
		if a.status != c.status {
			t.Errorf("%s with header %s: %d %s, want %d", c.path, c.version, a.status, a.body, c.status)
		}
	}
	if !slices.Equal(versions, []string{"1", "1"}) {
		t.Errorf("versions %v", versions)
	}
}

func TestAPanicCostsOneRequest(t *testing.T) {
	var log bytes.Buffer
	backend, server := newServer(t, kservehttp.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	backend.Before = func(context.Context, *infer.Request) error { panic("a bug") }
	a := post(t, server, strings.NewReader(inferBody))
	if a.status != http.StatusInternalServerError || a.body != `{"error":"internal error"}` {
		t.Errorf("status %d, %s", a.status, a.body)
	}
	if !strings.Contains(log.String(), "a bug") || !strings.Contains(log.String(), "kservehttp_test.go") {
		t.Errorf("the log does not say what happened and where: %s", log.String())
	}
	backend.Before = nil
	if a := post(t, server, strings.NewReader(inferBody)); a.status != http.StatusOK {
		t.Errorf("the next request: status %d, %s", a.status, a.body)
	}
}

func TestAClientThatLeavesCancels(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	arrived, cancelled := make(chan struct{}), make(chan error, 1) // so that the handler never waits for the test
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		close(arrived)
		<-ctx.Done()
		cancelled <- ctx.Err()
		return ctx.Err()
	}
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+inferPath, strings.NewReader(inferBody))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1) // so that the client never waits for the test
	go func() {
		resp, err := server.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	<-arrived
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("the backend saw %v", err)
	}
}

func TestBodiesAreLimitedBeforeTheyAreRead(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{Limits: kserve.Limits{Body: 100_000}})
	for size, want := range map[int]int{90_000: 200, 100_000: 200, 100_001: 400, 1_000_000: 400} {
		body := inferBody + strings.Repeat(" ", size-len(inferBody))
		for kind, r := range map[string]io.Reader{
			"known":   strings.NewReader(body),
			"unknown": io.MultiReader(strings.NewReader(body)), // hides its length, so it is sent in chunks
		} {
			if a := post(t, server, r); a.status != want {
				t.Errorf("%d bytes, length %s: status %d, %s, want %d", size, kind, a.status, a.body, want)
			}
		}
	}
}

// A truncated request must not be executed.
func TestABodyThatIsCutShortIsNotRun(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	backend.Before = func(context.Context, *infer.Request) error {
		t.Error("it was run")
		return nil
	}
	for name, rest := range map[string]string{
		"known":   "Content-Length: 500\r\n\r\n" + inferBody,
		"unknown": "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(inferBody), inferBody),
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s", inferPath, rest)
		if err = errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err = errors.Join(err, conn.Close()); err != nil || strings.Contains(string(answer), "200 OK") {
			t.Errorf("%s: %s, %v", name, answer, err)
		}
	}
}

// A client that has gone is not at fault, and does not read the answer. One that sends what HTTP does not
// allow waits for it.
func TestABodyThatIsNoHTTPIsInvalid(t *testing.T) {
	_, server := newServer(t, kservehttp.Options{})
	before := buf.Live()
	for _, test := range []struct{ rest, status, says string }{
		{"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "400", "invalid byte in chunk length"},
		{"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n", "400", "malformed chunked encoding"},
		{"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400", "invalid byte in chunk length"},
		{"Transfer-Encoding: chunked\r\n\r\n2\r\n{", "499", "unexpected EOF"},
		{"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\x1f", "499", "unexpected EOF"},
		{"Content-Length: 500\r\n\r\n{", "499", "unexpected EOF"},
		{"Content-Length: 500\r\n\r\n", "499", "EOF"},
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s", inferPath, test.rest)
		if err = errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err = errors.Join(err, conn.Close()); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+test.status) || !strings.Contains(string(answer), test.says) {
			t.Errorf("%q: %s, %v, want %s and %q", test.rest, answer, err, test.status, test.says)
		}
	}
	if after := buf.Live(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

// newBinaryServer returns a server with a model that accepts any number of bytes and
// returns them.
func newBinaryServer(t *testing.T) *httptest.Server {
	t.Helper()
	backend := kservetest.New(t, `name: "large" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{}))
	t.Cleanup(server.Close)
	return server
}

// binaryBody returns the two parts of a request for that model with the given number of
// bytes.
func binaryBody(size int) (doc string, data []byte) {
	data = bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	return fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"INPUT","shape":[1,%d],"datatype":"UINT8","parameters":{"binary_data_size":%[1]d}}]}`, size), data
}

func TestLargeBinaryTensorsGoThereAndBack(t *testing.T) {
	server := newBinaryServer(t)
	doc, data := binaryBody(1 << 20)
	for _, hideLength := range []bool{false, true} {
		var body io.Reader = strings.NewReader(doc + string(data))
		if hideLength {
			body = io.MultiReader(body)
		}
		header := http.Header{kserve.JSONLengthHeader: {strconv.Itoa(len(doc))}}
		a := do(t, server, http.MethodPost, "/v2/models/large/infer", header, body)
		if !strings.HasSuffix(a.body, "]}"+string(data)) {
			t.Errorf("status %d, %.200s", a.status, a.body)
		}
	}
}

func TestEveryBufferIsGivenBack(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{Log: slog.New(slog.DiscardHandler)})
	before := buf.Live()
	for i := range 30 {
		backend.Before = func(context.Context, *infer.Request) error {
			switch i % 3 {
			case 0:
				return infer.Errorf(infer.Overloaded, "full")
			case 1:
				panic("a bug")
			}
			return nil
		}
		post(t, server, strings.NewReader(inferBody))
		post(t, server, strings.NewReader(inferBody[1:]))
		post(t, server, strings.NewReader(`{"outputs":[{"name":"NOPE"}],`+inferBody[1:]))
	}
	server.Close() // a response may arrive before its memory is released
	if after := buf.Live(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

func TestHeadersReachTheBackendAsParameters(t *testing.T) {
	pattern, err := kserve.ParseHeaderPattern("^x-")
	if err != nil {
		t.Fatal(err)
	}
	backend, server := newServer(t, kservehttp.Options{ForwardHeaders: pattern, Name: "triton"})
	seen := 0
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if want := []infer.Parameter{{Name: "x-tenant", Value: "a"}}; !slices.Equal(req.Parameters, want) {
			t.Errorf("parameters %v, want %v", req.Parameters, want)
		}
		seen++
		return nil
	}
	body := `{"parameters":{"x-tenant":"forged"},"inputs":[{"name":"INPUT","shape":[1,16],"datatype":"FP32","data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}]}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v2/models/identity/infer", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Tenant", "a")
	if resp, err := server.Client().Do(r); err != nil || resp.StatusCode != http.StatusOK || seen != 1 {
		t.Fatalf("%v, %v; the backend saw %d requests, want 1", resp, err, seen)
	} else if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	resp, err := server.Client().Get(server.URL + "/v2") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); !strings.HasPrefix(string(answer), `{"name":"triton",`) {
		t.Errorf("metadata %s", answer)
	}
}
