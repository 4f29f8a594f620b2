// Stands in for cuda_entry.cc: keeps what the runtime and the kernels' own host code ask of CUDA, in stream order, for
// aot/emulate/host.py to execute. The device that it answers for is the one that host.py describes. It is called by one
// thread, and refuses what CUDA would refuse of a launch.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda_entry.h"
#include "grid.h"

namespace {

constexpr int32_t kInvalidValue = 1;     // cudaErrorInvalidValue
constexpr int32_t kMemoryAllocation = 2;  // cudaErrorMemoryAllocation
constexpr int32_t kInvalidDeviceFunction = 98;  // cudaErrorInvalidDeviceFunction
constexpr int32_t kMaxDynamicSmem = 8;   // cudaFuncAttributeMaxDynamicSharedMemorySize
constexpr int32_t kNonPortableCluster = 14;  // cudaFuncAttributeNonPortableClusterSizeAllowed
constexpr int32_t kClusterDimension = 4;  // cudaLaunchAttributeClusterDimension
constexpr int32_t kSmemPerBlockOptin = 97;  // cudaDevAttrMaxSharedMemoryPerBlockOptin
constexpr uint64_t kSmemBytes = 48 * 1024;  // dynamic shared memory of a kernel that did not ask for more
constexpr uint32_t kPortableCluster = 8;    // CTAs of a cluster, likewise

constexpr int32_t kMaxParameters = 1024;
constexpr int32_t kMaxParameterBytes = 4096;
constexpr int32_t kMaxAttributes = 8;

// The layouts of cudaLaunchAttribute and cudaLaunchConfig_t (driver_types.h).
struct LaunchAttribute {
  int32_t id;
  char pad[4];
  int32_t value[16];
};

struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  size_t smem_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  uint32_t num_attributes;
};

// What the stream is to do: launch a kernel, or clear memory where `kernel` is empty. aot/emulate/host.py has it too.
struct Operation {
  char kernel[1024];
  uint64_t stream;
  uint64_t address;
  uint64_t num_bytes;
  uint64_t smem_bytes;
  uint32_t grid[3];
  uint32_t block[3];
  int32_t num_parameters;
  int32_t parameter_sizes[kMaxParameters];
  int32_t num_attributes;
  int32_t attribute_ids[kMaxAttributes];
  int32_t attribute_values[kMaxAttributes][16];
  unsigned char parameters[kMaxParameterBytes];
};

// A kernel's parameters, which its PTX declares and a launch does not count.
struct Signature {
  char name[1024];
  int32_t num_parameters;
  int32_t parameter_sizes[kMaxParameters];
};

// A kernel that an object has loaded: its handle. It stays for as long as the process.
struct Handle {
  char name[1024];
  uint64_t smem_bytes;
  bool has_large_clusters;
};

struct Device {
  aot::cuda::DeviceFacts facts;
  int32_t capability[2];
  int32_t smem_bytes_per_block;
};

Device device = {};
Signature* signatures = nullptr;
int32_t num_signatures = 0;
Operation* operations = nullptr;
int32_t num_operations = 0;
bool is_query = false;

Operation* append() {
  auto* grown = static_cast<Operation*>(std::realloc(operations, sizeof(Operation) * (num_operations + 1)));
  if (grown == nullptr) return nullptr;
  operations = grown;
  Operation* operation = &operations[num_operations++];
  *operation = {};
  return operation;
}

const Signature* signature_of(const char* name) {
  for (int32_t i = 0; i < num_signatures; ++i) {
    if (std::strcmp(signatures[i].name, name) == 0) return &signatures[i];
  }
  return nullptr;
}

