/* Calls that onnxruntime's own kernels answer, by a session of the whole model: at shapes that
 * quantglow refuses, and while a program is compiled.
 *
 * The session has no other provider, so none of its calls comes back here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

/* Its threads sleep between calls: they would spin against those of the session around it. */
#define SPINNING "session.intra_op.allow_spinning"
/* Sums of products of bytes in 32 bits, also on x86 without VNNI. */
#define EXACT_SUMS "session.x64quantprecision"

struct QgSession {
  int64_t forks; /* when it was made */
  OrtEnv *env;
  OrtSession *session;
  OrtAllocator *allocator;
  size_t input_count, output_count;
  char **names; /* of inputs, then outputs */
};

static OrtStatus *fill_options(OrtSessionOptions *options, int32_t threads, int exact_sums) {
  QG_TRY(qg_ort->SetIntraOpNumThreads(options, threads));
  QG_TRY(qg_ort->SetInterOpNumThreads(options, 1));
  QG_TRY(qg_ort->SetSessionLogSeverityLevel(options, ORT_LOGGING_LEVEL_FATAL));
  QG_TRY(qg_ort->AddSessionConfigEntry(options, SPINNING, "0"));
  return exact_sums ? qg_ort->AddSessionConfigEntry(options, EXACT_SUMS, "1") : NULL;
}

static OrtStatus *open_with(QgSession *session, const void *model, size_t nbytes, int32_t threads,
                            int exact_sums) {
  OrtSessionOptions *options;
  QG_TRY(qg_ort->CreateSessionOptions(&options));
  OrtStatus *status = fill_options(options, threads, exact_sums);
  if (status == NULL)
    status = qg_ort->CreateSessionFromArray(session->env, model, nbytes, options,
                                            &session->session);
  qg_ort->ReleaseSessionOptions(options);
  return status;
}

static OrtStatus *read_names(QgSession *session) {
  QG_TRY(qg_ort->GetAllocatorWithDefaultOptions(&session->allocator));
  QG_TRY(qg_ort->SessionGetInputCount(session->session, &session->input_count));
  QG_TRY(qg_ort->SessionGetOutputCount(session->session, &session->output_count));
  size_t count = session->input_count + session->output_count;
  session->names = calloc(count + 1, sizeof *session->names);
  if (session->names == NULL) return qg_fail("quantglow: out of memory");
  for (size_t i = 0; i < count; i++) {
    int is_input = i < session->input_count;
    QG_TRY(is_input ? qg_ort->SessionGetInputName(session->session, i, session->allocator,
                                                  &session->names[i])
                    : qg_ort->SessionGetOutputName(session->session, i - session->input_count,
                                                   session->allocator, &session->names[i]));
  }
  return NULL;
}

static OrtStatus *open_session(QgSession *session, const void *model, size_t nbytes,
                               int32_t threads) {
  /* The environment of the process: onnxruntime counts who has it. */
  QG_TRY(qg_ort->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "quantglow", &session->env));
  OrtStatus *status = open_with(session, model, nbytes, threads, 1);
  if (status != NULL) {
    /* With exact sums it rewrites some convolutions to nodes that it has no kernel for. */
    qg_ort->ReleaseStatus(status);
    QG_TRY(open_with(session, model, nbytes, threads, 0));
  }
  return read_names(session);
}

int qg_is_loaded(const QgSession *session) {
  return session != NULL && session->forks == qg_forks();
}

/* Called by the hook `load`, by one thread at a time: make a session from the bytes of a model,
 * unless there is one.  0, or -1 and a message.  A child leaves that of its parent alone: to free it
 * would wait for threads that the child does not have. */
QG_EXPORT int32_t qg_load(QgSession **out, const void *model, int64_t nbytes, int32_t threads,
                          char *message) {
  if (qg_is_loaded(*out)) return 0;
  QgSession *session = calloc(1, sizeof *session);
  if (session == NULL) {
    snprintf(message, QG_MESSAGE_NBYTES, "out of memory");
    return -1;
  }
  session->forks = qg_forks();
  OrtStatus *status = open_session(session, model, (size_t)nbytes, threads);
  if (status == NULL) {
    __atomic_store_n(out, session, __ATOMIC_RELEASE);
    return 0;
  }
  snprintf(message, QG_MESSAGE_NBYTES, "%s", qg_ort->GetErrorMessage(status));
  qg_ort->ReleaseStatus(status);
  qg_release_session(session);
  return -1;
}

void qg_release_session(QgSession *session) {
  if (session == NULL) return;
  for (size_t i = 0; session->names != NULL && i < session->input_count + session->output_count; i++)
    if (session->names[i] != NULL) {
      OrtStatus *status = qg_ort->AllocatorFree(session->allocator, session->names[i]);
      if (status != NULL) qg_ort->ReleaseStatus(status);
    }
  free(session->names);
  if (session->session != NULL) qg_ort->ReleaseSession(session->session);
  if (session->env != NULL) qg_ort->ReleaseEnv(session->env);
  free(session);
}

static OrtStatus *copy_output(const OrtValue *value, size_t position, OrtKernelContext *kernel) {
  ONNXTensorElementDataType type;
  const int64_t *dims;
  size_t rank, nbytes;
  OrtValue *output;
  const void *data;
  void *target;
  QG_TRY(qg_ort->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
  QG_TRY(qg_ort->GetTensorSizeInBytes(value, &nbytes));
  QG_TRY(qg_ort->KernelContext_GetOutput(kernel, position, dims, rank, &output));
  if (nbytes == 0) return NULL;
  QG_TRY(qg_ort->GetTensorData(value, &data));
  QG_TRY(qg_ort->GetTensorMutableData(output, &target));
  memcpy(target, data, nbytes);
  return NULL;
}

OrtStatus *qg_run_session(const QgSession *session, const QgTensor *inputs, size_t count,
                          OrtKernelContext *kernel) {
  if (count != session->input_count) return qg_fail("quantglow: the model has other inputs");
  const OrtValue **values = calloc(count + 1, sizeof *values);
  OrtValue **outputs = calloc(session->output_count + 1, sizeof *outputs);
  OrtStatus *status = NULL;
  if (values == NULL || outputs == NULL) status = qg_fail("quantglow: out of memory");
  for (size_t i = 0; status == NULL && i < count; i++) values[i] = inputs[i].value;
  if (status == NULL)
    status = qg_ort->Run(session->session, NULL, (const char *const *)session->names, values,
                         count, (const char *const *)session->names + count,
                         session->output_count, outputs);
  for (size_t i = 0; outputs != NULL && i < session->output_count; i++) {
    if (status == NULL) status = copy_output(outputs[i], i, kernel);
    if (outputs[i] != NULL) qg_ort->ReleaseValue(outputs[i]);
  }
  free(values);
  free(outputs);
  return status;
}
