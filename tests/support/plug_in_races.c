/* Many threads call a fused node of the plug-in, in place of onnxruntime and of quantglow.
 *
 * Built with the plug-in's compute.c, parallel.c and own_kernels.c, and the thread sanitizer: the
 * code behind each answer writes to the memory of its call without atomics, so that memory that two
 * calls share is a race.  Exits with 0 if all results are right, too.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

enum { CALLERS = 8, CALLS = 4000, SHAPES = 5, THREADS = 3 };

const OrtApi *qg_ort;
uint32_t qg_api_version = QG_LEAST_API;
int64_t qg_counts[QG_COUNTS];

static OrtApi api;
static QgHooks hooks;

const QgHooks *qg_hooks(void) { return &hooks; }
OrtStatus *qg_fail(const char *message) { return api.CreateStatus(ORT_EP_FAIL, message); }

/* A value is an array of int64: its length, then its elements.  Dims are the length. */
typedef struct {
  int64_t *input, output[SHAPES + 2];
} Kernel;

static OrtStatus *ORT_API_CALL new_status(OrtErrorCode code, const char *message) {
  (void)code;
  fprintf(stderr, "%s\n", message);
  abort();
}

static OrtStatus *ORT_API_CALL input_count(const OrtKernelContext *kernel, size_t *out) {
  (void)kernel;
  *out = 1;
  return NULL;
}

static OrtStatus *ORT_API_CALL get_input(const OrtKernelContext *kernel, size_t i,
                                         const OrtValue **out) {
  (void)i;
  *out = (const OrtValue *)((const Kernel *)kernel)->input;
  return NULL;
}

static OrtStatus *ORT_API_CALL get_output(OrtKernelContext *kernel, size_t i, const int64_t *dims,
                                          size_t rank, OrtValue **out) {
  (void)i, (void)rank;
  ((Kernel *)kernel)->output[0] = dims[0];
  *out = (OrtValue *)((Kernel *)kernel)->output;
  return NULL;
}

static OrtStatus *ORT_API_CALL shape_of(const OrtValue *value, ONNXTensorElementDataType *type,
                                        const int64_t **dims, size_t *rank) {
  *type = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  *dims = (const int64_t *)value;
  *rank = 1;
  return NULL;
}

static OrtStatus *ORT_API_CALL data_of(const OrtValue *value, const void **out) {
  *out = (const int64_t *)value + 1;
  return NULL;
}

static OrtStatus *ORT_API_CALL mutable_data_of(OrtValue *value, void **out) {
  *out = (int64_t *)value + 1;
  return NULL;
}

static OrtStatus *ORT_API_CALL nbytes_of(const OrtValue *value, size_t *out) {
  *out = 8 * (size_t) * (const int64_t *)value;
  return NULL;
}

typedef struct {
  void (*part)(void *, size_t);
  void *data;
} Work;

static void *do_part(void *work) {
  ((Work *)work)->part(((Work *)work)->data, 0);
  return NULL;
}

static OrtStatus *ORT_API_CALL parallel_for(const OrtKernelContext *kernel,
                                            void (*part)(void *, size_t), size_t total,
                                            size_t batches, void *data) {
  (void)kernel, (void)batches;
  Work work = {part, data};
  pthread_t thread;
  pthread_create(&thread, NULL, do_part, &work);
  for (size_t i = 1; i < total; i++) part(data, i);
  pthread_join(thread, NULL);
  return NULL;
}

/* Sessions: every object is `nothing`, but for values. */
static int64_t nothing;

