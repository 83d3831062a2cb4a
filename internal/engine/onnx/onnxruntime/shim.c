#include "shim.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "_cgo_export.h"

enum { LOG_WARNING = 2, CODE_FAIL = 1, CODE_INVALID_ARGUMENT = 2, KIND_TENSOR = 1, ARENA_ALLOCATOR = 1, MEMORY_DEFAULT = 0, EXECUTION_PARALLEL = 1 };

// struct base is what the library gives first: the way to the table.
struct base {
	void *const *(*api)(uint32_t version);
	const char *(*version)(void);
};

const char *shoal_open(struct ort *ort, const char *library) {
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle) return dlerror();
	const struct base *(*get)(void);
	*(void **)&get = dlsym(handle, "OrtGetApiBase");
	if (!get) return "it has no function OrtGetApiBase, so it is not ONNX Runtime";
	const struct base *base = get();
	void *const *table = base->api(API_VERSION);
	if (!table) return "it is older than 1.24";
#define X(position, name, result, arguments) *(void **)&ort->name = table[position];
	ENTRIES(X)
#undef X
	ort->version = base->version();
	return NULL;
}

static void forward(void *param, int level, const char *category, const char *id, const char *location, const char *message) {
	(void)id; // the same for all
	shoalLog((uintptr_t)param, level, (char *)category, (char *)location, (char *)message);
}

OrtStatus *shoal_start(struct ort *ort, uintptr_t log) {
	OrtStatus *status = ort->CreateEnvWithCustomLogger(forward, (void *)log, LOG_WARNING, "shoal", &ort->env);
	if (!status) status = ort->CreateCpuMemoryInfo(ARENA_ALLOCATOR, MEMORY_DEFAULT, &ort->memory);
	if (!status) status = ort->GetAllocatorWithDefaultOptions(&ort->allocator);
	return status;
}

void shoal_stop(struct ort *ort) {
	if (ort->memory) ort->ReleaseMemoryInfo(ort->memory);
	if (ort->env) ort->ReleaseEnv(ort->env);
	ort->memory = NULL;
	ort->env = NULL;
}

int shoal_status_code(struct ort *ort, OrtStatus *status) { return ort->GetErrorCode(status); }
const char *shoal_status_text(struct ort *ort, OrtStatus *status) { return ort->GetErrorMessage(status); }
void shoal_status_release(struct ort *ort, OrtStatus *status) { ort->ReleaseStatus(status); }

// ignore is for what cannot fail, or leaves nothing to be done if it does.
static void ignore(struct ort *ort, OrtStatus *status) {
	if (status) ort->ReleaseStatus(status);
}

OrtStatus *shoal_providers(struct ort *ort, char ***out, int *n) { return ort->GetAvailableProviders(out, n); }
void shoal_providers_release(struct ort *ort, char **providers, int n) { ignore(ort, ort->ReleaseAvailableProviders(providers, n)); }

OrtStatus *shoal_options(struct ort *ort, struct settings s, OrtSessionOptions **out) {
	OrtStatus *status = ort->CreateSessionOptions(out);
	if (status) return status;
	status = ort->SetSessionGraphOptimizationLevel(*out, s.level);
	if (!status) status = ort->SetIntraOpNumThreads(*out, s.threads);
	if (!status && s.branches > 0) status = ort->SetInterOpNumThreads(*out, s.branches);
	if (!status && s.parallel) status = ort->SetSessionExecutionMode(*out, EXECUTION_PARALLEL);
	if (!status && !s.arena) status = ort->DisableCpuMemArena(*out);
	if (!status && !s.pattern) status = ort->DisableMemPattern(*out);
	if (status) ort->ReleaseSessionOptions(*out);
	return status;
}

OrtStatus *shoal_options_cuda(struct ort *ort, OrtSessionOptions *options, const char *const *keys, const char *const *values, size_t n) {
	OrtCUDAProviderOptionsV2 *cuda;
	OrtStatus *status = ort->CreateCUDAProviderOptions(&cuda);
	if (status) return status;
	status = ort->UpdateCUDAProviderOptions(cuda, keys, values, n);
	if (!status) status = ort->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda);
	ort->ReleaseCUDAProviderOptions(cuda);
	return status;
}

