package onnx

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// settings are the library's options for a model.
type settings struct {
	session onnxruntime.SessionOptions
	call    onnxruntime.CallOptions
}

const shrinkageKey = "memory.enable_memory_arena_shrinkage"

// optimiseLevels maps Triton's numbers, which are not ordered, to optimisation levels.
var optimiseLevels = map[int32]onnxruntime.Optimise{
	0: onnxruntime.OptimiseAll, 1: onnxruntime.OptimiseExtended, -1: onnxruntime.OptimiseBasic, 2: onnxruntime.OptimiseNothing,
}

// readSettings reads optimization.graph.level and a model's parameters:
//
//	intra_op_thread_count                  threads that compute one operator; 0 or unset means one
//	execution_mode                         "1" computes branches of the graph in parallel
//	inter_op_thread_count                  threads for execution_mode 1; 0 or unset means one per core
//	enable_mem_arena, enable_mem_pattern   "0" switches them off
//	memory.enable_memory_arena_shrinkage   "cpu:0" frees memory after each batch, "" never; if unset, see [batchPeak]
//	session.KEY                            any session option of ONNX Runtime whose key has this prefix
//
// and the options of GPUs; see [readProviders].
//
// It ignores other parameters, which may be meant for clients or other backends.
func readSettings(cfg *modelconfig.Config, cores int) (set settings, err error) {
	set.session.Config, set.call.Config = map[string]string{}, map[string]string{}
	level := cfg.Proto.GetOptimization().GetGraph().GetLevel()
	var known bool
	if set.session.Optimise, known = optimiseLevels[level]; !known {
		return set, cfg.Wrong("optimization.graph.level", level, "0 (all optimizations), 1 (extended), -1 (basic) or 2 (none)")
	}
	branches, parallel := 0, 0
	for _, key := range slices.Sorted(maps.Keys(cfg.Parameters)) {
		value := cfg.Parameters[key]
		switch {
		case key == "intra_op_thread_count":
			set.session.Threads, err = parseCount(cfg, key, "a number of threads")
		case key == "inter_op_thread_count":
			branches, err = parseCount(cfg, key, "a number of threads")
		case key == "execution_mode":
			parallel, err = parseFlag(cfg, key)
		case key == "enable_mem_arena":
			set.session.NoArena, err = parseOff(cfg, key)
		case key == "enable_mem_pattern":
			set.session.NoPattern, err = parseOff(cfg, key)
		case key == shrinkageKey:
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
	_, configured := set.call.Config[shrinkageKey]
	set.call.CanShrink = !configured && !set.session.NoArena
	return set, readProviders(cfg, &set.session)
}

const spinningKey = "session.intra_op.allow_spinning"

// useThreads sets the number of threads for each operator of a model whose configuration
// does not set it. It disables spinning unless the configuration sets that: threads that
// spin while they wait for work take the cores from other batches.
func (set *settings) useThreads(n int) {
	set.session.Threads = n
	if _, configured := set.session.Config[spinningKey]; !configured {
		set.session.Config[spinningKey] = "0"
	}
}

func parseCount(cfg *modelconfig.Config, key, expected string) (int, error) {
	n, err := strconv.Atoi(cfg.Parameters[key])
	if err != nil || n < 0 {
		return 0, badParameter(cfg, key, expected)
	}
	return n, nil
}

func parseFlag(cfg *modelconfig.Config, key string) (int, error) {
	n, err := strconv.Atoi(cfg.Parameters[key])
	if err != nil || n < 0 || n > 1 {
		return 0, badParameter(cfg, key, "0 or 1")
	}
	return n, nil
}

// parseOff reports whether a boolean is false. It may be written as Triton reads it.
func parseOff(cfg *modelconfig.Config, key string) (bool, error) {
	switch strings.ToLower(cfg.Parameters[key]) {
	case "true", "on", "1":
		return false, nil
	case "false", "off", "0":
		return true, nil
	}
	return false, badParameter(cfg, key, "true, on or 1, or false, off or 0")
}

func badParameter(cfg *modelconfig.Config, key, expected string) error {
	return cfg.Wrong(fmt.Sprintf("parameters[%s]", key), fmt.Sprintf("%q", cfg.Parameters[key]), "%s", expected)
}
