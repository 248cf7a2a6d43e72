/* An OrtGraph as the bytes of an ONNX model.
 *
 * onnxruntime has no function for that (pull request 25292 has one for C++).  Field numbers are
 * those of onnx.proto, whose encoding is that of protocol buffers.  Memory is freed all at once,
 * when the call of onnxruntime ends: on errors, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

/* Weights up to this size are part of the model: shapes and axes have to be read there. */
#define SMALL_NBYTES 1024

#define MOST_DIMS 64

struct QgScratch {
  void **blocks;
  size_t count, room;
};

QgScratch *qg_new_scratch(void) { return calloc(1, sizeof(QgScratch)); }

void qg_free_scratch(QgScratch *scratch) {
  if (scratch == NULL) return;
  for (size_t i = 0; i < scratch->count; i++) free(scratch->blocks[i]);
  free(scratch->blocks);
  free(scratch);
}

void *qg_take(QgScratch *scratch, size_t nbytes) {
  if (scratch->count == scratch->room) {
    size_t room = 2 * scratch->room + 16;
    void **blocks = realloc(scratch->blocks, room * sizeof *blocks);
    if (blocks == NULL) return NULL;
    scratch->blocks = blocks;
    scratch->room = room;
  }
  void *block = calloc(1, nbytes + 1);
  if (block != NULL) scratch->blocks[scratch->count++] = block;
  return block;
}

/* Bytes that grow; `lacks_memory` sticks, so that callers look at it once. */
typedef struct {
  QgScratch *scratch;
  char *bytes;
  size_t nbytes, room;
  int lacks_memory;
} Message;

static Message new_message(QgScratch *scratch) { return (Message){.scratch = scratch}; }

static void append(Message *message, const void *bytes, size_t nbytes) {
  if (message->lacks_memory || nbytes == 0) return;
  if (message->nbytes + nbytes > message->room) {
    size_t room = 2 * (message->nbytes + nbytes) + 64;
    char *larger = qg_take(message->scratch, room);
    if (larger == NULL) {
      message->lacks_memory = 1;
      return;
    }
    if (message->nbytes) memcpy(larger, message->bytes, message->nbytes);
    message->bytes = larger;
    message->room = room;
  }
  memcpy(message->bytes + message->nbytes, bytes, nbytes);
  message->nbytes += nbytes;
}

enum WireType { VARINT = 0, LENGTH = 2, FIXED32 = 5 };

static void append_varint(Message *message, uint64_t value) {
  unsigned char bytes[10];
  size_t count = 0;
  do {
    bytes[count] = value & 127;
    value >>= 7;
    if (value) bytes[count] |= 128;
    count++;
  } while (value);
  append(message, bytes, count);
}

static void append_key(Message *message, int field, enum WireType type) {
  append_varint(message, (uint64_t)field << 3 | type);
}

static void append_int(Message *message, int field, int64_t value) {
  append_key(message, field, VARINT);
  append_varint(message, (uint64_t)value);
}

static void append_float(Message *message, int field, float value) {
  append_key(message, field, FIXED32);
  append(message, &value, sizeof value);
}

static void append_bytes(Message *message, int field, const void *bytes, size_t nbytes) {
  append_key(message, field, LENGTH);
  append_varint(message, nbytes);
  append(message, bytes, nbytes);
}

static void append_text(Message *message, int field, const char *text) {
  append_bytes(message, field, text, strlen(text));
}

static void append_message(Message *message, int field, const Message *part) {
  append_bytes(message, field, part->bytes, part->nbytes);
  message->lacks_memory |= part->lacks_memory;
}

/* Where a model is written to, and the weights whose data it leaves out. */
typedef struct {
  QgScratch *scratch;
  QgWeight *weights;
  size_t weight_count, weight_room;
} Writer;

static OrtStatus *out_of_memory(void) { return qg_fail("quantglow: out of memory"); }

static int64_t element_bits(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ:
      return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return 16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return 32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64:
      return 64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128:
      return 128;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4:
      return 4;
    default:
      return 0;
  }
}

