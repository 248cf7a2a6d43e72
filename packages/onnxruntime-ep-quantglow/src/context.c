/* EPContext nodes: fused nodes whose code was compiled ahead of time, and runs without Python.
 *
 * An attribute of the node, or a file beside the model, has the code: words of 64 bits that tell
 * of the shapes, then a shared library with a function for each of them
 * (quantglow/ep/contexts.py).  Such a file is a program: it is loaded where this user made it on
 * this machine, or where an option says that it is trusted.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quantglow_ep.h"

#define MAGIC "QGEPCTX1"
#define ID_NBYTES 32
#define MACHINE_NBYTES 64
#define HEAD_NBYTES (8 + ID_NBYTES + MACHINE_NBYTES)
#define SEAL_NBYTES (19 + 32)
#define MOST_RANK 64
#define MOST_ENTRIES 1024
#define MOST_ALIGN 4096
#define MOST_ARENA ((int64_t)1 << 40)

typedef struct {
  char *bytes;
  size_t nbytes;
} Content;

typedef struct {
  const int64_t *at, *end;
  int is_short;
} Words;

/* An input or output: its place among those of the node, and what it has to be. */
typedef struct {
  int64_t position, type, rank;
  const int64_t *dims;
} End;

typedef int (*Run)(void *arena, const void *const *inputs, void *const *outputs);
typedef int (*RunAt)(int level, void *arena, const void *const *inputs, void *const *outputs);

/* The code for one combination of input shapes. */
typedef struct {
  int64_t arena_nbytes, arena_align, input_count, output_count;
  End *inputs, *outputs;
  Run run;
  RunAt run_at; /* where there is code for several levels of a processor */
  QgIdle idle;
} Entry;

typedef struct {
  QgComputeInfo base;
  Content content;
  void *library;
  int level;
  int64_t count;
  Entry *entries;
} Context;

static OrtStatus *damaged(void) {
  return qg_fail("quantglow: the code of an EPContext node is damaged. Remedy: compile the model "
                 "again");
}

const char *qg_machine(void) {
#if defined(__x86_64__)
  return "quantglow 1 x86_64-linux";
#elif defined(__aarch64__)
  return "quantglow 1 aarch64-linux";
#else
  return "quantglow 1 other";
#endif
}

/* The bytes of a string attribute, with a 0 behind them; none where the node has no such one. */
static OrtStatus *read_text(const OrtNode *node, const char *name, Content *out) {
  const OrtOpAttr *attribute = NULL;
  *out = (Content){NULL, 0};
  QG_TRY(qg_ort->Node_GetAttributeByName(node, name, &attribute));
  if (attribute == NULL) return NULL;
  size_t nbytes = 0;
  OrtStatus *status = qg_ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, NULL, 0, &nbytes);
  if (status != NULL) qg_ort->ReleaseStatus(status); /* it says how many bytes there are */
  char *bytes = calloc(1, nbytes + 1);
  if (bytes == NULL) return qg_fail("quantglow: out of memory");
  status = qg_ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, bytes, nbytes, &nbytes);
  if (status != NULL) {
    free(bytes);
    return status;
  }
  *out = (Content){bytes, nbytes};
  return NULL;
}

OrtStatus *qg_is_context(const OrtNode *node, int *out) {
  const char *type;
  Content source;
  *out = 0;
  QG_TRY(qg_ort->Node_GetOperatorType(node, &type));
  if (strcmp(type, "EPContext") != 0) return NULL;
  QG_TRY(read_text(node, "source", &source));
  *out = source.bytes != NULL && strcmp(source.bytes, QG_PROVIDER) == 0;
  free(source.bytes);
  return NULL;
}