OrtStatus *shoal_options_tensorrt(struct ort *ort, OrtSessionOptions *options, const char *const *keys, const char *const *values, size_t n) {
	OrtTensorRTProviderOptionsV2 *tensorrt;
	OrtStatus *status = ort->CreateTensorRTProviderOptions(&tensorrt);
	if (status) return status;
	status = ort->UpdateTensorRTProviderOptions(tensorrt, keys, values, n);
	if (!status) status = ort->SessionOptionsAppendExecutionProvider_TensorRT_V2(options, tensorrt);
	ort->ReleaseTensorRTProviderOptions(tensorrt);
	return status;
}

OrtStatus *shoal_options_set(struct ort *ort, OrtSessionOptions *options, const char *key, const char *value) {
	return ort->AddSessionConfigEntry(options, key, value);
}

OrtStatus *shoal_options_operators(struct ort *ort, OrtSessionOptions *options, const char *library) {
	return ort->RegisterCustomOpsLibrary_V2(options, library);
}

void shoal_options_cancel(struct ort *ort, OrtSessionOptions *options) {
	ignore(ort, ort->SessionOptionsSetLoadCancellationFlag(options, true));
}

void shoal_options_release(struct ort *ort, OrtSessionOptions *options) { ort->ReleaseSessionOptions(options); }

OrtStatus *shoal_options_save(struct ort *ort, OrtSessionOptions *options, const char *path) {
	enum { ERROR = 3 }; // it would warn that the file is good for this machine only
	OrtStatus *status = ort->SetOptimizedModelFilePath(options, path);
	return status ? status : ort->SetSessionLogSeverityLevel(options, ERROR);
}

OrtStatus *shoal_session(struct ort *ort, const char *path, OrtSessionOptions *options, OrtPrepackedWeightsContainer *container, OrtSession **out) {
	if (!container) return ort->CreateSession(ort->env, path, options, out);
	return ort->CreateSessionWithPrepackedWeightsContainer(ort->env, path, options, container, out);
}

OrtStatus *shoal_weights(struct ort *ort, OrtPrepackedWeightsContainer **out) { return ort->CreatePrepackedWeightsContainer(out); }

void shoal_weights_release(struct ort *ort, OrtPrepackedWeightsContainer *container) { ort->ReleasePrepackedWeightsContainer(container); }

OrtStatus *shoal_weight(struct ort *ort, void *data, size_t size, const int64_t *shape, size_t rank, int element, OrtValue **out) {
	return ort->CreateTensorWithDataAsOrtValue(ort->memory, data, size, shape, rank, element, out);
}

OrtStatus *shoal_options_weight(struct ort *ort, OrtSessionOptions *options, const char *name, const OrtValue *value) {
	return ort->AddInitializer(options, name, value);
}

void shoal_session_release(struct ort *ort, OrtSession *session) { ort->ReleaseSession(session); }

OrtStatus *shoal_count(struct ort *ort, OrtSession *session, enum list list, size_t *out) {
	switch (list) {
	case LIST_OUTPUTS: return ort->SessionGetOutputCount(session, out);
	case LIST_DEFAULTS: return ort->SessionGetOverridableInitializerCount(session, out);
	default: return ort->SessionGetInputCount(session, out);
	}
}

static OrtStatus *read_name(struct ort *ort, OrtSession *session, enum list list, size_t index, char **out) {
	switch (list) {
	case LIST_OUTPUTS: return ort->SessionGetOutputName(session, index, ort->allocator, out);
	case LIST_DEFAULTS: return ort->SessionGetOverridableInitializerName(session, index, ort->allocator, out);
	default: return ort->SessionGetInputName(session, index, ort->allocator, out);
	}
}

static OrtStatus *read_type(struct ort *ort, OrtSession *session, enum list list, size_t index, OrtTypeInfo **out) {
	switch (list) {
	case LIST_OUTPUTS: return ort->SessionGetOutputTypeInfo(session, index, out);
	case LIST_DEFAULTS: return ort->SessionGetOverridableInitializerTypeInfo(session, index, out);
	default: return ort->SessionGetInputTypeInfo(session, index, out);
	}
}