static OrtStatus *append_strings(Writer *writer, Message *tensor, const OrtValue *value,
                                 size_t count) {
  for (size_t i = 0; i < count; i++) {
    size_t nbytes;
    QG_TRY(qg_ort->GetStringTensorElementLength(value, i, &nbytes));
    char *text = qg_take(writer->scratch, nbytes);
    if (text == NULL) return out_of_memory();
    QG_TRY(qg_ort->GetStringTensorElement(value, nbytes, i, text));
    append_bytes(tensor, 6, text, nbytes);
  }
  return NULL;
}

/* A TensorProto; `is_weight`: large ones go to the list of weights. */
static OrtStatus *write_tensor(Writer *writer, Message *out, int field, const char *name,
                               const OrtValue *value, int is_weight) {
  ONNXTensorElementDataType type;
  const int64_t *dims;
  size_t rank;
  QG_TRY(qg_ort->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
  Message tensor = new_message(writer->scratch);
  size_t count = 1;
  for (size_t i = 0; i < rank; i++) {
    append_int(&tensor, 1, dims[i]);
    count *= (size_t)dims[i];
  }
  append_int(&tensor, 2, type);
  append_text(&tensor, 8, name);
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    QG_TRY(append_strings(writer, &tensor, value, count));
  } else {
    size_t nbytes = (count * (size_t)element_bits(type) + 7) / 8;
    const void *data;
    QG_TRY(qg_ort->GetTensorData(value, &data));
    if (is_weight && nbytes > SMALL_NBYTES) {
      if (writer->weight_count == writer->weight_room) {
        size_t room = 2 * writer->weight_room + 64;
        QgWeight *weights = qg_take(writer->scratch, room * sizeof *weights);
        if (weights == NULL) return out_of_memory();
        if (writer->weight_count)
          memcpy(weights, writer->weights, writer->weight_count * sizeof *weights);
        writer->weights = weights;
        writer->weight_room = room;
      }
      char *copy = qg_take(writer->scratch, strlen(name));
      if (copy == NULL) return out_of_memory();
      strcpy(copy, name);
      writer->weights[writer->weight_count++] = (QgWeight){copy, data, (int64_t)nbytes};
    } else {
      append_bytes(&tensor, 9, data, nbytes);
    }
  }
  append_message(out, field, &tensor);
  return NULL;
}

/* A TypeProto.  Sequences, optionals and maps have none here: no node that has them is claimed. */
static OrtStatus *write_type(Writer *writer, Message *out, int field, const OrtTypeInfo *info) {
  enum ONNXType kind;
  QG_TRY(qg_ort->GetOnnxTypeFromTypeInfo(info, &kind));
  if (kind != ONNX_TYPE_TENSOR) return NULL;
  const OrtTensorTypeAndShapeInfo *facts;
  ONNXTensorElementDataType element;
  QG_TRY(qg_ort->CastTypeInfoToTensorInfo(info, &facts));
  QG_TRY(qg_ort->GetTensorElementType(facts, &element));
  Message tensor = new_message(writer->scratch);
  append_int(&tensor, 1, element);
  if (qg_ort->TensorTypeAndShape_HasShape(facts)) {
    size_t rank;
    int64_t dims[MOST_DIMS];
    const char *symbols[MOST_DIMS];
    QG_TRY(qg_ort->GetDimensionsCount(facts, &rank));
    if (rank > MOST_DIMS) return qg_fail("quantglow: a value has more than 64 dimensions");
    QG_TRY(qg_ort->GetDimensions(facts, dims, rank));
    QG_TRY(qg_ort->GetSymbolicDimensions(facts, symbols, rank));
    Message shape = new_message(writer->scratch);
    for (size_t i = 0; i < rank; i++) {
      Message dim = new_message(writer->scratch);
      if (dims[i] >= 0) {
        append_int(&dim, 1, dims[i]);
      } else if (symbols[i] != NULL && *symbols[i]) {
        append_text(&dim, 2, symbols[i]);
      }
      append_message(&shape, 1, &dim);
    }
    append_message(&tensor, 2, &shape);
  }
  Message type = new_message(writer->scratch);
  append_message(&type, 1, &tensor);
  append_message(out, field, &type);
  return NULL;
}

