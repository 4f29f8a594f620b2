// The eight CUDA entry points that the kernel objects call, and what the runtime itself needs, over the static CUDA
// runtime. Their signatures are those of the CUDA calls they are named after, except that `_cuKernelGetAttribute` takes
// a device ordinal. Replacing this file by a recorder is how the host path is tested without a GPU.
#include "cuda_entry.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "driver_function.h"
#include "graph_edge.h"
#include "grid.h"

namespace {

using aot::cuda::choose_edge;
using aot::cuda::find_driver_function;
using aot::cuda::find_once;
using aot::cuda::kMaxAttributes;

// What the runtime's launch hands to the driver's, in one layout: attributes go along as they are.
static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute) &&
              offsetof(cudaLaunchAttribute, id) == offsetof(CUlaunchAttribute, id) &&
              offsetof(cudaLaunchAttribute, val) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(cudaLaunchAttributeID) == sizeof(CUlaunchAttributeID) &&
              static_cast<int>(cudaLaunchAttributeClusterDimension) == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
              static_cast<int>(cudaLaunchAttributeProgrammaticStreamSerialization) ==
                  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(offsetof(cudaLaunchAttributeValue, clusterDim) == offsetof(CUlaunchAttributeValue, clusterDim) &&
              offsetof(cudaLaunchAttributeValue, programmaticStreamSerializationAllowed) ==
                  offsetof(CUlaunchAttributeValue, programmaticStreamSerializationAllowed));

// Driver functions of the hot path, once they were found.
std::atomic<decltype(&cuLaunchKernelEx)> driver_launch{nullptr};
std::atomic<decltype(&cuCtxGetId)> driver_context_id{nullptr};
std::atomic<decltype(&cuKernelGetFunction)> driver_function_of{nullptr};

struct LoadedFunction {
  const void* kernel;
  unsigned long long context;  // an id, which unlike a CUcontext is never given again
  CUfunction function;
};

// A thread's functions: kernel and context choose a set, and a set holds the last few that it was asked for, so that the
// kernels of a model, on several devices even, do not drive each other out.
constexpr size_t kNumSets = 32;
constexpr size_t kNumWays = 4;
thread_local LoadedFunction loaded_functions[kNumSets][kNumWays] = {};

LoadedFunction* set_of(const void* kernel, unsigned long long context) {
  // The golden ratio in 64 bits: what differs in few bits anywhere differs in the upper ones of the product.
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  const uint64_t mixed = (static_cast<uint64_t>(reinterpret_cast<uintptr_t>(kernel)) + context * kMix) * kMix;
  return loaded_functions[mixed >> 32 & (kNumSets - 1)];
}

// Gives a kernel's function in the current context. A cudaKernel_t is a CUkernel, which cuLaunchKernelEx takes in place
// of a CUfunction, and what this gives where there is none; but it then takes 0.3 us longer (docs/measurements.md).
CUfunction function_of(const void* kernel) {
  const auto any_context = reinterpret_cast<CUfunction>(const_cast<void*>(kernel));
  const auto context_id = find_once(&driver_context_id, "cuCtxGetId", 12000);
  unsigned long long context = 0;
  if (context_id == nullptr || context_id(nullptr, &context) != CUDA_SUCCESS) return any_context;
  LoadedFunction* set = set_of(kernel, context);
  for (size_t i = 0; i < kNumWays; ++i) {
    if (set[i].kernel == kernel && set[i].context == context) return set[i].function;
  }
  const auto get = find_once(&driver_function_of, "cuKernelGetFunction", 12000);
  CUfunction function = nullptr;
  if (get == nullptr || get(&function, reinterpret_cast<CUkernel>(any_context)) != CUDA_SUCCESS) return any_context;
  for (size_t i = kNumWays - 1; i > 0; --i) set[i] = set[i - 1];
  set[0] = {kernel, context, function};
  return function;
}

CUresult launch_by_driver(const cudaLaunchConfig_t& launch, const void* kernel, void** arguments) {
  const auto driver_call = find_once(&driver_launch, "cuLaunchKernelEx", 11060);
  if (driver_call == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUfunction function = function_of(kernel);
  CUlaunchAttribute own_attributes[kMaxAttributes];
  CUlaunchConfig config = {launch.gridDim.x,
                           launch.gridDim.y,
                           launch.gridDim.z,
                           launch.blockDim.x,
                           launch.blockDim.y,
                           launch.blockDim.z,
                           static_cast<unsigned int>(launch.dynamicSmemBytes),
                           launch.stream,
                           reinterpret_cast<CUlaunchAttribute*>(launch.attrs),
                           launch.numAttrs};
  choose_edge(function, own_attributes, &config);
  return driver_call(&config, function, arguments, nullptr);
}

// Launches by the driver, whose call is most of the runtime's: on an H200's host cuLaunchKernelEx takes 2.4
// us of the 3.4 that a launch through the C API and cudaLaunchKernelExC took. Where the thread has no context to launch
// in, or there is no such function, the runtime makes the primary context current, or says what is wrong.
cudaError_t launch_kernel(const cudaLaunchConfig_t& launch, const void* kernel, void** arguments) {
  const CUresult result = launch_by_driver(launch, kernel, arguments);
  switch (result) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return cudaLaunchKernelExC(&launch, kernel, arguments);
    default:
      return static_cast<cudaError_t>(result);  // the two enumerations agree on codes, see _cuKernelGetAttribute
  }
}

struct ClusterQuery {
  bool is_open;
  int32_t max_active;
};

