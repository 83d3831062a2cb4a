package kserve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/shm"
	"github.com/shoal-serving/shoal/tensor"
)

const (
	// maxRegions is the number of regions that may be registered. Each has a descriptor.
	maxRegions = 1024

	// maxRegionName is the length of the longest name of a region, in bytes.
	maxRegionName = 1024

	// reservedKeys begin the keys that Triton's Python backend uses for itself.
	reservedKeys = "triton_python_backend_shm_region_"
)

// A Region is a part of a POSIX shared memory object that a client registered by a name.
type Region struct {
	Name   string
	Key    string // the name of the object
	Offset uint64
	Size   uint64 // in bytes
}

// Regions are the system shared memory regions that clients have registered. A region
// belongs to no client: any client may use it or unregister it, as in Triton. Its memory is
// read and written, but not mapped, because the client can truncate it; see package shm.
//
// The methods may be called concurrently. A nil Regions is that of a server whose clients
// may not use shared memory.
type Regions struct {
	opts RegionOptions

	mu     sync.Mutex // guards the following, and the users of each region
	byName map[string]*region
}

// RegionOptions configure the regions of a server. The zero value is usable.
type RegionOptions struct {
	// Limits bound the tensors of one request: their sum by the limit of decoded bytes, and
	// the elements of BYTES tensors by that of a string.
	Limits Limits

	// Budget bounds the copies of all tensors. Nil means no limit.
	Budget *budget.Budget
}

// A region stays open until it is unregistered and no request uses it.
type region struct {
	Region

	object *shm.Object
	users  int // requests, and the table while the region is registered
}

// NewRegions returns an empty table.
func NewRegions(opts RegionOptions) *Regions {
	opts.Limits = opts.Limits.WithDefaults()
	return &Regions{opts: opts, byName: map[string]*region{}}
}

// Shared memory belongs to the whole machine: its regions are changed by callers that may
// configure the server, and read by those that may observe it.

// RegisterRegion registers a region with r for a caller that may.
func RegisterRegion(ctx context.Context, a Authorizer, r *Regions, reg Region) error {
	return changeRegions(ctx, a, "register shared memory", reg.Name, func() error { return r.Register(reg) })
}

// UnregisterRegion removes a region, or all if name is "", for a caller that may.
func UnregisterRegion(ctx context.Context, a Authorizer, r *Regions, name string) error {
	return changeRegions(ctx, a, "unregister shared memory", name, func() error { return r.Unregister(name) })
}

// RegisterCUDARegion and UnregisterCUDARegion return the error of memory of GPUs, which is
// not supported, to a caller that may use it.
func RegisterCUDARegion(ctx context.Context, a Authorizer, r *Regions, name string) error {
	return changeRegions(ctx, a, "register CUDA shared memory", name, func() error { return r.RegisterCUDA(name) })
}

// UnregisterCUDARegion is for memory of GPUs; see RegisterCUDARegion.
func UnregisterCUDARegion(ctx context.Context, a Authorizer, r *Regions, name string) error {
	return changeRegions(ctx, a, "unregister CUDA shared memory", name, r.UnregisterCUDA)
}

func changeRegions(ctx context.Context, a Authorizer, what, name string, do func() error) error {
	return a.Change(ctx, access.Change{Action: access.Configure, What: what, Detail: name}, do)
}

// RegionStatus returns the region of the given name, or all, to a caller that may know them.
func RegionStatus(ctx context.Context, a Authorizer, r *Regions, name string) ([]Region, error) {
	if err := a.Authorize(ctx, access.Observe, ""); err != nil {
		return nil, err
	}
	return r.Status(name)
}

// CUDARegionStatus returns the error for a region in the memory of GPUs. There are none.
func CUDARegionStatus(ctx context.Context, a Authorizer, name string) error {
	if err := a.Authorize(ctx, access.Observe, ""); err != nil {
		return err
	}
	if name != "" {
		return UnknownRegionStatus("cuda", name)
	}
	return nil
}

