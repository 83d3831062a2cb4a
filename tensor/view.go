package tensor

import (
	"fmt"
	"unsafe"
)

// Number lists the Go types that have an element [Type]. FP16 and BF16 have no
// Go type and are seen as uint16.
type Number interface {
	~bool | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int16 | ~int32 | ~int64 | ~float32 | ~float64
}

// View returns the elements of t in place, without copying. The result is t's
// memory and lives as long. It is an error if T has another size than t's
// type, or if the data is not aligned for T, as can happen to data that was
// cut out of a network buffer.
func View[T Number](t *Tensor) ([]T, error) {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if t.Type.Size() != size {
		return nil, fmt.Errorf("%v elements of %s cannot be seen as %T", t.Type, t.Name, zero)
	}
	if len(t.Data)%size != 0 {
		return nil, fmt.Errorf("%d bytes of %s are not whole elements of %v", len(t.Data), t.Name, t.Type)
	}
	if len(t.Data) == 0 {
		return nil, nil
	}
	p := unsafe.Pointer(unsafe.SliceData(t.Data))
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		return nil, fmt.Errorf("data of %s is not aligned for %v", t.Name, t.Type)
	}
	return unsafe.Slice((*T)(p), len(t.Data)/size), nil
}

// Data returns the bytes of values in place. The result is their memory.
func Data[T Number](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(values))
	return unsafe.Slice((*byte)(p), len(values)*int(unsafe.Sizeof(values[0])))
}
