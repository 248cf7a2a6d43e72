/* A program without Python: runs a model of one float input in the plug-in, and times it.
 *
 * plug_in_main LIBRARY MODEL INPUT OUTPUT RUNS [KEY=VALUE ...]: the input as the model declares it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "onnxruntime_c_api.h"

#define MOST_ENTRIES 16
#define CHECK(call)                                                     \
  do {                                                                  \
    OrtStatus *failed = (call);                                         \
    if (failed != NULL) {                                               \
      fprintf(stderr, "%s\n", ort->GetErrorMessage(failed));            \
      return 1;                                                         \
    }                                                                   \
  } while (0)

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *contents(const char *path, size_t *nbytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  fseek(file, 0, SEEK_END);
  *nbytes = (size_t)ftell(file);
  rewind(file);
  void *bytes = malloc(*nbytes + 1);
  if (fread(bytes, 1, *nbytes, file) != *nbytes) return NULL;
  fclose(file);
  return bytes;
}

int main(int count, char **words) {
  const OrtApi *ort = OrtGetApiBase()->GetApi(24);
  if (ort == NULL || count < 6) return 2;
  OrtEnv *environment;
  OrtSessionOptions *options;
  OrtSession *session;
  const OrtEpDevice *const *devices;
  const OrtEpDevice *own = NULL;
  size_t device_count, entry_count = 0;
  CHECK(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "program", &environment));
  CHECK(ort->RegisterExecutionProviderLibrary(environment, "quantglow", words[1]));
  CHECK(ort->GetEpDevices(environment, &devices, &device_count));
  for (size_t i = 0; i < device_count; i++)
    if (strcmp(ort->EpDevice_EpName(devices[i]), "QuantglowExecutionProvider") == 0)
      own = devices[i];
  if (own == NULL) return 3;
  const char *keys[MOST_ENTRIES], *values[MOST_ENTRIES];
  for (int i = 6; i < count && entry_count < MOST_ENTRIES; i++) {
    char *equals = strchr(words[i], '=');
    if (equals == NULL) return 2;
    *equals = 0;
    keys[entry_count] = words[i];
    values[entry_count++] = equals + 1;
  }
  CHECK(ort->CreateSessionOptions(&options));
  CHECK(ort->SetIntraOpNumThreads(options, 1));
  CHECK(ort->SessionOptionsAppendExecutionProvider_V2(options, environment, &own, 1, keys, values,
                                                      entry_count));
  OrtAllocator *allocator;
  char *made_for;
  OrtCompiledModelCompatibility here, elsewhere;
  CHECK(ort->GetAllocatorWithDefaultOptions(&allocator));
  CHECK(ort->GetCompatibilityInfoFromModel(words[2], "QuantglowExecutionProvider", allocator,
                                           &made_for));
  CHECK(ort->GetModelCompatibilityForEpDevices(&own, 1, made_for, &here));
  CHECK(ort->GetModelCompatibilityForEpDevices(&own, 1, "quantglow 0 pdp11", &elsewhere));
  printf("compatible %d, another one %d\n", here == OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL,
         elsewhere != OrtCompiledModelCompatibility_EP_UNSUPPORTED);
  double start = seconds();
  CHECK(ort->CreateSession(environment, words[2], options, &session));
  printf("session %.1f ms\n", (seconds() - start) * 1e3);

  OrtMemoryInfo *memory;
  OrtTypeInfo *type;
  const OrtTensorTypeAndShapeInfo *info;
  char *input_name, *output_name;
  size_t rank, nbytes;
  int64_t dims[8];
  CHECK(ort->SessionGetInputName(session, 0, allocator, &input_name));
  CHECK(ort->SessionGetOutputName(session, 0, allocator, &output_name));
  CHECK(ort->SessionGetInputTypeInfo(session, 0, &type));
  CHECK(ort->CastTypeInfoToTensorInfo(type, &info));
  CHECK(ort->GetDimensionsCount(info, &rank));
  if (rank > 8) return 2;
  CHECK(ort->GetDimensions(info, dims, rank));
  void *data = contents(words[3], &nbytes);
  if (data == NULL) return 2;
  OrtValue *input, *output = NULL;
  CHECK(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  CHECK(ort->CreateTensorWithDataAsOrtValue(memory, data, nbytes, dims, rank,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));
  const char *input_names[] = {input_name}, *output_names[] = {output_name};
  const OrtValue *inputs[] = {input};
  double best = 1e9;
  for (int run = 0; run < atoi(words[5]); run++) {
    start = seconds();
    CHECK(ort->Run(session, NULL, input_names, inputs, 1, output_names, 1, &output));
    double taken = seconds() - start;
    if (taken < best) best = taken;
  }
  printf("best run %.1f us\n", best * 1e6);
  float *result;
  OrtTensorTypeAndShapeInfo *shape;
  size_t size;
  CHECK(ort->GetTensorTypeAndShape(output, &shape));
  CHECK(ort->GetTensorShapeElementCount(shape, &size));
  CHECK(ort->GetTensorMutableData(output, (void **)&result));
  FILE *file = fopen(words[4], "wb");
  if (file == NULL || fwrite(result, sizeof(float), size, file) != size) return 2;
  fclose(file);
  ort->ReleaseTensorTypeAndShapeInfo(shape);
  ort->ReleaseTypeInfo(type);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseValue(output);
  ort->ReleaseValue(input);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  CHECK(ort->UnregisterExecutionProviderLibrary(environment, "quantglow"));
  ort->ReleaseEnv(environment);
  free(data);
  return 0;
}
