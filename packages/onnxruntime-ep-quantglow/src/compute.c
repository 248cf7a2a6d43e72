/* A fused node at run time: from input shapes to machine code, without Python.
 *
 * Programs of a node stand in a list, the last used one first; the list and each call that runs one
 * use it, and the last of these frees it.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

#ifndef MOST_PROGRAMS /* a test has fewer */
#define MOST_PROGRAMS 64
#endif

typedef struct Program {
  struct Program *next;
  int64_t users; /* the list, and calls */
  QgProgram code;
  char *refusal;    /* why quantglow refuses these shapes, NULL if it does not */
  int64_t forks;    /* when it was made */
  int32_t is_asked; /* a call asks whether there is another one now */
  int64_t calls;    /* counted where there is a maximum */
  QgIdle idle;
  int64_t key[]; /* rank and dims of each input */
} Program;

typedef struct {
  QgComputeInfo base;
  int64_t model;
  int64_t forks; /* when it was made */
  int64_t lock;  /* of the list: 0, or 1 and the forks of the process that has it */
  int64_t count; /* of programs in the list */
  Program *programs;
  QgSession *session; /* of onnxruntime's own kernels, NULL before it is needed */
  int32_t may_wait;   /* calls at new shapes wait: onnxruntime does not answer them */
} ComputeInfo;

OrtStatus *qg_invalid(const char *message) {
  /* Not EP_FAIL, on which InferenceSession.run gives the provider up for ever. */
  return qg_ort->CreateStatus(ORT_INVALID_ARGUMENT, message);
}

static OrtStatus *ended(void) {
  return qg_fail("quantglow: the Python interpreter has ended, and with it its models");
}

OrtStatus *qg_read_inputs(const OrtKernelContext *context, QgCall *call) {
  QG_TRY(qg_ort->KernelContext_GetInputCount(context, &call->count));
  if (call->count > QG_MOST_ENDS) return qg_fail("quantglow: a fused node has more than 512 inputs");
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
    input->value = value;
  }
  return NULL;
}

static int fits(const Program *program, const QgCall *call) {
  const int64_t *key = program->key;
  for (size_t i = 0; i < call->count; i++) {
    const QgTensor *input = &call->inputs[i];
    if (*key++ != input->rank) return 0;
    for (int64_t axis = 0; axis < input->rank; axis++)
      if (*key++ != input->dims[axis]) return 0;
  }
  return 1;
}

/* Wait for the list.  A lock that a thread of the parent held is nobody's in a forked child. */
static void lock_list(ComputeInfo *info) {
  int64_t own = qg_forks() + 1, seen = 0;
  while (!__atomic_compare_exchange_n(&info->lock, &seen, own, 0, __ATOMIC_ACQUIRE,
                                      __ATOMIC_RELAXED)) {
    if (seen != own) continue;
    sched_yield();
    seen = 0;
  }
}

static void unlock_list(ComputeInfo *info) { __atomic_store_n(&info->lock, 0, __ATOMIC_RELEASE); }

/* The program of some shapes, which the caller uses from now on; NULL where there is none. */
static Program *find_program(ComputeInfo *info, const QgCall *call) {
  lock_list(info);
  Program **link = &info->programs;
  while (*link != NULL && !fits(*link, call)) link = &(*link)->next;
  Program *program = *link;
  if (program != NULL) {
    *link = program->next;
    program->next = info->programs;
    info->programs = program;
    __atomic_add_fetch(&program->users, 1, __ATOMIC_RELAXED);
  }
  unlock_list(info);
  return program;
}