/* The whole contents of a file; `flags` of open beside O_RDONLY.  0, or -1 and errno. */
static int read_file(const char *path, int flags, Content *out, struct stat *facts) {
  int file = open(path, O_RDONLY | O_CLOEXEC | flags);
  if (file < 0) return -1;
  *out = (Content){NULL, 0};
  if (fstat(file, facts) == 0 && S_ISREG(facts->st_mode)) {
    char *bytes = malloc((size_t)facts->st_size + 1);
    ssize_t count = 0;
    size_t total = 0;
    while (bytes != NULL && total < (size_t)facts->st_size &&
           (count = read(file, bytes + total, (size_t)facts->st_size - total)) > 0)
      total += (size_t)count;
    if (bytes != NULL && total == (size_t)facts->st_size)
      *out = (Content){bytes, total};
    else
      free(bytes);
  }
  close(file);
  return out->bytes == NULL ? -1 : 0;
}

/* The file of an EPContext node beside the model: a name only, so that no model reads others. */
static OrtStatus *read_beside(const OrtGraph *graph, const char *folder_of, const char *name,
                              Content *out) {
  const ORTCHAR_T *model;
  QG_TRY(qg_ort->Graph_GetModelPath(graph, &model));
  if (*folder_of == 0) folder_of = model;
  char path[PATH_MAX], message[PATH_MAX + 256];
  const char *slash = strrchr(folder_of, '/');
  int folder = slash == NULL ? 0 : (int)(slash - folder_of) + 1;
  if (*name == 0 || strchr(name, '/') != NULL || strcmp(name, "..") == 0)
    return qg_fail("quantglow: ep_cache_context is no name of a file beside the model");
  if (snprintf(path, sizeof path, "%.*s%s", folder, folder_of, name) >= (int)sizeof path)
    return qg_fail("quantglow: the path of the file beside the model is too long");
  struct stat facts;
  if (read_file(path, 0, out, &facts) == 0) return NULL;
  snprintf(message, sizeof message,
           "quantglow: cannot read %s: %s. Remedy: keep it beside the model, and where a session is "
           "made of bytes, say where that is by ep.context_file_path",
           path, strerror(errno));
  return qg_fail(message);
}

/* The path of quantglow's copy of a context in a folder, by default that of the environment: 0
 * where there is none. */
static int copy_path(const char *folder, const char *id, char *path, size_t size) {
  const char *home = getenv("HOME"), *inner = "";
  const struct passwd *user = home == NULL ? getpwuid(geteuid()) : NULL;
  if (user != NULL) home = user->pw_dir;
  if (folder == NULL) folder = getenv("QUANTGLOW_CACHE_DIR");
  if (folder == NULL || (folder[0] == '~' && folder[1] == '/')) {
    inner = folder == NULL ? "/.cache/quantglow" : folder + 1;
    folder = home;
  }
  if (folder == NULL || *folder == 0) return 0;
  return snprintf(path, size, "%s%s/contexts/%.*s.o", folder, inner, ID_NBYTES, id) < (int)size;
}

/* Whether this user made some contents on this machine: quantglow keeps a copy of what it writes,
 * behind a seal (quantglow/codegen/llvm/cache.py), in a file that nobody else may write. */
static int is_made_here(const Content *content, const char *folder) {
  char path[PATH_MAX];
  const char *id = content->bytes + 8;
  for (int i = 0; i < ID_NBYTES; i++)
    if (id[i] == 0 || strchr("0123456789abcdef", id[i]) == NULL) return 0;
  Content copy;
  struct stat facts;
  if (!copy_path(folder, id, path, sizeof path)) return 0;
  if (read_file(path, O_NOFOLLOW, &copy, &facts) != 0) return 0;
  int is_private = facts.st_uid == geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  int is_equal = copy.nbytes == content->nbytes + SEAL_NBYTES &&
                 memcmp(copy.bytes + SEAL_NBYTES, content->bytes, content->nbytes) == 0;
  free(copy.bytes);
  if (is_private && is_equal) utimensat(AT_FDCWD, path, NULL, 0); /* pruned last */
  return is_private && is_equal;
}

static int64_t next_word(Words *words, int64_t least, int64_t most) {
  if (words->at >= words->end || *words->at < least || *words->at > most) {
    words->is_short = 1;
    return least;
  }
  return *words->at++;
}