bool is_refused(const LaunchConfig& config, const Handle& kernel) {
  if (config.smem_bytes > kernel.smem_bytes || config.num_attributes > kMaxAttributes) return true;
  for (uint32_t i = 0; i < config.num_attributes; ++i) {
    const LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id != kClusterDimension) continue;
    uint32_t size = 1;
    for (int axis = 0; axis < 3; ++axis) {
      const auto extent = static_cast<uint32_t>(attribute.value[axis]);
      if (extent == 0 || config.grid[axis] % extent != 0) return true;
      size *= extent;
    }
    if (size > kPortableCluster && !kernel.has_large_clusters) return true;
  }
  return false;
}

int32_t keep_launch(const LaunchConfig& config, const Handle& kernel, void** arguments) {
  const Signature* signature = signature_of(kernel.name);
  if (signature == nullptr) return kInvalidDeviceFunction;
  Operation* operation = append();
  if (operation == nullptr) return kMemoryAllocation;
  std::memcpy(operation->kernel, kernel.name, sizeof(kernel.name));
  operation->stream = reinterpret_cast<uint64_t>(config.stream);
  operation->smem_bytes = config.smem_bytes;
  std::memcpy(operation->grid, config.grid, sizeof(config.grid));
  std::memcpy(operation->block, config.block, sizeof(config.block));
  operation->num_attributes = static_cast<int32_t>(config.num_attributes);
  for (uint32_t i = 0; i < config.num_attributes; ++i) {
    operation->attribute_ids[i] = config.attributes[i].id;
    std::memcpy(operation->attribute_values[i], config.attributes[i].value, sizeof(config.attributes[i].value));
  }
  operation->num_parameters = signature->num_parameters;
  size_t used = 0;
  for (int32_t i = 0; i < signature->num_parameters; ++i) {
    const auto size = static_cast<size_t>(signature->parameter_sizes[i]);
    operation->parameter_sizes[i] = signature->parameter_sizes[i];
    std::memcpy(operation->parameters + used, arguments[i], size);
    used += size;
  }
  return 0;
}

int32_t set_attribute(Handle* kernel, int32_t attribute, int32_t value) {
  if (attribute == kMaxDynamicSmem) {
    if (value < 0 || value > device.smem_bytes_per_block) return kInvalidValue;
    kernel->smem_bytes = static_cast<uint64_t>(value);
  }
  if (attribute == kNonPortableCluster) kernel->has_large_clusters = value != 0;
  return 0;
}

}  // namespace

extern "C" {

void recorder_set_device(const char* name, int32_t major, int32_t minor, int32_t num_sms, int64_t bandwidth_gb_per_s,
                         int32_t smem_bytes_per_block) {
  device = {};
  device.facts.num_sms = num_sms;
  device.facts.bandwidth_gb_per_s = bandwidth_gb_per_s;
  std::strncpy(device.facts.name, name, sizeof(device.facts.name) - 1);
  device.capability[0] = major;
  device.capability[1] = minor;
  device.smem_bytes_per_block = smem_bytes_per_block;
}

// Forgets the kernels that launches were described for. Two objects may have kernels of one name, so that host.py
// describes those of an object before it launches it.
void recorder_forget_kernels() { num_signatures = 0; }

// Describes a kernel that may be launched. Returns whether it can be kept.
bool recorder_add_kernel(const char* name, const int32_t* sizes, int32_t num_parameters) {
  size_t num_bytes = 0;
  for (int32_t i = 0; i < num_parameters; ++i) num_bytes += static_cast<size_t>(sizes[i]);
  const bool is_long = num_parameters > kMaxParameters || num_bytes > kMaxParameterBytes;
  if (is_long || std::strlen(name) >= sizeof(Signature::name)) return false;
  auto* grown = static_cast<Signature*>(std::realloc(signatures, sizeof(Signature) * (num_signatures + 1)));
  if (grown == nullptr) return false;
  signatures = grown;
  Signature* signature = &signatures[num_signatures++];
  *signature = {};
  std::strcpy(signature->name, name);
  signature->num_parameters = num_parameters;
  std::memcpy(signature->parameter_sizes, sizes, sizeof(int32_t) * static_cast<size_t>(num_parameters));
  return true;
}

int32_t recorder_num_operations() { return num_operations; }
void recorder_operation(int32_t index, Operation* operation) { *operation = operations[index]; }
void recorder_forget_operations() { num_operations = 0; }

// What kernel objects call.
int32_t _cudaLibraryLoadData(void** library, const void* code, void*, void*, uint32_t, void*, void*, uint32_t) {
  *library = const_cast<void*>(code);
  return 0;
}

int32_t _cudaLibraryGetKernel(void** kernel, void*, const char* name) {
  if (std::strlen(name) >= sizeof(Handle::name)) return kInvalidDeviceFunction;
  auto* handle = static_cast<Handle*>(std::calloc(1, sizeof(Handle)));
  if (handle == nullptr) return kMemoryAllocation;
  std::strcpy(handle->name, name);
  handle->smem_bytes = kSmemBytes;
  *kernel = handle;
  return 0;
}

int32_t _cudaLaunchKernelEx(const LaunchConfig* config, const void* kernel, void** arguments) {
  const int32_t size = aot::check_grid({config->grid[0], config->grid[1], config->grid[2]});
  if (size != 0 || is_query) return size;
  const auto& handle = *static_cast<const Handle*>(kernel);
  return is_refused(*config, handle) ? kInvalidValue : keep_launch(*config, handle, arguments);
}

int32_t _cudaGetDevice(int32_t* ordinal) {
  *ordinal = 0;
  return 0;
}

int32_t _cudaDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t) {
  if (attribute != kSmemPerBlockOptin) return kInvalidValue;
  *value = device.smem_bytes_per_block;
  return 0;
}

