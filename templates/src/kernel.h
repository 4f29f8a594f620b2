// The kernels of the library: what each is, what it needs, and the C entries that its object exports.
#ifndef AOT_GEMM_KERNEL_H_
#define AOT_GEMM_KERNEL_H_

#include <atomic>
#include <cstdint>

#include "dispatch.h"
#include "enumerations.h"

namespace aot {

// What a kernel's C entry takes is told by Argument, of aot.core.signature and row_signature, each as a pointer to a value; the
// stream is the last before the result. `launch` of runtime.cc and `launch_rows` of row_plan.cc say of which type each is.

// Pointers to the values of arguments, by Argument; only those that a kernel takes are looked at.
struct ArgumentValues {
  void* pointers[kNumArguments];

  void*& operator[](Argument argument) { return pointers[static_cast<int32_t>(argument)]; }
  void* operator[](Argument argument) const { return pointers[static_cast<int32_t>(argument)]; }
};

// Most columns of the result of an operation on rows: aot.kinds.rows.operation.MAX_COLS.
constexpr int64_t kMaxCols = int64_t{1} << 30;

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
  bool copies;           // whether there has to be room for a copy of A and of B, in rows of whole 16 bytes
};

// A function that a kernel's object exports. Arguments are pointers to values; behind those of the signature comes the
// int32 CUDA error.
using Entry = void(void** arguments, int32_t num_arguments);
using Loader = void(void** arguments);

struct Kernel {
  const char* name;
  int32_t operation;  // index into kOperations, or behind those into kRowOperations
  int32_t layout;
  int32_t num_strides;  // 1: the leading stride, operands as the two below say; 2: row and column stride, any operands
  int32_t load_alignment;   // bytes of which addresses and leading strides of A and B must be multiples, or of X
  int32_t store_alignment;  // the same of D and of what the epilogue reads; 1 where any element may begin a row
  int32_t num_arguments;
  Argument signature[kMaxArguments];
  Workspace workspace;
  bool is_deterministic;
  int32_t resident_sms;  // least that a device must have; 0 where its blocks do not wait for each other
  int64_t max_columns;   // of D or Y
  int32_t first_order;   // what the entry takes for the order 0 of tiles: an object of several widths is told so which
  int64_t object_bytes;  // of its object: the image for the device, and host code
  int32_t object;        // index of the first kernel with the same object, whose state counts for all of them
  Entry* entry;
  Loader* init;  // reads the binary into a cudaLibrary_t
  Loader* load;  // sets the kernel up on one device
};

// Says whether an operand may be of any address, stride and number of columns.
inline bool takes_any_operands(const Kernel& kernel) { return kernel.num_strides == 2 && kernel.max_columns >= kMaxCols; }

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

// Written by kernels.cc: the kernels of products, then those of operations on rows.
extern const Kernel kKernels[];
extern const Multiples kMultiples[];
extern KernelState kernel_states[];
extern const int32_t kNumKernels;     // of products
extern const int32_t kNumRowKernels;  // behind those
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
