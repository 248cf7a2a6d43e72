/* The execution provider of a session: which nodes it claims, and how these are compiled. */
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

#define PREFIX "ep.quantglowexecutionprovider."
#define TRUST PREFIX "trust_code"

typedef struct {
  OrtEp base;
  const OrtLogger *logger;
  QgSettings settings;
} Provider;

static void log_message(const Provider *provider, OrtLoggingLevel level, const char *message) {
  OrtStatus *status =
      qg_ort->Logger_LogMessage(provider->logger, level, message, ORT_FILE, __LINE__, __func__);
  if (status != NULL) qg_ort->ReleaseStatus(status);
}

static const char *ORT_API_CALL name(const OrtEp *ep) {
  (void)ep;
  return QG_PROVIDER;
}

/* Claims the EPContext nodes that are ours; a graph with such nodes was shared out before. */
static OrtStatus *claim_contexts(const OrtNode **nodes, size_t count, OrtEpGraphSupportInfo *info,
                                 int *out) {
  *out = 0;
  for (size_t i = 0; i < count; i++) {
    int is_context;
    QG_TRY(qg_is_context(nodes[i], &is_context));
    if (!is_context) continue;
    *out = 1;
    QG_TRY(qg_ort_ep->EpGraphSupportInfo_AddNodesToFuse(info, &nodes[i], 1, NULL));
  }
  return NULL;
}

static OrtStatus *claim(const Provider *provider, const QgHooks *hooks, const OrtGraph *graph,
                        QgScratch *scratch, OrtEpGraphSupportInfo *info) {
  size_t count;
  QG_TRY(qg_ort->Graph_GetNumNodes(graph, &count));
  if (count == 0) return NULL;
  const OrtNode **nodes = qg_take(scratch, count * sizeof *nodes);
  const OrtNode **group = qg_take(scratch, count * sizeof *group);
  int32_t *groups = qg_take(scratch, count * sizeof *groups);
  if (nodes == NULL || group == NULL || groups == NULL)
    return qg_fail("quantglow: out of memory");
  QG_TRY(qg_ort->Graph_GetNodes(graph, nodes, count));
  int has_contexts;
  QG_TRY(claim_contexts(nodes, count, info, &has_contexts));
  if (has_contexts || hooks == NULL) return NULL;
  QgModel model;
  QG_TRY(qg_write_model(scratch, graph, NULL, &model));
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_CLAIMS);
  int32_t most = hooks->claim(&model, provider->settings.options, (int64_t)count, groups,
                               message);
  /* A graph that quantglow cannot look at stays with the other providers: no session is lost. */
  if (*message) log_message(provider, most < 0 ? ORT_LOGGING_LEVEL_WARNING : ORT_LOGGING_LEVEL_INFO, message);
  OrtNodeFusionOptions fusion = {.ort_version_supported = qg_api_version,
                                 .drop_constant_initializers = true};
  for (int32_t number = 1; number <= most; number++) {
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
      if (groups[i] == number) group[size++] = nodes[i];
    if (size) QG_TRY(qg_ort_ep->EpGraphSupportInfo_AddNodesToFuse(info, group, size, &fusion));
  }
  return NULL;
}

static OrtStatus *ORT_API_CALL get_capability(OrtEp *ep, const OrtGraph *graph,
                                              OrtEpGraphSupportInfo *info) {
  const OrtNode *parent;
  QG_TRY(qg_ort->Graph_GetParentNode(graph, &parent));
  /* Bodies of If and Loop go with their node. */
  if (parent != NULL) return NULL;
  QgScratch *scratch = qg_new_scratch();
  if (scratch == NULL) return qg_fail("quantglow: out of memory");
  OrtStatus *status = claim((const Provider *)ep, qg_hooks(), graph, scratch, info);
  qg_free_scratch(scratch);
  return status;
}

/* The EPContext node that a graph consists of, NULL for other graphs. */
static OrtStatus *only_context(const OrtGraph *graph, const OrtNode **out) {
  size_t count;
  int is_context = 0;
  *out = NULL;
  QG_TRY(qg_ort->Graph_GetNumNodes(graph, &count));
  if (count != 1) return NULL;
  const OrtNode *node;
  QG_TRY(qg_ort->Graph_GetNodes(graph, &node, 1));
  QG_TRY(qg_is_context(node, &is_context));
  if (is_context) *out = node;
  return NULL;
}

static OrtStatus *compile_node(const Provider *provider, QgScratch *scratch, const OrtGraph *graph,
                               const OrtNode *fused, OrtNodeComputeInfo **info, OrtNode **node) {
  const QgHooks *hooks = qg_hooks();
  const QgSettings *settings = &provider->settings;
  const OrtNode *context;
  QG_TRY(only_context(graph, &context));
  if (context != NULL) return qg_load_context(graph, context, fused, settings, info);
  if (hooks == NULL) return qg_fail("quantglow: its Python package is not loaded");
  QgModel model;
  QG_TRY(qg_write_model(scratch, graph, fused, &model));
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_COMPILES);
  int64_t number = hooks->compile(&model, settings->options, message);
  if (number <= 0) return qg_fail(message);
  OrtStatus *status = qg_new_compute_info(number, info);
  if (status != NULL || !settings->is_writing) return status;
  return qg_write_context(graph, fused, settings, number, node);
}

