// Stands in for cuda_entry.cc: answers every CUDA call the way a GPU would, and records what was asked. Kernels of the
// tests' own manifest are stubs that call `record_fake`; real kernel objects reach `_cudaLaunchKernelEx`.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "cuda_entry.h"
#include "grid.h"
#include "kernel.h"
#include "problem.h"
#include "recorder.h"

namespace {

struct Dim3 {
  uint32_t x, y, z;
};

// The layouts of cudaLaunchAttribute and cudaLaunchConfig_t (driver_types.h).
struct LaunchAttribute {
  int32_t id;
  char pad[4];
  int32_t value[16];
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  size_t smem_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  uint32_t num_attributes;
};

struct FakeLaunch {
  int32_t kernel;
  int32_t num_arguments;
  int32_t device;
  int32_t workspace_floats;
  int32_t reads_early;  // whether it may read B early; -1 where the kernel takes no such argument
  aot::RightOperand a;  // this and D of a batch: a stack, which `parts` is laid out as
  aot::RightOperand b;
  aot::RightOperand d;
  aot::Bias bias;  // this and those below: all 0 where the kernel takes none
  void* workspace;
  void* stream;
  aot::Factors scale_a;
  aot::Factors scale_b;
  aot::Tensor residual;
  aot::Vector scale_d;
  aot::Vector offsets;
  aot::Vector index;
  aot::Vector b_of_groups;  // int64, in host memory
  aot::Vector places;
  aot::Vector scale_b_of_groups;  // int64, in host memory
  aot::Vector scale_b_places;
  int64_t parts[AOT_GEMM_MAX_PARTS][aot::kNumPartWords];  // of several weights
  aot::Vector own_d;
  aot::Vector factors_d;
};

struct Clear {
  void* data;
  uint64_t num_bytes;
  void* stream;
};

struct Order {
  void* first;
  void* second;
  int64_t num_launches;  // before it
};

// Calls that can be made to fail, and are counted.
enum Call {
  kInit,
  kLoad,
  kLaunch,
  kGetDevice,
  kSetDevice,
  kCapability,
  kClear,
  kCaptureMode,
  kSynchronize,
  kIsCapturing,
  kOrder,
  kFacts,
  kNumCalls
};

// Of the C library, as the runtime's own: where zig builds, nothing of its C++ library is linked.
class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

Mutex mutex;
std::vector<FakeLaunch> fake_launches;
std::vector<std::vector<int64_t>> kept_addresses;  // a caller's list may end with its call; what holds one is moved, not copied

// Keeps a list of addresses in host memory.
void keep_addresses(const void* value, aot::Vector* field) {
  std::memcpy(field, value, sizeof(*field));
  const auto* const first = static_cast<const int64_t*>(field->data);
  if (field->shape[0] == 0) return;
  kept_addresses.emplace_back(first, first + field->shape[0]);
  field->data = kept_addresses.back().data();
}
std::vector<RealLaunch> real_launches;
std::vector<Clear> clears;
std::vector<Order> orders;
bool is_capturing = false;
void* captured = nullptr;  // the one stream that is
int32_t launch_us = 0;  // how long a launch takes, as with a full queue
std::vector<Setting> settings;
std::vector<int32_t> parameter_sizes;
int32_t num_unread = 0;  // launches whose parameters are not those of `parameter_sizes`, but of the first ones
std::vector<int32_t> first_sizes;
int32_t counts[kNumCalls];
int32_t faults[kNumCalls];
int32_t capability[2] = {9, 0};
constexpr int32_t kMaxDevices = 64;
int32_t capabilities[kMaxDevices][2];  // of devices that are unlike the others; 0: as `capability`
int32_t num_devices = kMaxDevices;
aot::cuda::DeviceFacts facts[kMaxDevices];  // no SMs: a whole H200
thread_local int32_t current_device = 0;
thread_local int32_t capture_mode = 0;
thread_local bool is_query = false;
int32_t loads_outside_relaxed_mode = 0;
bool is_paused = false;  // nothing is recorded, locked or allocated: what remains is the library's own

int32_t answer(Call call) {
  if (is_paused) return 0;
  const std::lock_guard<Mutex> lock(mutex);
  ++counts[call];
  if ((call == kInit || call == kLoad) && capture_mode != 2) ++loads_outside_relaxed_mode;
  return faults[call];
}

}  // namespace

