// Calls every function of the C API with random arguments, most of them wrong, in a library over the recorder that was
// built with sanitizers. Arguments: the number of calls, and a seed. Prints how often each status came,
// and the launches of each operation, as JSON; exits with 1 where a status is out of range, or a failure has no text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "aot_gemm_tuning.h"
#include "drive.h"
#include "kernel.h"
#include "operation.h"

extern "C" {
int32_t recorder_num_fake();
void recorder_fake(int32_t index, void* launch);
}

namespace {

constexpr size_t kMostBytes = 4096;  // a larger struct_bytes is refused unread

aot_gemm_tensor_t draw_tensor(int64_t rows, int64_t columns) {
  aot_gemm_tensor_t tensor = {draw_address(), {draw_stride(columns), 1}};
  if (one_in(3)) {
    tensor.strides[0] = 1;
    tensor.strides[1] = draw_stride(rows);
  }
  if (one_in(12)) tensor.strides[draw(1)] = draw_stride(2);
  return tensor;
}

// The address of atoms, which mostly begin at multiples of 16 bytes.
void* draw_atoms() {
  const auto address = reinterpret_cast<uintptr_t>(draw_address());
  return reinterpret_cast<void*>(one_in(10) ? address : address / 16 * 16);
}

// Factors of the rows of A or B: a vector of them, a matrix of blocks, atoms, or anything.
aot_gemm_tensor_t draw_factors(const aot::Operation& operation, int64_t rows, int64_t k) {
  if (operation.scale == aot::Scale::kBlock || one_in(30)) return draw_tensor(rows, k / 128 + 1);
  void* const data = operation.scale == aot::Scale::kAtoms ? draw_atoms() : draw_address();
  return {data, {static_cast<int64_t>(draw(1)), 0}};
}

// Draws the operands that an operation takes, and rarely one that it does not.
void draw_operands(const aot::Operation& operation, aot_gemm_problem_t* problem) {
  // As many rows as there are: past the largest n, what is drawn is refused unread.
  const int64_t rows = operation.has_gate() && problem->n <= INT32_MAX ? 2 * std::max<int64_t>(problem->n, 0) : problem->n;
  problem->a = draw_tensor(problem->m, problem->k);
  problem->b = draw_tensor(rows, problem->k);
  problem->d = draw_tensor(problem->m, problem->n);
  const bool may_have = operation.bias == aot::Presence::kOptional && one_in(2);
  const bool has_bias = operation.bias == aot::Presence::kRequired || may_have;
  if (has_bias || one_in(200)) problem->bias = {draw_address(), {draw_stride(rows), one_in(20) ? draw_stride(2) : 1}};
  const bool is_scaled = operation.scale != aot::Scale::kNone;
  const bool has_numbers = operation.weight.format == aot::WeightFormat::kNone;  // a packed weight alone has factors
  if ((is_scaled && has_numbers) || one_in(200)) problem->scale_a = draw_factors(operation, problem->m, problem->k);
  if (is_scaled || one_in(200)) problem->scale_b = draw_factors(operation, rows, problem->k);
  if (operation.has_residual() || one_in(200)) problem->residual = draw_tensor(problem->m, problem->n);
  if (operation.scales_d() || one_in(200)) problem->scale_d = {draw_address(), {draw_stride(1), draw_stride(1)}};
  if (operation.writes_factors() || one_in(200)) {
    problem->own_d = {draw_address(), {draw_stride(1), draw_stride(1)}};
    problem->factors_d = {draw_atoms(), {0, 0}};
  }
}

// Draws a batch at times: mostly of few products, one behind the other.
void draw_batch(aot_gemm_problem_t* problem) {
  const int64_t counts[] = {-1, 0, 1, INT32_MAX, INT64_C(1) << 31, INT64_MAX, INT64_MIN};
  problem->num_groups = one_in(8) ? pick(counts) : static_cast<int64_t>(draw(9));
  int64_t* const steps[] = {&problem->group_strides.a, &problem->group_strides.b, &problem->group_strides.d};
  for (int64_t* step : steps) *step = one_in(6) ? draw_stride(8) : static_cast<int64_t>(draw(64)) << 10;
  if (one_in(40)) problem->group_strides.bias = draw_stride(8);
  if (one_in(200)) problem->offsets = {draw_address(), {1, 1}};
}

// Draws what groups have besides: mostly few of them, and whole.
void draw_groups(const aot::Operation& operation, aot_gemm_problem_t* problem) {
  draw_batch(problem);
  problem->num_groups = one_in(12) ? problem->num_groups : static_cast<int64_t>(draw(9)) + 1;
  problem->group_strides.d = one_in(6) ? draw_stride(8) : static_cast<int64_t>(draw(64)) << 40;
  problem->offsets = {draw_address(), {1, 1}};
  const bool are_extents = problem->n >= 0 && problem->n <= INT32_MAX && problem->k >= 0 && problem->k <= INT32_MAX;
  if (operation.scale == aot::Scale::kAtoms && are_extents && !one_in(12)) {
    problem->group_strides.scale_b = operation.atoms.num_bytes(operation.has_gate() ? 2 * problem->n : problem->n, problem->k);
  }
  if (operation.scales_d() && !one_in(12)) problem->scale_d.strides[0] = 1;
  if (operation.gathers() != one_in(40)) problem->index = {draw_address(), {one_in(20) ? draw_stride(2) : 1, 1}};
  if (operation.gathers() != one_in(40)) problem->rows_of_a = draw_extent();
}

// A problem in memory of just the bytes that it claims, so that a sanitizer sees any that is read beyond.
class Problem {
 public:
  Problem() {
    aot_gemm_problem_t problem{};
    constexpr uint64_t kSizes[] = {0,   1,   8,   111, 112, 119,  120,  121,  143,        144,       145,
                                   168, 192, 216, 240, 351, 360, 367, 369, 384, 391, 4095, 4096, 4097, UINT32_MAX, UINT64_MAX};
    problem.struct_bytes = one_in(6) ? (one_in(4) ? draw(UINT64_MAX) : pick(kSizes)) : sizeof(problem);
    operation_ = static_cast<int32_t>(draw(static_cast<uint64_t>(aot::kNumOperations) - 1));
    const aot::Operation& operation = aot::kOperations[operation_];
    problem.operation = one_in(30) ? static_cast<int32_t>(draw(UINT32_MAX)) : aot_gemm_operation(operation.tag);
    problem.device = draw_device();
    problem.m = draw_extent();
    problem.n = draw_extent();
    problem.k = draw_extent();
    draw_operands(operation, &problem);
    if (operation.has_offsets() && !one_in(30)) {
      draw_groups(operation, &problem);
    } else if (one_in(3)) {
      draw_batch(&problem);
    }
    if (one_in(operation.groups_rows() ? 3 : 60)) {
      problem.b_of_groups = draw_addresses(problem, &addresses_);
      if (problem.b_of_groups != nullptr && !one_in(20)) {
        problem.b.data = nullptr;
        problem.group_strides.b = 0;
      }
    }
    if (one_in(operation.has_atoms_of_groups() ? 3 : 60)) {
      problem.scale_b_of_groups = draw_addresses(problem, &factors_);
      if (problem.scale_b_of_groups != nullptr && !one_in(20)) {
        problem.scale_b.data = nullptr;
        problem.group_strides.scale_b = 0;
      }
    }
    if (operation.has_parts() != one_in(40)) draw_parts(&problem);
    problem.flags = one_in(20) ? draw(UINT64_MAX) : draw(operation.has_gate() ? 3 : 1) | (one_in(8) ? draw(3) << 2 : 0);
    if (operation.has_offsets() && one_in(3)) problem.flags |= AOT_GEMM_OFFSETS_START;
    if (operation.is_interleaved() && !one_in(10)) problem.flags |= AOT_GEMM_GATE_INTERLEAVED;
    const size_t num_bytes = problem.struct_bytes <= kMostBytes ? std::max<size_t>(problem.struct_bytes, 8) : 8;
    bytes_ = static_cast<unsigned char*>(std::malloc(num_bytes));
    std::memset(bytes_, 0, num_bytes);
    std::memcpy(bytes_, &problem, std::min(num_bytes, sizeof(problem)));
    if (num_bytes > sizeof(problem) && one_in(2)) bytes_[num_bytes - 1] = 1;
  }
  ~Problem() {
    std::free(bytes_);
    std::free(addresses_);
    std::free(factors_);
    std::free(parts_);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  int32_t operation() const { return operation_; }

  const aot_gemm_problem_t* get() const {
    return one_in(200) ? nullptr : reinterpret_cast<const aot_gemm_problem_t*>(bytes_);
  }

 private:
  // Draws an address for each group: in memory of just as many, where they are not too many to have; else none.
  static const void* const* draw_addresses(const aot_gemm_problem_t& problem, const void*** addresses) {
    const int64_t count = std::max<int64_t>(problem.num_groups, 1);
    if (count > 64) return nullptr;
    *addresses = static_cast<const void**>(std::malloc(static_cast<size_t>(count) * sizeof(void*)));
    const bool has_step = one_in(3);
    for (int64_t i = 0; i < count; ++i) {
      (*addresses)[i] = has_step ? reinterpret_cast<void*>(static_cast<uintptr_t>(i + 1) << 20) : draw_address();
    }
    return *addresses;
  }

  // Draws weights of one launch, in memory of just as many; mostly the problem's own B, D and bias are none, and n is all.
  void draw_parts(aot_gemm_problem_t* problem) {
    const int64_t count = one_in(20) ? static_cast<int64_t>(draw(9)) : static_cast<int64_t>(draw(3)) + 1;
    parts_ = static_cast<aot_gemm_part_t*>(std::malloc(std::max<size_t>(static_cast<size_t>(count), 1) * sizeof(*parts_)));
    const int64_t k = problem->k;
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      aot_gemm_part_t* const part = &parts_[i];
      *part = {};
      part->n = one_in(20) ? draw_extent() : static_cast<int64_t>(draw(64)) * 8;
      part->b = {one_in(20) ? draw_address() : reinterpret_cast<void*>(static_cast<uintptr_t>(i + 1) << 40), {k, 1}};
      part->d = {one_in(20) ? draw_address() : reinterpret_cast<void*>(static_cast<uintptr_t>(i + 9) << 40), {part->n, 1}};
      if (one_in(3)) part->bias = {reinterpret_cast<void*>(static_cast<uintptr_t>(i + 17) << 40), {0, 1}};
      n = part->n < INT32_MAX ? n + part->n : n;
    }
    problem->parts = parts_;
    problem->num_parts = one_in(40) ? static_cast<int64_t>(draw(UINT64_MAX)) : count;
    if (problem->num_parts > count && problem->num_parts <= AOT_GEMM_MAX_PARTS) problem->num_parts = count;
    if (one_in(20)) return;
    problem->n = n;
    problem->b = problem->d = problem->bias = {};
  }

