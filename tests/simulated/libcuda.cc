// A simulated libcuda.so.1: the driver functions that aot/measure/device.py calls, over host memory and a clock of its own.
//
// The file that AOT_SIMULATED_DEVICE names describes the device, one entry a line:
//   name TEXT | capability MAJOR MINOR | sms N | l2 BYTES | integrated 0|1 | memory BYTES | noise SHARE
//   time KERNEL M N K MICROSECONDS        what one launch with a cold L2 takes
//   fault WHAT KERNEL M                   launch, wrong, hang, sticky or clusters, on problems of M rows, 0: on all
//   linger MICROSECONDS                   of real time that each launch takes besides
//   slow FROM UNTIL FACTOR                launches between these times of the device's clock, in us, take longer
// A launch multiplies for real, so that results can be checked; a replay of a graph only lets time pass.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "simulated.h"

namespace {

enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
};

constexpr double kUnknownTimeUs = 5.0;
constexpr double kSeparatorUs = 2.0;
constexpr double kWarmShare = 0.6;         // of a launch whose operands the L2 may still hold
constexpr size_t kFlushBytes = 32 << 20;   // a write of more is a flush: time passes, nothing is written
constexpr double kBytesAMicrosecond = 2.5e5;

struct Slow {
  double from_us, until_us, factor;
};

struct Fault {
  std::string what;
  int64_t m;
};

struct Device {
  std::string name = "Simulated";
  int capability[2] = {11, 0};
  int num_sms = 20;
  int l2_bytes = 1 << 16;
  int integrated = 0;
  size_t memory_bytes = size_t{1} << 30;
  double noise = 0.0;
  unsigned linger_us = 0;
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, double> times;
  std::map<std::string, std::vector<Fault>> faults;
  std::vector<Slow> slows;

  Device() {
    const char* path = std::getenv("AOT_SIMULATED_DEVICE");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "r");
    if (file == nullptr) return;
    for (char line[1024]; std::fgets(line, sizeof(line), file) != nullptr;) read(line);
    std::fclose(file);
  }

  void read(const char* line) {
    char text[512], kernel[512];
    int64_t m, n, k;
    double us;
    Slow slow;
    if (std::sscanf(line, "name %511[^\n]", text) == 1) name = text;
    std::sscanf(line, "capability %d %d", &capability[0], &capability[1]);
    std::sscanf(line, "sms %d", &num_sms);
    std::sscanf(line, "l2 %d", &l2_bytes);
    std::sscanf(line, "integrated %d", &integrated);
    std::sscanf(line, "memory %zu", &memory_bytes);
    std::sscanf(line, "noise %lf", &noise);
    std::sscanf(line, "linger %u", &linger_us);
    if (std::sscanf(line, "time %511s %" SCNd64 " %" SCNd64 " %" SCNd64 " %lf", kernel, &m, &n, &k, &us) == 5) {
      times[{kernel, m, n, k}] = us;
    }
    if (std::sscanf(line, "fault %511s %511s %" SCNd64, text, kernel, &m) == 3) faults[kernel].push_back({text, m});
    if (std::sscanf(line, "slow %lf %lf %lf", &slow.from_us, &slow.until_us, &slow.factor) == 3) slows.push_back(slow);
  }

  bool has_fault(const std::string& kernel, const char* what, int64_t m) const {
    const auto found = faults.find(kernel);
    if (found == faults.end()) return false;
    return std::any_of(found->second.begin(), found->second.end(),
                       [&](const Fault& x) { return x.what == what && (x.m == 0 || x.m == m); });
  }
};

struct Node {
  double us;  // with a cold L2, before noise
  size_t flush_bytes;
};

using Graph = std::vector<Node>;

struct Product {
  size_t a_bytes, b_bytes;
  std::vector<uint16_t> bits;
};

struct State {
  Device device;
  double clock_us = 0;
  bool lost = false, hung = false, cold = false;
  size_t used_bytes = 0;
  std::map<uint64_t, std::pair<void*, size_t>> blocks;
  std::unique_ptr<Graph> capture;
  // Products by what they were made of, since kernels are checked one after another on the same operands.
  std::map<std::tuple<const void*, const void*, int, int, int64_t, int64_t, int64_t, int, int, int>, Product> products;
  std::mt19937_64 random{static_cast<uint64_t>(getpid())};
};

// Made when the library is loaded: a local static would need the C++ library for its guard.
State the_state;

State& state() { return the_state; }

void pass(const Node& node) {
  State& s = state();
  if (node.flush_bytes > 0) {
    s.clock_us += static_cast<double>(node.flush_bytes) / kBytesAMicrosecond;
    s.cold = node.flush_bytes >= 2 * static_cast<size_t>(s.device.l2_bytes);
    return;
  }
  double us = node.us * (1 + s.device.noise * std::uniform_real_distribution<>(-1, 1)(s.random));
  for (const Slow& slow : s.device.slows) {
    if (s.clock_us >= slow.from_us && s.clock_us < slow.until_us) us *= slow.factor;
  }
  s.clock_us += us;
}

