// What of ONNX Runtime's C API is used, and the few functions in C that Go calls.
//
// The API is a table of functions that only grows at its end, so an entry is
// declared here by its position in the table. api_test.go holds the list against
// the official header.

#ifndef SHOAL_ONNXRUNTIME_SHIM_H
#define SHOAL_ONNXRUNTIME_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct OrtAllocator OrtAllocator;
typedef struct OrtCUDAProviderOptionsV2 OrtCUDAProviderOptionsV2;
typedef struct OrtEnv OrtEnv;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtPrepackedWeightsContainer OrtPrepackedWeightsContainer;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtStatus OrtStatus;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorRTProviderOptionsV2 OrtTensorRTProviderOptionsV2;
typedef struct OrtValue OrtValue;

typedef void (*shoal_log)(void *param, int level, const char *category, const char *id, const char *location, const char *message);

// API_VERSION is the lowest that has all the entries: that of the youngest,
// TensorTypeAndShape_HasShape.
#define API_VERSION 24

// X(position, name, result, arguments)
#define ENTRIES(X) \
	X(0, CreateStatus, OrtStatus *, (int code, const char *text)) \
	X(1, GetErrorCode, int, (const OrtStatus *status)) \
	X(2, GetErrorMessage, const char *, (const OrtStatus *status)) \
	X(4, CreateEnvWithCustomLogger, OrtStatus *, (shoal_log log, void *param, int level, const char *id, OrtEnv **out)) \
	X(7, CreateSession, OrtStatus *, (const OrtEnv *env, const char *path, const OrtSessionOptions *options, OrtSession **out)) \
	X(9, Run, OrtStatus *, (OrtSession *session, const OrtRunOptions *options, const char *const *names, const OrtValue *const *inputs, size_t n, const char *const *output_names, size_t output_n, OrtValue **outputs)) \
	X(10, CreateSessionOptions, OrtStatus *, (OrtSessionOptions **out)) \
	X(11, SetOptimizedModelFilePath, OrtStatus *, (OrtSessionOptions *options, const char *path)) \
	X(13, SetSessionExecutionMode, OrtStatus *, (OrtSessionOptions *options, int mode)) \
	X(17, DisableMemPattern, OrtStatus *, (OrtSessionOptions *options)) \
	X(19, DisableCpuMemArena, OrtStatus *, (OrtSessionOptions *options)) \
	X(22, SetSessionLogSeverityLevel, OrtStatus *, (OrtSessionOptions *options, int level)) \
	X(23, SetSessionGraphOptimizationLevel, OrtStatus *, (OrtSessionOptions *options, int level)) \
	X(24, SetIntraOpNumThreads, OrtStatus *, (OrtSessionOptions *options, int threads)) \
	X(25, SetInterOpNumThreads, OrtStatus *, (OrtSessionOptions *options, int threads)) \
	X(30, SessionGetInputCount, OrtStatus *, (const OrtSession *session, size_t *out)) \
	X(31, SessionGetOutputCount, OrtStatus *, (const OrtSession *session, size_t *out)) \
	X(32, SessionGetOverridableInitializerCount, OrtStatus *, (const OrtSession *session, size_t *out)) \
	X(33, SessionGetInputTypeInfo, OrtStatus *, (const OrtSession *session, size_t index, OrtTypeInfo **out)) \
	X(34, SessionGetOutputTypeInfo, OrtStatus *, (const OrtSession *session, size_t index, OrtTypeInfo **out)) \
	X(35, SessionGetOverridableInitializerTypeInfo, OrtStatus *, (const OrtSession *session, size_t index, OrtTypeInfo **out)) \
	X(36, SessionGetInputName, OrtStatus *, (const OrtSession *session, size_t index, OrtAllocator *allocator, char **out)) \
	X(37, SessionGetOutputName, OrtStatus *, (const OrtSession *session, size_t index, OrtAllocator *allocator, char **out)) \
	X(38, SessionGetOverridableInitializerName, OrtStatus *, (const OrtSession *session, size_t index, OrtAllocator *allocator, char **out)) \
	X(39, CreateRunOptions, OrtStatus *, (OrtRunOptions **out)) \
	X(41, RunOptionsSetRunLogSeverityLevel, OrtStatus *, (OrtRunOptions *options, int level)) \
	X(46, RunOptionsSetTerminate, OrtStatus *, (OrtRunOptions *options)) \
	X(47, RunOptionsUnsetTerminate, OrtStatus *, (OrtRunOptions *options)) \
	X(48, CreateTensorAsOrtValue, OrtStatus *, (OrtAllocator *allocator, const int64_t *shape, size_t rank, int type, OrtValue **out)) \
	X(49, CreateTensorWithDataAsOrtValue, OrtStatus *, (const OrtMemoryInfo *memory, void *data, size_t size, const int64_t *shape, size_t rank, int type, OrtValue **out)) \
	X(50, IsTensor, OrtStatus *, (const OrtValue *value, int *out)) \
	X(51, GetTensorMutableData, OrtStatus *, (OrtValue *value, void **out)) \
	X(53, GetStringTensorDataLength, OrtStatus *, (const OrtValue *value, size_t *out)) \
	X(54, GetStringTensorContent, OrtStatus *, (const OrtValue *value, void *data, size_t size, size_t *offsets, size_t n)) \
	X(55, CastTypeInfoToTensorInfo, OrtStatus *, (const OrtTypeInfo *type, const OrtTensorTypeAndShapeInfo **out)) \
	X(56, GetOnnxTypeFromTypeInfo, OrtStatus *, (const OrtTypeInfo *type, int *out)) \
	X(60, GetTensorElementType, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, int *out)) \
	X(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, size_t *out)) \
	X(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, int64_t *out, size_t n)) \
	X(63, GetSymbolicDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, const char **out, size_t n)) \
	X(65, GetTensorTypeAndShape, OrtStatus *, (const OrtValue *value, OrtTensorTypeAndShapeInfo **out)) \
	X(69, CreateCpuMemoryInfo, OrtStatus *, (int allocator, int memory, OrtMemoryInfo **out)) \
	X(76, AllocatorFree, OrtStatus *, (OrtAllocator *allocator, void *data)) \
	X(78, GetAllocatorWithDefaultOptions, OrtStatus *, (OrtAllocator **out)) \
	X(92, ReleaseEnv, void, (OrtEnv *env)) \
	X(93, ReleaseStatus, void, (OrtStatus *status)) \
	X(94, ReleaseMemoryInfo, void, (OrtMemoryInfo *memory)) \
	X(95, ReleaseSession, void, (OrtSession *session)) \
	X(96, ReleaseValue, void, (OrtValue *value)) \
	X(97, ReleaseRunOptions, void, (OrtRunOptions *options)) \
	X(98, ReleaseTypeInfo, void, (OrtTypeInfo *type)) \
	X(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo *info)) \
	X(100, ReleaseSessionOptions, void, (OrtSessionOptions *options)) \
	X(125, GetAvailableProviders, OrtStatus *, (char ***out, int *n)) \
	X(126, ReleaseAvailableProviders, OrtStatus *, (char **providers, int n)) \
	X(130, AddSessionConfigEntry, OrtStatus *, (OrtSessionOptions *options, const char *key, const char *value)) \
	X(150, AddInitializer, OrtStatus *, (OrtSessionOptions *options, const char *name, const OrtValue *value)) \
	X(165, AddRunConfigEntry, OrtStatus *, (OrtRunOptions *options, const char *key, const char *value)) \
	X(166, CreatePrepackedWeightsContainer, OrtStatus *, (OrtPrepackedWeightsContainer **out)) \
	X(167, ReleasePrepackedWeightsContainer, void, (OrtPrepackedWeightsContainer *container)) \
	X(168, CreateSessionWithPrepackedWeightsContainer, OrtStatus *, (const OrtEnv *env, const char *path, const OrtSessionOptions *options, OrtPrepackedWeightsContainer *container, OrtSession **out)) \
	X(170, SessionOptionsAppendExecutionProvider_TensorRT_V2, OrtStatus *, (OrtSessionOptions *options, const OrtTensorRTProviderOptionsV2 *tensorrt)) \
	X(171, CreateTensorRTProviderOptions, OrtStatus *, (OrtTensorRTProviderOptionsV2 **out)) \
	X(172, UpdateTensorRTProviderOptions, OrtStatus *, (OrtTensorRTProviderOptionsV2 *tensorrt, const char *const *keys, const char *const *values, size_t n)) \
	X(174, ReleaseTensorRTProviderOptions, void, (OrtTensorRTProviderOptionsV2 *tensorrt)) \
	X(204, SessionOptionsAppendExecutionProvider_CUDA_V2, OrtStatus *, (OrtSessionOptions *options, const OrtCUDAProviderOptionsV2 *cuda)) \
	X(205, CreateCUDAProviderOptions, OrtStatus *, (OrtCUDAProviderOptionsV2 **out)) \
	X(206, UpdateCUDAProviderOptions, OrtStatus *, (OrtCUDAProviderOptionsV2 *cuda, const char *const *keys, const char *const *values, size_t n)) \
	X(208, ReleaseCUDAProviderOptions, void, (OrtCUDAProviderOptionsV2 *cuda)) \
	X(228, RegisterCustomOpsLibrary_V2, OrtStatus *, (OrtSessionOptions *options, const char *library)) \
	X(252, GetResizedStringTensorElementBuffer, OrtStatus *, (OrtValue *value, size_t index, size_t size, char **out)) \
	X(293, SessionOptionsSetLoadCancellationFlag, OrtStatus *, (OrtSessionOptions *options, bool cancel)) \
	X(390, TensorTypeAndShape_HasShape, bool, (const OrtTensorTypeAndShapeInfo *info))

