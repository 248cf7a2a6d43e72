/* Writes EPContext nodes: what onnxruntime stores of a session whose models are compiled. */
#include <limits.h>
#include <string.h>

#include "quantglow_ep.h"

#define MOST_ATTRIBUTES 6

typedef struct {
  OrtOpAttr *list[MOST_ATTRIBUTES];
  size_t count;
} Attributes;

static OrtStatus *add(Attributes *attributes, const char *name, const void *data, int64_t size,
                      OrtOpAttrType type) {
  if (size > INT_MAX)
    return qg_fail("quantglow: the code of the model is larger than an attribute can be. Remedy: "
                   "ep.context_embed_mode=0");
  QG_TRY(qg_ort->CreateOpAttr(name, data, (int)size, type, &attributes->list[attributes->count]));
  attributes->count++;
  return NULL;
}

static OrtStatus *add_text(Attributes *attributes, const char *name, const char *text) {
  return add(attributes, name, text, (int64_t)strlen(text), ORT_OP_ATTR_STRING);
}

OrtStatus *qg_end_names(const OrtNode *node, int are_outputs, int with_constants,
                        const char **names, size_t *count) {
  size_t all;
  const OrtValueInfo *values[QG_MOST_ENDS];
  QG_TRY(are_outputs ? qg_ort->Node_GetNumOutputs(node, &all) : qg_ort->Node_GetNumInputs(node, &all));
  if (all > QG_MOST_ENDS) return qg_fail("quantglow: a node has more than 512 inputs or outputs");
  QG_TRY(are_outputs ? qg_ort->Node_GetOutputs(node, values, all)
                     : qg_ort->Node_GetInputs(node, values, all));
  *count = 0;
  for (size_t i = 0; i < all; i++) {
    bool is_constant = false;
    if (!are_outputs && !with_constants)
      QG_TRY(qg_ort->ValueInfo_IsConstantInitializer(values[i], &is_constant));
    if (!is_constant) QG_TRY(qg_ort->GetValueInfoName(values[i], &names[(*count)++]));
  }
  return NULL;
}

static OrtStatus *write_node(const OrtNode *fused, const QgSettings *settings,
                             const QgSaved *saved, Attributes *attributes, OrtNode **out) {
  const char *name, *inputs[QG_MOST_ENDS], *outputs[QG_MOST_ENDS];
  size_t input_count, output_count;
  int64_t is_main = 1, is_embedded = settings->is_embedded;
  QG_TRY(qg_ort->Node_GetName(fused, &name));
  QG_TRY(qg_end_names(fused, 0, 0, inputs, &input_count));
  QG_TRY(qg_end_names(fused, 1, 0, outputs, &output_count));
  QG_TRY(add(attributes, "main_context", &is_main, 1, ORT_OP_ATTR_INT));
  QG_TRY(add(attributes, "embed_mode", &is_embedded, 1, ORT_OP_ATTR_INT));
  QG_TRY(add(attributes, "ep_cache_context", saved->data, saved->nbytes, ORT_OP_ATTR_STRING));
  QG_TRY(add_text(attributes, "source", QG_PROVIDER));
  QG_TRY(add_text(attributes, "ep_sdk_version", QG_VERSION));
  QG_TRY(add_text(attributes, "partition_name", name));
  return qg_ort->GetModelEditorApi()->CreateNode("EPContext", "com.microsoft", name, inputs,
                                                 input_count, outputs, output_count,
                                                 attributes->list, attributes->count, out);
}

OrtStatus *qg_write_context(const OrtGraph *graph, const OrtNode *fused, const QgSettings *settings,
                            int64_t model, OrtNode **out) {
  const QgHooks *hooks = qg_hooks();
  if (hooks == NULL) return qg_fail("quantglow: its Python package is not loaded");
  const char *path = settings->context_path;
  if (*path == 0) QG_TRY(qg_ort->Graph_GetModelPath(graph, &path));
  char message[QG_MESSAGE_NBYTES] = "";
  QgSaved saved;
  int32_t is_embedded = settings->is_embedded;
  if (hooks->save(model, settings->options, is_embedded, path, qg_machine(), &saved, message))
    return qg_fail(message);
  Attributes attributes = {.count = 0};
  OrtStatus *status = write_node(fused, settings, &saved, &attributes, out);
  for (size_t i = 0; i < attributes.count; i++) qg_ort->ReleaseOpAttr(attributes.list[i]);
  return status;
}
