package onnx

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// acceleratorsField has the options of the providers for GPUs, as in Triton.
const acceleratorsField = "optimization.execution_accelerators.gpu_execution_accelerator"

// readProviders reads the options of CUDA and TensorRT:
//
//	gpu_execution_accelerator { name: "cuda" }       any option of the CUDA provider
//	gpu_execution_accelerator { name: "tensorrt" }   the options of Triton, and those of the provider that begin with trt_
//	parameters                                       Triton's older options of CUDA; see cudaParameters
//
// The library checks the values. A key that it does not know is an error, too.
func readProviders(cfg *modelconfig.Config, opts *onnxruntime.SessionOptions) error {
	cuda := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(cudaParameters)) {
		p := cudaParameters[key]
		value, ok := cfg.Parameters[key]
		if !ok {
			continue
		}
		if p.values != nil {
			named, ok := p.values[value]
			if !ok {
				return badParameter(cfg, key, p.expected)
			}
			value = named
		}
		cuda[key] = value
	}
	for i, a := range cfg.Proto.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator() {
		field := fmt.Sprintf("%s[%d]", acceleratorsField, i)
		var err error
		switch a.GetName() {
		case "cuda":
			err = readCUDA(cfg, field, a.GetParameters(), cuda)
		case "tensorrt":
			opts.TensorRT, err = readTensorRT(cfg, field, a.GetParameters())
		default:
			err = cfg.Wrong(field+".name", fmt.Sprintf("%q", a.GetName()), `"cuda" or "tensorrt"; or remove it`)
		}
		if err != nil {
			return err
		}
	}
	if len(cuda) > 0 {
		opts.CUDAOptions = cuda
	}
	return nil
}

// A cudaParameter is one of Triton's parameters for CUDA. Values that are numbers in Triton
// have names in the library.
type cudaParameter struct {
	values   map[string]string // nil means that the value is passed on
	expected string
}

var cudaParameters = map[string]cudaParameter{
	"cudnn_conv_algo_search": {
		map[string]string{"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
		"0 (exhaustive), 1 (heuristic) or 2 (default)",
	},
	"arena_extend_strategy": {
		map[string]string{"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
		"0 (next power of two) or 1 (as requested)",
	},
	"gpu_mem_limit":             {},
	"do_copy_in_default_stream": {},
}

// deviceKey is the provider's option for what instance_group.gpus says.
const deviceKey = "device_id"

func readCUDA(cfg *modelconfig.Config, field string, parameters, into map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key == deviceKey {
			return cfg.Invalid(parameterField(field, key), "instance_group.gpus says which GPUs are used; remove it")
		}
		into[key] = parameters[key]
	}
	return nil
}

// tensorRTKeys are Triton's names for options of the provider.
var tensorRTKeys = map[string]string{
	"max_workspace_size_bytes":          "trt_max_workspace_size",
	"int8_calibration_table_name":       "trt_int8_calibration_table_name",
	"int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}

// precisions are the options that Triton's precision_mode stands for.
var precisions = map[string]string{"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}

func readTensorRT(cfg *modelconfig.Config, field string, parameters map[string]string) (map[string]string, error) {
	opts := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		switch provider, renamed := tensorRTKeys[key]; {
		case key == "precision_mode":
			option, ok := precisions[value]
			if !ok {
				return nil, cfg.Wrong(parameterField(field, key), fmt.Sprintf("%q", value), "FP32, FP16, BF16 or INT8")
			}
			if option != "" {
				opts[option] = "1"
			}
		case renamed:
			opts[provider] = value
		case strings.HasPrefix(key, "trt_"):
			opts[key] = value
		default:
			return nil, cfg.Invalid(parameterField(field, key), "not an option of TensorRT; use precision_mode, %s, or one that begins with trt_",
				strings.Join(slices.Sorted(maps.Keys(tensorRTKeys)), ", "))
		}
	}
	return opts, nil
}

func parameterField(field, key string) string { return fmt.Sprintf("%s.parameters[%s]", field, key) }