static OrtStatus *take_context(Program *program, QgContext **out) {
  if ((*out = qg_take_idle(&program->idle)) != NULL) return NULL;
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

/* Let quantglow use the memory of a context again. */
static void give_back(const Program *program, QgContext *context) {
  const QgHooks *hooks = qg_hooks();
  char message[QG_MESSAGE_NBYTES] = "";
  if (hooks != NULL) hooks->give_back(program->code.number, context, message);
  free(context);
}

/* Keep a context for the next call.  Where all slots are full, more calls ran at once than ever
 * will again. */
static void give_context(Program *program, QgContext *context) {
  if (!qg_give_idle(&program->idle, context)) give_back(program, context);
}

/* Whether another program may take the place of this one by now; one call at a time asks that.  A
 * forked child has no thread that compiles for it. */
static int is_due(Program *program) {
  const int64_t *word = program->code.is_due, most_calls = program->code.most_calls;
  if ((word == NULL && most_calls == 0) || __atomic_load_n(&program->is_asked, __ATOMIC_RELAXED))
    return 0;
  int is_due = 0;
  if (word != NULL)
    is_due = program->forks != qg_forks() || __atomic_load_n(word, __ATOMIC_ACQUIRE);
  if (most_calls) is_due |= __atomic_add_fetch(&program->calls, 1, __ATOMIC_RELAXED) > most_calls;
  return is_due && !__atomic_exchange_n(&program->is_asked, 1, __ATOMIC_ACQ_REL);
}

static Program *new_program(const QgCall *call) {
  int64_t count = (int64_t)call->count;
  for (size_t i = 0; i < call->count; i++) count += call->inputs[i].rank;
  Program *program = calloc(1, sizeof *program + (size_t)count * sizeof(int64_t));
  if (program == NULL) return NULL;
  program->forks = qg_forks();
  int64_t *key = program->key;
  for (size_t i = 0; i < call->count; i++) {
    *key++ = call->inputs[i].rank;
    for (int64_t axis = 0; axis < call->inputs[i].rank; axis++) *key++ = call->inputs[i].dims[axis];
  }
  return program;
}

static void free_program(Program *program) {
  for (QgContext *each; (each = qg_take_idle(&program->idle)) != NULL;) free(each);
  free(program->refusal);
  free(program);
}

/* One user less; the last one lets quantglow forget the program, too. */
static void leave_program(ComputeInfo *info, Program *program) {
  if (program == NULL || __atomic_sub_fetch(&program->users, 1, __ATOMIC_ACQ_REL) > 0) return;
  const QgHooks *hooks = qg_hooks();
  if (hooks != NULL) hooks->drop(info->model, &program->code);
  free_program(program);
}

/* Put a program into the list in the place of another one, which may be NULL; the one that was used
 * longest ago leaves a list that is full. */
static void list_program(ComputeInfo *info, Program *program, const Program *old) {
  lock_list(info);
  program->next = info->programs;
  info->programs = program;
  info->count++;
  Program **link = &program->next, *left = NULL;
  while (*link != NULL && *link != old && ((*link)->next != NULL || info->count <= MOST_PROGRAMS))
    link = &(*link)->next;
  if ((left = *link) != NULL) {
    *link = left->next;
    info->count--;
  }
  unlock_list(info);
  leave_program(info, left);
}

/* A program of new shapes, compiled by quantglow, in the place of another one, which may be NULL.
 * Two threads may both ask for the first: the list has two of the same then. */
static OrtStatus *prepare_program(ComputeInfo *info, const QgHooks *hooks, const QgCall *call,
                                  int64_t calls, const Program *old, Program **out) {
  Program *program = new_program(call);
  if (program == NULL) return qg_fail("quantglow: out of memory");
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_PREPARES);
  if (hooks->prepare(info->model, call->inputs, (int64_t)call->count, info->may_wait,
                     calls, &program->code, message)) {
    free_program(program);
    return qg_invalid(message);
  }
  if (*message) program->refusal = strdup(message);
  program->users = 2;
  list_program(info, program, old);
  *out = program;
  return NULL;
}

/* The program of some shapes, prepared now if there is none or another one is due; the caller uses
 * it. */
static OrtStatus *take_program(ComputeInfo *info, const QgHooks *hooks, const QgCall *call,
                               Program **out) {
  Program *program = find_program(info, call);
  *out = program;
  if (program == NULL) return prepare_program(info, hooks, call, 0, NULL, out);
  if (!is_due(program)) return NULL;
  int64_t calls = __atomic_load_n(&program->calls, __ATOMIC_RELAXED);
  OrtStatus *status = prepare_program(info, hooks, call, calls, program, out);
  /* After an error the next call asks again. */
  if (status != NULL) __atomic_store_n(&program->is_asked, 0, __ATOMIC_RELEASE);
  leave_program(info, program);
  return status;
}

static OrtStatus *run_native(Program *program, const QgCall *call, OrtKernelContext *kernel,
                             int64_t forks) {
  const QgProgram *code = &program->code;
  void *ends[2 * QG_MOST_ENDS];
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
  return is_outside ? qg_invalid("quantglow: an index is out of range") : NULL;
}