static OrtStatus *read_dims(struct ort *ort, struct port *port) {
	const OrtTensorTypeAndShapeInfo *info;
	OrtStatus *status = ort->CastTypeInfoToTensorInfo(port->type, &info);
	if (!status) status = ort->GetTensorElementType(info, &port->element);
	if (!status) status = ort->GetDimensionsCount(info, &port->rank);
	if (!status) port->shaped = ort->TensorTypeAndShape_HasShape(info);
	if (status || port->rank == 0) return status;
	port->dims = calloc(port->rank, sizeof *port->dims);
	port->symbols = calloc(port->rank, sizeof *port->symbols);
	if (!port->dims || !port->symbols) return ort->CreateStatus(CODE_FAIL, "out of memory");
	status = ort->GetDimensions(info, port->dims, port->rank);
	if (!status) status = ort->GetSymbolicDimensions(info, port->symbols, port->rank);
	return status;
}

OrtStatus *shoal_port_open(struct ort *ort, OrtSession *session, enum list list, size_t index, struct port *port) {
	memset(port, 0, sizeof *port);
	OrtStatus *status = read_name(ort, session, list, index, &port->name);
	if (!status) status = read_type(ort, session, list, index, &port->type);
	if (!status) status = ort->GetOnnxTypeFromTypeInfo(port->type, &port->kind);
	if (!status && port->kind == KIND_TENSOR) status = read_dims(ort, port);
	if (status) shoal_port_close(ort, port);
	return status;
}

void shoal_port_close(struct ort *ort, struct port *port) {
	free(port->dims);
	free(port->symbols);
	if (port->type) ort->ReleaseTypeInfo(port->type);
	if (port->name) ignore(ort, ort->AllocatorFree(ort->allocator, port->name));
	memset(port, 0, sizeof *port);
}

// run_options makes options of a run that logs nothing but what ends the process: an
// error of a run is returned, and would be logged as often as a client likes.
static OrtStatus *run_options(struct ort *ort, OrtRunOptions **out) {
	enum { FATAL = 4 };
	OrtStatus *status = ort->CreateRunOptions(out);
	return status ? status : ort->RunOptionsSetRunLogSeverityLevel(*out, FATAL);
}

struct call *shoal_call(struct ort *ort, size_t inputs, size_t outputs, OrtStatus **status) {
	struct call *call = calloc(1, sizeof *call);
	if (call) {
		call->inputs = inputs;
		call->outputs = outputs;
		// One more of each, so that none of them is empty: calloc may return NULL then.
		call->names = calloc(inputs + outputs + 1, sizeof *call->names);
		call->given = calloc(inputs + 1, sizeof *call->given);
		call->in = calloc(inputs + 1, sizeof *call->in);
		call->out = calloc(outputs + 1, sizeof *call->out);
		call->values = calloc(inputs + 1, sizeof *call->values);
		call->results = calloc(outputs + 1, sizeof *call->results);
	}
	if (!call || !call->names || !call->given || !call->in || !call->out || !call->values || !call->results)
		*status = ort->CreateStatus(CODE_FAIL, "out of memory");
	else
		*status = run_options(ort, &call->options);
	if (*status && call) {
		shoal_call_release(ort, call);
		call = NULL;
	}
	return call;
}

OrtStatus *shoal_call_set(struct ort *ort, struct call *call, const char *key, const char *value) {
	OrtStatus *status = ort->AddRunConfigEntry(call->options, key, value);
	return status || !call->shrinking ? status : ort->AddRunConfigEntry(call->shrinking, key, value);
}

OrtStatus *shoal_call_shrinking(struct ort *ort, struct call *call) {
	OrtStatus *status = run_options(ort, &call->shrinking);
	return status ? status : ort->AddRunConfigEntry(call->shrinking, "memory.enable_memory_arena_shrinkage", "cpu:0");
}

static void set_terminate(struct ort *ort, OrtRunOptions *options, bool terminate) {
	if (options) ignore(ort, terminate ? ort->RunOptionsSetTerminate(options) : ort->RunOptionsUnsetTerminate(options));
}

void shoal_call_terminate(struct ort *ort, struct call *call, bool terminate) {
	set_terminate(ort, call->options, terminate);
	set_terminate(ort, call->shrinking, terminate);
}

void shoal_call_release(struct ort *ort, struct call *call) {
	if (call->names)
		for (size_t i = 0; i < call->inputs + call->outputs; i++) free((char *)call->names[i]);
	if (call->out)
		for (size_t i = 0; i < call->outputs; i++) free(call->out[i].shape);
	if (call->options) ort->ReleaseRunOptions(call->options);
	if (call->shrinking) ort->ReleaseRunOptions(call->shrinking);
	free(call->names);
	free(call->given);
	free(call->in);
	free(call->out);
	free(call->values);
	free(call->results);
	free(call);
}

