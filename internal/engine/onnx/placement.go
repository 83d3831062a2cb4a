package onnx

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// A placement is a device that instances of a model run on.
type placement struct {
	gpu   *int   // nil means the CPU
	share int    // number of instances there, in proportion to those of other devices
	field string // the configuration's field that requires the GPU; "" means that the CPU will do
}

func (p placement) String() string {
	if p.gpu == nil {
		return "the CPU"
	}
	return fmt.Sprintf("GPU %d", *p.gpu)
}

// CheckDevice returns an error if a configuration asks for a device that the library at the
// given path does not support. cuda is whether it supports CUDA.
func CheckDevice(cfg *modelconfig.Config, cuda bool, library string) error {
	_, err := choosePlacements(cfg, cuda, library)
	return err
}

// choosePlacements returns the devices that a configuration asks for, each once, in the order
// of the file. A group is on the CPU if it asks for that, and otherwise on GPUs if the library
// supports them.
func choosePlacements(cfg *modelconfig.Config, cuda bool, library string) ([]placement, error) {
	groups := cfg.Proto.GetInstanceGroup()
	if len(groups) == 0 {
		groups = []*configpb.ModelInstanceGroup{{}}
	}
	var all []placement
	for i, g := range groups {
		if g.GetPassive() {
			continue
		}
		places, err := groupPlacements(cfg, fmt.Sprintf("instance_group[%d]", i), g, cuda, library)
		if err != nil {
			return nil, err
		}
		for _, p := range places {
			at := slices.IndexFunc(all, func(have placement) bool { return have.String() == p.String() })
			if at < 0 {
				all = append(all, p)
				continue
			}
			all[at].share += p.share
			all[at].field = cmp.Or(all[at].field, p.field)
		}
	}
	return all, nil
}

func groupPlacements(cfg *modelconfig.Config, field string, g *configpb.ModelInstanceGroup, cuda bool, library string) ([]placement, error) {
	asked := g.GetKind() == configpb.ModelInstanceGroup_KIND_GPU
	auto := g.GetKind() == configpb.ModelInstanceGroup_KIND_AUTO
	share := max(1, int(g.GetCount()))
	switch {
	case asked && !cuda:
		return nil, cfg.Wrong(field+".kind", "KIND_GPU",
			"KIND_CPU, because the ONNX Runtime at %s has no CUDA provider; install the library of onnxruntime-gpu, and name it with --onnxruntime-library", library)
	case !asked && !(auto && cuda):
		return []placement{{share: share}}, nil
	}
	if asked {
		field += ".kind"
	} else {
		field = ""
	}
	numbers := g.GetGpus()
	if len(numbers) == 0 {
		numbers = []int32{0}
	}
	var all []placement
	for _, n := range numbers {
		gpu := int(n)
		all = append(all, placement{gpu: &gpu, share: share, field: field})
	}
	return all, nil
}

// A device is where instances of a model run, with the model's weights.
type device struct {
	placement

	shared    *session       // for batches that share the device with others
	exclusive *session       // for exclusive batches, with more threads; nil means that shared runs those too
	weights   *sharedWeights // of both sessions; nil if each has its own
	open      int            // instances; guarded by the model's lock
}

// Close unloads the model from the device.
func (d *device) Close() error {
	for _, s := range []*session{d.shared, d.exclusive} {
		if s != nil {
			s.Close()
		}
	}
	if d.weights == nil {
		return nil
	}
	return d.weights.Close()
}

// leastUsed returns the device with the fewest instances for its share. Instances that take
// the place of others are then where those were.
func leastUsed(devices []*device) *device {
	least := devices[0]
	for _, d := range devices[1:] {
		if d.open*least.share < least.open*d.share {
			least = d
		}
	}
	return least
}

// join adds the instances of a placement to the device that is the same, and reports whether
// there is one.
func join(devices []*device, p placement) bool {
	for _, d := range devices {
		if d.String() == p.String() {
			d.share += p.share
			return true
		}
	}
	return false
}