/* A call in onnxruntime's own kernels; `refusal`: why quantglow has no answer, or NULL. */
static OrtStatus *run_in_onnxruntime(ComputeInfo *info, const QgHooks *hooks, const QgCall *call,
                                     OrtKernelContext *kernel, const char *refusal) {
  char message[QG_MESSAGE_NBYTES] = "";
  QgSession *session = __atomic_load_n(&info->session, __ATOMIC_ACQUIRE);
  if (refusal == NULL) refusal = "";
  if (!qg_is_loaded(session)) {
    char reason[QG_MESSAGE_NBYTES] = "";
    if (hooks->load(info->model, &info->session, 0, reason)) {
      snprintf(message, sizeof message, "%.2000s onnxruntime's own kernels: %.2000s", refusal,
               reason);
      return qg_invalid(message);
    }
    session = __atomic_load_n(&info->session, __ATOMIC_ACQUIRE);
  }
  QG_ADD(QG_ONNXRUNTIME);
  OrtStatus *status = qg_run_session(session, call->inputs, call->count, kernel);
  if (status == NULL) return NULL;
  snprintf(message, sizeof message, "%.2000s onnxruntime's own kernels: %.2000s", refusal,
           qg_ort->GetErrorMessage(status));
  qg_ort->ReleaseStatus(status);
  return qg_invalid(message);
}

static OrtStatus *run(ComputeInfo *info, const QgHooks *hooks, Program *program,
                      const QgCall *call, OrtKernelContext *kernel) {
  __atomic_add_fetch(program->code.calls, 1, __ATOMIC_RELAXED);
  if (program->code.way == QG_IN_MACHINE_CODE)
    return run_native(program, call, kernel, info->forks);
  if (program->code.way == QG_IN_ONNXRUNTIME)
    return run_in_onnxruntime(info, hooks, call, kernel, program->refusal);
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_PYTHON);
  int32_t outcome = hooks->run(info->model, kernel, call->inputs, (int64_t)call->count, message);
  if (outcome > 0) return run_in_onnxruntime(info, hooks, call, kernel, message);
  return outcome < 0 ? qg_invalid(message) : NULL;
}

static OrtStatus *ORT_API_CALL compute(OrtNodeComputeInfo *base, void *state,
                                       OrtKernelContext *kernel) {
  ComputeInfo *info = (ComputeInfo *)base;
  (void)state;
  QgCall call;
  Program *program;
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return ended();
  QG_TRY(qg_read_inputs(kernel, &call));
  QG_TRY(take_program(info, hooks, &call, &program));
  OrtStatus *status = run(info, hooks, program, &call, kernel);
  leave_program(info, program);
  return status;
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

static OrtStatus *ORT_API_CALL create_state(OrtNodeComputeInfo *base,
                                            OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = base;
  ComputeInfo *info = (ComputeInfo *)base;
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return ended();
  char message[QG_MESSAGE_NBYTES] = "";
  /* No call waits for the session either; where onnxruntime has no kernels, all do. */
  info->may_wait = hooks->load(info->model, &info->session, 1, message) != 0;
  return NULL;
}

static void ORT_API_CALL release_state(OrtNodeComputeInfo *info, void *state) {
  (void)info;
  (void)state;
}

static void release(QgComputeInfo *base) {
  ComputeInfo *info = (ComputeInfo *)base;
  for (Program *program = info->programs, *next; program != NULL; program = next) {
    next = program->next;
    free_program(program);
  }
  if (qg_is_loaded(info->session)) qg_release_session(info->session);
  const QgHooks *hooks = qg_hooks();
  if (hooks != NULL) hooks->release(info->model);
  free(info);
}

OrtStatus *qg_new_compute_info(int64_t model, OrtNodeComputeInfo **out) {
  ComputeInfo *info = calloc(1, sizeof *info);
  if (info == NULL) return qg_fail("quantglow: out of memory");
  info->base.base.ort_version_supported = qg_api_version;
  info->base.base.CreateState = create_state;
  info->base.base.Compute = compute;
  info->base.base.ReleaseState = release_state;
  info->model = model;
  info->forks = qg_forks();
  info->base.release = release;
  *out = &info->base.base;
  return NULL;
}
