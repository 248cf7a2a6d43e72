/* A fused node at run time: from input shapes to machine code, without Python and without a lock.
 *
 * Programs of a node stand in a list that only grows; contexts, the memory of running calls, wait
 * in slots that calls empty and fill by atomic exchanges.
 */
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

#define MOST_ENDS 512
#define MOST_IDLE 64

typedef struct Program {
  struct Program *next;
  QgProgram code;
  QgContext *idle[MOST_IDLE];
  int64_t key_count;
  int64_t key[]; /* rank and dims of each input */
} Program;

typedef struct {
  OrtNodeComputeInfo base;
  int64_t model;
  int64_t forks; /* when it was made */
  Program *programs;
} ComputeInfo;

typedef struct {
  QgTensor inputs[MOST_ENDS];
  size_t count;
} Call;

static OrtStatus *invalid(const char *message) {
  /* Not EP_FAIL, on which InferenceSession.run gives the provider up for ever. */
  return qg_ort->CreateStatus(ORT_INVALID_ARGUMENT, message);
}

static OrtStatus *ended(void) {
  return qg_fail("quantglow: the Python interpreter has ended, and with it its models");
}

static OrtStatus *read_inputs(const OrtKernelContext *context, Call *call) {
  QG_TRY(qg_ort->KernelContext_GetInputCount(context, &call->count));
  if (call->count > MOST_ENDS) return qg_fail("quantglow: a fused node has more than 512 inputs");
  for (size_t i = 0; i < call->count; i++) {
    const OrtValue *value;
    ONNXTensorElementDataType type;
    size_t rank;
    QgTensor *input = &call->inputs[i];
    QG_TRY(qg_ort->KernelContext_GetInput(context, i, &value));
    QG_TRY(qg_ort->GetTensorElementTypeAndShapeDataReference(value, &type, &input->dims, &rank));
    QG_TRY(qg_ort->GetTensorData(value, &input->data));
    input->rank = (int64_t)rank;
    input->type = type;
  }
  return NULL;
}

static int fits(const Program *program, const Call *call) {
  const int64_t *key = program->key;
  for (size_t i = 0; i < call->count; i++) {
    const QgTensor *input = &call->inputs[i];
    if (*key++ != input->rank) return 0;
    for (int64_t axis = 0; axis < input->rank; axis++)
      if (*key++ != input->dims[axis]) return 0;
  }
  return 1;
}

static Program *find_program(ComputeInfo *info, const Call *call) {
  Program *program = __atomic_load_n(&info->programs, __ATOMIC_ACQUIRE);
  while (program != NULL && !fits(program, call)) program = program->next;
  return program;
}

/* The program of new shapes, compiled by quantglow.  Two threads may both ask for it: the list has
 * two of the same then, of which the newer one is found. */
static OrtStatus *prepare_program(ComputeInfo *info, const Call *call, Program **out) {
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return ended();
  int64_t count = (int64_t)call->count;
  for (size_t i = 0; i < call->count; i++) count += call->inputs[i].rank;
  Program *program = calloc(1, sizeof *program + (size_t)count * sizeof(int64_t));
  if (program == NULL) return qg_fail("quantglow: out of memory");
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_PREPARES);
  if (hooks->prepare(info->model, call->inputs, (int64_t)call->count, &program->code, message)) {
    free(program);
    return invalid(message);
  }
  int64_t *key = program->key;
  for (size_t i = 0; i < call->count; i++) {
    *key++ = call->inputs[i].rank;
    for (int64_t axis = 0; axis < call->inputs[i].rank; axis++) *key++ = call->inputs[i].dims[axis];
  }
  program->next = __atomic_load_n(&info->programs, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&info->programs, &program->next, program, 0,
                                      __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
  *out = program;
  return NULL;
}

static QgContext *take_idle(Program *program) {
  for (size_t i = 0; i < MOST_IDLE; i++) {
    if (__atomic_load_n(&program->idle[i], __ATOMIC_RELAXED) == NULL) continue;
    QgContext *context = __atomic_exchange_n(&program->idle[i], NULL, __ATOMIC_ACQUIRE);
    if (context != NULL) return context;
  }
  return NULL;
}

static OrtStatus *take_context(Program *program, QgContext **out) {
  if ((*out = take_idle(program)) != NULL) return NULL;
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return ended();
  QgContext *context = calloc(1, sizeof *context);
  if (context == NULL) return qg_fail("quantglow: out of memory");
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_CONTEXTS);
  if (hooks->context(program->code.number, context, message)) {
    free(context);
    return qg_fail(message);
  }
  *out = context;
  return NULL;
}

