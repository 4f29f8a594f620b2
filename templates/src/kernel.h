// The kernels of the library: what each is, what it needs, and the C entries that its object exports.
#ifndef AOT_GEMM_KERNEL_H_
#define AOT_GEMM_KERNEL_H_

#include <atomic>
#include <cstdint>

#include "dispatch.h"

namespace aot {

enum class SplitK : int32_t { kNone, kSerial, kParallel, kSeparate };

// The float32 region that a kernel needs beside A, B and D: the twin of aot.core.candidate.Workspace.
struct Workspace {
  SplitK mode;
  int32_t split_k;
  int32_t tile_m;
  int32_t tile_n;
  int32_t cluster_m;
  int32_t cluster_n;
  bool swap_ab;
};

// A function that a kernel's object exports. Arguments are pointers to values; the last is the int32 CUDA error.
using Entry = void(void** arguments, int32_t num_arguments);
using Loader = void(void** arguments);

struct Kernel {
  const char* name;
  int32_t dtype;
  int32_t layout;
  int32_t num_strides;  // 1: the leading stride, operands aligned; 2: row and column stride, any operands
  bool reads_b_early;   // takes an int32 before the stream: whether B may be read before the kernel in front has ended
  Workspace workspace;
  Entry* entry;
  Loader* init;  // reads the binary into a cudaLibrary_t
  Loader* load;  // sets the kernel up on one device
};

// Whether a kernel is loaded. `devices` has a bit for each device ordinal; `library` is written once, under the
// runtime's lock, before the first bit is set.
struct KernelState {
  std::atomic<uint64_t> devices;
  void* library;
};

// Written by kernels.cc.
extern const Kernel kKernels[];
extern const Multiples kMultiples[];
extern KernelState kernel_states[];
extern const int32_t kNumKernels;
extern const char kVersion[];
extern const char kArch[];
extern const int32_t kCapabilityMajor;
extern const int32_t kCapabilityMinor;

}  // namespace aot

#endif  // AOT_GEMM_KERNEL_H_
