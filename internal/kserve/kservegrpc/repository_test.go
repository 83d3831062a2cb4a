package kservegrpc_test

import (
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func TestParametersReachTheControl(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	backend.Loading = func(model string, opts catalog.LoadOptions) error {
		want := catalog.LoadOptions{Config: `{"backend":"x"}`, Files: map[string][]byte{"1/model.onnx": {0, 255, 1}}}
		if model != "failing" || !reflect.DeepEqual(opts, want) {
			t.Errorf("%s loaded with %v, want %v", model, opts, want)
		}
		return nil
	}
	backend.Unloading = func(model string, opts catalog.UnloadOptions) error {
		if model != "failing" || !opts.Dependents {
			t.Errorf("%s unloaded with %v", model, opts)
		}
		return nil
	}
	_, err := client.RepositoryModelLoad(t.Context(), &kservepb.RepositoryModelLoadRequest{
		ModelName: "failing",
		Parameters: map[string]*kservepb.ModelRepositoryParameter{
			"config":            {ParameterChoice: &kservepb.ModelRepositoryParameter_StringParam{StringParam: `{"backend":"x"}`}},
			"file:1/model.onnx": {ParameterChoice: &kservepb.ModelRepositoryParameter_BytesParam{BytesParam: []byte{0, 255, 1}}},
		},
	})
	if err != nil {
		t.Error(err)
	}
	_, err = client.RepositoryModelUnload(t.Context(), &kservepb.RepositoryModelUnloadRequest{
		ModelName: "failing",
		Parameters: map[string]*kservepb.ModelRepositoryParameter{
			"unload_dependents": {ParameterChoice: &kservepb.ModelRepositoryParameter_BoolParam{BoolParam: true}},
		},
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTheReasonOfAFailedLoadReachesTheClient(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	const reason = "DIR/failing/config.pbtxt:3: max_batch_size: found -1, expected at least 0"
	failed := fmt.Errorf("load failed for model 'failing': %w", infer.Errorf(infer.Invalid, reason))
	backend.Loading = func(string, catalog.LoadOptions) error { return failed }
	backend.Unloading = func(string, catalog.UnloadOptions) error { return failed }
	_, loading := client.RepositoryModelLoad(t.Context(), &kservepb.RepositoryModelLoadRequest{ModelName: "failing"})
	_, unloading := client.RepositoryModelUnload(t.Context(), &kservepb.RepositoryModelUnloadRequest{ModelName: "failing"})
	for _, err := range []error{loading, unloading} {
		if got := status.Convert(err); got.Code() != codes.InvalidArgument || got.Message() != failed.Error() {
			t.Errorf("answered %v, want %v", err, failed)
		}
	}
}

func TestTheEpochOfAControlRequestReachesTheServer(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	var got uint64
	outdated := infer.Errorf(infer.Outdated, "the server has seen another")
	backend.Loading = func(_ string, o catalog.LoadOptions) error { got = o.Epoch; return outdated }
	backend.Unloading = func(_ string, o catalog.UnloadOptions) error { got = o.Epoch; return outdated }
	for text, want := range map[string]codes.Code{"7": codes.FailedPrecondition, "new": codes.InvalidArgument} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), kserve.EpochHeader, text)
		got = 0
		_, loading := client.RepositoryModelLoad(ctx, &kservepb.RepositoryModelLoadRequest{ModelName: "a"})
		loaded := got
		got = 0
		_, unloading := client.RepositoryModelUnload(ctx, &kservepb.RepositoryModelUnloadRequest{ModelName: "a"})
		if status.Code(loading) != want || status.Code(unloading) != want || loaded != got || (got == 7) != (text == "7") {
			t.Errorf("%q: %v with %d, %v with %d", text, loading, loaded, unloading, got)
		}
	}
}
