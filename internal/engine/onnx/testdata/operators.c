// A library with one operator of its own, shoal.test.Twice, as op_library_filename names
// them. The tests compile it. Functions of ONNX Runtime are declared by their position in
// its table, as in shim.h.

#include <stddef.h>
#include <stdint.h>

enum { API_VERSION = 12, FLOAT = 1, WIDTH = 4 };

static void *const *api;

#define CALL(position, ...) ((void *(*)())api[position])(__VA_ARGS__)
enum { CREATE_DOMAIN = 26, DOMAIN_ADD = 27, ADD_DOMAIN = 28, MUTABLE_DATA = 51, GET_INPUT = 90, GET_OUTPUT = 91 };

struct op {
	uint32_t version;
	void *(*create)(const struct op *op, const void *api, const void *info);
	const char *(*name)(const struct op *op);
	const char *(*provider)(const struct op *op);
	int (*input_type)(const struct op *op, size_t index);
	size_t (*inputs)(const struct op *op);
	int (*output_type)(const struct op *op, size_t index);
	size_t (*outputs)(const struct op *op);
	void (*compute)(void *kernel, void *context);
	void (*destroy)(void *kernel);
	int (*input_characteristic)(const struct op *op, size_t index);
	int (*output_characteristic)(const struct op *op, size_t index);
};

static void *create(const struct op *op, const void *table, const void *info) { return (void *)op; }
static const char *name(const struct op *op) { return "Twice"; }
static const char *provider(const struct op *op) { return NULL; }
static int type(const struct op *op, size_t index) { return FLOAT; }
static size_t one(const struct op *op) { return 1; }
static int required(const struct op *op, size_t index) { return 0; }
static void destroy(void *kernel) {}

static void compute(void *kernel, void *context) {
	const int64_t shape[] = {WIDTH};
	void *in, *out;
	float *from, *to;
	CALL(GET_INPUT, context, (size_t)0, &in);
	CALL(GET_OUTPUT, context, (size_t)0, shape, (size_t)1, &out);
	CALL(MUTABLE_DATA, in, &from);
	CALL(MUTABLE_DATA, out, &to);
	for (int i = 0; i < WIDTH; i++) to[i] = 2 * from[i];
}

static const struct op twice = {API_VERSION, create, name, provider, type, one, type, one, compute, destroy, required, required};

struct base {
	void *const *(*api)(uint32_t version);
};

void *RegisterCustomOps(void *options, const struct base *base) {
	void *domain, *status;
	api = base->api(API_VERSION);
	status = CALL(CREATE_DOMAIN, "shoal.test", &domain);
	if (!status) status = CALL(DOMAIN_ADD, domain, &twice);
	if (!status) status = CALL(ADD_DOMAIN, options, domain);
	return status;
}
