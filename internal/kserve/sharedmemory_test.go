package kserve_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/tensor"
)

// newRegions returns a table with a region r of the given contents, and its file.
func newRegions(t *testing.T, data string, opts kserve.RegionOptions) (regions *kserve.Regions, file string) {
	t.Helper()
	key, file := kservetest.SharedMemory(t, []byte(data))
	regions = kserve.NewRegions(opts)
	t.Cleanup(func() { _ = regions.Unregister("") })
	if err := regions.Register(kserve.Region{Name: "r", Key: key, Size: uint64(len(data))}); err != nil {
		t.Fatal(err)
	}
	return regions, file
}

// shared returns a request with one input and one output in the region r.
func shared(in, out kserve.RegionSlice) (*infer.Request, *kserve.SharedTensors) {
	s := &kserve.SharedTensors{}
	s.AddInput(0, in)
	s.AddOutput("OUT", out)
	return &infer.Request{Model: "m", Inputs: []tensor.Tensor{{Name: "IN", Type: tensor.Uint8}}}, s
}

func slice(offset, size uint64) kserve.RegionSlice {
	return kserve.RegionSlice{Region: "r", Offset: offset, Size: size}
}

// answer is what a server does with a response: it converts the output, which holds data.
func answer(req *infer.Request, data string) (*infer.Response, error) {
	resp := &infer.Response{Memory: buf.Get(len(data))}
	copy(resp.Memory.B, data)
	resp.Outputs = []tensor.Tensor{{Name: "OUT", Type: tensor.Uint8, Data: resp.Memory.B}}
	return resp, req.Convert(resp, false, nil)
}

func TestTensorsAreReadFromAndWrittenToRegions(t *testing.T) {
	before := buf.Live()
	regions, file := newRegions(t, "0123456789", kserve.RegionOptions{})
	req, s := shared(slice(2, 3), slice(5, 4))
	body := buf.Get(1)
	req.Memory = body
	a, err := regions.Attach(req, s)
	if err != nil {
		t.Fatal(err)
	}
	body.Release() // as the caller does, sooner or later
	if got := string(req.Inputs[0].Data); got != "234" {
		t.Errorf("the input is %q, want 234", got)
	}
	resp, err := answer(req, "abc")
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Outputs[0].Data) != 0 {
		t.Errorf("the response still has the data %q", resp.Outputs[0].Data)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "01234abc89" {
		t.Errorf("the region is %q: %v", b, err)
	}
	resp.Release()
	a.Release()
	a.Release() // may be called again
	if live := buf.Live() - before; live != 0 {
		t.Errorf("%d buffers are not released", live)
	}
}

func TestAnInputStaysAsItWasWhenTheRequestCame(t *testing.T) {
	regions, file := newRegions(t, "old", kserve.RegionOptions{})
	req, s := shared(slice(0, 3), slice(0, 3))
	a, err := regions.Attach(req, s)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(req.Inputs[0].Data); got != "old" {
		t.Errorf("the model is given %q, which the client wrote later", got)
	}
}

func TestATruncatedRegionFailsItsRequestOnly(t *testing.T) {
	before := buf.Live()
	regions, file := newRegions(t, "0123456789", kserve.RegionOptions{})
	const want = "shared memory region 'r' is smaller than when it was registered"
	req, s := shared(slice(0, 10), slice(5, 5))
	a, err := regions.Attach(req, s) // the control: nothing is truncated yet
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 8); err != nil {
		t.Fatal(err)
	}
	if _, err := answer(req, "abcde"); infer.CodeOf(err) != infer.Invalid || err.Error() != want {
		t.Errorf("an output: %v, want %s", err, want)
	}
	a.Release()
	req, s = shared(slice(0, 10), slice(0, 1))
	if _, err := regions.Attach(req, s); infer.CodeOf(err) != infer.Invalid || err.Error() != want {
		t.Errorf("an input: %v, want %s", err, want)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 8 {
		t.Errorf("the object was extended to %d bytes: %v", info.Size(), err)
	}
	req, s = shared(slice(0, 8), slice(0, 1))
	a, err = regions.Attach(req, s)
	if err != nil {
		t.Errorf("what is left of the region: %v", err)
	}
	a.Release()
	if live := buf.Live() - before; live != 0 {
		t.Errorf("%d buffers are not released", live)
	}
}

func TestARegionIsUsableUntilItsRequestsAreDone(t *testing.T) {
	regions, file := newRegions(t, "0123456789", kserve.RegionOptions{})
	req, s := shared(slice(0, 1), slice(0, 3))
	a, err := regions.Attach(req, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := regions.Unregister("r"); err != nil {
		t.Fatal(err)
	}
	if _, err := regions.Status("r"); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("the status of a region that was unregistered: %v", err)
	}
	if resp, err := answer(req, "abc"); err != nil {
		t.Errorf("a request that began before: %v", err)
	} else {
		resp.Release()
	}
	if b, _ := os.ReadFile(file); string(b) != "abc3456789" {
		t.Errorf("the region is %q", b)
	}
	a.Release()
	if _, err := answer(req, "abc"); err == nil {
		t.Error("the region is open although no request uses it")
	}
}

