// The kernels of the library: what each is, what it needs, and the C entries that its object exports.
#ifndef AOT_GEMM_KERNEL_H_
#define AOT_GEMM_KERNEL_H_

#include <atomic>
#include <cstdint>

#include "dispatch.h"

namespace aot {

enum class SplitK : int32_t { kNone, kSerial, kParallel, kSeparate, kTail };

// What a kernel's C entry takes, each as a pointer to a value; the stream is the last before the result. A further kind
// gets a line here and one in `launch` of runtime.cc.
enum class Argument : int32_t {
  kA,          // Tensor
  kB,          // RightOperand
  kD,          // Tensor
  kScaleA,     // Factors, of the rows of A
  kScaleB,     // Factors, of the rows of B
  kBias,       // Bias
  kResidual,   // Tensor
  kScaleD,     // Vector of one float32
  kOffsets,    // Vector of int32
  kIndex,      // Vector of int32
  kBOfGroups,  // Addresses
  kPlaces,     // Vector of int32, which the entry has written
  kWorkspace,  // Vector of float32
  kPrefetchB,  // int32_t: whether B may be read before the kernel in front has ended
  kTileOrder,  // int32_t: of aot/core/tile_order.py
  kStream,     // void*
};
constexpr int32_t kMaxArguments = 17;

// The float32 region that a kernel needs beside its operands: the twin of aot.core.candidate.Workspace.
struct Workspace {
  SplitK mode;
  int32_t split_k;
  int32_t tile_m;
  int32_t tile_n;
  int32_t cluster_m;
  int32_t cluster_n;
  bool swap_ab;
  int32_t num_clusters;  // of a whole wave, in kTail
};

// A function that a kernel's object exports. Arguments are pointers to values; behind those of the signature comes the
// int32 CUDA error.
using Entry = void(void** arguments, int32_t num_arguments);
using Loader = void(void** arguments);

struct Kernel {
  const char* name;
  int32_t operation;  // index into kOperations
  int32_t layout;
  int32_t num_strides;  // 1: the leading stride, operands as the two below say; 2: row and column stride, any operands
  int32_t load_alignment;   // bytes of which addresses and leading strides of A and B must be multiples
  int32_t store_alignment;  // the same of D and of what the epilogue reads; 1 where any element may begin a row
  int32_t num_arguments;
  Argument signature[kMaxArguments];
  Workspace workspace;
  bool is_deterministic;
  int32_t resident_sms;  // least that a device must have; 0 where its blocks do not wait for each other
  int32_t first_order;   // what the entry takes for the order 0 of tiles: an object of several widths is told so which
  int32_t object;        // index of the first kernel with the same object, whose state counts for all of them
  Entry* entry;
  Loader* init;  // reads the binary into a cudaLibrary_t
  Loader* load;  // sets the kernel up on one device
};

inline bool takes(const Kernel& kernel, Argument argument) {
  for (int32_t i = 0; i < kernel.num_arguments; ++i) {
    if (kernel.signature[i] == argument) return true;
  }
  return false;
}

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
// Flags that count for every problem, beside its own.
extern const uint64_t kDefaultFlags;
// Whether some kernel adds in no fixed order, so that its results may differ from run to run.
extern const bool kHasVaryingKernels;
extern const char kVersion[];
extern const char kArch[];
extern const int32_t kCapabilityMajor;
extern const int32_t kCapabilityMinor;

}  // namespace aot

#endif  // AOT_GEMM_KERNEL_H_
