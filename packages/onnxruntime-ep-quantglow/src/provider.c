/* The execution provider of a session: which nodes it claims, and how these are compiled. */
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

#define PREFIX "ep.quantglowexecutionprovider."

typedef struct {
  OrtEp base;
  const OrtLogger *logger;
  char *options; /* lines "key=value" */
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
  QgModel model;
  QG_TRY(qg_write_model(scratch, graph, NULL, &model));
  char message[QG_MESSAGE_NBYTES] = "";
  QG_ADD(QG_CLAIMS);
  int32_t most = hooks->claim(&model, (int64_t)count, groups, message);
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
  const QgHooks *hooks = qg_hooks();
  /* Bodies of If and Loop go with their node. */
  if (parent != NULL || hooks == NULL) return NULL;
  QgScratch *scratch = qg_new_scratch();
  if (scratch == NULL) return qg_fail("quantglow: out of memory");
  OrtStatus *status = claim((const Provider *)ep, hooks, graph, scratch, info);
  qg_free_scratch(scratch);
  return status;
}

static OrtStatus *compile_node(const Provider *provider, const OrtGraph *graph,
                               const OrtNode *fused, OrtNodeComputeInfo **out) {
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return qg_fail("quantglow: its Python package is not loaded");
  QgScratch *scratch = qg_new_scratch();
  QgModel model;
  OrtStatus *status = qg_write_model(scratch, graph, fused, &model);
  if (status == NULL) {
    char message[QG_MESSAGE_NBYTES] = "";
    QG_ADD(QG_COMPILES);
    int64_t number = hooks->compile(&model, provider->options, message);
    status = number > 0 ? qg_new_compute_info(number, out) : qg_fail(message);
  }
  qg_free_scratch(scratch);
  return status;
}

static OrtStatus *ORT_API_CALL compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused,
                                       size_t count, OrtNodeComputeInfo **infos,
                                       OrtNode **context_nodes) {
  (void)context_nodes;
  for (size_t i = 0; i < count; i++)
    QG_TRY(compile_node((const Provider *)ep, graphs[i], fused[i], &infos[i]));
  return NULL;
}

static void ORT_API_CALL release_compute_infos(OrtEp *ep, OrtNodeComputeInfo **infos,
                                               size_t count) {
  (void)ep;
  for (size_t i = 0; i < count; i++) qg_release_compute_info(infos[i]);
}

/* The options of the provider that a session has, a line for each. */
static OrtStatus *read_options(const OrtSessionOptions *options, char **out) {
  OrtKeyValuePairs *pairs;
  const char *const *keys, *const *values;
  size_t count, nbytes = 1;
  QG_TRY(qg_ort->GetSessionOptionsConfigEntries(options, &pairs));
  qg_ort->GetKeyValuePairs(pairs, &keys, &values, &count);
  for (size_t i = 0; i < count; i++) nbytes += strlen(keys[i]) + strlen(values[i]) + 2;
  char *text = calloc(1, nbytes);
  if (text != NULL) {
    char *end = text;
    for (size_t i = 0; i < count; i++) {
      if (strncmp(keys[i], PREFIX, sizeof PREFIX - 1) != 0) continue;
      end = stpcpy(end, keys[i] + sizeof PREFIX - 1);
      end = stpcpy(end, "=");
      end = stpcpy(end, values[i]);
      end = stpcpy(end, "\n");
    }
  }
  qg_ort->ReleaseKeyValuePairs(pairs);
  if (text == NULL) return qg_fail("quantglow: out of memory");
  *out = text;
  return NULL;
}

OrtStatus *qg_new_ep(const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out) {
  Provider *provider = calloc(1, sizeof *provider);
  if (provider == NULL) return qg_fail("quantglow: out of memory");
  OrtStatus *status = read_options(options, &provider->options);
  if (status != NULL) {
    free(provider);
    return status;
  }
  provider->logger = logger;
  provider->base.ort_version_supported = qg_api_version;
  provider->base.GetName = name;
  provider->base.GetCapability = get_capability;
  provider->base.Compile = compile;
  provider->base.ReleaseNodeComputeInfos = release_compute_infos;
  *out = &provider->base;
  return NULL;
}

void qg_release_ep(OrtEp *ep) {
  if (ep == NULL) return;
  free(((Provider *)ep)->options);
  free(ep);
}
