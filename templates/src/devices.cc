#include "devices.h"

#include <pthread.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "cuda_entry.h"
#include "cuda_error.h"
#include "dispatch.h"
#include "error.h"
#include "kernel.h"
#include "library_sha256.h"
#include "runtime.h"

namespace aot {

namespace {

pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER;
Device devices[kMaxDevices];

// Says whether CUDA's name of a device, which ends in the profile where it is a MIG slice, is one that a table is for.
bool is_named(const cuda::DeviceFacts& facts, const Table& table) {
  const char* profile = std::strstr(facts.name, " MIG ");
  const size_t length = profile == nullptr ? std::strlen(facts.name) : static_cast<size_t>(profile - facts.name);
  for (int32_t i = 0; i < table.num_device_names; ++i) {
    const char* name = table.device_names[i];
    if (std::strlen(name) == length && std::memcmp(name, facts.name, length) == 0) return true;
  }
  return false;
}

double ratio(double a, double b) { return a > b ? a / b : b / a; }

// How far a device is from a table's: the product of the ratios of their SMs and of their bandwidths, as far as both are
// known; 1 is no distance.
double distance(const cuda::DeviceFacts& facts, const Table& table) {
  const bool has_bandwidth = facts.bandwidth_gb_per_s > 0 && table.bandwidth_gb_per_s > 0;
  const double of_sms = ratio(facts.num_sms, table.num_sms);
  return has_bandwidth ? of_sms * ratio(static_cast<double>(facts.bandwidth_gb_per_s),
                                        static_cast<double>(table.bandwidth_gb_per_s))
                       : of_sms;
}

struct Figures {
  char text[64];
};

Figures write_figures(int32_t num_sms, int64_t bandwidth_gb_per_s) {
  Figures figures;
  if (bandwidth_gb_per_s > 0) {
    std::snprintf(figures.text, sizeof(figures.text), "%" PRId32 " SMs, %" PRId64 " GB/s", num_sms, bandwidth_gb_per_s);
  } else {
    std::snprintf(figures.text, sizeof(figures.text), "%" PRId32 " SMs", num_sms);
  }
  return figures;
}

int32_t count_unfit(int32_t num_sms) {
  return static_cast<int32_t>(std::count_if(kKernels, kKernels + kNumKernels, [num_sms](const Kernel& kernel) {
    return kernel.resident_sms > num_sms;
  }));
}

// Picks the table of the device itself, or else the nearest: of equally near ones the first.
void pick_table(const cuda::DeviceFacts& facts, Device* device) {
  device->num_sms = facts.num_sms;
  for (int32_t i = 0; i < kNumTables; ++i) {
    const Table& table = kTables[i];
    if (facts.num_sms != table.num_sms || !is_named(facts, table)) continue;
    device->table = i;
    std::snprintf(device->reason, sizeof(device->reason), "the table of %s is for %.100s with %" PRId32 " SMs",
                  table.target, facts.name, facts.num_sms);
    return;
  }
  int32_t nearest = 0;
  for (int32_t i = 1; i < kNumTables; ++i) {
    if (distance(facts, kTables[i]) < distance(facts, kTables[nearest])) nearest = i;
  }
  const Table& table = kTables[nearest];
  device->table = nearest;
  const int length = std::snprintf(
      device->reason, sizeof(device->reason), "no table for %.100s (%s): nearest is %s (%s)", facts.name,
      write_figures(facts.num_sms, facts.bandwidth_gb_per_s).text, table.target,
      write_figures(table.num_sms, table.bandwidth_gb_per_s).text);
  const int32_t num_unfit = count_unfit(facts.num_sms);
  if (num_unfit > 0) {
    std::snprintf(device->reason + length, sizeof(device->reason) - static_cast<size_t>(length),
                  "; kernels that need more SMs (%" PRId32 " of %" PRId32 ") give way to others", num_unfit, kNumKernels);
  }
}

// Hashes what decides on a device: the library, the table, the SMs by which kernels give way to others, and whether weights
// are read early.
void note_choices(Device* device) {
  char text[256];
  const int length =
      std::snprintf(text, sizeof(text), "%s\ntable %s\nsms %" PRId32 "\nweight_prefetch %d\n", kLibrarySha256,
                    kTables[device->table].target, device->num_sms, kPrefetchesWeights ? 1 : 0);
  write_sha256(text, static_cast<size_t>(length), device->choices);
}

aot_gemm_status_t ask(int32_t ordinal, cuda::DeviceFacts* facts) {
  int32_t major = 0;
  int32_t minor = 0;
  cuda::Error error = cuda::get_capability(ordinal, &major, &minor);
  if (error != 0) return fail_cuda(error, "query of", "the compute capability", ordinal);
  if (major != kCapabilityMajor || minor != kCapabilityMinor) {
    return fail(AOT_GEMM_ERROR_ARCHITECTURE,
                "device %" PRId32 " has compute capability %" PRId32 ".%" PRId32
                "; these kernels are %s and run on %" PRId32 ".%" PRId32 " only; install the wheel built for this GPU",
                ordinal, major, minor, kArch, kCapabilityMajor, kCapabilityMinor);
  }
  error = cuda::get_facts(ordinal, facts);
  return error == 0 ? AOT_GEMM_OK : fail_cuda(error, "query of", "the number of SMs", ordinal);
}

}  // namespace

std::atomic<const Device*> known_devices[kMaxDevices];

aot_gemm_status_t find_device(int32_t ordinal, const Device** device) {
  *device = known_device(ordinal);
  if (*device != nullptr) return AOT_GEMM_OK;
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "device ordinal is %" PRId32 "; expected 0 to %" PRId32, ordinal,
                kMaxDevices - 1);
  }
  cuda::DeviceFacts facts = {};
  const aot_gemm_status_t status = ask(ordinal, &facts);
  if (status != AOT_GEMM_OK) return status;
  pthread_mutex_lock(&devices_mutex);
  if (known_device(ordinal) == nullptr) {
    pick_table(facts, &devices[ordinal]);
    note_choices(&devices[ordinal]);
    known_devices[ordinal].store(&devices[ordinal], std::memory_order_release);
  }
  pthread_mutex_unlock(&devices_mutex);
  *device = &devices[ordinal];
  return AOT_GEMM_OK;
}

aot_gemm_status_t find_stated(int32_t* ordinal, const Device** device) {
  const cuda::Error error = *ordinal < 0 ? cuda::get_device(ordinal) : 0;
  return error == 0 ? find_device(*ordinal, device) : fail_cuda(error, "asking for", "the current device", *ordinal);
}

}  // namespace aot