static OrtStatus *ORT_API_CALL new_env(OrtLoggingLevel level, const char *name, OrtEnv **out) {
  (void)level, (void)name;
  *out = (OrtEnv *)&nothing;
  return NULL;
}
static OrtStatus *ORT_API_CALL new_options(OrtSessionOptions **out) {
  *out = (OrtSessionOptions *)&nothing;
  return NULL;
}
static OrtStatus *ORT_API_CALL set_number(OrtSessionOptions *options, int number) {
  (void)options, (void)number;
  return NULL;
}
static OrtStatus *ORT_API_CALL set_entry(OrtSessionOptions *options, const char *key,
                                         const char *value) {
  (void)options, (void)key, (void)value;
  return NULL;
}
static OrtStatus *ORT_API_CALL new_session(const OrtEnv *env, const void *model, size_t nbytes,
                                           const OrtSessionOptions *options, OrtSession **out) {
  (void)env, (void)model, (void)nbytes, (void)options;
  *out = (OrtSession *)&nothing;
  return NULL;
}
static OrtStatus *ORT_API_CALL get_allocator(OrtAllocator **out) {
  *out = (OrtAllocator *)&nothing;
  return NULL;
}
static OrtStatus *ORT_API_CALL end_count(const OrtSession *session, size_t *out) {
  (void)session;
  *out = 1;
  return NULL;
}
static OrtStatus *ORT_API_CALL end_name(const OrtSession *session, size_t i,
                                        OrtAllocator *allocator, char **out) {
  (void)session, (void)i, (void)allocator;
  *out = strdup("x");
  return NULL;
}
static OrtStatus *ORT_API_CALL free_memory(OrtAllocator *allocator, void *memory) {
  (void)allocator;
  free(memory);
  return NULL;
}
static OrtStatus *ORT_API_CALL run(OrtSession *session, const OrtRunOptions *options,
                                   const char *const *names, const OrtValue *const *values,
                                   size_t count, const char *const *output_names,
                                   size_t output_count, OrtValue **outputs) {
  (void)session, (void)options, (void)names, (void)count, (void)output_names, (void)output_count;
  const int64_t *input = (const int64_t *)values[0];
  int64_t *output = malloc((size_t)(input[0] + 1) * sizeof *output);
  output[0] = input[0];
  for (int64_t i = 1; i <= input[0]; i++) output[i] = 2 * input[i];
  outputs[0] = (OrtValue *)output;
  return NULL;
}
static void ORT_API_CALL free_options(OrtSessionOptions *options) { (void)options; }
static void ORT_API_CALL free_session(OrtSession *session) { (void)session; }
static void ORT_API_CALL free_env(OrtEnv *env) { (void)env; }
static void ORT_API_CALL free_value(OrtValue *value) { free(value); }

/* Programs: one row, whose arguments are the length and the addresses of input and output. */
static const int64_t positions[] = {1, 2}, ends[] = {0, 1}, offsets[] = {0, 0}, rank = 1;
static int64_t lengths[SHAPES], due[SHAPES], asked[SHAPES], releases, drops;

static void walk(void *table, int64_t rows) {
  int64_t *arguments = *(int64_t **)table;
  const int64_t *input = (const int64_t *)(intptr_t)arguments[1];
  int64_t *output = (int64_t *)(intptr_t)arguments[2];
  for (int64_t i = 0; i < rows * arguments[0]; i++) output[i] = 2 * input[i];
  arguments[3]++; /* of this context only */
}

static void begin(void *state, void *table, int64_t rows) {
  (void)rows;
  *(void **)state = table;
}

static void join(void *state, int64_t thread, int64_t threads) {
  (void)threads;
  if (thread == 0) walk(*(void **)state, 1);
}

static int32_t prepare(int64_t model, const QgTensor *inputs, int64_t count, int32_t may_wait,
                       int64_t calls, QgProgram *out, char *message) {
  static int64_t counted;
  (void)model, (void)count, (void)may_wait, (void)calls, (void)message;
  int64_t length = inputs[0].dims[0], shape = length - 1;
  if (__atomic_fetch_add(&asked[shape], 1, __ATOMIC_RELAXED) == 0) {
    *out = (QgProgram){.way = QG_IN_ONNXRUNTIME, .calls = &counted, .is_due = &due[shape]};
    return 0;
  }
  *out = (QgProgram){
      .way = QG_IN_MACHINE_CODE, .calls = &counted, .most_calls = calls ? 0 : 100, .walk = walk,
      .rows = 1, .threads = shape % 2 ? THREADS : 1,
      .begin = begin, .join = join, .pointer_count = 2, .positions = positions, .ends = ends,
      .offsets = offsets, .output_count = 1, .ranks = &rank, .dims = &lengths[shape],
      .number = length};
  return 0;
}

static int32_t new_context(int64_t program, QgContext *out, char *message) {
  (void)message;
  int64_t *words = calloc(8, sizeof *words); /* arguments, table, outside, state */
  words[0] = program;
  words[4] = (int64_t)(intptr_t)words;
  *out = (QgContext){words, words + 4, words + 6, words + 7};
  return 0;
}