// struct ort is the library, opened, and what all sessions share.
struct ort {
#define X(position, name, result, arguments) result(*name) arguments;
	ENTRIES(X)
#undef X
	const char *version;
	OrtEnv *env;
	OrtMemoryInfo *memory;
	OrtAllocator *allocator;
};

// struct settings say how a session computes.
struct settings {
	int level;   // of optimisation
	int threads; // that share the work of an operator
	int branches; // threads that run operators side by side; 0 means as many as there are cores
	bool parallel; // run operators side by side at all
	bool arena;
	bool pattern;
};

// The type of a tensor of strings, whose memory is not one piece.
enum { ELEMENT_STRING = 8 };

// The lists of ports that a session has. A default is an input that need not be given: the
// model has a value for it.
enum list { LIST_INPUTS, LIST_OUTPUTS, LIST_DEFAULTS };

// struct port describes an input or an output of a session. Its strings and
// arrays are good until shoal_port_close.
struct port {
	char *name;
	int kind;    // ONNXType
	int element; // ONNXTensorElementDataType
	bool shaped; // whether the model says how many dimensions there are
	size_t rank;
	int64_t *dims;
	const char **symbols;
	OrtTypeInfo *type;
};

struct input {
	void *data; // NULL if the input is not given
	size_t size;
	const int64_t *shape;
	size_t rank;
	int element;
};

