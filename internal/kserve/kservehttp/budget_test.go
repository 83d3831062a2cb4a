package kservehttp_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// awaitUsed returns when the given number of bytes of a budget are in use.
func awaitUsed(t *testing.T, b *budget.Budget, what string, ok func(used int64) bool) {
	t.Helper()
	for began := time.Now(); !ok(b.State().Used); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute { // on a busy machine, the race detector takes seconds for an answer of megabytes
			t.Fatalf("%s: %+v", what, b.State())
		}
	}
}

func TestAContentLengthIsNotBelieved(t *testing.T) {
	all := budget.New(1 << 30)
	_, server := newServer(t, kservehttp.Options{Budget: all})
	const clients, declared = 20, 60 << 20
	for range clients {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", inferPath, declared); err != nil {
			t.Fatal(err)
		}
	}
	awaitUsed(t, all, "the first megabyte of each body", func(used int64) bool { return used == clients<<20 })
}

func TestABodyBeyondTheBudgetIsRejected(t *testing.T) {
	backend := kservetest.New(t, `name: "large" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	all := budget.New(32 << 20)
	inside, leave := make(chan int64, 1), make(chan struct{})
	backend.Before = func(context.Context, *infer.Request) error {
		inside <- all.State().Used
		<-leave
		return nil
	}
	server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
	t.Cleanup(server.Close)
	before := buf.Live()
	post := func(size int) answer {
		doc, data := binaryBody(size)
		header := http.Header{kserve.JSONLengthHeader: {fmt.Sprint(len(doc))}}
		return do(t, server, http.MethodPost, "/v2/models/large/infer", header, strings.NewReader(doc+string(data)))
	}
	first := make(chan answer, 1)
	go func() { first <- post(5 << 20) }()
	if used := <-inside; used != 8<<20 {
		t.Errorf("a body of 5 MiB is charged with %d bytes while it runs, want the 8 MiB of its buffer", used)
	}
	// A model gets half of the budget.
	if a := post(9 << 20); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, "--memory-budget") {
		t.Errorf("status %d, %v, %s, want 429", a.status, a.header, a.body)
	}
	close(leave)
	if a := <-first; a.status != http.StatusOK {
		t.Errorf("the request within the budget: status %d, %.100s", a.status, a.body)
	}
	awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 })
	if after := buf.Live(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

func TestJSONTensorsBesideBinaryOnesAreCharged(t *testing.T) {
	backend := kservetest.New(t, `name: "mixed" max_batch_size: 1
		input [ { name: "A" data_type: TYPE_FP64 dims: -1 }, { name: "B" data_type: TYPE_UINT8 dims: 1 } ]
		output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	all := budget.New(32 << 20)
	var used int64
	backend.Before = func(context.Context, *infer.Request) error {
		used = all.State().Used
		return nil
	}
	server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
	t.Cleanup(server.Close)
	const elements = 100_000
	doc := fmt.Sprintf(`{"inputs":[{"name":"A","shape":[1,%d],"datatype":"FP64","data":[0%s]},`+
		`{"name":"B","shape":[1,1],"datatype":"UINT8","parameters":{"binary_data_size":1}}]}`, elements, strings.Repeat(",0", elements-1))
	header := http.Header{kserve.JSONLengthHeader: {fmt.Sprint(len(doc))}}
	do(t, server, http.MethodPost, "/v2/models/mixed/infer", header, strings.NewReader(doc+"x"))
	if want := int64(buf.Capacity(len(doc)+1) + buf.Capacity(8*elements)); used != want {
		t.Errorf("%d bytes are charged while the request runs, want %d", used, want)
	}
}

// What does not fit the budget is refused before it is decoded or encoded: an error at the end of
// the data is not found.
func TestJSONIsChargedBeforeItIsDecodedAndEncoded(t *testing.T) {
	backend := kservetest.New(t, `name: "m" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_FP64 dims: -1 } output { name: "OUTPUT" data_type: TYPE_FP64 dims: -1 }`)
	const elements = 100_000
	zeros := `{"name":"INPUT","shape":[1,%d],"datatype":"FP64","data":[0` + strings.Repeat(",0", elements-2)
	for _, test := range []struct {
		name, last string
		output     float64 // the last element
		budget     int64
		want       string
	}{
		{"a request that fits", ",x]", 0, 16 << 20, "invalid character 'x'"},
		{"a request", ",x]", 0, 1 << 20, "--memory-budget"},
		{"an answer that fits", ",0]", math.Inf(1), 16 << 20, "JSON has no infinity"},
		{"an answer", ",0]", math.Inf(1), 6 << 20, "--memory-budget"},
	} {
		backend.Before = func(_ context.Context, req *infer.Request) error {
			binary.LittleEndian.PutUint64(req.Inputs[0].Data[8*(elements-1):], math.Float64bits(test.output))
			return nil
		}
		all := budget.New(test.budget)
		server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
		a := do(t, server, http.MethodPost, "/v2/models/m/infer", nil, strings.NewReader(`{"inputs":[`+fmt.Sprintf(zeros, elements)+test.last+`}]}`))
		if !strings.Contains(a.body, test.want) {
			t.Errorf("%s: status %d, %.200s, want %q", test.name, a.status, a.body, test.want)
		}
		server.Close()
		if used := all.State().Used; used != 0 {
			t.Errorf("%s: %d bytes are charged afterwards", test.name, used)
		}
	}
}

func TestAnAnswerBeyondTheBudgetIsRejected(t *testing.T) {
	backend := kservetest.New(t, `name: "large" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	for _, test := range []struct {
		name       string
		budget     int64 // the body fits into half of it
		parameters string
		status     int
		retryAfter string
	}{
		{"outputs", 3 << 20, `"binary_data_output":true`, http.StatusTooManyRequests, "1"},
		{"JSON", 5 << 20, `"binary_data_output":false`, http.StatusTooManyRequests, "1"},
		// A request of a sequence has changed its state.
		{"outputs of a sequence", 3 << 20, `"binary_data_output":true,"sequence_id":7`, http.StatusInternalServerError, ""},
		{"JSON of a sequence", 5 << 20, `"sequence_id":"seven"`, http.StatusInternalServerError, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := budget.New(test.budget)
			server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
			defer server.Close()
			doc, data := binaryBody(1<<20 - 1000)
			doc = strings.Replace(doc, `"binary_data_output":true`, test.parameters, 1)
			header := http.Header{kserve.JSONLengthHeader: {fmt.Sprint(len(doc))}}
			a := do(t, server, http.MethodPost, "/v2/models/large/infer", header, strings.NewReader(doc+string(data)))
			if a.status != test.status || a.header.Get("Retry-After") != test.retryAfter {
				t.Errorf("status %d, Retry-After %q, %.200s, want %d and %q", a.status, a.header.Get("Retry-After"), a.body, test.status, test.retryAfter)
			}
			awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 })
		})
	}
}

// A client that does not read holds the answer, compressed, but no compressor.
func TestAnAnswerIsCompressedWithinTheBudgetBeforeItIsSent(t *testing.T) {
	backend := kservetest.New(t, `name: "large" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	doc, data := binaryBody(1 << 20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // does not get smaller
	for _, encoding := range []string{"gzip", "deflate"} {
		for total, want := range map[int64]string{16 << 20: encoding, 8 << 20: ""} { // body and outputs take 3 MiB, and a model gets half
			all := budget.New(total)
			server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
			header := http.Header{kserve.JSONLengthHeader: {fmt.Sprint(len(doc))}, "Accept-Encoding": {encoding}}
			a := do(t, server, http.MethodPost, "/v2/models/large/infer", header, strings.NewReader(doc+string(data)))
			server.Close()
			got := a.header.Get("Content-Encoding")
			if a.status != http.StatusOK || got != want || a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) || !strings.HasSuffix(decompressed(t, got, a.body), string(data)) {
				t.Errorf("%s with %d MiB: status %d, encoding %q, %v", encoding, total>>20, a.status, got, a.header)
			}
			if state := all.State(); state.Used != 0 || (state.Peak >= 5<<20) != (want != "") {
				t.Errorf("%s with %d MiB: %+v", encoding, total>>20, state)
			}
		}
	}
}

// A timedRecorder counts the write deadlines of its connection.
type timedRecorder struct {
	*httptest.ResponseRecorder

	deadlines int
}

func (r *timedRecorder) SetWriteDeadline(time.Time) error {
	r.deadlines++
	return nil
}

func TestLargeDescriptionsAreChargedAndTimed(t *testing.T) {
	const models = 500
	backend := kservetest.New(t, fmt.Sprintf(`name: "m" parameters { key: "k" value { string_value: "%s" } }`, strings.Repeat("x", 100<<10)))
	for i := range models {
		name := fmt.Sprintf("%0100d", i)
		backend.Entries = append(backend.Entries, catalog.IndexEntry{Name: name, Version: "1", State: "UNAVAILABLE", Reason: "unloaded"})
		backend.Stats = append(backend.Stats, catalog.Statistics{Model: name, Version: "1"})
	}
	for _, request := range []string{"GET /v2/models/stats", "GET /v2/models/m/config", "POST /v2/repository/index", "GET /"} {
		method, path, _ := strings.Cut(request, " ")
		for total, want := range map[int64]int{100 << 10: http.StatusTooManyRequests, 10 << 20: http.StatusOK} {
			all := budget.New(total)
			w := &timedRecorder{ResponseRecorder: httptest.NewRecorder()}
			kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}).ServeHTTP(w, httptest.NewRequest(method, path, nil))
			if w.Code != want || (w.deadlines > 0) != (want == http.StatusOK) {
				t.Errorf("%s with %d KiB: status %d with %d bytes and %d deadlines, want %d", request, total>>10, w.Code, w.Body.Len(), w.deadlines, want)
			}
			if state := all.State(); state.Used != 0 || want == http.StatusOK && state.Peak < int64(w.Body.Len()) {
				t.Errorf("%s: %+v for %d bytes", request, state, w.Body.Len())
			}
		}
	}
}