float decode(uint16_t bits, int dtype) {
  if (dtype == 1) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return static_cast<float>(value);
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t encode(float value, int dtype) {
  uint16_t bits;
  if (dtype == 1) {
    const _Float16 half = static_cast<_Float16>(value);
    std::memcpy(&bits, &half, 2);
    return bits;
  }
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  if (value != value) return 0x7FC0;
  return static_cast<uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
}

struct View {
  uint16_t* data;
  int64_t rows, columns, row_stride, column_stride;
  size_t num_bytes() const {
    return 2 * static_cast<size_t>((rows - 1) * row_stride + (columns - 1) * column_stride + 1);
  }
};

View view(const SimulatedTensor& tensor, int num_strides, bool is_row_major) {
  auto* data = static_cast<uint16_t*>(tensor.data);
  const int64_t lead = tensor.strides[0];
  if (num_strides == 2) return {data, tensor.shape[0], tensor.shape[1], lead, tensor.strides[1]};
  return is_row_major ? View{data, tensor.shape[0], tensor.shape[1], lead, 1}
                      : View{data, tensor.shape[0], tensor.shape[1], 1, lead};
}

std::vector<float> gather(const View& x, int dtype) {
  std::vector<float> values(static_cast<size_t>(x.rows * x.columns));
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.columns; ++j) {
      values[static_cast<size_t>(i * x.columns + j)] = decode(x.data[i * x.row_stride + j * x.column_stride], dtype);
    }
  }
  return values;
}

std::vector<uint16_t> multiply(const View& a, const View& b, int dtype) {
  const std::vector<float> left = gather(a, dtype), right = gather(b, dtype);
  std::vector<uint16_t> bits;
  bits.reserve(static_cast<size_t>(a.rows * b.rows));
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.rows; ++j) {
      const float* x = &left[static_cast<size_t>(i * a.columns)];
      const float* y = &right[static_cast<size_t>(j * b.columns)];
      float sum = 0;
      for (int64_t l = 0; l < a.columns; ++l) sum += x[l] * y[l];
      bits.push_back(encode(sum, dtype));
    }
  }
  return bits;
}

void forget_products(const void* start, size_t num_bytes) {
  const auto* first = static_cast<const char*>(start);
  const auto* last = first + num_bytes;
  auto overlaps = [&](const void* data, size_t size) {
    const auto* begin = static_cast<const char*>(data);
    return begin < last && first < begin + size;
  };
  auto& products = state().products;
  for (auto it = products.begin(); it != products.end();) {
    const bool stale = overlaps(std::get<0>(it->first), it->second.a_bytes) ||
                       overlaps(std::get<1>(it->first), it->second.b_bytes);
    it = stale ? products.erase(it) : std::next(it);
  }
}

void compute(const SimulatedCall& call, bool wrong) {
  const View a = view(call.a, call.num_strides, (call.layout & 2) == 0);
  const View b = view(call.b, call.num_strides, (call.layout & 1) == 0);
  const View d = view(call.d, call.num_strides, true);
  const auto key = std::make_tuple(call.a.data, call.b.data, call.dtype, call.num_strides == 2 ? -1 : call.layout,
                                   a.row_stride, b.row_stride, a.column_stride, call.a.shape[0], call.b.shape[0],
                                   call.a.shape[1]);
  auto& products = state().products;
  auto found = products.find(key);
  if (found == products.end()) {
    found = products.emplace(key, Product{a.num_bytes(), b.num_bytes(), multiply(a, b, call.dtype)}).first;
  }
  for (int64_t i = 0; i < d.rows; ++i) {
    for (int64_t j = 0; j < d.columns; ++j) {
      d.data[i * d.row_stride + j * d.column_stride] = found->second.bits[static_cast<size_t>(i * d.columns + j)];
    }
  }
  if (wrong) d.data[(d.rows - 1) * d.row_stride + (d.columns - 1) * d.column_stride] = encode(1e4F, call.dtype);
}

int alive() { return state().lost ? kIllegalAddress : kSuccess; }

}  // namespace

extern "C" {

int32_t simulated_launch(const SimulatedCall* call) {
  State& s = state();
  if (s.lost) return kIllegalAddress;
  const int64_t m = call->a.shape[0], n = call->b.shape[0], k = call->a.shape[1];
  if (s.device.has_fault(call->kernel, "launch", m)) return kLaunchOutOfResources;
  const auto time = s.device.times.find({call->kernel, m, n, k});
  Node node{time == s.device.times.end() ? kUnknownTimeUs : time->second, 0};
  if (s.capture != nullptr) {
    s.capture->push_back(node);
    return kSuccess;
  }
  if (s.device.integrated != 0 && !s.cold) node.us *= kWarmShare;
  s.cold = false;
  s.hung = s.hung || s.device.has_fault(call->kernel, "hang", m);
  s.lost = s.lost || s.device.has_fault(call->kernel, "sticky", m);
  if (s.hung || s.lost) return kSuccess;  // the launch succeeds; whoever waits for it finds out
  compute(*call, s.device.has_fault(call->kernel, "wrong", m));
  if (s.device.linger_us > 0) usleep(s.device.linger_us);
  pass(node);
  return kSuccess;
}

int32_t simulated_max_active_clusters(const SimulatedCall* call) {
  return state().device.has_fault(call->kernel, "clusters", 0) ? 0 : state().device.num_sms / 2;
}

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = 1, kSuccess; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, kSuccess; }