static int32_t give_back(int64_t program, const QgContext *context, char *message) {
  (void)program, (void)message;
  free(context->arguments);
  return 0;
}

int32_t qg_load(QgSession **, const void *, int64_t, int32_t, char *);
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static int32_t load(int64_t model, QgSession **out, int32_t is_ahead, char *message) {
  (void)model;
  if (is_ahead) return 0;
  pthread_mutex_lock(&loading);
  int32_t status = qg_load(out, "model", 5, 1, message);
  pthread_mutex_unlock(&loading);
  return status;
}

static void drop(int64_t model, const QgProgram *program) {
  (void)program;
  __atomic_add_fetch(&drops, model, __ATOMIC_RELAXED);
}

static void release(int64_t model) { releases += model; }

static void fill_tables(void) {
  api.CreateStatus = new_status;
  api.KernelContext_GetInputCount = input_count;
  api.KernelContext_GetInput = get_input;
  api.KernelContext_GetOutput = get_output;
  api.KernelContext_ParallelFor = parallel_for;
  api.GetTensorElementTypeAndShapeDataReference = shape_of;
  api.GetTensorData = data_of;
  api.GetTensorMutableData = mutable_data_of;
  api.GetTensorSizeInBytes = nbytes_of;
  api.CreateEnv = new_env;
  api.CreateSessionOptions = new_options;
  api.SetIntraOpNumThreads = api.SetInterOpNumThreads = api.SetSessionLogSeverityLevel = set_number;
  api.AddSessionConfigEntry = set_entry;
  api.CreateSessionFromArray = new_session;
  api.GetAllocatorWithDefaultOptions = get_allocator;
  api.SessionGetInputCount = api.SessionGetOutputCount = end_count;
  api.SessionGetInputName = api.SessionGetOutputName = end_name;
  api.AllocatorFree = free_memory;
  api.Run = run;
  api.ReleaseSessionOptions = free_options;
  api.ReleaseSession = free_session;
  api.ReleaseEnv = free_env;
  api.ReleaseValue = free_value;
  hooks = (QgHooks){.prepare = prepare, .context = new_context, .give_back = give_back,
                    .load = load, .drop = drop, .release = release};
  qg_ort = &api;
  for (int64_t shape = 0; shape < SHAPES; shape++) lengths[shape] = shape + 1;
}

static OrtNodeComputeInfo *info;

static void *call(void *number) {
  int64_t input[SHAPES + 1], caller = (int64_t)(intptr_t)number;
  for (int64_t n = 0; n < CALLS; n++) {
    Kernel kernel = {.input = input};
    input[0] = (caller + n) % SHAPES + 1;
    for (int64_t i = 1; i <= input[0]; i++) input[i] = caller * CALLS + n + i;
    if (info->Compute(info, info, (OrtKernelContext *)&kernel) != NULL) abort();
    for (int64_t i = 0; i <= input[0]; i++)
      if (kernel.output[i] != (i ? 2 : 1) * input[i]) return number;
    if (n == CALLS / 4) __atomic_store_n(&due[caller % SHAPES], 1, __ATOMIC_RELEASE);
  }
  return NULL;
}

int main(void) {
  fill_tables();
  void *state, *wrong = NULL;
  pthread_t callers[CALLERS];
  if (qg_new_compute_info(7, &info) != NULL || info->CreateState(info, NULL, &state)) return 2;
  for (intptr_t i = 0; i < CALLERS; i++)
    pthread_create(&callers[i], NULL, call, (void *)(i + 1));
  for (int i = 0; i < CALLERS; i++) {
    void *result;
    pthread_join(callers[i], &result);
    if (result != NULL) wrong = result;
  }
  info->ReleaseState(info, state);
  ((QgComputeInfo *)info)->release((QgComputeInfo *)info);
  printf("%lld %lld\n", (long long)qg_counts[QG_NATIVE], (long long)qg_counts[QG_ONNXRUNTIME]);
  int is_whole = qg_counts[QG_NATIVE] + qg_counts[QG_ONNXRUNTIME] == CALLERS * CALLS;
  return wrong != NULL || releases != 7 || !is_whole;
}