static End *read_ends(Words *words, int64_t *count) {
  *count = next_word(words, 0, QG_MOST_ENDS);
  End *ends = calloc((size_t)*count + 1, sizeof *ends);
  for (int64_t i = 0; i < *count && ends != NULL; i++) {
    ends[i].position = next_word(words, 0, QG_MOST_ENDS - 1);
    ends[i].type = next_word(words, 1, INT32_MAX);
    ends[i].rank = next_word(words, 0, MOST_RANK);
    ends[i].dims = words->at;
    for (int64_t axis = 0; axis < ends[i].rank; axis++) next_word(words, 0, INT64_MAX);
  }
  return ends;
}

/* Moves ends from their places in a stored node to those in the fused one, which has others. */
static OrtStatus *move_ends(const OrtNode *node, const OrtNode *fused, int are_outputs,
                            Context *context) {
  const char *names[QG_MOST_ENDS], *fused_names[QG_MOST_ENDS];
  size_t count, fused_count, places[QG_MOST_ENDS];
  /* Constants by now, too: in a stored model, initializers are no inputs of the graph. */
  QG_TRY(qg_end_names(node, are_outputs, 1, names, &count));
  QG_TRY(qg_end_names(fused, are_outputs, 1, fused_names, &fused_count));
  for (size_t i = 0; i < count; i++) {
    places[i] = 0;
    while (places[i] < fused_count && strcmp(names[i], fused_names[places[i]]) != 0) places[i]++;
    if (places[i] == fused_count) return damaged();
  }
  for (int64_t i = 0; i < context->count; i++) {
    Entry *entry = &context->entries[i];
    End *ends = are_outputs ? entry->outputs : entry->inputs;
    int64_t end_count = are_outputs ? entry->output_count : entry->input_count;
    for (int64_t j = 0; j < end_count; j++) {
      if (ends[j].position >= (int64_t)count) return damaged();
      ends[j].position = (int64_t)places[ends[j].position];
    }
  }
  return NULL;
}

static int is_power_of_two(int64_t number) { return (number & (number - 1)) == 0; }

static void read_entry(Words *words, Entry *entry) {
  entry->arena_nbytes = next_word(words, 0, MOST_ARENA);
  entry->arena_align = next_word(words, 1, MOST_ALIGN);
  entry->inputs = read_ends(words, &entry->input_count);
  entry->outputs = read_ends(words, &entry->output_count);
  if (entry->inputs == NULL || entry->outputs == NULL || !is_power_of_two(entry->arena_align))
    words->is_short = 1;
}

static void release_context(QgComputeInfo *base) {
  Context *context = (Context *)base;
  for (int64_t i = 0; i < context->count; i++) {
    Entry *entry = &context->entries[i];
    for (void *arena; (arena = qg_take_idle(&entry->idle)) != NULL;) free(arena);
    free(entry->inputs);
    free(entry->outputs);
  }
  if (context->library != NULL) dlclose(context->library);
  free(context->entries);
  free(context->content.bytes);
  free(context);
}

/* A file in memory with some bytes; -1 where there is no memory. */
static int new_file(const char *bytes, size_t nbytes) {
  int file = memfd_create("quantglow", MFD_CLOEXEC);
  size_t total = 0;
  ssize_t count = 0;
  while (file >= 0 && total < nbytes && (count = write(file, bytes + total, nbytes - total)) > 0)
    total += (size_t)count;
  if (file < 0 || total == nbytes) return file;
  close(file);
  return -1;
}

/* A library whose bytes were looked at: on disk its file could be another one by now. */
static OrtStatus *open_library(const char *bytes, size_t nbytes, void **out) {
  char path[64];
  void *other = NULL;
  int file = new_file(bytes, nbytes);
  dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL); /* its functions, where the program has no others */
  do {
    if (other != NULL) { /* loaded by this path, whose file was closed: dlopen goes by the path */
      dlclose(other);
      int next = fcntl(file, F_DUPFD_CLOEXEC, file + 1);
      close(file);
      file = next;
    }
    if (file < 0) return qg_fail("quantglow: there is no memory for code");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  } while ((other = dlopen(path, RTLD_NOW | RTLD_NOLOAD)) != NULL);
  *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  close(file);
  return *out == NULL ? qg_fail(dlerror()) : NULL;
}