int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<size_t>(size), "%s", state().device.name.c_str());
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  const Device& device = state().device;
  const std::map<int, int> known = {{16, device.num_sms},  {18, device.integrated},     {38, device.l2_bytes},
                                    {33, 1},               {75, device.capability[0]},  {76, device.capability[1]},
                                    {97, 232448}};
  const auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &state(), kSuccess; }
int cuCtxSetCurrent(void*) { return kSuccess; }
int cuCtxSynchronize() { return alive(); }
int cuStreamCreate(void** stream, unsigned) { return *stream = &state(), kSuccess; }
int cuEventCreate(void** event, unsigned) { return *event = new double(0), kSuccess; }

int cuEventRecord(void* event, void*) {
  *static_cast<double*>(event) = state().clock_us;
  return alive();
}

int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  *milliseconds = static_cast<float>((*static_cast<double*>(end) - *static_cast<double*>(start)) / 1e3);
  return alive();
}

int cuStreamSynchronize(void*) {
  while (state().hung) pause();
  return alive();
}

int cuMemAlloc_v2(uint64_t* address, size_t num_bytes) {
  State& s = state();
  if (s.lost) return kIllegalAddress;
  void* block = nullptr;
  if (s.used_bytes + num_bytes > s.device.memory_bytes) return kOutOfMemory;
  if (posix_memalign(&block, 256, std::max<size_t>(num_bytes, 1)) != 0) return kOutOfMemory;
  *address = reinterpret_cast<uint64_t>(block);
  s.blocks[*address] = {block, num_bytes};
  s.used_bytes += num_bytes;
  return kSuccess;
}

int cuMemFree_v2(uint64_t address) {
  State& s = state();
  const auto found = s.blocks.find(address);
  if (found == s.blocks.end()) return kInvalidValue;
  forget_products(found->second.first, found->second.second);
  s.used_bytes -= found->second.second;
  std::free(found->second.first);
  s.blocks.erase(found);
  return alive();
}

int cuMemcpyAsync(uint64_t target, uint64_t source, size_t num_bytes, void*) {
  if (state().lost) return kIllegalAddress;
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), num_bytes);
  forget_products(reinterpret_cast<void*>(target), num_bytes);
  return kSuccess;
}

int cuMemsetD8Async(uint64_t target, unsigned char value, size_t num_bytes, void*) {
  State& s = state();
  if (s.lost) return kIllegalAddress;
  if (num_bytes > kFlushBytes) {
    const Node node{0, num_bytes};
    if (s.capture != nullptr) s.capture->push_back(node);
    else pass(node);
    return kSuccess;
  }
  std::memset(reinterpret_cast<void*>(target), value, num_bytes);
  return kSuccess;
}

int cuModuleLoadData(void** module, const void*) {
  if (state().capture != nullptr) return kInvalidValue;  // as a capture refuses what may allocate
  return *module = &state(), alive();
}
int cuModuleGetFunction(void** function, void* module, const char*) { return *function = module, alive(); }

// The only kernel that the runner launches by itself is the separator.
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) {
  const Node node{kSeparatorUs, 0};
  if (state().capture != nullptr) state().capture->push_back(node);
  else pass(node);
  return alive();
}

int cuStreamBeginCapture_v2(void*, int) {
  state().capture = std::make_unique<Graph>();
  return alive();
}

int cuStreamEndCapture(void*, void** graph) {
  *graph = state().capture.release();
  return alive();
}

int cuGraphInstantiateWithFlags(void** executable, void* graph, uint64_t) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return alive();
}

int cuGraphLaunch(void* graph, void*) {
  if (state().lost) return kIllegalAddress;
  for (const Node& node : *static_cast<Graph*>(graph)) pass(node);
  return kSuccess;
}

int cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), alive(); }
int cuGraphExecDestroy(void* graph) { return delete static_cast<Graph*>(graph), alive(); }

int cuGetErrorName(int error, const char** text) {
  const std::map<int, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                            {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                            {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                            {kLaunchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}};
  const auto found = names.find(error);
  *text = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
  return kSuccess;
}

int cuGetErrorString(int error, const char** text) {
  const std::map<int, const char*> texts = {{kInvalidValue, "invalid argument"},
                                            {kOutOfMemory, "out of memory"},
                                            {kIllegalAddress, "an illegal memory access was encountered"},
                                            {kLaunchOutOfResources, "too many resources requested for launch"}};
  const auto found = texts.find(error);
  *text = found == texts.end() ? "unknown error" : found->second;
  return kSuccess;
}

}  // extern "C"
