package kservegrpc_test

import (
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
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