static OrtStatus *write_value_info(Writer *writer, Message *out, int field,
                                   const OrtValueInfo *value) {
  const char *name;
  const OrtTypeInfo *info;
  QG_TRY(qg_ort->GetValueInfoName(value, &name));
  QG_TRY(qg_ort->GetValueInfoTypeInfo(value, &info));
  Message message = new_message(writer->scratch);
  append_text(&message, 1, name);
  if (info != NULL) QG_TRY(write_type(writer, &message, 2, info));
  append_message(out, field, &message);
  return NULL;
}

static OrtStatus *write_graph(Writer *, Message *, const OrtGraph *, const OrtNode *fused,
                              int is_body);

/* Types of an AttributeProto, and the fields of its values. */
enum AttributeType { IS_FLOAT = 1, IS_INT, IS_STRING, IS_TENSOR, IS_GRAPH, IS_FLOATS, IS_INTS, IS_STRINGS };

static OrtStatus *write_attribute(Writer *writer, Message *out, const OrtOpAttr *attribute) {
  const char *name;
  OrtOpAttrType type;
  QG_TRY(qg_ort->OpAttr_GetName(attribute, &name));
  QG_TRY(qg_ort->OpAttr_GetType(attribute, &type));
  if (type == ORT_OP_ATTR_GRAPH || type == ORT_OP_ATTR_UNDEFINED) return NULL;
  Message message = new_message(writer->scratch);
  append_text(&message, 1, name);
  if (type == ORT_OP_ATTR_TENSOR) {
    OrtValue *value = NULL;
    QG_TRY(qg_ort->OpAttr_GetTensorAttributeAsOrtValue(attribute, &value));
    OrtStatus *status = write_tensor(writer, &message, 5, name, value, 0);
    qg_ort->ReleaseValue(value);
    QG_TRY(status);
    append_int(&message, 20, IS_TENSOR);
    append_message(out, 5, &message);
    return NULL;
  }
  size_t nbytes = 0;
  /* The first call tells the size, by an error where it is not 0. */
  OrtStatus *status = qg_ort->ReadOpAttr(attribute, type, NULL, 0, &nbytes);
  if (status != NULL) qg_ort->ReleaseStatus(status);
  char *data = qg_take(writer->scratch, nbytes);
  if (data == NULL) return out_of_memory();
  if (nbytes) QG_TRY(qg_ort->ReadOpAttr(attribute, type, data, nbytes, &nbytes));
  switch (type) {
    case ORT_OP_ATTR_INT:
      append_int(&message, 3, *(const int64_t *)data);
      append_int(&message, 20, IS_INT);
      break;
    case ORT_OP_ATTR_FLOAT:
      append_float(&message, 2, *(const float *)data);
      append_int(&message, 20, IS_FLOAT);
      break;
    case ORT_OP_ATTR_STRING:
      append_bytes(&message, 4, data, nbytes);
      append_int(&message, 20, IS_STRING);
      break;
    case ORT_OP_ATTR_INTS:
      for (size_t i = 0; i < nbytes / sizeof(int64_t); i++)
        append_int(&message, 8, ((const int64_t *)data)[i]);
      append_int(&message, 20, IS_INTS);
      break;
    case ORT_OP_ATTR_FLOATS:
      for (size_t i = 0; i < nbytes / sizeof(float); i++)
        append_float(&message, 7, ((const float *)data)[i]);
      append_int(&message, 20, IS_FLOATS);
      break;
    case ORT_OP_ATTR_STRINGS:
      for (size_t i = 0; i < nbytes; i += strlen(data + i) + 1)
        append_text(&message, 9, data + i);
      append_int(&message, 20, IS_STRINGS);
      break;
    default:
      return qg_fail("quantglow: an attribute has a type that it does not know");
  }
  append_message(out, 5, &message);
  return NULL;
}

static OrtStatus *write_names(Writer *writer, Message *out, int field, const OrtNode *node,
                              int are_outputs) {
  size_t count;
  QG_TRY(are_outputs ? qg_ort->Node_GetNumOutputs(node, &count)
                     : qg_ort->Node_GetNumInputs(node, &count));
  const OrtValueInfo **values = qg_take(writer->scratch, count * sizeof *values);
  if (values == NULL) return out_of_memory();
  QG_TRY(are_outputs ? qg_ort->Node_GetOutputs(node, values, count)
                     : qg_ort->Node_GetInputs(node, values, count));
  for (size_t i = 0; i < count; i++) {
    const char *name = ""; /* of one that is left out */
    if (values[i] != NULL) QG_TRY(qg_ort->GetValueInfoName(values[i], &name));
    append_text(out, field, name);
  }
  return NULL;
}