struct output {
	void *data; // NULL for strings
	size_t text; // for strings: the bytes of all of them
	int64_t *shape;
	size_t rank;
	size_t room; // of shape
	int element;
};

// struct call is what one run after the other needs, made once, so that a run
// allocates nothing of its own. It stands in C's memory, because ONNX Runtime
// reads its arrays.
struct call {
	size_t inputs;
	size_t outputs;
	const char **names; // those of the inputs, then those of the outputs
	const char **given; // those of the inputs that are given, while it runs
	struct input *in;
	struct output *out;
	OrtValue **values; // of the inputs, while it runs
	OrtValue **results;
	OrtRunOptions *options;
	OrtRunOptions *shrinking; // the same, for runs that give memory back; NULL if none does
};

// A function that returns a string returns NULL if all went well; one that
// returns a status likewise.
const char *shoal_open(struct ort *ort, const char *library);
OrtStatus *shoal_start(struct ort *ort, uintptr_t log);
void shoal_stop(struct ort *ort);

int shoal_status_code(struct ort *ort, OrtStatus *status);
const char *shoal_status_text(struct ort *ort, OrtStatus *status);
void shoal_status_release(struct ort *ort, OrtStatus *status);

OrtStatus *shoal_providers(struct ort *ort, char ***out, int *n);
void shoal_providers_release(struct ort *ort, char **providers, int n);

