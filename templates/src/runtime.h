// Loading and launching kernels.
#ifndef AOT_GEMM_RUNTIME_H_
#define AOT_GEMM_RUNTIME_H_

#include <cstdint>

#include "aot_gemm.h"
#include "kernel.h"
#include "problem.h"

namespace aot {

// Bytes of workspace that a kernel needs for m by n, and how many of the leading ones must be zero at each launch.
int64_t workspace_bytes(const Workspace& workspace, int64_t m, int64_t n);
int64_t workspace_zero_bytes(const Workspace& workspace, int64_t m, int64_t n);

// Bytes of workspace that a kernel needs for a problem: those, and the places of groups.
int64_t workspace_bytes(const Kernel& kernel, const Canonical& problem);

// Makes a device current for a scope, where it is not already. `device` of -1 is the current one; which that is may be
// known, else -1.
class DeviceScope {
 public:
  explicit DeviceScope(int32_t device, int32_t current = -1);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  aot_gemm_status_t status() const { return status_; }
  int32_t device() const { return device_; }

 private:
  aot_gemm_status_t status_;
  int32_t device_;
  int32_t previous_ = -1;
};

// Whether kernels may read early what a caller promised to be constant; AOT_GEMM_WEIGHT_PREFETCH=0 turns it off.
extern const bool kPrefetchesWeights;

// Loads a kernel onto the current device, once in the life of the process. Fails on a GPU of another architecture,
// and on one with fewer SMs than a kernel needs whose blocks wait for each other.
aot_gemm_status_t ensure_loaded(int32_t kernel, int32_t device);

// Calls a kernel's entry with the values of its arguments. Gives the CUDA error.
int32_t call_entry(const Kernel& kernel, const ArgumentValues& values);

// Fails by the error of a launch; `sizes` are those of the problem in words, `advice` is what makes a grid smaller.
aot_gemm_status_t fail_launch(int32_t error, const char* name, const char* sizes, const char* advice, int32_t device);

// Enqueues a kernel on the current device. Entries take addresses of what they may write, which the problem then is not
// looked at any more for.
aot_gemm_status_t launch(int32_t kernel, int32_t tile_order, Canonical* problem, void* workspace, size_t workspace_bytes,
                         void* stream, int32_t device);

// Waits for a stream of the current device. Refuses one that is being captured, and leaves that capture whole.
aot_gemm_status_t synchronize(void* stream, int32_t device);

// Has what is enqueued on the second stream from now on wait for what is enqueued on the first one so far. Both are of
// the current device. Where one of them alone is being captured, that is refused, and the capture is left whole.
aot_gemm_status_t order(void* first, void* second, int32_t device);

}  // namespace aot

#endif  // AOT_GEMM_RUNTIME_H_
