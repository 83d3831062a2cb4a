package xds

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

const template = "../../../deploy/envoy/envoy.yaml"

// named are the calls that name a model in their first field.
var named = []protoreflect.Name{"ModelInfer", "ModelStreamInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"}

// descriptors returns what Envoy needs to know of the protocol to find a model's name: the
// calls, and of their requests the first field only.
func descriptors(t *testing.T) string {
	t.Helper()
	whole := protodesc.ToFileDescriptorProto(kservepb.File_grpc_service_proto)
	small := &descriptorpb.FileDescriptorProto{Name: new("name.proto"), Package: whole.Package, Syntax: new("proto3")}
	service := kservepb.File_grpc_service_proto.Services().Get(0)
	s := &descriptorpb.ServiceDescriptorProto{Name: new(string(service.Name()))}
	small.Service = []*descriptorpb.ServiceDescriptorProto{s}
	seen := map[protoreflect.FullName]bool{}
	for _, name := range named {
		m := service.Methods().ByName(name)
		s.Method = append(s.Method, &descriptorpb.MethodDescriptorProto{
			Name: new(string(name)), InputType: new("." + string(m.Input().FullName())), OutputType: new("." + string(m.Input().FullName())),
			ClientStreaming: new(m.IsStreamingClient()), ServerStreaming: new(m.IsStreamingServer()),
		})
		if seen[m.Input().FullName()] {
			continue
		}
		seen[m.Input().FullName()] = true
		small.MessageType = append(small.MessageType, &descriptorpb.DescriptorProto{
			Name: new(string(m.Input().Name())), Field: []*descriptorpb.FieldDescriptorProto{protodesc.ToFieldDescriptorProto(m.Input().Fields().ByNumber(1))},
		})
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{small}})
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(text)
}

func TestTheTemplateFindsNamesInMessages(t *testing.T) {
	text, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	if want := descriptors(t); !strings.Contains(string(text), want) {
		t.Errorf("%s does not have the descriptors %s", template, want)
	}
	for _, name := range named {
		if !strings.Contains(string(text), "inference.GRPCInferenceService."+string(name)+":") {
			t.Errorf("%s does not extract the name from %s", template, name)
		}
	}
}

// issuer is the cluster that the filters for tenants need.
const issuer = `  clusters:
    - name: issuer
      type: STRICT_DNS
      load_assignment: {cluster_name: issuer, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: issuer.example.org, port_value: 443}}}}]}]}
`

// withTenants returns the template with the filters for tenants, as a user adds them.
func withTenants(t *testing.T, text string) string {
	t.Helper()
	filters, err := os.ReadFile(filepath.Join(filepath.Dir(template), "tenants.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const place = "                  # Tokens and limits of tenants: the filters of tenants.yaml go here.\n"
	var indented strings.Builder
	for line := range strings.Lines(string(filters)) {
		indented.WriteString(strings.Repeat(" ", 18) + line)
	}
	if strings.Count(text, place) != 1 || strings.Count(text, "  clusters:\n") != 1 {
		t.Fatalf("%s does not say once where filters and clusters go", template)
	}
	return strings.NewReplacer(place, indented.String(), "  clusters:\n", issuer).Replace(text)
}

func TestTheTemplatesAreValid(t *testing.T) {
	envoy := "../../../bin/envoy"
	if _, err := os.Stat(envoy); err != nil {
		t.Skip("there is no bin/envoy: run tools/get-envoy")
	}
	text, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"envoy": string(text), "with tenants": withTenants(t, string(text))} {
		file := filepath.Join(t.TempDir(), "envoy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(envoy, "--mode", "validate", "-c", file, "-l", "warning").CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