extern "C" {

void recorder_reset() {
  const std::lock_guard<Mutex> lock(mutex);
  fake_launches.clear();
  kept_addresses.clear();
  real_launches.clear();
  clears.clear();
  orders.clear();
  is_capturing = false;
  captured = nullptr;
  launch_us = 0;
  settings.clear();
  first_sizes.clear();
  std::fill(counts, counts + kNumCalls, 0);
  std::fill(faults, faults + kNumCalls, 0);
  loads_outside_relaxed_mode = 0;
  capability[0] = 9;
  capability[1] = 0;
  current_device = 0;
}

void recorder_pause(bool paused) { is_paused = paused; }
void recorder_fail(int32_t call, int32_t error) { faults[call] = error; }
void recorder_set_capability(int32_t major, int32_t minor) {
  capability[0] = major;
  capability[1] = minor;
}
// Says that one device has another capability, and that there are so many.
void recorder_set_capability_of(int32_t device, int32_t major, int32_t minor, int32_t count) {
  capabilities[device][0] = major;
  capabilities[device][1] = minor;
  num_devices = count;
}
// Says what a device is that was not asked about yet.
void recorder_set_device(int32_t device, const char* name, int32_t num_sms, int64_t bandwidth_gb_per_s) {
  facts[device] = {"", num_sms, bandwidth_gb_per_s};
  std::strncpy(facts[device].name, name, sizeof(facts[device].name) - 1);
}
void recorder_set_parameters(const int32_t* sizes, int32_t count) { parameter_sizes.assign(sizes, sizes + count); }
void recorder_leave_parameters(int32_t num_launches) { num_unread = num_launches; }
__attribute__((noinline)) void recorder_fill_stack(int32_t byte) {
  volatile char filled[1 << 16];
  for (volatile char& place : filled) place = static_cast<char>(byte);
}
void recorder_set_first_parameters(const int32_t* sizes, int32_t count) { first_sizes.assign(sizes, sizes + count); }
int32_t recorder_count(int32_t call) { return counts[call]; }
int32_t recorder_loads_outside_relaxed_mode() { return loads_outside_relaxed_mode; }
int32_t recorder_current_device() { return current_device; }
int32_t recorder_num_fake() { return static_cast<int32_t>(fake_launches.size()); }
int32_t recorder_num_real() { return static_cast<int32_t>(real_launches.size()); }
void recorder_set_capturing(bool capturing) { is_capturing = capturing; }
void recorder_capture(void* stream) { captured = stream; }
void recorder_set_launch_us(int32_t microseconds) { launch_us = microseconds; }
int32_t recorder_num_orders() { return static_cast<int32_t>(orders.size()); }
void recorder_order(int32_t index, Order* order) { *order = orders[index]; }
int32_t recorder_num_clears() { return static_cast<int32_t>(clears.size()); }
void recorder_fake(int32_t index, FakeLaunch* launch) { *launch = fake_launches[index]; }
void recorder_real(int32_t index, RealLaunch* launch) { *launch = real_launches[index]; }
void recorder_clear(int32_t index, Clear* clear) { *clear = clears[index]; }
int32_t recorder_num_settings() { return static_cast<int32_t>(settings.size()); }
void recorder_setting(int32_t index, Setting* setting) { *setting = settings[index]; }

// What the stubs of the tests' kernels call.
int32_t record_init(void** library) {
  usleep(2000);  // long enough for other threads to arrive meanwhile
  *library = library;
  return answer(kInit);
}

int32_t record_load(void*, int32_t) { return answer(kLoad); }

// Answers a launch that row_recorder.cc keeps; says on which device it is.
int32_t record_launch(int32_t* device) {
  *device = current_device;
  return is_query || is_paused ? 0 : answer(kLaunch);
}

// `signature` names the arguments as the manifest does, with spaces between them; the error comes behind them.
int32_t record_fake(int32_t kernel, const char* signature, void** arguments, int32_t num_arguments) {
  const aot::Grouping grouping = aot::kOperations[aot::kKernels[kernel].operation].grouping;
  const bool is_batched = grouping == aot::Grouping::kBatched;
  const bool is_d_stacked = is_batched || grouping == aot::Grouping::kKgrouped;
  FakeLaunch launch{};
  launch.kernel = kernel;
  launch.num_arguments = num_arguments;
  launch.device = current_device;
  launch.reads_early = -1;
  int32_t count = 0;
  for (const char* at = signature; *at != '\0'; ++count) {
    const size_t length = std::strcspn(at, " ");
    const auto is = [at, length](const char* name) {
      return std::strlen(name) == length && std::strncmp(at, name, length) == 0;
    };
    const void* value = arguments[count];
    if (is("a")) std::memcpy(&launch.a, value, is_batched ? sizeof(aot::Stack) : sizeof(aot::Tensor));
    if (is("b")) std::memcpy(&launch.b, value, is_batched ? sizeof(aot::Stack) : sizeof(launch.b));
    if (is("d")) std::memcpy(&launch.d, value, is_d_stacked ? sizeof(aot::Stack) : sizeof(aot::Tensor));
    if (is("scale_a")) launch.scale_a = *static_cast<const aot::Factors*>(value);
    if (is("scale_b")) launch.scale_b = *static_cast<const aot::Factors*>(value);
    if (is("bias")) launch.bias = *static_cast<const aot::Bias*>(value);
    if (is("residual")) launch.residual = *static_cast<const aot::Tensor*>(value);
    if (is("scale_d")) launch.scale_d = *static_cast<const aot::Vector*>(value);
    if (is("own_d")) launch.own_d = *static_cast<const aot::Vector*>(value);
    if (is("factors_d")) launch.factors_d = *static_cast<const aot::Vector*>(value);
    if (is("offsets")) launch.offsets = *static_cast<const aot::Vector*>(value);
    if (is("index")) launch.index = *static_cast<const aot::Vector*>(value);
    if (is("b_of_groups")) std::memcpy(&launch.b_of_groups, value, sizeof(launch.b_of_groups));
    if (is("parts")) std::memcpy(launch.parts, static_cast<const aot::Vector*>(value)->data, sizeof(launch.parts));
    if (is("scale_b_of_groups")) keep_addresses(value, &launch.scale_b_of_groups);
    if (is("scale_b_places")) launch.scale_b_places = *static_cast<const aot::Vector*>(value);
    if (is("places")) launch.places = *static_cast<const aot::Vector*>(value);
    if (is("workspace")) {
      launch.workspace = static_cast<const aot::Vector*>(value)->data;
      launch.workspace_floats = static_cast<const aot::Vector*>(value)->shape[0];
    }
    if (is("prefetch_b")) launch.reads_early = *static_cast<const int32_t*>(value);
    if (is("stream")) launch.stream = *static_cast<void* const*>(value);
    at += length + std::strspn(at + length, " ");
  }
  if (count + 1 != num_arguments) std::abort();
  if (is_query || is_paused) return 0;
  if (launch_us > 0) usleep(static_cast<useconds_t>(launch_us));
  const int32_t error = answer(kLaunch);
  if (error == 0) {
    const std::lock_guard<Mutex> lock(mutex);
    fake_launches.push_back(launch);
  }
  return error;
}

// What real kernel objects call.
int32_t _cudaLibraryLoadData(void** library, const void* code, void*, void*, uint32_t, void*, void*, uint32_t) {
  *library = const_cast<void*>(code);
  return answer(kInit);
}

int32_t _cudaLibraryGetKernel(void** kernel, void* library, const char*) {
  *kernel = library;
  return answer(kLoad);
}

int32_t _cudaLaunchKernelEx(const LaunchConfig* config, const void* kernel, void** arguments) {
  const int32_t size = aot::check_grid({config->grid.x, config->grid.y, config->grid.z});
  if (size != 0 || is_paused) return size;
  RealLaunch launch{};
  std::memcpy(launch.grid, &config->grid, sizeof(launch.grid));
  std::memcpy(launch.block, &config->block, sizeof(launch.block));
  launch.smem_bytes = config->smem_bytes;
  launch.stream = config->stream;
  launch.kernel = kernel;
  launch.num_attributes = static_cast<int32_t>(config->num_attributes);
  for (uint32_t i = 0; i < config->num_attributes && i < 4; ++i) {
    launch.attribute_ids[i] = config->attributes[i].id;
    std::memcpy(launch.attribute_values[i], config->attributes[i].value, sizeof(launch.attribute_values[i]));
  }
  size_t used = 0;
  const std::vector<int32_t>& sizes = num_unread == 0 ? parameter_sizes : first_sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::memcpy(launch.parameters + used, arguments[i], static_cast<size_t>(sizes[i]));
    used += static_cast<size_t>(sizes[i]);
  }
  if (num_unread > 0) --num_unread;
  const int32_t error = answer(kLaunch);
  const std::lock_guard<Mutex> lock(mutex);
  real_launches.push_back(launch);
  return error;
}