func TestInputsInRegionsAreLimitedAndCharged(t *testing.T) {
	b := budget.New(8 << 10)
	regions, _ := newRegions(t, strings.Repeat("x", 4<<10), kserve.RegionOptions{Budget: b, Limits: kserve.Limits{Decoded: 3 << 10}})
	req, s := shared(slice(0, 3<<10+1), slice(0, 1))
	if _, err := regions.Attach(req, s); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "limit of decoded bytes exceeded") {
		t.Errorf("one byte over the limit: %v", err)
	}
	req, s = shared(slice(0, 2<<10), slice(0, 1))
	req.Inputs = append(req.Inputs, req.Inputs[0])
	s.AddInput(1, slice(0, 2<<10))
	if _, err := regions.Attach(req, s); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "limit of decoded bytes exceeded") {
		t.Errorf("two inputs that exceed it together: %v", err)
	}
	req, s = shared(slice(0, 3<<10), slice(0, 1))
	first, err := regions.Attach(req, s)
	if err != nil || b.State().Used != 4<<10 {
		t.Fatalf("%d bytes are charged: %v, want 4096", b.State().Used, err)
	}
	req, s = shared(slice(0, 1), slice(0, 1))
	if _, err := regions.Attach(req, s); infer.CodeOf(err) != infer.Overloaded { // a model has half of the budget
		t.Errorf("a request over the budget: %v", err)
	}
	first.Release()
	if b.State().Used != 0 {
		t.Errorf("%d bytes are still charged", b.State().Used)
	}
}

func TestElementsOfStringsInRegionsAreLimited(t *testing.T) {
	regions, _ := newRegions(t, "\x08\x00\x00\x0012345678", kserve.RegionOptions{Limits: kserve.Limits{String: 7}})
	req, s := shared(slice(0, 12), slice(0, 1))
	req.Inputs[0].Type = tensor.Bytes
	if _, err := regions.Attach(req, s); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "limit of bytes of a string") {
		t.Errorf("an element over the limit: %v", err)
	}
}

func TestTheNumberOfRegionsIsLimited(t *testing.T) {
	regions, file := newRegions(t, "0", kserve.RegionOptions{})
	key := strings.TrimPrefix(file, "/dev/shm")
	register := func(name string) error { return regions.Register(kserve.Region{Name: name, Key: key, Size: 1}) }
	for i := 1; i < 1024; i++ {
		if err := register(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := register("one too many"); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "limit of shared memory regions exceeded") {
		t.Errorf("region 1025: %v", err)
	}
	if err := regions.Unregister("r"); err != nil {
		t.Fatal(err)
	}
	if err := register("one in its place"); err != nil {
		t.Error(err)
	}
	if err := register(strings.Repeat("n", 1025)); infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), "bytes of a region's name") {
		t.Errorf("a long name: %v", err)
	}
	all, err := regions.Status("")
	if err != nil || len(all) != 1024 {
		t.Errorf("%d regions: %v", len(all), err)
	}
}

func TestWithoutPermissionNothingIsShared(t *testing.T) {
	var regions *kserve.Regions
	for name, err := range map[string]error{
		"register": regions.Register(kserve.Region{Name: "r", Key: "/k", Size: 1}), "unregister": regions.Unregister("r"),
		"register cuda": regions.RegisterCUDA("r"), "unregister cuda": regions.UnregisterCUDA(),
	} {
		if infer.CodeOf(err) != infer.Unsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	req, s := shared(slice(0, 1), slice(0, 1))
	if _, err := regions.Attach(req, s); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("attach: %v", err)
	}
	if a, err := regions.Attach(req, &kserve.SharedTensors{}); err != nil {
		t.Errorf("a request without shared tensors: %v", err)
	} else {
		a.Release()
	}
	if all, err := regions.Status(""); err != nil || len(all) != 0 {
		t.Errorf("status: %v, %v", all, err)
	}
}

func TestClientsMayUseRegionsConcurrently(t *testing.T) {
	regions, file := newRegions(t, "0123456789", kserve.RegionOptions{})
	key := strings.TrimPrefix(file, "/dev/shm")
	var clients sync.WaitGroup
	var answered atomic.Int64
	for i := range 8 {
		clients.Go(func() {
			name := fmt.Sprint(i % 4) // two clients share a name
			for range 200 {
				// Whether it exists is up to the other client.
				_ = regions.Register(kserve.Region{Name: name, Key: key, Size: 10})
				at := kserve.RegionSlice{Region: name, Size: 10}
				req, s := shared(at, at)
				if a, err := regions.Attach(req, s); err == nil {
					resp, err := answer(req, "0123456789")
					if err != nil {
						t.Error(err)
					} else {
						resp.Release()
						answered.Add(1)
					}
					a.Release()
				}
				_ = regions.Unregister(name)
			}
		})
	}
	clients.Wait()
	if answered.Load() == 0 {
		t.Error("no request used a region")
	}
	if all, err := regions.Status(""); err != nil || len(all) != 1 {
		t.Errorf("%v are left: %v", all, err)
	}
}

// A request that registers a region is read, or refused; a region that is accepted has the
// members of its document.
func FuzzDecodeRegister(f *testing.F) {
	for _, doc := range []string{`{"key":"/k","offset":0,"byte_size":64}`, `{"key":"/k"}`, ``, `[]`, `{"key":"\u0000","byte_size":-1}`, `{"key":"a","key":"b","byte_size":1}`, `{"byte_size":1e3,"key":""}`, `{"x":[{}],"key":"k","byte_size":18446744073709551615}`} {
		f.Add([]byte(doc))
	}
	limits := kserve.Limits{Text: 100}.WithDefaults()
	f.Fuzz(func(t *testing.T, doc []byte) {
		reg, err := kserve.DecodeRegister("r", doc, &limits)
		switch {
		case err != nil && reg != kserve.Region{}:
			t.Errorf("%v, and a region %+v", err, reg)
		case err != nil && infer.CodeOf(err) != infer.Invalid:
			t.Errorf("%v has the code %v", err, infer.CodeOf(err))
		case err == nil && (reg.Name != "r" || len(reg.Key) > 100):
			t.Errorf("accepted %+v", reg)
		}
	})
}
