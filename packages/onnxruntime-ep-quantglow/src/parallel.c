/* Calls on several threads, which are those of onnxruntime.
 *
 * A session has threads for the nodes that other providers run; workers of our own would spin
 * against these.  The threads of a call need not come at once, nor all of them: see NativeCall.
 */
#include <pthread.h>

#include "quantglow_ep.h"

static int64_t forks;

static void count_fork(void) { __atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED); }

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, count_fork);
}

int64_t qg_forks(void) { return __atomic_load_n(&forks, __ATOMIC_RELAXED); }

typedef struct {
  const QgProgram *program;
  const QgContext *context;
  int64_t arrived;
} Share;

/* The first that comes is thread 0, on which the others wait: they never wait for one that has not
 * come, as where onnxruntime runs the parts one after the other. */
static void take_part(void *data, size_t part) {
  Share *share = data;
  (void)part;
  int64_t thread = __atomic_fetch_add(&share->arrived, 1, __ATOMIC_RELAXED);
  share->program->join(share->context->state, thread, share->program->threads);
}

/* Run the calls of a context; `session_forks`: `qg_forks` when the session was made, because a
 * forked child has none of the threads of its parent's sessions. */
OrtStatus *qg_walk(const QgProgram *program, const QgContext *context,
                   const OrtKernelContext *kernel, int64_t session_forks) {
  if (program->threads < 2 || session_forks != qg_forks()) {
    program->walk(context->table, program->rows);
    return NULL;
  }
  Share share = {program, context, 0};
  program->begin(context->state, context->table, program->rows);
  return qg_ort->KernelContext_ParallelFor(kernel, take_part, (size_t)program->threads, 0, &share);
}