  int32_t operation_;  // its index, where the problem is of one
  unsigned char* bytes_;
  aot_gemm_part_t* parts_ = nullptr;
  const void** addresses_ = nullptr;
  const void** factors_ = nullptr;
};

// Draws the index of a kernel: mostly of an operation, if there is one.
int32_t draw_kernel(int32_t operation = -1) {
  const int32_t count = aot_gemm_num_kernels();
  const int32_t outside[] = {-1, count, INT32_MAX, INT32_MIN};
  if (one_in(10)) return pick(outside);
  auto kernel = static_cast<int32_t>(draw(static_cast<uint64_t>(count) - 1));
  if (operation < 0 || one_in(10)) return kernel;
  while (aot::kKernels[kernel].operation != operation) kernel = (kernel + 1) % count;
  return kernel;
}

size_t draw_size() {
  constexpr size_t kSizes[] = {0, 1, 16, 4096, size_t{1} << 33, SIZE_MAX};
  return one_in(2) ? SIZE_MAX / 2 : pick(kSizes);
}

void* allocate(void* context, size_t) { return context; }

aot_gemm_status_t call_select(const aot_gemm_problem_t* problem) {
  constexpr uint64_t kSizes[] = {0, 8, sizeof(aot_gemm_selection_t) - 1, sizeof(aot_gemm_selection_t) + 8, UINT64_MAX};
  const uint64_t stated = one_in(6) ? pick(kSizes) : sizeof(aot_gemm_selection_t);
  const size_t num_bytes = std::min<uint64_t>(std::max<uint64_t>(stated, 8), sizeof(aot_gemm_selection_t));
  auto* bytes = static_cast<unsigned char*>(std::calloc(1, num_bytes));
  std::memcpy(bytes, &stated, sizeof(stated));
  const aot_gemm_status_t status =
      aot_gemm_select(problem, one_in(200) ? nullptr : reinterpret_cast<aot_gemm_selection_t*>(bytes));
  std::free(bytes);
  return status;
}

aot_gemm_status_t call(uint64_t function) {
  const Problem problem;
  size_t num_bytes = 0;
  int32_t num_clusters = 0;
  size_t* size = one_in(200) ? nullptr : &num_bytes;
  void* workspace = one_in(3) ? draw_address() : reinterpret_cast<void*>(uintptr_t{1} << 50);
  void* stream = draw_address();
  switch (function) {
    case 0: return call_select(problem.get());
    case 1: return aot_gemm_workspace_bytes(problem.get(), size);
    case 2: return aot_gemm_launch(problem.get(), workspace, draw_size(), stream);
    case 3: return aot_gemm_launch_allocating(problem.get(), one_in(200) ? nullptr : &allocate, workspace, stream);
    case 4: return aot_gemm_kernel_workspace_bytes(draw_kernel(problem.operation()), problem.get(), size);
    case 5: return aot_gemm_launch_kernel(draw_kernel(problem.operation()), problem.get(), workspace, draw_size(), stream);
    case 6:
      return aot_gemm_kernel_max_active_clusters(draw_kernel(problem.operation()), problem.get(), workspace, draw_size(),
                                                 one_in(200) ? nullptr : &num_clusters);
    case 7: return aot_gemm_synchronize(draw_device(), stream);
    case 8: return one_in(20) ? aot_gemm_preload(draw_device()) : AOT_GEMM_OK;
    case 9: {
      const char* tags[] = {"bf16", "e4m3_bf16_block", "bf16_swiglu", "bf16_kk", "", "e4m3", "%s%n", nullptr};
      const int32_t operation = aot_gemm_operation(pick(tags));
      return operation < 0 ? static_cast<aot_gemm_status_t>(-operation) : AOT_GEMM_OK;
    }
    default: {
      const int32_t kernel = draw_kernel();
      const bool is_one = kernel >= 0 && kernel < aot_gemm_num_kernels();
      if ((aot_gemm_kernel_name(kernel) != nullptr) != is_one) std::abort();
      if (aot_gemm_abi_version() != AOT_GEMM_ABI_VERSION || aot_gemm_misses_file() != nullptr) std::abort();
      if (std::strlen(aot_gemm_version()) == 0 || std::strlen(aot_gemm_arch()) == 0) std::abort();
      return AOT_GEMM_OK;
    }
  }
}

// Launches of each operation, up to now.
std::vector<uint64_t> launches_of;

void count_launches() {
  int32_t launch[256];  // which begins with the kernel
  for (int32_t i = 0; i < recorder_num_fake(); ++i) {
    recorder_fake(i, launch);
    const auto operation = static_cast<size_t>(aot::kKernels[launch[0]].operation);
    if (operation < launches_of.size()) ++launches_of[operation];
  }
}

}  // namespace

int main(int, char** arguments) {
  launches_of.resize(static_cast<size_t>(aot::kNumOperations));
  return drive(arguments, 10, &call, &count_launches, &recorder_reset, launches_of);
}