// Register adds a region. Its object must exist and be at least as large as the region.
func (r *Regions) Register(reg Region) error {
	switch {
	case r == nil:
		return ErrSharedMemory
	case reg.Name == "":
		return infer.Errorf(infer.Invalid, "'region name' is necessary to register system shared memory region")
	case len(reg.Name) > maxRegionName:
		return checkLimit("bytes of a region's name", int64(len(reg.Name)), maxRegionName)
	case !utf8.ValidString(reg.Name + reg.Key):
		return infer.Errorf(infer.Invalid, "the name or the key of a shared memory region is not UTF-8")
	}
	if err := checkKey(reg); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, exists := r.byName[reg.Name]; exists {
		return infer.Errorf(infer.Invalid, "shared memory region '%s' already in manager", reg.Name)
	}
	if err := checkLimit("shared memory regions", int64(len(r.byName)+1), maxRegions); err != nil {
		return err
	}
	object, err := openRegion(reg)
	if err != nil {
		return err
	}
	r.byName[reg.Name] = &region{Region: reg, object: object, users: 1}
	return nil
}

func checkKey(reg Region) error {
	file, err := shm.FileName(reg.Key)
	switch {
	case err != nil:
		return infer.Errorf(infer.Invalid, "cannot register shared memory region '%s' - invalid shm key '%s'", reg.Name, reg.Key).
			WithHint("a key is a name without slashes, as shm_open takes it; one slash may precede it")
	case strings.HasPrefix(file, reservedKeys):
		return infer.Errorf(infer.Invalid, "cannot register shared memory region '%s' with key '%s' as the key contains the reserved prefix '%s'",
			reg.Name, reg.Key, reservedKeys)
	}
	return nil
}

// openRegion opens the object of a region and checks its size. The caller closes it.
func openRegion(reg Region) (*shm.Object, error) {
	object, err := shm.Open(reg.Key)
	if err != nil {
		// The cause is left out: it would tell clients which files exist.
		return nil, infer.Errorf(infer.Internal, "Unable to open shared memory region: '%s'", reg.Key).
			WithHint("it must exist in /dev/shm of the server's machine or container, and the server must be allowed to read and write it")
	}
	size, err := object.Size()
	switch {
	case err != nil:
		err = infer.Errorf(infer.Internal, "Invalid shared memory region: '%s'", reg.Key)
	case reg.Size == 0 || reg.Offset > uint64(size) || reg.Size > uint64(size)-reg.Offset:
		err = infer.Errorf(infer.Invalid, "failed to register shared memory region '%s': invalid args", reg.Name).
			WithHint("the object has %d bytes; the region must have at least one, and must not exceed it", size)
	}
	if err != nil {
		_ = object.Close() // nothing was written
		return nil, err
	}
	return object, nil
}