static void ORT_API_CALL release_compute_infos(OrtEp *ep, OrtNodeComputeInfo **infos,
                                               size_t count) {
  (void)ep;
  for (size_t i = 0; i < count; i++) {
    QgComputeInfo *info = (QgComputeInfo *)infos[i];
    if (info != NULL) info->release(info);
  }
}

static OrtStatus *ORT_API_CALL compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused,
                                       size_t count, OrtNodeComputeInfo **infos,
                                       OrtNode **context_nodes) {
  for (size_t i = 0; i < count; i++) {
    QgScratch *scratch = qg_new_scratch();
    if (scratch == NULL) return qg_fail("quantglow: out of memory");
    OrtStatus *status = compile_node((const Provider *)ep, scratch, graphs[i], fused[i], &infos[i],
                                     &context_nodes[i]);
    qg_free_scratch(scratch);
    if (status == NULL) continue;
    release_compute_infos(ep, infos, i + 1);
    memset(infos, 0, count * sizeof *infos);
    return status;
  }
  return NULL;
}

static const char *ORT_API_CALL compatibility_info(OrtEp *ep, const OrtGraph *graph) {
  (void)ep, (void)graph;
  return qg_machine();
}

/* A copy of the value of an entry, or of another text where there is none; NULL for NULL. */
static char *entry_of(size_t count, const char *const *keys, const char *const *values,
                      const char *key, const char *otherwise) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(keys[i], key) == 0) otherwise = values[i];
  return otherwise == NULL ? NULL : strdup(otherwise);
}

static int is_on(size_t count, const char *const *keys, const char *const *values, const char *key,
                 int otherwise) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(keys[i], key) == 0) return strcmp(values[i], "1") == 0;
  return otherwise;
}

/* The options of the provider that a session has, a line for each, without those of the shim. */
static char *option_lines(size_t count, const char *const *keys, const char *const *values) {
  size_t nbytes = 1;
  for (size_t i = 0; i < count; i++) nbytes += strlen(keys[i]) + strlen(values[i]) + 2;
  char *text = calloc(1, nbytes), *end = text;
  for (size_t i = 0; i < count && text != NULL; i++) {
    if (strncmp(keys[i], PREFIX, sizeof PREFIX - 1) != 0 || strcmp(keys[i], TRUST) == 0) continue;
    end = stpcpy(end, keys[i] + sizeof PREFIX - 1);
    end = stpcpy(end, "=");
    end = stpcpy(end, values[i]);
    end = stpcpy(end, "\n");
  }
  return text;
}

static OrtStatus *read_settings(const OrtSessionOptions *options, QgSettings *out) {
  OrtKeyValuePairs *pairs;
  const char *const *keys, *const *values;
  size_t count;
  QG_TRY(qg_ort->GetSessionOptionsConfigEntries(options, &pairs));
  qg_ort->GetKeyValuePairs(pairs, &keys, &values, &count);
  out->options = option_lines(count, keys, values);
  out->context_path = entry_of(count, keys, values, "ep.context_file_path", "");
  out->cache_folder = entry_of(count, keys, values, PREFIX "cache_folder", NULL);
  out->is_writing = is_on(count, keys, values, "ep.context_enable", 0);
  out->is_embedded = is_on(count, keys, values, "ep.context_embed_mode", 0);
  out->trust = entry_of(count, keys, values, TRUST, "0");
  qg_ort->ReleaseKeyValuePairs(pairs);
  if (out->options == NULL || out->context_path == NULL || out->trust == NULL)
    return qg_fail("quantglow: out of memory");
  return NULL;
}

OrtStatus *qg_new_ep(const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out) {
  Provider *provider = calloc(1, sizeof *provider);
  if (provider == NULL) return qg_fail("quantglow: out of memory");
  OrtStatus *status = read_settings(options, &provider->settings);
  if (status != NULL) {
    qg_release_ep(&provider->base);
    return status;
  }
  provider->logger = logger;
  provider->base.ort_version_supported = qg_api_version;
  provider->base.GetName = name;
  provider->base.GetCapability = get_capability;
  provider->base.Compile = compile;
  provider->base.ReleaseNodeComputeInfos = release_compute_infos;
  provider->base.GetCompiledModelCompatibilityInfo = compatibility_info;
  *out = &provider->base;
  return NULL;
}

void qg_release_ep(OrtEp *ep) {
  if (ep == NULL) return;
  free(((Provider *)ep)->settings.options);
  free(((Provider *)ep)->settings.context_path);
  free(((Provider *)ep)->settings.cache_folder);
  free(((Provider *)ep)->settings.trust);
  free(ep);
}
