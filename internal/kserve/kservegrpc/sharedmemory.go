package kservegrpc

import (
	"context"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func (s *service) SystemSharedMemoryStatus(ctx context.Context, in *kservepb.SystemSharedMemoryStatusRequest) (*kservepb.SystemSharedMemoryStatusResponse, error) {
	regions, err := kserve.RegionStatus(ctx, s.catalog, s.opts.Regions, in.GetName())
	if err != nil {
		return nil, err
	}
	out := &kservepb.SystemSharedMemoryStatusResponse{Regions: map[string]*kservepb.SystemSharedMemoryStatusResponse_RegionStatus{}}
	for _, r := range regions {
		out.Regions[r.Name] = &kservepb.SystemSharedMemoryStatusResponse_RegionStatus{Name: r.Name, Key: r.Key, Offset: r.Offset, ByteSize: r.Size}
	}
	return out, nil
}

func (s *service) SystemSharedMemoryRegister(ctx context.Context, in *kservepb.SystemSharedMemoryRegisterRequest) (*kservepb.SystemSharedMemoryRegisterResponse, error) {
	region := kserve.Region{Name: in.GetName(), Key: in.GetKey(), Offset: in.GetOffset(), Size: in.GetByteSize()}
	return &kservepb.SystemSharedMemoryRegisterResponse{}, kserve.RegisterRegion(ctx, s.catalog, s.opts.Regions, region)
}

func (s *service) SystemSharedMemoryUnregister(ctx context.Context, in *kservepb.SystemSharedMemoryUnregisterRequest) (*kservepb.SystemSharedMemoryUnregisterResponse, error) {
	return &kservepb.SystemSharedMemoryUnregisterResponse{}, kserve.UnregisterRegion(ctx, s.catalog, s.opts.Regions, in.GetName())
}

// The memory of GPUs is not supported.

func (s *service) CudaSharedMemoryStatus(ctx context.Context, in *kservepb.CudaSharedMemoryStatusRequest) (*kservepb.CudaSharedMemoryStatusResponse, error) {
	return &kservepb.CudaSharedMemoryStatusResponse{}, kserve.CUDARegionStatus(ctx, s.catalog, in.GetName())
}

func (s *service) CudaSharedMemoryRegister(ctx context.Context, in *kservepb.CudaSharedMemoryRegisterRequest) (*kservepb.CudaSharedMemoryRegisterResponse, error) {
	return nil, kserve.RegisterCUDARegion(ctx, s.catalog, s.opts.Regions, in.GetName())
}

func (s *service) CudaSharedMemoryUnregister(ctx context.Context, in *kservepb.CudaSharedMemoryUnregisterRequest) (*kservepb.CudaSharedMemoryUnregisterResponse, error) {
	return &kservepb.CudaSharedMemoryUnregisterResponse{}, kserve.UnregisterCUDARegion(ctx, s.catalog, s.opts.Regions, in.GetName())
}

// A sharedTensor is an input or a requested output, which may be in shared memory.
type sharedTensor interface {
	GetName() string
	GetParameters() map[string]*kservepb.InferParameter
}

// regionSlice returns where a tensor is in shared memory, and whether it is.
func regionSlice(t sharedTensor) (at kserve.RegionSlice, ok bool, err error) {
	if len(t.GetParameters()) == 0 {
		return at, false, nil
	}
	p, ok := t.GetParameters()["shared_memory_region"]
	if ok {
		var isText bool
		if at.Region, isText = p.Value().(string); !isText {
			return at, false, mistypedRegion("shared_memory_region", t, "string_param")
		}
	}
	if at.Offset, err = regionNumber("shared_memory_offset", t, ok); err == nil {
		at.Size, err = regionNumber("shared_memory_byte_size", t, ok)
	}
	return at, ok, err
}

// regionNumber returns a parameter of a tensor that is in a region, or not.
func regionNumber(name string, t sharedTensor, hasRegion bool) (uint64, error) {
	p, ok := t.GetParameters()[name]
	if !ok {
		return 0, nil
	}
	if !hasRegion {
		return 0, infer.Errorf(infer.Invalid, "'%s' can not be specified without 'shared_memory_region' parameter for tensor '%s'", name, t.GetName())
	}
	n, ok := p.Value().(int64)
	if !ok {
		return 0, mistypedRegion(name, t, "int64_param")
	}
	return uint64(n), nil // a negative number is larger than any region
}

func mistypedRegion(name string, t sharedTensor, expected string) error {
	return infer.Errorf(infer.Invalid, "invalid value type for '%s' parameter for tensor '%s', expected %s.", name, t.GetName(), expected)
}
