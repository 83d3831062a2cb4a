package onnx

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// settings are what a configuration asks of the library.
type settings struct {
	session onnxruntime.SessionOptions
	call    onnxruntime.CallOptions
}

const shrinkage = "memory.enable_memory_arena_shrinkage"

// The levels of optimisation by Triton's numbers, which are in no order.
var levels = map[int32]onnxruntime.Optimise{
	0: onnxruntime.OptimiseAll, 1: onnxruntime.OptimiseExtended, -1: onnxruntime.OptimiseBasic, 2: onnxruntime.OptimiseNothing,
}

// readSettings reads optimization.graph.level and a model's parameters:
//
//	intra_op_thread_count                  threads that compute one operator; 0 or nothing means one, or the shared pool
//	execution_mode                         "1" computes branches of the graph side by side
//	inter_op_thread_count                  on so many threads; 0 or nothing means one for each core
//	enable_mem_arena, enable_mem_pattern   "0" switches them off
//	memory.enable_memory_arena_shrinkage   "cpu:0" gives memory back after each batch, "" never; see [peak] for nothing
//	session.KEY                            any setting of ONNX Runtime whose key begins so
//
// Others are left alone: they may be meant for somebody else.
func readSettings(cfg *modelconfig.Config, cores int) (set settings, err error) {
	set.session.Config, set.call.Config = map[string]string{}, map[string]string{}
	level := cfg.Proto.GetOptimization().GetGraph().GetLevel()
	var known bool
	if set.session.Optimise, known = levels[level]; !known {
		return set, cfg.Wrong("optimization.graph.level", level, "0 for all that can be done to the graph, 1 for the extended, -1 for the basic, or 2 for nothing")
	}
	branches, parallel := 0, 0
	for _, key := range slices.Sorted(maps.Keys(cfg.Parameters)) {
		value := cfg.Parameters[key]
		switch {
		case key == "intra_op_thread_count":
			set.session.Threads, err = number(cfg, key, "a number of threads")
		case key == "inter_op_thread_count":
			branches, err = number(cfg, key, "a number of threads")
		case key == "execution_mode":
			parallel, err = flag(cfg, key)
		case key == "enable_mem_arena":
			set.session.NoArena, err = isOff(cfg, key)
		case key == "enable_mem_pattern":
			set.session.NoPattern, err = isOff(cfg, key)
		case key == shrinkage:
			set.call.Config[key] = value
		case strings.HasPrefix(key, "session."):
			set.session.Config[key] = value
		}
		if err != nil {
			return set, err
		}
	}
	if parallel == 1 {
		set.session.Parallel = branches
		if branches == 0 {
			set.session.Parallel = cores
		}
	}
	_, told := set.call.Config[shrinkage]
	set.call.CanShrink = !told && !set.session.NoArena
	return set, nil
}

const spinning = "session.intra_op.allow_spinning"

// useThreads computes each operator with so many threads, where the configuration
// leaves that open. Threads that spin while they wait for work would take the cores
// from others.
func (set *settings) useThreads(n int) {
	set.session.Threads = n
	if _, told := set.session.Config[spinning]; !told {
		set.session.Config[spinning] = "0"
	}
}

func number(cfg *modelconfig.Config, key, expected string) (int, error) {
	n, err := strconv.Atoi(cfg.Parameters[key])
	if err != nil || n < 0 {
		return 0, badParameter(cfg, key, expected)
	}
	return n, nil
}

func flag(cfg *modelconfig.Config, key string) (int, error) {
	n, err := strconv.Atoi(cfg.Parameters[key])
	if err != nil || n < 0 || n > 1 {
		return 0, badParameter(cfg, key, "0 or 1")
	}
	return n, nil
}

func isOff(cfg *modelconfig.Config, key string) (bool, error) {
	n, err := flag(cfg, key)
	return err == nil && n == 0, err
}

func badParameter(cfg *modelconfig.Config, key, expected string) error {
	return cfg.Wrong(fmt.Sprintf("parameters[%s]", key), fmt.Sprintf("%q", cfg.Parameters[key]), "%s", expected)
}

// A place is where a model computes.
type place struct {
	gpu   *int   // nil means the CPU
	field string // that asks for the GPU; "" means that the CPU is as good
}

func (p place) String() string {
	if p.gpu == nil {
		return "the CPU"
	}
	return fmt.Sprintf("GPU %d", *p.gpu)
}

// placement says where a configuration wants its model: on a GPU if the library
// can use one, unless it says otherwise. All groups are in one place, because
// their instances run one session.
func placement(cfg *modelconfig.Config, cuda bool, library string) (place, error) {
	groups := cfg.Proto.GetInstanceGroup()
	if len(groups) == 0 {
		groups = []*configpb.ModelInstanceGroup{{}}
	}
	var first place
	for i, g := range groups {
		field := fmt.Sprintf("instance_group[%d]", i)
		p, err := placeOf(cfg, field, g, cuda, library)
		if err != nil {
			return p, err
		}
		if i == 0 {
			first = p
		} else if p.String() != first.String() {
			return p, cfg.Wrong(field+".kind", p, "%v, as in instance_group[0], because all instances of a model share its weights", first)
		}
		if first.field == "" {
			first.field = p.field
		}
	}
	return first, nil
}

func placeOf(cfg *modelconfig.Config, field string, g *configpb.ModelInstanceGroup, cuda bool, library string) (place, error) {
	asked := g.GetKind() == configpb.ModelInstanceGroup_KIND_GPU
	auto := g.GetKind() == configpb.ModelInstanceGroup_KIND_AUTO
	switch {
	case asked && !cuda:
		return place{}, cfg.Wrong(field+".kind", "KIND_GPU",
			"KIND_CPU, because the ONNX Runtime at %s has no CUDA provider; install the library of onnxruntime-gpu, and name it with --onnxruntime-library", library)
	case !asked && !(auto && cuda):
		return place{}, nil
	case len(slices.Compact(slices.Sorted(slices.Values(g.GetGpus())))) > 1:
		return place{}, cfg.Wrong(field+".gpus", g.GetGpus(), "one, because all instances of a model share its weights; serve it a second time under another name")
	}
	p := place{gpu: new(int)}
	if len(g.GetGpus()) > 0 {
		*p.gpu = int(g.GetGpus()[0])
	}
	if asked {
		p.field = field + ".kind"
	}
	return p, nil
}
