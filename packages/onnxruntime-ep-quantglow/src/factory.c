/* The library as onnxruntime loads it: versions, devices, and the hooks of quantglow. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantglow_ep.h"

const OrtApi *qg_ort;
const OrtEpApi *qg_ort_ep;
uint32_t qg_api_version;
QG_EXPORT int64_t qg_counts[QG_COUNTS];

static QgHooks hooks_in_place;
static const QgHooks *hooks;

const QgHooks *qg_hooks(void) { return __atomic_load_n(&hooks, __ATOMIC_ACQUIRE); }

/* Called by quantglow: the hooks, or NULL when Python ends.  -1 for hooks of another version. */
QG_EXPORT int32_t qg_set_hooks(const QgHooks *given) {
  if (given != NULL) {
    if (given->interface != QG_INTERFACE) return -1;
    hooks_in_place = *given;
    given = &hooks_in_place;
  }
  __atomic_store_n(&hooks, given, __ATOMIC_RELEASE);
  return 0;
}

OrtStatus *qg_fail(const char *message) { return qg_ort->CreateStatus(ORT_EP_FAIL, message); }

static const char *ORT_API_CALL name(const OrtEpFactory *factory) {
  (void)factory;
  return QG_PROVIDER;
}

static const char *ORT_API_CALL vendor(const OrtEpFactory *factory) {
  (void)factory;
  return "quantglow";
}

static uint32_t ORT_API_CALL vendor_id(const OrtEpFactory *factory) {
  (void)factory;
  return 0xFFFF; /* of PCI: nobody's */
}

static const char *ORT_API_CALL version(const OrtEpFactory *factory) {
  (void)factory;
  return QG_VERSION;
}

static OrtStatus *ORT_API_CALL supported_devices(OrtEpFactory *factory,
                                                 const OrtHardwareDevice *const *devices,
                                                 size_t count, OrtEpDevice **out, size_t room,
                                                 size_t *out_count) {
  *out_count = 0;
  for (size_t i = 0; i < count && *out_count < room; i++) {
    if (qg_ort->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
    QG_TRY(qg_ort_ep->CreateEpDevice(factory, devices[i], NULL, NULL, &out[*out_count]));
    ++*out_count;
  }
  return NULL;
}

static OrtStatus *ORT_API_CALL create_ep(OrtEpFactory *factory,
                                         const OrtHardwareDevice *const *devices,
                                         const OrtKeyValuePairs *const *metadata, size_t count,
                                         const OrtSessionOptions *options,
                                         const OrtLogger *logger, OrtEp **out) {
  (void)factory, (void)devices, (void)metadata, (void)count;
  return qg_new_ep(options, logger, out);
}

static void ORT_API_CALL release_ep(OrtEpFactory *factory, OrtEp *ep) {
  (void)factory;
  qg_release_ep(ep);
}

/* Values lie where onnxruntime's CPU provider has them: no memory, streams or copies of our own. */
static OrtStatus *ORT_API_CALL create_allocator(OrtEpFactory *factory, const OrtMemoryInfo *memory,
                                                const OrtKeyValuePairs *options,
                                                OrtAllocator **out) {
  (void)factory, (void)memory, (void)options;
  *out = NULL;
  return NULL;
}

static void ORT_API_CALL release_allocator(OrtEpFactory *factory, OrtAllocator *allocator) {
  (void)factory, (void)allocator;
}

static OrtStatus *ORT_API_CALL create_data_transfer(OrtEpFactory *factory,
                                                    OrtDataTransferImpl **out) {
  (void)factory;
  *out = NULL;
  return NULL;
}

static bool ORT_API_CALL is_stream_aware(const OrtEpFactory *factory) {
  (void)factory;
  return false;
}

/* Code ahead of time runs on every processor of its family, at the best of its levels. */
static OrtStatus *ORT_API_CALL validate(OrtEpFactory *factory,
                                        const OrtHardwareDevice *const *devices, size_t count,
                                        const char *info, OrtCompiledModelCompatibility *out) {
  (void)factory, (void)devices, (void)count;
  *out = strcmp(info, qg_machine()) == 0 ? OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL
                                         : OrtCompiledModelCompatibility_EP_UNSUPPORTED;
  return NULL;
}

static OrtEpFactory the_factory;

/* Sessions may outlive the registration: the library stays in memory. */
static void stay_loaded(void) {
  Dl_info info;
  if (dladdr((void *)&stay_loaded, &info) && info.dli_fname != NULL)
    dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

QG_EXPORT OrtStatus *CreateEpFactories(const char *registered_name, const OrtApiBase *base,
                                       const OrtLogger *logger, OrtEpFactory **factories,
                                       size_t room, size_t *count) {
  (void)registered_name, (void)logger;
  int major = 0, minor = 0;
  if (sscanf(base->GetVersionString(), "%d.%d", &major, &minor) != 2) minor = 0;
  /* The older of both: a runtime has no newer interface than its own version. */
  qg_api_version = major > 1 || minor > ORT_API_VERSION ? ORT_API_VERSION : (uint32_t)minor;
  qg_ort = base->GetApi(qg_api_version);
  if (qg_ort == NULL) return NULL;
  if (qg_api_version < QG_LEAST_API)
    return qg_fail("quantglow needs onnxruntime 1.24 or newer. Remedy: pip install -U onnxruntime");
  if (room < 1) return qg_fail("quantglow: onnxruntime takes no factory");
  qg_ort_ep = qg_ort->GetEpApi();
  stay_loaded();
  the_factory = (OrtEpFactory){
      .ort_version_supported = qg_api_version,
      .GetName = name,
      .GetVendor = vendor,
      .GetVendorId = vendor_id,
      .GetVersion = version,
      .GetSupportedDevices = supported_devices,
      .CreateEp = create_ep,
      .ReleaseEp = release_ep,
      .CreateAllocator = create_allocator,
      .ReleaseAllocator = release_allocator,
      .CreateDataTransfer = create_data_transfer,
      .IsStreamAware = is_stream_aware,
      .ValidateCompiledModelCompatibilityInfo = validate,
  };
  factories[0] = &the_factory;
  *count = 1;
  return NULL;
}

QG_EXPORT OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  (void)factory;
  return NULL;
}
