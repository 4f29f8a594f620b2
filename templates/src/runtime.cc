#include "runtime.h"

#include <pthread.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_entry.h"
#include "cuda_error.h"
#include "devices.h"
#include "error.h"
#include "grid.h"

namespace aot {

namespace {

constexpr int64_t kWorkspaceAlignment = 16;

pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;

class LoadLock {
 public:
  LoadLock() { pthread_mutex_lock(&load_mutex); }
  ~LoadLock() { pthread_mutex_unlock(&load_mutex); }
  LoadLock(const LoadLock&) = delete;
  LoadLock& operator=(const LoadLock&) = delete;
};

// Lets this thread load a kernel while any thread captures a stream: loading is none of the calls that a capture could
// record, but in the default mode CUDA would refuse it and break the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() : mode_(cuda::relaxed_capture_mode()), exchanged_(cuda::exchange_capture_mode(&mode_) == 0) {}
  ~RelaxedCapture() {
    if (exchanged_) cuda::exchange_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int32_t mode_;
  bool exchanged_;
};

int64_t ceil_div(int64_t value, int64_t divisor) { return value / divisor + (value % divisor != 0 ? 1 : 0); }

// The product of numbers that are not below 0; INT64_MAX where it is larger, which is more than there is memory.
template <typename... Factors>
int64_t multiply(int64_t first, Factors... factors) {
  int64_t product = first;
  bool overflows = false;
  ((overflows = __builtin_mul_overflow(product, int64_t{factors}, &product) || overflows), ...);
  return overflows ? INT64_MAX : product;
}

int64_t add(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

int64_t num_tiles(const Workspace& workspace, int64_t m, int64_t n) {
  const int64_t rows = workspace.swap_ab ? n : m;
  const int64_t columns = workspace.swap_ab ? m : n;
  return multiply(ceil_div(rows, int64_t{workspace.tile_m} * workspace.cluster_m), workspace.cluster_m,
                  ceil_div(columns, int64_t{workspace.tile_n} * workspace.cluster_n), workspace.cluster_n);
}

int64_t flag_bytes(const Workspace& workspace, int64_t m, int64_t n) {
  return multiply(ceil_div(multiply(num_tiles(workspace, m, n), 4), kWorkspaceAlignment), kWorkspaceAlignment);
}

int64_t tail_flag_bytes(const Workspace& workspace) {
  const int64_t flags = int64_t{workspace.num_clusters} * workspace.cluster_m * workspace.cluster_n;
  return ceil_div(flags * 4, kWorkspaceAlignment) * kWorkspaceAlignment;
}

// Splits of each tile that fills no whole wave: the twin of aot.core.candidate.tail_splits.
int64_t tail_splits(int64_t tail, int64_t num_clusters, int64_t most) {
  constexpr int64_t kMinSplitsOfTwoWaves = 3;
  if (tail == 0) return 1;
  const int64_t splits = std::min(most, num_clusters / tail);
  const bool two_waves = most >= kMinSplitsOfTwoWaves && kMinSplitsOfTwoWaves * tail <= 2 * num_clusters;
  return splits == 1 && two_waves ? kMinSplitsOfTwoWaves : splits;
}

// Partial tiles that splits write: none where no tile is split.
int64_t num_tail_regions(const Workspace& workspace, int64_t m, int64_t n) {
  const int64_t cluster = int64_t{workspace.cluster_m} * workspace.cluster_n;
  const int64_t tail = num_tiles(workspace, m, n) / cluster % workspace.num_clusters;
  return tail * (tail_splits(tail, workspace.num_clusters, workspace.split_k) - 1) * cluster;
}

// Bytes of a copy of A and of B, whose rows begin at multiples of 16 bytes: along k or across it.
int64_t copied_bytes(const Canonical& problem) {
  constexpr int64_t kElements = 8, kItemBytes = 2;
  const int64_t k = multiply(ceil_div(problem.k, kElements), kElements);
  const int64_t rows = add(ceil_div(problem.m, kElements), ceil_div(problem.n, kElements));
  return multiply(std::max<int64_t>(problem.batch.num_products, 1), k, rows, kElements, kItemBytes);
}

// Bytes that a table of the places of groups takes of a workspace.
int64_t place_bytes(const Addresses& addresses) {
  return ceil_div(int64_t{addresses.shape[0]} * 4, kWorkspaceAlignment) * kWorkspaceAlignment;
}

// Gives a table of places that begins so many bytes behind a workspace's beginning, and moves them behind it.
Vector take_places(const Addresses& addresses, void* workspace, int64_t* behind) {
  if (addresses.shape[0] == 0) return {nullptr, {0}};
  const Vector places = {static_cast<char*>(workspace) + *behind, {addresses.shape[0]}};
  *behind += place_bytes(addresses);
  return places;
}

aot_gemm_status_t fail_residency(const Kernel& kernel, const Device& found, int32_t device) {
  return fail(AOT_GEMM_ERROR_ARCHITECTURE,
              "kernel %s waits for its own blocks, and launches as many as %" PRId32 " SMs hold; device %" PRId32
              " has %" PRId32 ", where it could wait for ever; use aot_gemm_launch, which chooses another",
              kernel.name, kernel.resident_sms, device, found.num_sms);
}

// Loads a kernel that is not loaded there yet.
aot_gemm_status_t load(int32_t index, int32_t device) {
  const Device* found = nullptr;
  const aot_gemm_status_t status = find_device(device, &found);
  if (status != AOT_GEMM_OK) return status;
  const Kernel& kernel = kKernels[index];
  if (found->num_sms < kernel.resident_sms) return fail_residency(kernel, *found, device);
  KernelState* state = &kernel_states[kernel.object];
  const uint64_t bit = uint64_t{1} << device;
  const LoadLock lock;
  if ((state->devices.load(std::memory_order_relaxed) & bit) != 0) return AOT_GEMM_OK;
  const RelaxedCapture relaxed;
  int32_t result = 0;
  void** library = &state->library;
  if (state->library == nullptr) {
    void* arguments[] = {&library, &result};
    kernel.init(arguments);
    if (result != 0) {
      state->library = nullptr;
      return fail_cuda(result, "reading the binary of kernel", kernel.name, device);
    }
  }
  void* arguments[] = {&library, &device, &result};
  kernel.load(arguments);
  if (result != 0) return fail_cuda(result, "loading kernel", kernel.name, device);
  state->devices.fetch_or(bit, std::memory_order_release);
  return AOT_GEMM_OK;
}

aot_gemm_status_t check_workspace(const Kernel& kernel, const Canonical& problem, const void* workspace,
                                  size_t num_bytes, int64_t needed) {
  const bool aligned = reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment == 0;
  if (workspace != nullptr && aligned && num_bytes >= static_cast<size_t>(needed)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_WORKSPACE,
              "kernel %s needs a workspace of %" PRId64 " bytes, 16-byte aligned, for m %" PRId64 " n %" PRId64
              "; got %zu bytes at %p; ask aot_gemm_workspace_bytes",
              kernel.name, needed, problem.m, problem.n, num_bytes, workspace);
}

// The environment can only turn it off. secure_getenv is what misses.cc asks, too: a set-user-ID program heeds no such
// variable.
bool read_prefetch_variable() {
  const char* value = secure_getenv("AOT_GEMM_WEIGHT_PREFETCH");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

Stack stack_of(const Tensor& tensor, int64_t num_products, int64_t step) {
  return {tensor.data,
          {static_cast<int32_t>(num_products), tensor.shape[0], tensor.shape[1]},
          {step, tensor.strides[0], tensor.strides[1]}};
}

}  // namespace

const bool kPrefetchesWeights = read_prefetch_variable();

int64_t workspace_bytes(const Workspace& workspace, int64_t m, int64_t n) {  // without copies
  switch (workspace.mode) {
    case SplitK::kNone:
    case SplitK::kCluster:
      return 0;
    case SplitK::kSeparate:
      return multiply(workspace.split_k, m, ceil_div(n, 4), 4, 4);
    case SplitK::kSerial:
    case SplitK::kParallel:
      return add(flag_bytes(workspace, m, n),
                 multiply(num_tiles(workspace, m, n), workspace.tile_m, workspace.tile_n, 4));
    case SplitK::kTail: {
      const int64_t regions = num_tail_regions(workspace, m, n);
      if (regions == 0) return 0;
      return add(tail_flag_bytes(workspace), multiply(regions, workspace.tile_m, workspace.tile_n, 4));
    }
  }
  return 0;
}

int64_t workspace_bytes(const Kernel& kernel, const Canonical& problem) {
  int64_t all = workspace_bytes(kernel.workspace, problem.m, problem.n);
  if (kernel.workspace.copies) all = copied_bytes(problem);
  if (takes(kernel, Argument::kPlaces)) all = add(all, place_bytes(problem.b_of_groups));
  return takes(kernel, Argument::kScaleBPlaces) ? add(all, place_bytes(problem.scale_b_of_groups)) : all;
}

int64_t workspace_zero_bytes(const Workspace& workspace, int64_t m, int64_t n) {
  if (workspace.mode == SplitK::kSerial) return flag_bytes(workspace, m, n);
  return workspace.mode == SplitK::kParallel ? workspace_bytes(workspace, m, n) : 0;
}

DeviceScope::DeviceScope(int32_t device, int32_t current) : status_(AOT_GEMM_OK), device_(device) {
  cuda::Error error = current < 0 ? cuda::get_device(&current) : 0;
  if (error == 0 && device >= 0 && device != current) {
    error = cuda::set_device(device);
    if (error == 0) previous_ = current;
  }
  if (error != 0) {
    status_ = fail_cuda(error, "switching to", "the operands' device", device);
  } else if (device < 0) {
    device_ = current;
  }
}

DeviceScope::~DeviceScope() {
  // The device was current a moment ago, so that this cannot fail but by an error that the next call reports.
  if (previous_ >= 0) cuda::set_device(previous_);
}

aot_gemm_status_t ensure_loaded(int32_t kernel, int32_t device) {
  const uint64_t devices = kernel_states[kKernels[kernel].object].devices.load(std::memory_order_acquire);
  if (device >= 0 && device < kMaxDevices && (devices >> device & 1) != 0) return AOT_GEMM_OK;
  return load(kernel, device);
}

int32_t call_entry(const Kernel& kernel, const ArgumentValues& values) {
  void* arguments[kMaxArguments + 1];
  int32_t result = 0;
  int32_t count = 0;
  while (count < kernel.num_arguments) {
    arguments[count] = values[kernel.signature[count]];
    ++count;
  }
  arguments[count++] = &result;
  kernel.entry(arguments, count);
  return result;
}

aot_gemm_status_t fail_launch(int32_t error, const char* name, const char* sizes, const char* advice, int32_t device) {
  if (error != kGridTooLarge) return fail_cuda(error, "launching kernel", name, device);
  const Grid3 grid = refused_grid();
  return fail(AOT_GEMM_ERROR_SHAPE,
              "kernel %s would need a grid of %" PRIu32 " x %" PRIu32 " x %" PRIu32 " blocks for %s; CUDA launches at most %" PRIu32
              " x %" PRIu32 " x %" PRIu32 "; %s",
              name, grid.x, grid.y, grid.z, sizes, kMaxGrid.x, kMaxGrid.y, kMaxGrid.z, advice);
}

aot_gemm_status_t launch(int32_t index, int32_t tile_order, Canonical* operands, void* workspace, size_t num_bytes,
                         void* stream, int32_t device) {
  const Canonical& problem = *operands;
  const Kernel& kernel = kKernels[index];
  Vector scratch = {workspace, {0}};
  const int64_t needed = workspace_bytes(kernel, problem);
  if (needed > 0) {
    const aot_gemm_status_t status = check_workspace(kernel, problem, workspace, num_bytes, needed);
    if (status != AOT_GEMM_OK) return status;
    scratch.shape[0] = static_cast<int32_t>(needed / 4);
  }
  const aot_gemm_status_t status = ensure_loaded(index, device);
  if (status != AOT_GEMM_OK) return status;
  const int64_t zero_bytes = workspace_zero_bytes(kernel.workspace, problem.m, problem.n);
  if (zero_bytes > 0) {
    const cuda::Error error = cuda::clear(workspace, static_cast<size_t>(zero_bytes), stream);
    if (error != 0) return fail_cuda(error, "clearing the workspace of kernel", kernel.name, device);
  }
  const Batch& batch = problem.batch;
  const Grouping grouping = kOperations[kernel.operation].grouping;
  const bool is_batched = grouping == Grouping::kBatched;
  const bool is_d_stacked = is_batched || grouping == Grouping::kKgrouped;
  Stack a;
  Stack b;
  Stack d;
  if (is_batched) {
    a = stack_of(problem.a, batch.num_products, batch.a);
    b = stack_of(problem.b.matrix, batch.num_products, batch.b);
  }
  if (is_d_stacked) d = stack_of(problem.d, batch.num_products, batch.d);
  Vector places = {nullptr, {0}};
  Vector factor_places = {nullptr, {0}};
  int64_t behind = workspace_bytes(kernel.workspace, problem.m, problem.n);
  if (takes(kernel, Argument::kPlaces)) places = take_places(problem.b_of_groups, workspace, &behind);
  if (takes(kernel, Argument::kScaleBPlaces)) factor_places = take_places(problem.scale_b_of_groups, workspace, &behind);
  Vector parts = {operands->parts, {AOT_GEMM_MAX_PARTS * kNumPartWords}};
  int32_t told_order = kernel.first_order + tile_order;
  int32_t may_prefetch_b = problem.b_constant && kPrefetchesWeights;
  ArgumentValues values;
  values[Argument::kA] = is_batched ? static_cast<void*>(&a) : &operands->a;
  values[Argument::kB] = is_batched ? static_cast<void*>(&b) : &operands->b;
  values[Argument::kD] = is_d_stacked ? static_cast<void*>(&d) : &operands->d;
  values[Argument::kScaleA] = &operands->scale_a;
  values[Argument::kScaleB] = &operands->scale_b;
  values[Argument::kBias] = &operands->bias;
  values[Argument::kResidual] = &operands->residual;
  values[Argument::kScaleD] = &operands->scale_d;
  values[Argument::kOwnD] = &operands->own_d;
  values[Argument::kFactorsD] = &operands->factors_d;
  values[Argument::kOffsets] = &operands->offsets;
  values[Argument::kIndex] = &operands->index;
  values[Argument::kBOfGroups] = &operands->b_of_groups;
  values[Argument::kPlaces] = &places;
  values[Argument::kScaleBOfGroups] = &operands->scale_b_of_groups;
  values[Argument::kScaleBPlaces] = &factor_places;
  values[Argument::kParts] = &parts;
  values[Argument::kWorkspace] = &scratch;
  values[Argument::kPrefetchB] = &may_prefetch_b;
  values[Argument::kTileOrder] = &told_order;
  values[Argument::kStream] = &stream;
  const int32_t result = call_entry(kernel, values);
  if (result == 0) return AOT_GEMM_OK;
  char sizes[64];
  std::snprintf(sizes, sizeof(sizes), "m %" PRId64 " n %" PRId64, problem.m, problem.n);
  return fail_launch(result, kernel.name, sizes, "split the rows of A or of B", device);
}

namespace {

// Nothing captures the legacy stream, and a question about it is an error while other streams are captured.
cuda::Error find_capture(void* stream, bool* is_captured) {
  constexpr uintptr_t kLegacyStream = 1;  // by its other name. Source: driver_types.h, cudaStreamLegacy
  if (stream == nullptr || reinterpret_cast<uintptr_t>(stream) == kLegacyStream) return 0;
  return cuda::is_capturing(stream, is_captured);
}

}  // namespace

aot_gemm_status_t synchronize(void* stream, int32_t device) {
  bool is_capturing = false;
  cuda::Error error = cuda::is_capturing(stream, &is_capturing);
  if (error == 0 && is_capturing) {
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "cannot wait for a stream that is being captured into a CUDA graph; wait before the capture begins");
  }
  const RelaxedCapture relaxed;
  if (error == 0) error = cuda::synchronize(stream);
  return error == 0 ? AOT_GEMM_OK : fail_cuda(error, "waiting for", "the stream", device);
}

aot_gemm_status_t order(void* first, void* second, int32_t device) {
  if (first == second) return AOT_GEMM_OK;
  bool is_first_captured = false, is_second_captured = false;
  cuda::Error error = find_capture(first, &is_first_captured);
  if (error == 0) error = find_capture(second, &is_second_captured);
  if (error == 0 && is_first_captured != is_second_captured) {
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "cannot order the streams of two frameworks while one of them is captured into a CUDA graph and the "
                "other is not; let both work on the stream that is captured, or copy the operand before the capture");
  }
  if (error == 0) error = cuda::order(first, second);
  return error == 0 ? AOT_GEMM_OK : fail_cuda(error, "ordering two streams of", "the operands' frameworks", device);
}

}  // namespace aot