static OrtStatus *write_bodies(Writer *writer, Message *out, const OrtNode *node) {
  size_t count;
  QG_TRY(qg_ort->Node_GetNumSubgraphs(node, &count));
  if (count == 0) return NULL;
  const OrtGraph **bodies = qg_take(writer->scratch, count * sizeof *bodies);
  const char **names = qg_take(writer->scratch, count * sizeof *names);
  if (bodies == NULL || names == NULL) return out_of_memory();
  QG_TRY(qg_ort->Node_GetSubgraphs(node, bodies, count, names));
  for (size_t i = 0; i < count; i++) {
    Message attribute = new_message(writer->scratch), body = new_message(writer->scratch);
    append_text(&attribute, 1, names[i]);
    QG_TRY(write_graph(writer, &body, bodies[i], NULL, 1));
    append_message(&attribute, 6, &body);
    append_int(&attribute, 20, IS_GRAPH);
    append_message(out, 5, &attribute);
  }
  return NULL;
}

/* A NodeProto; its name is its position, so that quantglow can tell which it means. */
static OrtStatus *write_node(Writer *writer, Message *out, const OrtNode *node, size_t position) {
  Message message = new_message(writer->scratch);
  const char *text;
  char name[32];
  QG_TRY(write_names(writer, &message, 1, node, 0));
  QG_TRY(write_names(writer, &message, 2, node, 1));
  snprintf(name, sizeof name, "n%zu", position);
  append_text(&message, 3, name);
  QG_TRY(qg_ort->Node_GetOperatorType(node, &text));
  append_text(&message, 4, text);
  QG_TRY(qg_ort->Node_GetDomain(node, &text));
  if (text != NULL && *text) append_text(&message, 7, text);
  size_t count;
  QG_TRY(qg_ort->Node_GetNumAttributes(node, &count));
  const OrtOpAttr **attributes = qg_take(writer->scratch, count * sizeof *attributes);
  if (attributes == NULL) return out_of_memory();
  QG_TRY(qg_ort->Node_GetAttributes(node, attributes, count));
  for (size_t i = 0; i < count; i++)
    if (attributes[i] != NULL) QG_TRY(write_attribute(writer, &message, attributes[i]));
  QG_TRY(write_bodies(writer, &message, node));
  append_message(out, 1, &message);
  return NULL;
}

static OrtStatus *write_initializers(Writer *writer, Message *out, const OrtGraph *graph,
                                     int is_body) {
  size_t count;
  QG_TRY(qg_ort->Graph_GetNumInitializers(graph, &count));
  const OrtValueInfo **values = qg_take(writer->scratch, count * sizeof *values);
  if (values == NULL) return out_of_memory();
  QG_TRY(qg_ort->Graph_GetInitializers(graph, values, count));
  for (size_t i = 0; i < count; i++) {
    const char *name;
    bool is_constant;
    const OrtValue *value;
    QG_TRY(qg_ort->GetValueInfoName(values[i], &name));
    QG_TRY(qg_ort->ValueInfo_IsConstantInitializer(values[i], &is_constant));
    if (!is_constant) continue;
    QG_TRY(qg_ort->ValueInfo_GetInitializerValue(values[i], &value));
    if (value != NULL) QG_TRY(write_tensor(writer, out, 5, name, value, !is_body));
  }
  return NULL;
}