// fill makes the elements of a tensor of strings from data that has the length
// of each before it, in four bytes, the lowest first.
static OrtStatus *fill(struct ort *ort, const struct input *in, OrtValue *value) {
	const unsigned char *p = in->data, *end = p + in->size;
	for (size_t i = 0; p < end; i++) {
		if (end - p < 4) return ort->CreateStatus(CODE_INVALID_ARGUMENT, "the strings of an input end within a length");
		size_t size = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
		p += 4;
		if ((size_t)(end - p) < size) return ort->CreateStatus(CODE_INVALID_ARGUMENT, "the strings of an input end within a string");
		char *text;
		OrtStatus *status = ort->GetResizedStringTensorElementBuffer(value, i, size, &text);
		if (status) return status;
		memcpy(text, p, size);
		p += size;
	}
	return NULL;
}

static OrtStatus *bring(struct ort *ort, const struct input *in, OrtValue **value) {
	if (in->element != ELEMENT_STRING)
		return ort->CreateTensorWithDataAsOrtValue(ort->memory, in->data, in->size, in->shape, in->rank, in->element, value);
	OrtStatus *status = ort->CreateTensorAsOrtValue(ort->allocator, in->shape, in->rank, ELEMENT_STRING, value);
	return status ? status : fill(ort, in, *value);
}

static OrtStatus *read_shape(struct ort *ort, const OrtTensorTypeAndShapeInfo *info, struct output *out) {
	OrtStatus *status = ort->GetTensorElementType(info, &out->element);
	if (!status) status = ort->GetDimensionsCount(info, &out->rank);
	if (status) return status;
	if (out->rank > out->room) {
		int64_t *shape = realloc(out->shape, out->rank * sizeof *shape);
		if (!shape) return ort->CreateStatus(CODE_FAIL, "out of memory");
		out->shape = shape;
		out->room = out->rank;
	}
	return out->rank ? ort->GetDimensions(info, out->shape, out->rank) : NULL;
}

static OrtStatus *look(struct ort *ort, OrtValue *value, struct output *out) {
	int tensor = 0;
	OrtStatus *status = ort->IsTensor(value, &tensor);
	if (status) return status;
	if (!tensor) return ort->CreateStatus(CODE_FAIL, "an output is not a tensor");
	OrtTensorTypeAndShapeInfo *info;
	status = ort->GetTensorTypeAndShape(value, &info);
	if (status) return status;
	status = read_shape(ort, info, out);
	ort->ReleaseTensorTypeAndShapeInfo(info);
	if (status) return status;
	out->data = NULL;
	return out->element == ELEMENT_STRING ? ort->GetStringTensorDataLength(value, &out->text) : ort->GetTensorMutableData(value, &out->data);
}

// One call from Go does it all, so that a run crosses between the two once.
OrtStatus *shoal_run(struct ort *ort, OrtSession *session, struct call *call, bool shrink) {
	OrtStatus *status = NULL;
	size_t given = 0;
	for (size_t i = 0; i < call->inputs && !status; i++) {
		if (!call->in[i].data) continue;
		call->given[given] = call->names[i];
		status = bring(ort, &call->in[i], &call->values[given++]);
	}
	if (!status)
		status = ort->Run(session, shrink && call->shrinking ? call->shrinking : call->options, call->given, (const OrtValue *const *)call->values, given,
		                  call->names + call->inputs, call->outputs, call->results);
	shoal_values_release(ort, call->values, call->inputs);
	for (size_t i = 0; i < call->outputs && !status; i++) status = look(ort, call->results[i], &call->out[i]);
	if (status) shoal_values_release(ort, call->results, call->outputs);
	return status;
}

OrtStatus *shoal_strings(struct ort *ort, OrtValue *value, void *data, size_t size, size_t *offsets, size_t n) {
	return ort->GetStringTensorContent(value, data, size, offsets, n);
}

void shoal_values_release(struct ort *ort, OrtValue **values, size_t n) {
	for (size_t i = 0; i < n; i++) {
		if (values[i]) ort->ReleaseValue(values[i]);
		values[i] = NULL;
	}
}

#ifdef __GLIBC__
void shoal_malloc_tune(void) {
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mallopt(M_ARENA_MAX, 2);
}
void shoal_malloc_trim(void) { malloc_trim(0); }
#else
void shoal_malloc_tune(void) {}
void shoal_malloc_trim(void) {}
#endif
