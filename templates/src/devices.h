// What is known of the GPUs that the process uses, each asked about once: which dispatch table it gets, and why.
#ifndef AOT_GEMM_DEVICES_H_
#define AOT_GEMM_DEVICES_H_

#include <atomic>
#include <cstdint>

#include "aot_gemm.h"
#include "sha256.h"

namespace aot {

constexpr int32_t kMaxDevices = 64;  // bits of KernelState::devices

struct Device {
  int32_t table;  // index into kTables
  int32_t num_sms;
  char reason[320];  // why it is this table
  char choices[kSha256Text];  // of all that decides which kernel a problem gets there
};

// By ordinal; null until the device was asked about.
extern std::atomic<const Device*> known_devices[kMaxDevices];

inline const Device* known_device(int32_t ordinal) {
  return ordinal >= 0 && ordinal < kMaxDevices ? known_devices[ordinal].load(std::memory_order_acquire) : nullptr;
}

// Finds what is known of a device, asking CUDA the first time. Fails where there is no such device, and on a GPU of
// another architecture: an `a` architecture runs nowhere else, and a launch there would fail without saying why.
aot_gemm_status_t find_device(int32_t ordinal, const Device** device);

// The same of a device that may be stated as -1, the current one; `ordinal` becomes which that is. Makes none current, and
// so makes no context.
aot_gemm_status_t find_stated(int32_t* ordinal, const Device** device);

}  // namespace aot

#endif  // AOT_GEMM_DEVICES_H_