// Unregister removes a region, or all if name is "". It is not an error if there is none.
// Requests in flight can still use it.
func (r *Regions) Unregister(name string) error {
	if r == nil {
		return ErrSharedMemory
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reg := range r.byName {
		if name == "" || name == reg.Name {
			delete(r.byName, reg.Name)
			reg.release()
		}
	}
	return nil
}

// release gives up one use. The caller holds the lock.
func (reg *region) release() {
	if reg.users--; reg.users == 0 {
		_ = reg.object.Close() // memory has no write that could fail now
	}
}

// Status returns the region of the given name, or all in the order of their names if it
// is "".
func (r *Regions) Status(name string) ([]Region, error) {
	var found []Region
	if r != nil {
		r.mu.Lock()
		for _, reg := range r.byName {
			if name == "" || name == reg.Name {
				found = append(found, reg.Region)
			}
		}
		r.mu.Unlock()
	}
	if name != "" && len(found) == 0 {
		return nil, UnknownRegionStatus("system", name)
	}
	slices.SortFunc(found, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// A RegionSlice is where a tensor of a request is: a part of a region.
type RegionSlice struct {
	Region string
	Offset uint64 // in the region
	Size   uint64 // in bytes
}

// SharedTensors are the tensors of a request that are in shared memory.
type SharedTensors struct {
	inputs  []sharedInput
	outputs []sharedOutput
}

type sharedInput struct {
	index int // in the request's inputs
	at    RegionSlice
}

type sharedOutput struct {
	name string
	at   RegionSlice
}

// Empty reports whether no tensor of the request is in shared memory.
func (s *SharedTensors) Empty() bool { return len(s.inputs)+len(s.outputs) == 0 }

// AddInput adds the input with the given index.
func (s *SharedTensors) AddInput(index int, at RegionSlice) {
	s.inputs = append(s.inputs, sharedInput{index, at})
}

// AddOutput adds an output. If it is added twice, the first call counts.
func (s *SharedTensors) AddOutput(name string, at RegionSlice) {
	if !s.hasOutput(name) {
		s.outputs = append(s.outputs, sharedOutput{name, at})
	}
}

func (s *SharedTensors) hasOutput(name string) bool {
	return slices.ContainsFunc(s.outputs, func(o sharedOutput) bool { return o.name == name })
}

// An Attachment is what a request uses of the regions. The zero value uses nothing.
type Attachment struct {
	regions *Regions
	used    []*region
	outputs []sharedOutput // of used, whose last elements are their regions
	memory  *buf.Buf       // copies of the inputs; nil if there are none
	charge  budget.Charge
}

// Attach copies the inputs of req that are in shared memory, and makes the server write
// the outputs that are, by setting req.Convert. Both happen before the client is answered;
// the memory of a client that does not wait is not touched later.
//
// The caller releases the attachment when it has the last response to the request, unless
// Attach returns an error. It keeps its reference to the memory that req had before.
func (r *Regions) Attach(req *infer.Request, s *SharedTensors) (Attachment, error) {
	if s.Empty() {
		return Attachment{}, nil
	}
	a := Attachment{regions: r, outputs: s.outputs}
	if err := a.use(s); err != nil {
		return Attachment{}, err
	}
	if err := a.read(req, s.inputs); err != nil {
		a.Release()
		return Attachment{}, err
	}
	if len(s.outputs) > 0 {
		req.Convert = a.thenWrite(req.Convert)
	}
	return a, nil
}

// use finds the regions and checks that the tensors are within them.
func (a *Attachment) use(s *SharedTensors) error {
	all := make([]RegionSlice, 0, len(s.inputs)+len(s.outputs))
	for _, in := range s.inputs {
		all = append(all, in.at)
	}
	for _, out := range s.outputs {
		all = append(all, out.at)
	}
	if a.regions == nil {
		return UnknownRegion(all[0].Region).WithHint("%s", ErrSharedMemory.Text)
	}
	a.regions.mu.Lock()
	defer a.regions.mu.Unlock()
	for _, at := range all {
		reg := a.regions.byName[at.Region]
		if err := reg.check(at); err != nil {
			a.releaseLocked()
			return err
		}
		reg.users++
		a.used = append(a.used, reg)
	}
	return nil
}

// check returns an error unless a tensor is within the region, which may be nil.
func (reg *region) check(at RegionSlice) error {
	switch {
	case reg == nil:
		return UnknownRegion(at.Region)
	case at.Offset >= reg.Size:
		return infer.Errorf(infer.Invalid, "Invalid offset for shared memory region: '%s'", at.Region)
	case at.Size > math.MaxUint64-at.Offset:
		return infer.Errorf(infer.Invalid, "Integer overflow detected: byte_size (%d) + offset (%d) exceeds maximum value (%d) for region '%s'",
			at.Size, at.Offset, uint64(math.MaxUint64), at.Region)
	case at.Size > reg.Size-at.Offset:
		return infer.Errorf(infer.Invalid, "Invalid offset + byte size for shared memory region: '%s'", at.Region)
	}
	return nil
}

// start returns where a tensor begins in the object of its region.
func (reg *region) start(at RegionSlice) int64 { return int64(reg.Offset + at.Offset) }

// read copies the inputs to memory of their own.
func (a *Attachment) read(req *infer.Request, inputs []sharedInput) error {
	if len(inputs) == 0 {
		return nil
	}
	var size uint64
	for _, in := range inputs {
		size += (in.at.Size + 7) &^ 7 // keeps the next one aligned for any type
		if err := a.regions.opts.Limits.CheckDecoded(int64(min(size, math.MaxInt64))); err != nil {
			return err
		}
	}
	a.charge = a.regions.opts.Budget.OpenModel(req.Model)
	if !a.charge.Grow(int64(buf.Capacity(int(size)))) {
		return ErrOverBudget
	}
	data, before := buf.Get(int(size)), req.Memory
	before.Retain()
	a.memory = buf.Wrap(nil, func() {
		data.Release()
		before.Release()
	})
	req.Memory = a.memory
	free := data.B
	for i, in := range inputs {
		t := &req.Inputs[in.index]
		t.Data = free[:in.at.Size:in.at.Size]
		if err := a.used[i].object.Read(t.Data, a.used[i].start(in.at)); err != nil {
			return regionFailed(in.at.Region, err)
		}
		if err := a.regions.opts.Limits.CheckStrings(t); err != nil {
			return err
		}
		free = free[(in.at.Size+7)&^7:]
	}
	return nil
}

// thenWrite returns an [infer.Request.Convert] that calls convert, if that is not nil, and
// then writes the outputs that are in shared memory.
func (a *Attachment) thenWrite(convert func(*infer.Response, bool, map[string][]string) error) func(*infer.Response, bool, map[string][]string) error {
	outputs, used := a.outputs, a.used[len(a.used)-len(a.outputs):]
	return func(resp *infer.Response, batched bool, labels map[string][]string) error {
		if convert != nil {
			if err := convert(resp, batched, labels); err != nil {
				return err
			}
		}
		for i, out := range outputs {
			at := slices.IndexFunc(resp.Outputs, func(t tensor.Tensor) bool { return t.Name == out.name })
			if at < 0 {
				continue // the server reports that the model did not return it
			}
			if err := used[i].write(&resp.Outputs[at], out.at); err != nil {
				resp.Release()
				return err
			}
		}
		return nil
	}
}

// write writes an output to its place in the region. The response has its name, type and
// shape only.
func (reg *region) write(out *tensor.Tensor, at RegionSlice) error {
	if uint64(len(out.Data)) > at.Size {
		return infer.Errorf(infer.Invalid, "shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
			out.Name, at.Size, len(out.Data))
	}
	if err := reg.object.Write(out.Data, reg.start(at)); err != nil {
		return regionFailed(at.Region, err)
	}
	out.Data = nil
	return nil
}

// regionFailed returns the error for a region that cannot be read or written.
func regionFailed(name string, err error) error {
	if errors.Is(err, shm.ErrTruncated) {
		return infer.Errorf(infer.Invalid, "shared memory region '%s' is smaller than when it was registered", name).
			WithHint("its object was truncated; unregister the region, and register it again")
	}
	return fmt.Errorf("shared memory region '%s': %w", name, err)
}

// Release gives up the regions and the copies of the inputs. It may be called again.
func (a *Attachment) Release() {
	a.memory.Release()
	a.charge.Close()
	a.memory = nil
	if len(a.used) == 0 {
		return
	}
	a.regions.mu.Lock()
	defer a.regions.mu.Unlock()
	a.releaseLocked()
}

func (a *Attachment) releaseLocked() {
	for _, reg := range a.used {
		reg.release()
	}
	a.used = nil
}

// DecodeRegister decodes the body of an HTTP request that registers a region of the given
// name.
func DecodeRegister(name string, body []byte, limits *Limits) (Region, error) {
	reg := Region{Name: name}
	var hasKey, hasSize bool
	err := decodeMembers(body, limits, func(d *document, member string) (err error) {
		switch member {
		case "key":
			hasKey = true
			reg.Key, err = d.string(member)
		case "offset":
			reg.Offset, err = d.uint(member)
		case "byte_size":
			hasSize = true
			reg.Size, err = d.uint(member)
		default:
			err = d.skip()
		}
		return err
	})
	switch {
	case err != nil:
		return Region{}, err
	case !hasKey:
		return Region{}, infer.Errorf(infer.Invalid, "Shared memory register request has no 'key' field")
	case !hasSize:
		return Region{}, infer.Errorf(infer.Invalid, "Shared memory register request has no 'byte_size' field")
	}
	return reg, nil
}

// RegisterCUDA returns the error for a request that registers a region of a GPU's memory,
// which is that of a Triton without GPUs.
func (r *Regions) RegisterCUDA(name string) error {
	switch {
	case r == nil:
		return ErrSharedMemory
	case name == "":
		return infer.Errorf(infer.Invalid, "'region name' is necessary to register cuda shared memory region")
	}
	return infer.Errorf(infer.Invalid, "failed to register CUDA shared memory region: '%s', GPUs not supported", name)
}

// UnregisterCUDA removes no region: no region of a GPU's memory can be registered.
func (r *Regions) UnregisterCUDA() error {
	if r == nil {
		return ErrSharedMemory
	}
	return nil
}

// UnknownRegion returns the error for a tensor in a region that is not registered.
func UnknownRegion(region string) *infer.Error {
	return infer.Errorf(infer.NotFound, "Unable to find shared memory region: '%s'", region)
}

// UnknownRegionStatus returns the error for a status request about a shared memory region of
// the given kind.
func UnknownRegionStatus(kind, region string) error {
	return infer.Errorf(infer.NotFound, "Unable to find %s shared memory region: '%s'", kind, region)
}