/* Keep a context for the next call.  Where all slots are full, more calls ran at once than ever
 * will again: its memory stays with quantglow until the model is released. */
static void give_context(Program *program, QgContext *context) {
  for (size_t i = 0; i < MOST_IDLE; i++) {
    QgContext *empty = NULL;
    if (__atomic_compare_exchange_n(&program->idle[i], &empty, context, 0, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED))
      return;
  }
  free(context);
}

static OrtStatus *run_native(Program *program, const Call *call, OrtKernelContext *kernel,
                             int64_t forks) {
  const QgProgram *code = &program->code;
  void *ends[2 * MOST_ENDS];
  for (size_t i = 0; i < call->count; i++) ends[i] = (void *)call->inputs[i].data;
  const int64_t *dims = code->dims;
  for (int64_t i = 0; i < code->output_count; i++) {
    OrtValue *value;
    QG_TRY(qg_ort->KernelContext_GetOutput(kernel, (size_t)i, dims, (size_t)code->ranks[i],
                                           &value));
    QG_TRY(qg_ort->GetTensorMutableData(value, &ends[call->count + (size_t)i]));
    dims += code->ranks[i];
  }
  QgContext *context;
  QG_TRY(take_context(program, &context));
  for (int64_t i = 0; i < code->pointer_count; i++)
    context->arguments[code->positions[i]] = (int64_t)(intptr_t)ends[code->ends[i]] + code->offsets[i];
  OrtStatus *status = qg_walk(code, context, kernel, forks);
  QG_ADD(QG_NATIVE);
  int is_outside = 0;
  for (int64_t i = 0; i < code->check_count; i++) {
    is_outside |= context->outside[i] != 0;
    context->outside[i] = 0;
  }
  give_context(program, context);
  if (status != NULL) return status;
  return is_outside ? invalid("quantglow: an index is out of range") : NULL;
}

static OrtStatus *ORT_API_CALL compute(OrtNodeComputeInfo *base, void *state,
                                       OrtKernelContext *kernel) {
  ComputeInfo *info = (ComputeInfo *)base;
  (void)state;
  Call call;
  QG_TRY(read_inputs(kernel, &call));
  Program *program = find_program(info, &call);
  if (program == NULL) QG_TRY(prepare_program(info, &call, &program));
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return ended();
  if (program->code.is_native) return run_native(program, &call, kernel, info->forks);
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_PYTHON);
  if (hooks->run(info->model, kernel, call.inputs, (int64_t)call.count, message))
    return invalid(message);
  return NULL;
}

/* Memory of an output of a call in Python, NULL where there is none. */
QG_EXPORT void *qg_output(void *kernel, int64_t position, const int64_t *dims, int64_t rank) {
  OrtValue *value;
  void *data;
  OrtStatus *status =
      qg_ort->KernelContext_GetOutput(kernel, (size_t)position, dims, (size_t)rank, &value);
  if (status == NULL) status = qg_ort->GetTensorMutableData(value, &data);
  if (status == NULL) return data;
  qg_ort->ReleaseStatus(status);
  return NULL;
}

static OrtStatus *ORT_API_CALL create_state(OrtNodeComputeInfo *info,
                                            OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = info;
  return NULL;
}

static void ORT_API_CALL release_state(OrtNodeComputeInfo *info, void *state) {
  (void)info;
  (void)state;
}

OrtStatus *qg_new_compute_info(int64_t model, OrtNodeComputeInfo **out) {
  ComputeInfo *info = calloc(1, sizeof *info);
  if (info == NULL) return qg_fail("quantglow: out of memory");
  info->base.ort_version_supported = qg_api_version;
  info->base.CreateState = create_state;
  info->base.Compute = compute;
  info->base.ReleaseState = release_state;
  info->model = model;
  info->forks = qg_forks();
  *out = &info->base;
  return NULL;
}

void qg_release_compute_info(OrtNodeComputeInfo *base) {
  ComputeInfo *info = (ComputeInfo *)base;
  if (info == NULL) return;
  for (Program *program = info->programs, *next; program != NULL; program = next) {
    next = program->next;
    for (size_t i = 0; i < MOST_IDLE; i++) free(program->idle[i]);
    free(program);
  }
  const QgHooks *hooks = qg_hooks();
  if (hooks != NULL) hooks->release(info->model);
  free(info);
}
