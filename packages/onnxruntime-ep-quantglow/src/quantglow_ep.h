/* The shim between onnxruntime and quantglow: what its files share.
 *
 * onnxruntime calls the shim by its C interface for plug-in execution providers.  The shim calls
 * quantglow, which is Python, by a table of hooks: to claim nodes, to compile, and for each new
 * combination of input shapes.  Further calls run machine code, without Python.
 */
#ifndef QUANTGLOW_EP_H
#define QUANTGLOW_EP_H

#include <stddef.h>
#include <stdint.h>

#include "onnxruntime_c_api.h"

#define QG_EXPORT __attribute__((visibility("default")))
#define QG_PROVIDER "QuantglowExecutionProvider"
#define QG_VERSION "0.3.0"

/* The oldest interface that has all functions that the shim calls: onnxruntime 1.24. */
#define QG_LEAST_API 24

/* Version of the structs below, which quantglow/ep/interface.py mirrors. */
#define QG_INTERFACE 4

#define QG_MESSAGE_NBYTES 4096

/* The interface that onnxruntime and the shim agreed on. */
extern const OrtApi *qg_ort;
extern const OrtEpApi *qg_ort_ep;
extern uint32_t qg_api_version;

OrtStatus *qg_fail(const char *message);

#define QG_TRY(call)                         \
  do {                                       \
    OrtStatus *status_of_call = (call);      \
    if (status_of_call != NULL) return status_of_call; \
  } while (0)

/* A weight of a graph; its elements stay where onnxruntime has them. */
typedef struct {
  const char *name;
  const void *data;
  int64_t nbytes;
} QgWeight;

/* A graph as the bytes of an ONNX model, without the data of its large weights. */
typedef struct {
  const void *model;
  int64_t nbytes;
  const QgWeight *weights;
  int64_t weight_count;
} QgModel;

/* An input of a call. */
typedef struct {
  const void *data;
  const int64_t *dims;
  int64_t rank;
  int64_t type; /* ONNXTensorElementDataType */
  const OrtValue *value; /* the same for onnxruntime */
} QgTensor;

/* What answers calls: the hook `run`; machine code; onnxruntime's own kernels. */
enum QgWay { QG_IN_PYTHON, QG_IN_MACHINE_CODE, QG_IN_ONNXRUNTIME };

/* What answers calls of one combination of input shapes; for machine code, see NativeCall in
 * quantglow. */
typedef struct {
  int64_t way;
  const int64_t *is_due; /* where it is not NULL and a word that is not 0: prepare it again */
  int64_t most_calls;    /* also after so many; 0: any number */
  void (*walk)(void *table, int64_t rows);
  int64_t rows;
  int64_t threads; /* from 2 on: they share a call by the next two instead of `walk` */
  void (*begin)(void *state, void *table, int64_t rows);
  void (*join)(void *state, int64_t thread, int64_t threads);
  int64_t pointer_count;    /* pointers to inputs and outputs in the table */
  const int64_t *positions; /* of the pointers among the arguments of all kernels */
  const int64_t *ends;      /* the input or output of each: inputs first */
  const int64_t *offsets;   /* bytes of each from the beginning of that */
  int64_t output_count;
  const int64_t *ranks; /* of the outputs */
  const int64_t *dims;  /* of all outputs, one after the other */
  int64_t check_count;  /* words that tell of indices out of range */
  int64_t number;       /* of the program, for the hook `context` */
  int64_t *calls;       /* counts the calls of these shapes */
} QgProgram;

/* onnxruntime's own kernels for a whole model. */
typedef struct QgSession QgSession;

/* Memory of one running call. */
typedef struct {
  int64_t *arguments;
  void *table;
  int64_t *outside;
  void *state; /* what threads share */
} QgContext;

/* What onnxruntime stores of the code of a node: the code, or the name of its file. */
typedef struct {
  const void *data;
  int64_t nbytes;
} QgSaved;

