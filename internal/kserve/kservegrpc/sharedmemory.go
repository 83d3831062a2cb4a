package kservegrpc

import (
	"context"

	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// Shared memory is not supported. These methods report that no regions exist.

func (s *service) SystemSharedMemoryStatus(_ context.Context, in *kservepb.SystemSharedMemoryStatusRequest) (*kservepb.SystemSharedMemoryStatusResponse, error) {
	if in.GetName() != "" {
		return nil, kserve.UnknownRegionStatus("system", in.GetName())
	}
	return &kservepb.SystemSharedMemoryStatusResponse{}, nil
}

func (s *service) SystemSharedMemoryRegister(context.Context, *kservepb.SystemSharedMemoryRegisterRequest) (*kservepb.SystemSharedMemoryRegisterResponse, error) {
	return nil, kserve.ErrSharedMemory
}

func (s *service) SystemSharedMemoryUnregister(context.Context, *kservepb.SystemSharedMemoryUnregisterRequest) (*kservepb.SystemSharedMemoryUnregisterResponse, error) {
	return nil, kserve.ErrSharedMemory
}

func (s *service) CudaSharedMemoryStatus(_ context.Context, in *kservepb.CudaSharedMemoryStatusRequest) (*kservepb.CudaSharedMemoryStatusResponse, error) {
	if in.GetName() != "" {
		return nil, kserve.UnknownRegionStatus("cuda", in.GetName())
	}
	return &kservepb.CudaSharedMemoryStatusResponse{}, nil
}

func (s *service) CudaSharedMemoryRegister(context.Context, *kservepb.CudaSharedMemoryRegisterRequest) (*kservepb.CudaSharedMemoryRegisterResponse, error) {
	return nil, kserve.ErrSharedMemory
}

func (s *service) CudaSharedMemoryUnregister(context.Context, *kservepb.CudaSharedMemoryUnregisterRequest) (*kservepb.CudaSharedMemoryUnregisterResponse, error) {
	return nil, kserve.ErrSharedMemory
}
