//go:build !race

// Under the race detector pools lose things on purpose, so nothing can be said
// about allocations.

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// allocated is a line of the table of allocations in docs/lab/measurements.md: the face, how
// often memory is taken for a request, and how much at the most.
var allocated = regexp.MustCompile(`(?m)^\| (HTTP, binary|HTTP, JSON|gRPC) \| (\d+) \| ([\d.]+) KB \|$`)

// TestARequestAllocatesWhatTheDocumentSays sends requests of 12.8 KB that are answered
// with 4 KB through each face as a whole, from its socket and back, with net/http or
// grpc-go in it. The client takes no memory, so that all that is taken is the server's.
func TestARequestAllocatesWhatTheDocumentSays(t *testing.T) {
	document, err := os.ReadFile("../../docs/lab/measurements.md")
	if err != nil {
		t.Fatal(err)
	}
	stated := map[string][]string{}
	for _, m := range allocated.FindAllStringSubmatch(string(document), -1) {
		stated[m[1]] = m[2:]
	}
	at := serving(t, 3, slog.DiscardHandler, swiftRepository(t))
	for getStatus(t, "http://"+at["http"]+"/v2/health/ready") != http.StatusOK {
		time.Sleep(time.Millisecond) // the test's own timeout ends it
	}
	clients := map[string]func() error{
		"HTTP, binary": httpClient(t, at["http"], binaryRequest()),
		"HTTP, JSON":   httpClient(t, at["http"], jsonRequest()),
		"gRPC":         grpcClient(t, at["grpc"], grpcRequest(t)),
	}
	for face, ask := range clients {
		if len(stated[face]) == 0 {
			t.Errorf("docs/lab/measurements.md does not say what a request over %s allocates", face)
			continue
		}
		want, _ := strconv.Atoi(stated[face][0])
		most, _ := strconv.ParseFloat(stated[face][1], 64)
		allocs, size := allocations(t, ask)
		t.Logf("%s: %d allocations, %.2f KB", face, allocs, size)
		switch {
		case allocs > want || math.Round(size*10)/10 > most: // the document rounds, too
			t.Errorf("a request over %s takes %d allocations of %.2f KB together, and docs/lab/measurements.md says %d and %.1f", face, allocs, size, want, most)
		case allocs < want-1:
			t.Errorf("a request over %s takes %d allocations, and docs/lab/measurements.md says %d: let it say so", face, allocs, want)
		}
	}
}

// allocations returns how often memory is taken while ask runs, and how many kilobytes.
func allocations(t *testing.T, ask func() error) (count int, size float64) {
	t.Helper()
	const runs = 500
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties the pools
	many := func() {
		for range runs {
			if err := ask(); err != nil {
				t.Fatal(err)
			}
		}
	}
	many() // until the pools are filled
	var before, after runtime.MemStats
	count = int(testing.AllocsPerRun(1, many)+runs/2) / runs
	size = math.Inf(1)
	for range 3 { // what others in the process take meanwhile only adds to it
		runtime.ReadMemStats(&before)
		many()
		runtime.ReadMemStats(&after)
		size = min(size, float64(after.TotalAlloc-before.TotalAlloc)/runs/1000)
	}
	return count, size
}

const rowBytes = 12_800

// swiftRepository has a model that takes no time.
func swiftRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := os.MkdirAll(filepath.Join(dir, "swift", "1"), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "swift", "config.pbtxt"), []byte(`backend: "simulated" max_batch_size: 16
			input { name: "x" data_type: TYPE_FP32 dims: 3200 } output { name: "y" data_type: TYPE_FP32 dims: 1024 }
			dynamic_batching { max_queue_delay_microseconds: 0 } instance_group { count: 1 }`), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func binaryRequest() []byte {
	const head = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3200],"parameters":{"binary_data_size":12800}}],"parameters":{"binary_data_output":true}}`
	return append(fmt.Appendf(nil, "POST /v2/models/swift/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s",
		len(head), len(head)+rowBytes, head), make([]byte, rowBytes)...)
}

func jsonRequest() []byte {
	body := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3200],"data":[` + strings.Repeat("0.25,", rowBytes/4-1) + `0.25]}]}`
	return fmt.Appendf(nil, "POST /v2/models/swift/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func grpcRequest(t *testing.T) []byte {
	t.Helper()
	message, err := proto.Marshal(&kservepb.ModelInferRequest{
		ModelName:        "swift",
		Inputs:           []*kservepb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, rowBytes / 4}}},
		RawInputContents: [][]byte{make([]byte, rowBytes)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

func connection(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(time.Minute))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// httpClient sends a request whenever it is called, and reads the answer. All answers
// are as long as the first.
func httpClient(t *testing.T, address string, request []byte) func() error {
	t.Helper()
	conn := connection(t, address)
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	var first bytes.Buffer
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &first)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v: %s %s", err, resp.Status, body)
	}
	want, answer := first.Bytes(), make([]byte, first.Len())
	status := len("HTTP/1.1 200")
	return func() error {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			return err
		}
		if !bytes.Equal(answer[:status], want[:status]) {
			return fmt.Errorf("answered with %s", answer)
		}
		return nil
	}
}

// grpcClient does the same over gRPC: a header, a message in one frame, and room for
// the next answer.
func grpcClient(t *testing.T, address string, message []byte) func() error {
	t.Helper()
	conn := connection(t, address)
	var out bytes.Buffer
	frames := http2.NewFramer(&out, nil)
	in := bufio.NewReaderSize(conn, 64<<10)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	header := func() []byte {
		block.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: "http"},
			{Name: ":path", Value: kservepb.GRPCInferenceService_ModelInfer_FullMethodName},
			{Name: ":authority", Value: "shoal"},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "user-agent", Value: "test"},
			{Name: "te", Value: "trailers"},
		} {
			if err := encoder.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		return bytes.Clone(block.Bytes())
	}
	first, later := header(), header() // the later one refers to the first
	stream := uint32(1)
	ask := func(header []byte) error {
		send := frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header, EndHeaders: true})
		if send == nil {
			send = frames.WriteData(stream, true, message)
		}
		if send == nil {
			_, send = out.WriteTo(conn)
		}
		if send != nil {
			return send
		}
		// Frames are read by hand, because a Framer takes memory for each.
		for received := 0; ; {
			head, err := in.Peek(9)
			if err != nil {
				return err
			}
			size, kind, flags := int(head[0])<<16|int(head[1])<<8|int(head[2]), http2.FrameType(head[3]), http2.Flags(head[4])
			if _, err := in.Discard(len(head) + size); err != nil {
				return err
			}
			switch {
			case kind == http2.FrameData:
				received += size
			case kind == http2.FrameRSTStream:
				return errors.New("the stream was reset")
			case kind == http2.FrameHeaders && flags.Has(http2.FlagHeadersEndStream):
				if received < 4096 {
					return fmt.Errorf("answered with %d bytes", received)
				}
				stream += 2
				return frames.WriteWindowUpdate(0, uint32(received)) // goes with the next request
			}
		}
	}
	_, _ = out.WriteString(http2.ClientPreface) // into memory
	if err := frames.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	return func() error { return ask(later) }
}
