// Stands in for templates/src/cuda_entry.cc: the kernel library over the simulated driver, which it loads as the CUDA
// runtime would. The kernels' entries are wrapped (tests/simulated/device.py): each notes its operands before the real
// host code runs, and the launch that this ends in has to carry their addresses.
#include "cuda_entry.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>
#include <vector>

#include "grid.h"
#include "problem.h"
#include "simulated.h"

namespace {

struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  size_t smem_bytes;
  void* stream;
  const void* attributes;
  uint32_t num_attributes;
};

struct Noted {
  SimulatedCall call;
  const int32_t* parameter_sizes;
  int32_t num_parameters;
};

constexpr int32_t kInvalidValue = 1;
constexpr int32_t kNoClusters = -1;

thread_local const Noted* noted = nullptr;
thread_local bool is_query = false;
thread_local int32_t answer = kNoClusters;

template <typename Function>
Function driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function>(library == nullptr ? nullptr : dlsym(library, name));
}

bool has_address(void** arguments, const void* address) {
  for (int32_t i = 0; i < noted->num_parameters; ++i) {
    const auto* bytes = static_cast<const char*>(arguments[i]);
    for (int32_t at = 0; at + 8 <= noted->parameter_sizes[i]; at += 4) {
      if (std::memcmp(bytes + at, &address, 8) == 0) return true;
    }
  }
  return false;
}

}  // namespace

extern "C" {

// What the wrapped entries call; `entry` is the real one.
void simulated_note(const char* kernel, int32_t dtype, int32_t layout, int32_t num_strides, const int32_t* sizes,
                    int32_t num_parameters, void (*entry)(void**, int32_t), void** arguments, int32_t count) {
  Noted call{{kernel, dtype, layout, num_strides, {}, {}, {}}, sizes, num_parameters};
  SimulatedTensor* tensors[] = {&call.call.a, &call.call.b, &call.call.d};
  for (int i = 0; i < 3; ++i) std::memcpy(tensors[i], arguments[i], sizeof(aot::Tensor));
  noted = &call;
  entry(arguments, count);
  noted = nullptr;
}

int32_t _cudaLibraryLoadData(void** library, const void* code, void*, void*, uint32_t, void*, void*, uint32_t) {
  *library = const_cast<void*>(code);
  return 0;
}

int32_t _cudaLibraryGetKernel(void** kernel, void* library, const char*) {
  *kernel = library;
  return 0;
}

int32_t _cudaLaunchKernelEx(const LaunchConfig* config, const void*, void** arguments) {
  if (noted == nullptr) return kInvalidValue;
  const int32_t size = aot::check_grid({config->grid[0], config->grid[1], config->grid[2]});
  if (size != 0) return size;
  const SimulatedCall& call = noted->call;
  for (const SimulatedTensor* tensor : {&call.a, &call.b, &call.d}) {
    if (!has_address(arguments, tensor->data)) return kInvalidValue;
  }
  if (is_query) {
    answer = driver<int32_t (*)(const SimulatedCall*)>("simulated_max_active_clusters")(&call);
    return 0;
  }
  return driver<int32_t (*)(const SimulatedCall*)>("simulated_launch")(&call);
}

int32_t _cudaGetDevice(int32_t* device) { return aot::cuda::get_device(device); }

int32_t _cudaDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t device) {
  return driver<int32_t (*)(int32_t*, int32_t, int32_t)>("cuDeviceGetAttribute")(value, attribute, device);
}

int32_t _cudaFuncSetAttribute(const void*, int32_t, int32_t) { return 0; }
int32_t _cudaKernelSetAttributeForDevice(void*, int32_t, int32_t, int32_t) { return 0; }

int32_t _cuKernelGetAttribute(int32_t* value, int32_t, void*, int32_t) {
  *value = 0;
  return 0;
}

}  // extern "C"

namespace aot::cuda {

Error get_device(int32_t* device) {
  *device = 0;
  return 0;
}

Error set_device(int32_t) { return 0; }

Error get_capability(int32_t device, int32_t* major, int32_t* minor) {
  _cudaDeviceGetAttribute(major, 75, device);
  return _cudaDeviceGetAttribute(minor, 76, device);
}

Error get_facts(int32_t device, DeviceFacts* facts) {
  *facts = {};
  driver<int32_t (*)(char*, int32_t, int32_t)>("cuDeviceGetName")(facts->name, sizeof(facts->name), device);
  return _cudaDeviceGetAttribute(&facts->num_sms, 16, device);
}

Error clear(void* data, size_t num_bytes, void* stream) {
  if (is_query) return 0;
  auto* set = driver<int32_t (*)(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async");
  return set(reinterpret_cast<uint64_t>(data), 0, num_bytes, stream);
}

Error synchronize(void* stream) { return driver<int32_t (*)(void*)>("cuStreamSynchronize")(stream); }

Error is_capturing(void*, bool* answer) {
  *answer = false;
  return 0;
}

Error order(void*, void*) { return 0; }

int32_t relaxed_capture_mode() { return 2; }

Error exchange_capture_mode(int32_t*) { return 0; }

void begin_cluster_query() {
  is_query = true;
  answer = kNoClusters;
}

int32_t end_cluster_query() {
  is_query = false;
  return answer;
}

void stay_programmatic(bool) {}

bool means_no_gpu(Error) { return false; }

const char* describe(Error error) {
  const char* text = nullptr;
  driver<int32_t (*)(int32_t, const char**)>("cuGetErrorString")(error, &text);
  return text;
}

}  // namespace aot::cuda