// A cramped listener accepts connections whose send buffers are as small as the kernel allows.
type cramped struct{ net.Listener }

func (l cramped) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(1)
	}
	return c, err
}

// An answer need not be large for that: it must only exceed what the kernel takes.
func TestAClientThatDoesNotReadAShortAnswerIsDisconnected(t *testing.T) {
	kservehttp.SetStallTimeout(t, 50*time.Millisecond)
	backend := kservetest.New(t, `name: "large" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`)
	all := budget.New(1 << 30)
	server := httptest.NewUnstartedServer(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
	server.Listener = kservehttp.Listener(server.Config, cramped{server.Listener}, &kservehttp.Drain{})
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.(*net.TCPConn).SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	doc, data := binaryBody(200 << 10)
	if _, err := fmt.Fprintf(conn, "POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\n%s: %d\r\nContent-Length: %d\r\n\r\n%s%s",
		kserve.JSONLengthHeader, len(doc), len(doc)+len(data), doc, data); err != nil {
		t.Fatal(err)
	}
	awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 && all.State().Peak > 0 })
	if n, _ := io.Copy(io.Discard, conn); n > int64(len(data)) {
		t.Errorf("all %d bytes were sent", n)
	}
}

func TestAClientThatDoesNotReadItsAnswerIsDisconnected(t *testing.T) {
	kservehttp.SetStallTimeout(t, 50*time.Millisecond)
	const size = 12 << 20
	backend := kservetest.New(t, `name: "large" max_batch_size: 1
		input { name: "INPUT" data_type: TYPE_UINT8 dims: -1 } output { name: "OUTPUT" data_type: TYPE_UINT8 dims: -1 }`,
		`name: "text" input { name: "INPUT" data_type: TYPE_STRING dims: 1 } output { name: "OUTPUT" data_type: TYPE_STRING dims: 1 }`)
	doc, _ := binaryBody(size)
	data := make([]byte, size) // does not get smaller
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	infer, generate := "/v2/models/large/infer", "/v2/models/text/generate"
	for _, test := range []struct {
		name, path, header, body string
		start                    func(*httptest.Server)
	}{
		{"plain", infer, "", doc + string(data), (*httptest.Server).Start},
		{"TLS", infer, "", doc + string(data), (*httptest.Server).StartTLS},
		{"compressed", infer, "Accept-Encoding: gzip\r\n", doc + string(data), (*httptest.Server).Start},
		{"generated", generate, "", `{"INPUT":"` + strings.Repeat("x", size) + `"}`, (*httptest.Server).Start},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := budget.New(1 << 30)
			server := httptest.NewUnstartedServer(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
			server.Listener = kservehttp.Listener(server.Config, server.Listener, &kservehttp.Drain{})
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
			test.start(server)
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if server.TLS != nil {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			}
			defer func() { _ = conn.Close() }()
			if test.path == infer {
				test.header += fmt.Sprintf("%s: %d\r\n", kserve.JSONLengthHeader, len(doc))
			}
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", test.path, test.header, len(test.body), test.body); err != nil {
				t.Fatal(err)
			}
			awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 && all.State().Peak > 2*size })
			if n, err := io.Copy(io.Discard, conn); n > size && err == nil {
				t.Errorf("all %d bytes were sent", n)
			}
		})
	}
}