int32_t _cudaGetDevice(int32_t* device) { return aot::cuda::get_device(device); }

int32_t _cudaDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t) {
  *value = attribute == 97 ? 232448 : 0;  // cudaDevAttrMaxSharedMemoryPerBlockOptin
  return 0;
}

int32_t _cudaFuncSetAttribute(const void*, int32_t attribute, int32_t value) {
  const std::lock_guard<Mutex> lock(mutex);
  settings.push_back({attribute, value});
  return 0;
}

int32_t _cudaKernelSetAttributeForDevice(void*, int32_t attribute, int32_t value, int32_t) {
  return _cudaFuncSetAttribute(nullptr, attribute, value);
}

int32_t _cuKernelGetAttribute(int32_t* value, int32_t, void*, int32_t) {
  *value = 0;
  return 0;
}

}  // extern "C"

namespace aot::cuda {

Error get_device(int32_t* device) {
  *device = current_device;
  return answer(kGetDevice);
}

Error set_device(int32_t device) {
  const Error error = answer(kSetDevice);
  if (error == 0) current_device = device;
  return error;
}

Error get_capability(int32_t device, int32_t* major, int32_t* minor) {
  constexpr Error kInvalidDevice = 101;  // cudaErrorInvalidDevice
  if (device >= num_devices) return kInvalidDevice;
  const int32_t* own = capabilities[device][0] != 0 ? capabilities[device] : capability;
  *major = own[0];
  *minor = own[1];
  return answer(kCapability);
}

Error get_facts(int32_t device, DeviceFacts* found) {
  *found = facts[device];
  if (found->num_sms == 0) *found = {"NVIDIA H200", 132, 4917};
  return answer(kFacts);
}

Error clear(void* data, size_t num_bytes, void* stream) {
  if (is_query || is_paused) return 0;
  const Error error = answer(kClear);
  const std::lock_guard<Mutex> lock(mutex);
  clears.push_back({data, num_bytes, stream});
  return error;
}

Error synchronize(void*) { return answer(kSynchronize); }

Error is_capturing(void* stream, bool* capturing) {
  *capturing = ::is_capturing || (captured != nullptr && stream == captured);
  return answer(kIsCapturing);
}

Error order(void* first, void* second) {
  const int32_t error = answer(kOrder);
  const std::lock_guard<Mutex> lock(mutex);
  if (error == 0) orders.push_back({first, second, static_cast<int64_t>(fake_launches.size())});
  return error;
}

void begin_cluster_query() { is_query = true; }

int32_t end_cluster_query() {
  is_query = false;
  return 7;
}

int32_t relaxed_capture_mode() { return 2; }

Error exchange_capture_mode(int32_t* mode) {
  std::swap(*mode, capture_mode);
  return answer(kCaptureMode);
}

void stay_programmatic(bool) {}

bool means_no_gpu(Error error) { return error == 35 || error == 100; }

const char* describe(Error error) { return error == 100 ? "no CUDA-capable device is detected" : "recorded error"; }

}  // namespace aot::cuda
