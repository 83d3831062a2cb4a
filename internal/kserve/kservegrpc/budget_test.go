package kservegrpc_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// TestTheRatioOfACompressedMessageIsLimited sends zeros, which are compressed to a
// thousandth of their size. Up to 1 MiB that is harmless.
func TestTheRatioOfACompressedMessageIsLimited(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for _, compressor := range []string{gzip.Name, "deflate"} {
		for size, want := range map[int]string{900 << 10: "", 16 << 20: "limit of compression ratio exceeded"} {
			in := bytesInput(size)
			clear(in.RawInputContents[0][4:])
			_, err := client.ModelInfer(t.Context(), in, grpc.UseCompressor(compressor))
			if text := status.Convert(err).Message(); (err == nil) != (want == "") || !strings.Contains(text, want) {
				t.Errorf("%s, %d zeros: %v, want %q", compressor, size, err, want)
			}
		}
	}
}

func TestARequestBeyondTheBudgetIsRejected(t *testing.T) {
	all := budget.New(1 << 20)
	backend, conn := newServer(t, kservegrpc.Options{Budget: all})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	inside, leave := make(chan int64, 1), make(chan struct{})
	backend.Before = func(context.Context, *infer.Request) error {
		inside <- all.State().Used
		<-leave
		return nil
	}
	first := make(chan error, 1)
	go func() {
		_, err := client.ModelInfer(t.Context(), bytesInput(300<<10))
		first <- err
	}()
	if used := <-inside; used < 300<<10 || used > 310<<10 {
		t.Errorf("a request of 300 KiB is charged with %d bytes", used)
	}
	// A model gets half of the budget.
	if _, err := client.ModelInfer(t.Context(), bytesInput(300<<10)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--memory-budget") {
		t.Errorf("the second request: %v, want RESOURCE_EXHAUSTED", err)
	}
	close(leave)
	if err := <-first; err != nil {
		t.Errorf("the request within the budget: %v", err)
	}
	if used := all.State().Used; used != 0 {
		t.Errorf("%d bytes in use after the last answer", used)
	}
}