int32_t _cudaFuncSetAttribute(const void* kernel, int32_t attribute, int32_t value) {
  return set_attribute(static_cast<Handle*>(const_cast<void*>(kernel)), attribute, value);
}

int32_t _cudaKernelSetAttributeForDevice(void* kernel, int32_t attribute, int32_t value, int32_t) {
  return set_attribute(static_cast<Handle*>(kernel), attribute, value);
}

int32_t _cuKernelGetAttribute(int32_t* value, int32_t, void*, int32_t) {
  *value = 0;  // static shared memory: kernels of CuTe DSL have none
  return 0;
}

}  // extern "C"

namespace aot::cuda {

Error get_device(int32_t* ordinal) { return _cudaGetDevice(ordinal); }

Error set_device(int32_t) { return 0; }

Error get_capability(int32_t, int32_t* major, int32_t* minor) {
  *major = device.capability[0];
  *minor = device.capability[1];
  return 0;
}

Error get_facts(int32_t, DeviceFacts* facts) {
  *facts = device.facts;
  return 0;
}

Error clear(void* data, size_t num_bytes, void* stream) {
  if (is_query) return 0;
  Operation* operation = append();
  if (operation == nullptr) return kMemoryAllocation;
  operation->stream = reinterpret_cast<uint64_t>(stream);
  operation->address = reinterpret_cast<uint64_t>(data);
  operation->num_bytes = num_bytes;
  return 0;
}

Error synchronize(void*) { return 0; }

Error is_capturing(void*, bool* capturing) {
  *capturing = false;
  return 0;
}

Error order(void*, void*) { return 0; }

void begin_cluster_query() { is_query = true; }

int32_t end_cluster_query() {
  is_query = false;
  return -1;
}

int32_t relaxed_capture_mode() { return 2; }

Error exchange_capture_mode(int32_t*) { return 0; }

void stay_programmatic(bool) {}

bool means_no_gpu(Error) { return false; }

const char* describe(Error error) {
  switch (error) {
    case kInvalidValue:
      return "invalid argument: shared memory, cluster or attributes that the device does not take";
    case kMemoryAllocation:
      return "out of memory";
    case kInvalidDeviceFunction:
      return "a kernel that was not described before it was launched";
    default:
      return "an error that the recorder does not know";
  }
}

}  // namespace aot::cuda
