package bench

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func TestARawRequestIsSentAsItIs(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/predict" || r.Header.Get("Content-Type") != "text/plain" || string(body) != "a body" {
			http.Error(w, `{"error":"another one came"}`, http.StatusBadRequest)
		}
	}))
	t.Cleanup(s.Close)
	c := NewRawHTTP(Raw{Address: strings.TrimPrefix(s.URL, "http://"), Path: "/predict", Header: "Content-Type: text/plain\r\n", Body: []byte("a body")})
	t.Cleanup(func() { _ = c.Close() })
	for range 2 {
		if err := c.Infer(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}

func TestARawMessageIsSentAsItIs(t *testing.T) {
	s := &grpcServer{infer: func(_ context.Context, in *kservepb.ModelInferRequest) error {
		if in.GetModelName() != "other" {
			return errors.New("another one came")
		}
		return nil
	}}
	message, err := proto.Marshal(&kservepb.ModelInferRequest{ModelName: "other"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewRawGRPC(Raw{Address: s.listen(t), Path: kservepb.GRPCInferenceService_ModelInfer_FullMethodName, Body: message})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Infer(t.Context(), 0); err != nil {
		t.Error(err)
	}
}