thread_local ClusterQuery cluster_query = {false, -1};

cudaError_t query_clusters(const cudaLaunchConfig_t* launch, const void* kernel) {
  bool has_clusters = false;
  for (unsigned int i = 0; i < launch->numAttrs; ++i) {
    has_clusters = has_clusters || launch->attrs[i].id == cudaLaunchAttributeClusterDimension;
  }
  return has_clusters ? cudaOccupancyMaxActiveClusters(&cluster_query.max_active, kernel, launch) : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t _cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption* jit_options,
                                 void** jit_values, unsigned int num_jit_options, cudaLibraryOption* library_options,
                                 void** library_values, unsigned int num_library_options) {
  if (num_library_options > 0) {
    return cudaLibraryLoadData(library, code, jit_options, jit_values, num_jit_options, library_options, library_values,
                               num_library_options);
  }
  // The image lies in this library's file, which stays mapped (nodelete): CUDA needs no copy of it.
  cudaLibraryOption option = cudaLibraryBinaryIsPreserved;
  void* is_preserved = reinterpret_cast<void*>(uintptr_t{1});
  return cudaLibraryLoadData(library, code, jit_options, jit_values, num_jit_options, &option, &is_preserved, 1);
}

cudaError_t _cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return cudaLibraryGetKernel(kernel, library, name);
}

cudaError_t _cudaLaunchKernelEx(const cudaLaunchConfig_t* launch, const void* kernel, void** arguments) {
  const dim3 grid = launch->gridDim;
  const int32_t size = aot::check_grid({grid.x, grid.y, grid.z});
  if (size != 0) return static_cast<cudaError_t>(size);
  return cluster_query.is_open ? query_clusters(launch, kernel) : launch_kernel(*launch, kernel, arguments);
}

cudaError_t _cudaGetDevice(int* device) { return cudaGetDevice(device); }

cudaError_t _cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}

cudaError_t _cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

cudaError_t _cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int device) {
  return cudaKernelSetAttributeForDevice(kernel, attribute, value, device);
}

cudaError_t _cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, int device) {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuKernelGetAttribute) kernel_get_attribute = nullptr;
  cudaError_t error = find_driver_function("cuDeviceGet", 2000, &device_get);
  if (error == cudaSuccess) error = find_driver_function("cuKernelGetAttribute", 12000, &kernel_get_attribute);
  if (error != cudaSuccess) return error;
  CUdevice handle = 0;
  CUresult result = device_get(&handle, device);
  if (result == CUDA_SUCCESS) result = kernel_get_attribute(value, attribute, kernel, handle);
  // The two enumerations agree on the codes that these calls give (driver_types.h, cudaError).
  return static_cast<cudaError_t>(result);
}

}  // extern "C"

namespace aot::cuda {

Error get_device(int32_t* device) { return cudaGetDevice(device); }

Error set_device(int32_t device) { return cudaSetDevice(device); }

Error get_capability(int32_t device, int32_t* major, int32_t* minor) {
  const cudaError_t error = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device);
}

Error get_facts(int32_t device, DeviceFacts* facts) {
  *facts = {};
  const cudaError_t error = cudaDeviceGetAttribute(&facts->num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  int clock_khz = 0;
  int bus_bits = 0;
  if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess) {
    facts->bandwidth_gb_per_s = int64_t{clock_khz} * 2 * bus_bits / 8 / 1'000'000;  // two transfers a clock
  }
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetName) device_get_name = nullptr;
  CUdevice handle = 0;
  const bool is_named = find_driver_function("cuDeviceGet", 2000, &device_get) == cudaSuccess &&
                        find_driver_function("cuDeviceGetName", 2000, &device_get_name) == cudaSuccess &&
                        device_get(&handle, device) == CUDA_SUCCESS &&
                        device_get_name(facts->name, sizeof(facts->name), handle) == CUDA_SUCCESS;
  if (!is_named) std::strcpy(facts->name, "a GPU without a name");
  cudaGetLastError();  // what was not answered is no error of the caller's
  return 0;
}

Error clear(void* data, size_t num_bytes, void* stream) {
  if (cluster_query.is_open) return cudaSuccess;
  return cudaMemsetAsync(data, 0, num_bytes, static_cast<cudaStream_t>(stream));
}

Error synchronize(void* stream) { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); }

Error is_capturing(void* stream, bool* answer) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  *answer = status != cudaStreamCaptureStatusNone;
  return error;
}

Error order(void* first, void* second) {
  cudaEvent_t event = nullptr;
  cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return error;
  error = cudaEventRecord(event, static_cast<cudaStream_t>(first));
  if (error == cudaSuccess) error = cudaStreamWaitEvent(static_cast<cudaStream_t>(second), event, 0);
  const cudaError_t destroyed = cudaEventDestroy(event);  // at once, or when the event is done
  return error != cudaSuccess ? error : destroyed;
}

void begin_cluster_query() { cluster_query = {true, -1}; }

int32_t end_cluster_query() {
  cluster_query.is_open = false;
  return cluster_query.max_active;
}

int32_t relaxed_capture_mode() { return cudaStreamCaptureModeRelaxed; }

Error exchange_capture_mode(int32_t* mode) {
  auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&exchanged);
  *mode = exchanged;
  return error;
}

bool means_no_gpu(Error error) {
  switch (error) {
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return true;
    default:
      return false;
  }
}

const char* describe(Error error) {
  cudaGetLastError();
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace aot::cuda