static OrtStatus *find_functions(Context *context) {
  for (int64_t i = 0; i < context->count; i++) {
    char name[64];
    Entry *entry = &context->entries[i];
    snprintf(name, sizeof name, "qg%lld_run", (long long)i);
    *(void **)&entry->run = dlsym(context->library, name);
    snprintf(name, sizeof name, "qg%lld_run_at", (long long)i);
    *(void **)&entry->run_at = dlsym(context->library, name);
    if (entry->run == NULL) return qg_fail("quantglow: the code of a file lacks a function");
  }
  int (*level)(void);
  *(void **)&level = dlsym(context->library, "qg0_level");
  context->level = level == NULL ? 0 : level();
  return NULL;
}

/* Reads a context; its contents belong to it from here on. */
static OrtStatus *parse(Context *context, const QgSettings *settings) {
  const Content *content = &context->content;
  if (content->nbytes < HEAD_NBYTES || memcmp(content->bytes, MAGIC, 8) != 0) return damaged();
  const char *machine = content->bytes + 8 + ID_NBYTES;
  if (strnlen(machine, MACHINE_NBYTES) == MACHINE_NBYTES) return damaged();
  if (strcmp(machine, qg_machine()) != 0) {
    char message[512];
    snprintf(message, sizeof message,
             "quantglow: the code of an EPContext node is for \"%s\", and this is \"%s\". Remedy: "
             "compile the model here",
             machine, qg_machine());
    return qg_fail(message);
  }
  if (strcmp(settings->trust, "0") != 0 && strcmp(settings->trust, "1") != 0)
    return qg_fail("quantglow: trust_code is no yes or no. Remedy: it is 1 to load code of others, "
                   "or 0");
  if (*settings->trust == '0' && !is_made_here(content, settings->cache_folder))
    return qg_fail("quantglow: a model with EPContext nodes is a program, and nothing shows that "
                   "this one was not compiled elsewhere: this user's cache has no copy of its code. "
                   "Remedy: where you trust who made it, "
                   "ep.quantglowexecutionprovider.trust_code=1");
  Words words = {(const int64_t *)(content->bytes + HEAD_NBYTES),
                 (const int64_t *)(content->bytes + HEAD_NBYTES) +
                     (content->nbytes - HEAD_NBYTES) / 8,
                 0};
  int64_t count = next_word(&words, 1, MOST_ENTRIES);
  context->entries = calloc((size_t)count, sizeof *context->entries);
  if (context->entries == NULL) return qg_fail("quantglow: out of memory");
  context->count = count;
  for (int64_t i = 0; i < count; i++) read_entry(&words, &context->entries[i]);
  int64_t nbytes = next_word(&words, 1, INT64_MAX);
  const char *library = (const char *)words.at;
  if (words.is_short || nbytes > content->bytes + content->nbytes - library) return damaged();
  QG_TRY(open_library(library, (size_t)nbytes, &context->library));
  return find_functions(context);
}

static int are_fitting(const Entry *entry, const QgCall *call) {
  for (int64_t i = 0; i < entry->input_count; i++) {
    const End *end = &entry->inputs[i];
    const QgTensor *input = &call->inputs[end->position];
    if ((size_t)end->position >= call->count || input->type != end->type ||
        input->rank != end->rank || memcmp(input->dims, end->dims, (size_t)end->rank * 8) != 0)
      return 0;
  }
  return 1;
}

static OrtStatus *no_code(const QgCall *call) {
  char message[1024] = "quantglow: this model has no code for inputs of the shapes";
  size_t length = strlen(message);
  for (size_t i = 0; i < call->count && length < sizeof message - 256; i++)
    for (int64_t axis = 0; axis < call->inputs[i].rank && length < sizeof message - 256; axis++)
      length += (size_t)snprintf(message + length, sizeof message - length, "%s%lld",
                                 axis ? "x" : i ? ", " : " ", (long long)call->inputs[i].dims[axis]);
  snprintf(message + length, sizeof message - length,
           ". Remedy: compile it with ep.quantglowexecutionprovider.shapes for these, too");
  return qg_invalid(message);
}

