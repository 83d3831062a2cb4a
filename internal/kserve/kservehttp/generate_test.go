package kservehttp_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/tensor"
)

// A speaker is a decoupled model that sends each word that it is given, until words is
// closed.
type speaker struct {
	words  chan string
	closed chan struct{}
}

func newSpeaker() *speaker {
	return &speaker{words: make(chan string), closed: make(chan struct{})}
}

func (s *speaker) Next(ctx context.Context, resp *infer.Response) error {
	select {
	case word, more := <-s.words:
		*resp = infer.Response{Model: "m", Version: "1", Last: !more, Empty: !more}
		resp.Memory = buf.Get(4 + len(word))
		resp.Outputs = []tensor.Tensor{{Name: "OUT", Type: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendString(resp.Memory.B[:0], word)}}
		if !more {
			resp.Release()
		}
		return nil
	case <-ctx.Done():
		resp.Last = true
		return ctx.Err()
	}
}

func (s *speaker) Close() { close(s.closed) }

const streamPath = "/v2/models/d/generate_stream"

func TestEventsAreSentWhileTheModelRuns(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	model := newSpeaker()
	backend.Stream = func(*infer.Request) infer.ResponseStream { return model }
	go func() { model.words <- "one" }()
	resp, err := server.Client().Post(server.URL+streamPath, "application/json", strings.NewReader(`{"SCRIPT":"","id":"7"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	for _, word := range []string{"one", "two\n", "three"} {
		if word != "one" {
			model.words <- word
		}
		event, err := events.ReadString('\n')
		if want := fmt.Sprintf("data: {\"OUT\":%q,\"id\":\"7\",\"model_name\":\"m\",\"model_version\":\"1\"}\n", word); err != nil || event != want {
			t.Errorf("%q, %v, want %q", event, err, want)
		}
		if line, err := events.ReadString('\n'); line != "\n" {
			t.Errorf("%q follows an event, %v", line, err)
		}
	}
	close(model.words)
	if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 {
		t.Errorf("%q follows the last event, %v", rest, err)
	}
	<-model.closed
}

func TestClosingTheConnectionClosesTheStreamOfTheModel(t *testing.T) {
	for _, words := range [][]string{nil, {"one"}} {
		for _, path := range []string{streamPath, "/v2/models/d/generate"} {
			all := budget.New(1 << 30)
			backend, server := newServer(t, kservehttp.Options{Budget: all})
			model, began := newSpeaker(), make(chan struct{})
			backend.Stream = func(*infer.Request) infer.ResponseStream { close(began); return model }
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			const body = `{"SCRIPT":""}`
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body); err != nil {
				t.Fatal(err)
			}
			<-began
			for _, word := range words {
				model.words <- word
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			<-model.closed
			awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 })
		}
	}
}

func TestAClientThatDoesNotReadItsEventsIsDisconnected(t *testing.T) {
	kservehttp.SetStallTimeout(t, 50*time.Millisecond)
	backend, server := newServer(t, kservehttp.Options{})
	model := newSpeaker()
	backend.Stream = func(*infer.Request) infer.ResponseStream { return model }
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const body = `{"SCRIPT":""}`
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", streamPath, len(body), body); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20)
	for {
		select {
		case model.words <- long:
		case <-model.closed:
			return
		}
	}
}

// An event is charged as long as its memory is used, and one that does not fit the budget
// ends as an error.
func TestAnEventBeyondTheBudgetIsAnError(t *testing.T) {
	all := budget.New(4 << 20) // a model gets half of it
	backend, server := newServer(t, kservehttp.Options{Budget: all})
	model := newSpeaker()
	backend.Stream = func(*infer.Request) infer.ResponseStream { return model }
	go func() {
		for _, size := range []int{10, 3 << 20, 10} {
			model.words <- strings.Repeat("x", size)
		}
		close(model.words)
	}()
	a := do(t, server, http.MethodPost, streamPath, http.Header{}, strings.NewReader(`{"SCRIPT":""}`))
	events := strings.Split(a.body, "\n\n")
	if a.status != http.StatusOK || len(events) != 4 || !strings.Contains(events[1], "--memory-budget") || events[0] != events[2] {
		t.Errorf("status %d, %d events: %.200s", a.status, len(events), a.body)
	}
	awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 })
}

// What does not fit the budget beside the outputs is refused before it is encoded: an infinity at the
// end of the outputs is not found.
func TestGeneratedJSONIsChargedBeforeItIsEncoded(t *testing.T) {
	backend := kservetest.New(t, `name: "m" input { name: "INPUT" data_type: TYPE_FP64 dims: -1 } output { name: "OUTPUT" data_type: TYPE_FP64 dims: -1 }`)
	const elements = 100_000 // 0.8 MiB, and about 2 MiB as JSON
	backend.Before = func(_ context.Context, req *infer.Request) error {
		binary.LittleEndian.PutUint64(req.Inputs[0].Data[8*(elements-1):], math.Float64bits(math.Inf(1)))
		return nil
	}
	for path, tight := range map[string]int64{"generate": 7 << 20, "generate_stream": 5 << 20} { // a model gets half of it
		for total, want := range map[int64]string{16 << 20: "JSON has no infinity", tight: "--memory-budget"} {
			all := budget.New(total)
			server := listen(kservehttp.New(backend, backend, backend, kservehttp.Options{Budget: all}))
			a := do(t, server, http.MethodPost, "/v2/models/m/"+path, nil, strings.NewReader(`{"INPUT":[0`+strings.Repeat(",0", elements-1)+`]}`))
			server.Close()
			if !strings.Contains(a.body, want) {
				t.Errorf("%s with %d MiB: status %d, %.200s, want %q", path, total>>20, a.status, a.body, want)
			}
			if used := all.State().Used; used != 0 {
				t.Errorf("%s: %d bytes are charged afterwards", path, used)
			}
		}
	}
}

// Outputs of a decoupled model are charged until their event is encoded, and the event while it is
// sent.
func TestOutputsOfAStreamAreCharged(t *testing.T) {
	const size = 1 << 20
	all := budget.New(1 << 30)
	backend, server := newServer(t, kservehttp.Options{Budget: all})
	model := newSpeaker()
	backend.Stream = func(*infer.Request) infer.ResponseStream { return model }
	go func() { model.words <- strings.Repeat("x", size) }()
	resp, err := server.Client().Post(server.URL+streamPath, "application/json", strings.NewReader(`{"SCRIPT":""}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, size); err != nil {
		t.Fatal(err)
	}
	if state := all.State(); state.Peak < 2*size || state.Used < size || state.Used >= 2*size {
		t.Errorf("%+v, want at most the outputs and an event, and then the event", state)
	}
	close(model.words)
	awaitUsed(t, all, "nothing", func(used int64) bool { return used == 0 })
}

// The error of a model that is not decoupled is an event if the model ran, and a plain
// answer if not.
func TestErrorsBeforeTheModelRunsAreNotEvents(t *testing.T) {
	backend, server := newServer(t, kservehttp.Options{})
	backend.Before = func(context.Context, *infer.Request) error { return infer.Errorf(infer.Overloaded, "full") }
	const ok, invalid = `{"INPUT":[1,2,3,4]}`, `{"INPUT":[1,2,3]}`
	for body, want := range map[string]string{
		ok:      "429 text/event-stream; charset=utf-8 data: {\"error\":\"full\"}\n\n",
		invalid: `400 application/json {"error":"The schema can not convert input 'INPUT' to tensor with proper shape","hint":"it has 3 elements, which do not make a tensor of shape [-1,4]"}`,
	} {
		a := do(t, server, http.MethodPost, "/v2/models/failing/generate_stream", http.Header{}, strings.NewReader(body))
		if got := fmt.Sprint(a.status, " ", a.header.Get("Content-Type"), " ", a.body); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}