/* Inputs or outputs, in the order of the fused node where there is one: calls have that. */
static OrtStatus *write_ends(Writer *writer, Message *out, const OrtGraph *graph,
                             const OrtNode *fused, int are_outputs) {
  size_t count;
  if (fused != NULL) {
    QG_TRY(are_outputs ? qg_ort->Node_GetNumOutputs(fused, &count)
                       : qg_ort->Node_GetNumInputs(fused, &count));
  } else {
    QG_TRY(are_outputs ? qg_ort->Graph_GetNumOutputs(graph, &count)
                       : qg_ort->Graph_GetNumInputs(graph, &count));
  }
  const OrtValueInfo **values = qg_take(writer->scratch, count * sizeof *values);
  if (values == NULL) return out_of_memory();
  if (fused != NULL) {
    QG_TRY(are_outputs ? qg_ort->Node_GetOutputs(fused, values, count)
                       : qg_ort->Node_GetInputs(fused, values, count));
  } else {
    QG_TRY(are_outputs ? qg_ort->Graph_GetOutputs(graph, values, count)
                       : qg_ort->Graph_GetInputs(graph, values, count));
  }
  for (size_t i = 0; i < count; i++) {
    bool is_constant = false;
    if (values[i] == NULL) continue;
    if (!are_outputs) QG_TRY(qg_ort->ValueInfo_IsConstantInitializer(values[i], &is_constant));
    if (!is_constant) QG_TRY(write_value_info(writer, out, are_outputs ? 12 : 11, values[i]));
  }
  return NULL;
}

/* Types of the results of operators that are not ONNX's: only onnxruntime can infer them. */
static OrtStatus *write_results(Writer *writer, Message *out, const OrtNode *node) {
  const char *domain;
  size_t count;
  QG_TRY(qg_ort->Node_GetDomain(node, &domain));
  if (*domain == 0) return NULL;
  QG_TRY(qg_ort->Node_GetNumOutputs(node, &count));
  const OrtValueInfo **values = qg_take(writer->scratch, count * sizeof *values);
  if (values == NULL) return out_of_memory();
  QG_TRY(qg_ort->Node_GetOutputs(node, values, count));
  for (size_t i = 0; i < count; i++)
    if (values[i] != NULL) QG_TRY(write_value_info(writer, out, 13, values[i]));
  return NULL;
}

static OrtStatus *write_graph(Writer *writer, Message *out, const OrtGraph *graph,
                              const OrtNode *fused, int is_body) {
  size_t count;
  QG_TRY(qg_ort->Graph_GetNumNodes(graph, &count));
  const OrtNode **nodes = qg_take(writer->scratch, count * sizeof *nodes);
  if (nodes == NULL) return out_of_memory();
  QG_TRY(qg_ort->Graph_GetNodes(graph, nodes, count));
  for (size_t i = 0; i < count; i++) {
    QG_TRY(write_node(writer, out, nodes[i], i));
    QG_TRY(write_results(writer, out, nodes[i]));
  }
  append_text(out, 2, "graph");
  QG_TRY(write_initializers(writer, out, graph, is_body));
  QG_TRY(write_ends(writer, out, graph, fused, 0));
  return write_ends(writer, out, graph, fused, 1);
}

OrtStatus *qg_write_model(QgScratch *scratch, const OrtGraph *graph, const OrtNode *fused,
                          QgModel *out) {
  if (scratch == NULL) return out_of_memory();
  Writer writer = {.scratch = scratch};
  Message model = new_message(scratch), body = new_message(scratch);
  int64_t version;
  size_t count;
  QG_TRY(qg_ort->Graph_GetOnnxIRVersion(graph, &version));
  append_int(&model, 1, version);
  QG_TRY(write_graph(&writer, &body, graph, fused, 0));
  append_message(&model, 7, &body);
  QG_TRY(qg_ort->Graph_GetNumOperatorSets(graph, &count));
  const char **domains = qg_take(scratch, count * sizeof *domains);
  int64_t *versions = qg_take(scratch, count * sizeof *versions);
  if (domains == NULL || versions == NULL) return out_of_memory();
  QG_TRY(qg_ort->Graph_GetOperatorSets(graph, domains, versions, count));
  for (size_t i = 0; i < count; i++) {
    Message opset = new_message(scratch);
    append_text(&opset, 1, domains[i]);
    append_int(&opset, 2, versions[i]);
    append_message(&model, 8, &opset);
  }
  if (model.lacks_memory) return out_of_memory();
  *out = (QgModel){model.bytes, (int64_t)model.nbytes, writer.weights, (int64_t)writer.weight_count};
  return NULL;
}