static OrtStatus *result_of(int code) {
  switch (code) { /* as the header of a bundle has them */
    case 0:
      return NULL;
    case 2:
      return qg_invalid("quantglow: an input or output is not aligned to its elements");
    case 3:
      return qg_invalid("quantglow: an index is out of range");
    default:
      return qg_fail("quantglow: this processor or system lacks what the code needs. Remedy: "
                     "compile the model here");
  }
}

static OrtStatus *ORT_API_CALL compute(OrtNodeComputeInfo *base, void *state,
                                       OrtKernelContext *kernel) {
  Context *context = (Context *)base;
  (void)state;
  QgCall call;
  QG_TRY(qg_read_inputs(kernel, &call));
  Entry *entry = context->entries, *end = entry + context->count;
  while (entry < end && !are_fitting(entry, &call)) entry++;
  if (entry == end) return no_code(&call);
  const void *inputs[QG_MOST_ENDS];
  void *outputs[QG_MOST_ENDS];
  for (int64_t i = 0; i < entry->input_count; i++)
    inputs[i] = call.inputs[entry->inputs[i].position].data;
  for (int64_t i = 0; i < entry->output_count; i++) {
    OrtValue *value;
    const End *output = &entry->outputs[i];
    QG_TRY(qg_ort->KernelContext_GetOutput(kernel, (size_t)output->position, output->dims,
                                           (size_t)output->rank, &value));
    QG_TRY(qg_ort->GetTensorMutableData(value, &outputs[i]));
  }
  size_t align = entry->arena_align < 64 ? 64 : (size_t)entry->arena_align;
  void *arena = qg_take_idle(&entry->idle);
  if (arena == NULL)
    arena = aligned_alloc(align, ((size_t)entry->arena_nbytes + align) / align * align);
  if (arena == NULL) return qg_fail("quantglow: out of memory");
  int code = entry->run_at == NULL ? entry->run(arena, inputs, outputs)
                                   : entry->run_at(context->level, arena, inputs, outputs);
  QG_ADD(QG_NATIVE);
  if (!qg_give_idle(&entry->idle, arena)) free(arena);
  return result_of(code);
}

static OrtStatus *ORT_API_CALL create_state(OrtNodeComputeInfo *info,
                                            OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = info;
  return NULL;
}

static void ORT_API_CALL release_state(OrtNodeComputeInfo *info, void *state) {
  (void)info, (void)state;
}

OrtStatus *qg_load_context(const OrtGraph *graph, const OrtNode *node, const OrtNode *fused,
                           const QgSettings *settings, OrtNodeComputeInfo **out) {
  Content content;
  int64_t is_embedded = 1;
  size_t size = 1;
  const OrtOpAttr *mode = NULL;
  QG_TRY(qg_ort->Node_GetAttributeByName(node, "embed_mode", &mode));
  if (mode != NULL)
    QG_TRY(qg_ort->ReadOpAttr(mode, ORT_OP_ATTR_INT, &is_embedded, sizeof is_embedded, &size));
  QG_TRY(read_text(node, "ep_cache_context", &content));
  if (content.bytes == NULL) return damaged();
  if (!is_embedded) {
    char *name = content.bytes;
    OrtStatus *status = read_beside(graph, settings->context_path, name, &content);
    free(name);
    if (status != NULL) return status;
  }
  Context *context = calloc(1, sizeof *context);
  if (context == NULL) {
    free(content.bytes);
    return qg_fail("quantglow: out of memory");
  }
  context->base.release = release_context;
  context->content = content;
  OrtStatus *status = parse(context, settings);
  if (status == NULL) status = move_ends(node, fused, 0, context);
  if (status == NULL) status = move_ends(node, fused, 1, context);
  if (status != NULL) {
    release_context(&context->base);
    return status;
  }
  context->base.base.ort_version_supported = qg_api_version;
  context->base.base.CreateState = create_state;
  context->base.base.Compute = compute;
  context->base.base.ReleaseState = release_state;
  *out = &context->base.base;
  return NULL;
}