/* quantglow's side.  Each returns 0, or -1 and a message; `compile` returns a number above 0. */
typedef struct {
  int64_t interface;
  /* The group of each node of a graph, 0 for those that onnxruntime keeps. */
  int32_t (*claim)(const QgModel *, const char *options, int64_t node_count, int32_t *groups,
                   char *message);
  int64_t (*compile)(const QgModel *, const char *options, char *message);
  /* `may_wait`: the call has no other answer than the program.  `calls`: those that had the answer
   * that was prepared before.  With QG_IN_ONNXRUNTIME the message
   * says why quantglow refuses these shapes, if it does. */
  int32_t (*prepare)(int64_t model, const QgTensor *inputs, int64_t count, int32_t may_wait,
                     int64_t calls, QgProgram *, char *message);
  int32_t (*context)(int64_t program, QgContext *, char *message);
  int32_t (*give_back)(int64_t program, const QgContext *, char *message);
  /* Calls qg_load with the whole model; `is_ahead`: only if calls at new shapes do not wait. */
  int32_t (*load)(int64_t model, QgSession **, int32_t is_ahead, char *message);
  /* A call in Python, for what has no machine code of its own.  1 and a message: quantglow refuses
   * the inputs, and onnxruntime's own kernels are asked. */
  int32_t (*run)(int64_t model, void *kernel_context, const QgTensor *inputs, int64_t count,
                 char *message);
  /* The code of a model for processes without Python, which lives as long as the model; where it
   * is not embedded, a file beside the model `path` has it. */
  int32_t (*save)(int64_t model, const char *options, int32_t is_embedded, const char *path,
                  const char *machine, QgSaved *, char *message);
  void (*drop)(int64_t model, const QgProgram *); /* no call uses the program any more */
  void (*release)(int64_t model);
} QgHooks;

/* The settings of a session. */
typedef struct {
  char *options;      /* of the provider, lines "key=value" */
  char *context_path; /* of a model with EPContext nodes, "" for none */
  char *cache_folder; /* of the provider's options, NULL for none */
  int is_writing;     /* nodes become EPContext nodes, too */
  int is_embedded;    /* with their code */
  char *trust;        /* "1" where code of others is loaded, "0" where not */
} QgSettings;

/* The hooks, or NULL where Python has ended or never began. */
const QgHooks *qg_hooks(void);

/* graph_writer.c */
typedef struct QgScratch QgScratch;
QgScratch *qg_new_scratch(void);
void qg_free_scratch(QgScratch *);
void *qg_take(QgScratch *, size_t nbytes); /* zeros, freed with the scratch */
OrtStatus *qg_write_model(QgScratch *, const OrtGraph *, const OrtNode *fused, QgModel *out);

/* compute.c */
#define QG_MOST_ENDS 512

typedef struct QgComputeInfo {
  OrtNodeComputeInfo base;
  void (*release)(struct QgComputeInfo *);
} QgComputeInfo;

typedef struct {
  QgTensor inputs[QG_MOST_ENDS];
  size_t count;
} QgCall;

OrtStatus *qg_invalid(const char *message); /* an error that does not cost the session */
OrtStatus *qg_read_inputs(const OrtKernelContext *, QgCall *out);
OrtStatus *qg_new_compute_info(int64_t model, OrtNodeComputeInfo **out);

/* slots.c: memory of running calls, which waits in slots that calls empty and fill without locks */
#define QG_MOST_IDLE 64
typedef struct {
  void *slots[QG_MOST_IDLE];
} QgIdle;
void *qg_take_idle(QgIdle *);             /* NULL where all slots are empty */
int qg_give_idle(QgIdle *, void *memory); /* 0 where none is */

/* context.c */
const char *qg_machine(void); /* what code ahead of time has to be for */
OrtStatus *qg_is_context(const OrtNode *, int *out);
OrtStatus *qg_load_context(const OrtGraph *, const OrtNode *, const OrtNode *fused,
                           const QgSettings *, OrtNodeComputeInfo **out);

/* context_writer.c */
/* The names of a node's inputs, or of its outputs, which belong to onnxruntime; room for
 * QG_MOST_ENDS. */
OrtStatus *qg_end_names(const OrtNode *, int are_outputs, int with_constants, const char **names,
                        size_t *count);
OrtStatus *qg_write_context(const OrtGraph *, const OrtNode *fused, const QgSettings *,
                            int64_t model, OrtNode **out);

/* parallel.c */
int64_t qg_forks(void); /* number of forks between the first process and this one */
OrtStatus *qg_walk(const QgProgram *, const QgContext *, const OrtKernelContext *, int64_t forks);

/* own_kernels.c */
int qg_is_loaded(const QgSession *); /* in this process, not in the one that it was forked from */
OrtStatus *qg_run_session(const QgSession *, const QgTensor *inputs, size_t count,
                          OrtKernelContext *);
void qg_release_session(QgSession *);

/* provider.c */
OrtStatus *qg_new_ep(const OrtSessionOptions *, const OrtLogger *, OrtEp **out);
void qg_release_ep(OrtEp *);

/* What the shim has done, for tests: see `QgCount`. */
enum QgCount {
  QG_CLAIMS,
  QG_COMPILES,
  QG_PREPARES,
  QG_CONTEXTS,
  QG_NATIVE,
  QG_PYTHON,
  QG_ONNXRUNTIME,
  QG_COUNTS
};
extern int64_t qg_counts[QG_COUNTS];
#define QG_ADD(which) __atomic_add_fetch(&qg_counts[which], 1, __ATOMIC_RELAXED)

#endif