OrtStatus *shoal_options(struct ort *ort, struct settings settings, OrtSessionOptions **out);
// shoal_options_cuda and shoal_options_tensorrt add a provider with its options.
OrtStatus *shoal_options_cuda(struct ort *ort, OrtSessionOptions *options, const char *const *keys, const char *const *values, size_t n);
OrtStatus *shoal_options_tensorrt(struct ort *ort, OrtSessionOptions *options, const char *const *keys, const char *const *values, size_t n);
OrtStatus *shoal_options_set(struct ort *ort, OrtSessionOptions *options, const char *key, const char *value);
OrtStatus *shoal_options_operators(struct ort *ort, OrtSessionOptions *options, const char *library);
void shoal_options_cancel(struct ort *ort, OrtSessionOptions *options);
void shoal_options_release(struct ort *ort, OrtSessionOptions *options);
// shoal_options_save has the session write the model as it runs it to a file.
OrtStatus *shoal_options_save(struct ort *ort, OrtSessionOptions *options, const char *path);
// shoal_session creates a session. container has packed weights that sessions share; it may be NULL.
OrtStatus *shoal_session(struct ort *ort, const char *path, OrtSessionOptions *options, OrtPrepackedWeightsContainer *container, OrtSession **out);
void shoal_session_release(struct ort *ort, OrtSession *session);
OrtStatus *shoal_count(struct ort *ort, OrtSession *session, enum list list, size_t *out);
OrtStatus *shoal_port_open(struct ort *ort, OrtSession *session, enum list list, size_t index, struct port *port);
void shoal_port_close(struct ort *ort, struct port *port);

OrtStatus *shoal_weights(struct ort *ort, OrtPrepackedWeightsContainer **out);
void shoal_weights_release(struct ort *ort, OrtPrepackedWeightsContainer *container);
OrtStatus *shoal_weight(struct ort *ort, void *data, size_t size, const int64_t *shape, size_t rank, int element, OrtValue **out);
OrtStatus *shoal_options_weight(struct ort *ort, OrtSessionOptions *options, const char *name, const OrtValue *value);

struct call *shoal_call(struct ort *ort, size_t inputs, size_t outputs, OrtStatus **status);
OrtStatus *shoal_call_set(struct ort *ort, struct call *call, const char *key, const char *value);
OrtStatus *shoal_call_shrinking(struct ort *ort, struct call *call);
void shoal_call_terminate(struct ort *ort, struct call *call, bool terminate);
void shoal_call_release(struct ort *ort, struct call *call);
OrtStatus *shoal_run(struct ort *ort, OrtSession *session, struct call *call, bool shrink);
OrtStatus *shoal_strings(struct ort *ort, OrtValue *value, void *data, size_t size, size_t *offsets, size_t n);
void shoal_values_release(struct ort *ort, OrtValue **values, size_t n);

void shoal_malloc_tune(void);
void shoal_malloc_trim(void);

#endif
