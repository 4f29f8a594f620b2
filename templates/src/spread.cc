#include "spread.h"

#include <atomic>
#include <cstdint>

#include "driver_function.h"

namespace aot::cuda {

namespace {

std::atomic<decltype(&cuCtxGetDevice)> driver_device{nullptr};
std::atomic<decltype(&cuDeviceGetAttribute)> driver_device_attribute{nullptr};
std::atomic<decltype(&cuFuncGetAttribute)> driver_function_attribute{nullptr};
std::atomic<decltype(&cuFuncSetAttribute)> driver_set_attribute{nullptr};
std::atomic<decltype(&cuOccupancyMaxActiveBlocksPerMultiprocessor)> driver_occupancy{nullptr};
std::atomic<decltype(&cuOccupancyMaxActiveClusters)> driver_active_clusters{nullptr};

constexpr int kHopper = 9;  // the architecture on which it was measured

// Shared memory is given by multiples of this. Source: CUDA C++ Programming Guide, compute capability 9.0.
constexpr int64_t kGranularity = 128;

struct Sms {
  int count;
  int smem_bytes;      // of each
  int reserved_bytes;  // of each CTA
};

// Says what the current device has; false where it cannot be asked, or spreading was not measured.
bool find_sms(Sms* sms) {
  const auto device_of = find_once(&driver_device, "cuCtxGetDevice", 2000);
  const auto ask = find_once(&driver_device_attribute, "cuDeviceGetAttribute", 2000);
  CUdevice device = 0;
  int major = 0;
  return device_of != nullptr && ask != nullptr && device_of(&device) == CUDA_SUCCESS &&
         ask(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == CUDA_SUCCESS && major == kHopper &&
         ask(&sms->count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) == CUDA_SUCCESS &&
         ask(&sms->smem_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device) == CUDA_SUCCESS &&
         ask(&sms->reserved_bytes, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device) == CUDA_SUCCESS;
}

// Gives the CTAs of a launch's clusters; 1 where it has none.
int64_t cluster_size(const CUlaunchConfig& config) {
  for (unsigned int i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& size = config.attrs[i].value.clusterDim;
    return int64_t{size.x} * size.y * size.z;
  }
  return 1;
}

// Says whether all clusters of a launch find room at once: GPCs have unequal numbers of SMs, which clusters do not use up.
bool has_room(CUfunction function, const CUlaunchConfig& config, int64_t num_ctas) {
  const int64_t size = cluster_size(config);
  if (size == 1) return true;  // no SM has more than its share
  const auto ask = find_once(&driver_active_clusters, "cuOccupancyMaxActiveClusters", 11070);
  int count = 0;
  return ask != nullptr && ask(&count, function, &config) == CUDA_SUCCESS && count * size >= num_ctas;
}

// Gives the dynamic shared memory of which an SM has room for so many CTAs and no more.
int64_t smem_of_share(int64_t share, const Sms& sms) {
  return sms.smem_bytes / (share + 1) / kGranularity * kGranularity + kGranularity - sms.reserved_bytes;
}

// Lets a kernel's launches ask for so much dynamic shared memory.
bool allow(CUfunction function, int64_t smem_bytes) {
  const auto ask = find_once(&driver_function_attribute, "cuFuncGetAttribute", 2020);
  const auto set = find_once(&driver_set_attribute, "cuFuncSetAttribute", 9000);
  int most = 0;
  if (ask == nullptr || set == nullptr) return false;
  if (ask(&most, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function) != CUDA_SUCCESS) return false;
  return most >= smem_bytes || set(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                   static_cast<int>(smem_bytes)) == CUDA_SUCCESS;
}

}  // namespace

void spread(CUfunction function, const Front& front, CUlaunchConfig* config) {
  const bool is_itself = front.function == function && front.smem_bytes == config->sharedMemBytes;
  if (front.function == nullptr || is_itself) return;
  const auto occupancy = find_once(&driver_occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050);
  Sms sms = {};
  if (occupancy == nullptr || !find_sms(&sms)) return;
  const auto block = static_cast<int>(config->blockDimX * config->blockDimY * config->blockDimZ);
  const int64_t num_ctas = int64_t{config->gridDimX} * config->gridDimY * config->gridDimZ;
  const int64_t share = (num_ctas + sms.count - 1) / sms.count;
  int held = 0;
  if (occupancy(&held, function, block, config->sharedMemBytes) != CUDA_SUCCESS || held <= share) return;
  CUlaunchConfig spread_out = *config;
  spread_out.sharedMemBytes = static_cast<unsigned int>(smem_of_share(share, sms));
  if (spread_out.sharedMemBytes <= config->sharedMemBytes) return;
  // What a share of one needs is the most that any needs, so that two threads do not lower each other's limit.
  if (allow(function, smem_of_share(1, sms)) && has_room(function, spread_out, num_ctas)) *config = spread_out;
}

}  // namespace aot::cuda
