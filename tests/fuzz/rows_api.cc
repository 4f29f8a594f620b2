// Calls every function of the C API that is of row operations with random arguments, most of them wrong, as c_api.cc does of
// products; arguments and output are those of that.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "aot_gemm_tuning.h"
#include "drive.h"
#include "kernel.h"
#include "row_operation.h"

extern "C" {
void recorder_reset_rows();
int32_t recorder_num_rows();
void recorder_rows(int32_t index, void* launch);
}

namespace {

constexpr size_t kMostBytes = 4096;  // a larger struct_bytes is refused unread

aot_rows_tensor_t draw_matrix(int64_t columns) {
  aot_rows_tensor_t tensor = {draw_address(), {draw_stride(columns), 1, 0}};
  if (one_in(12)) tensor.strides[draw(2)] = draw_stride(2);
  return tensor;
}

aot_rows_tensor_t draw_vector() { return {draw_address(), {0, one_in(20) ? draw_stride(2) : 1, 0}}; }

// Heads that lie one after the other, mostly.
aot_rows_tensor_t draw_heads(const aot_rows_problem_t& problem) {
  const int64_t dim = problem.cols;
  const bool is_small = dim >= 0 && dim <= 20000 && problem.heads >= 0 && problem.heads <= 20000;
  aot_rows_tensor_t tensor = {draw_address(), {draw_stride(is_small ? dim * problem.heads : dim), dim, 1}};
  if (one_in(12)) tensor.strides[draw(2)] = draw_stride(2);
  return tensor;
}

bool is_there(bool is_taken) { return is_taken ? one_in(2) : one_in(200); }

// Draws the operands that an operation takes, and rarely one that it does not.
void draw_operands(const aot::RowOperation& operation, aot_rows_problem_t* problem) {
  const bool is_wide = operation.is_pair() && problem->cols >= 0 && problem->cols < INT32_MAX;
  problem->x = operation.is_rotary() ? draw_heads(*problem) : draw_matrix(is_wide ? 2 * problem->cols : problem->cols);
  problem->y = operation.is_rotary() ? draw_heads(*problem) : draw_matrix(problem->cols);
  if (one_in(6)) problem->y = problem->x;
  if (is_there(operation.takes(aot::Argument::kResidual))) problem->residual = draw_matrix(problem->cols);
  if (problem->residual.data != nullptr && one_in(2)) {
    problem->residual_out = one_in(3) ? problem->residual : one_in(3) ? problem->x : draw_matrix(problem->cols);
  }
  if (is_there(operation.takes(aot::Argument::kWeight))) problem->weight = draw_vector();
  if (is_there(operation.takes(aot::Argument::kBias))) problem->bias = draw_vector();
  if (operation.is_rotary() || one_in(200)) problem->cos = draw_matrix(64);
  if (operation.is_rotary() || one_in(200)) problem->sin = draw_matrix(64);
  if (operation.has_scale() || one_in(200)) {
    problem->scale = {draw_address(), {static_cast<int64_t>(draw(4)), 1, 0}};
    if (operation.has_tensor_scale() || one_in(50)) problem->tensor_scale = draw_vector();
    if (is_there(operation.takes_groups())) {
      problem->offsets = problem->index = {draw_address(), {one_in(20) ? draw_stride(2) : 1, 1, 0}};
      if (one_in(2)) problem->index = {};
      problem->num_groups = one_in(8) ? draw_extent() : 8;
      problem->rows_of_x = problem->index.data == nullptr ? 0 : one_in(8) ? draw_extent() : 16;
    }
    if (operation.scale == aot::RowScale::kBlock) problem->scale = draw_matrix(problem->cols / 128 + 1);
  }
}

// A problem in memory of just the bytes that it claims, so that a sanitizer sees any that is read beyond.
class Problem {
 public:
  Problem() {
    aot_rows_problem_t problem{};
    constexpr uint64_t kSizes[] = {0,   1,   8,    111,  sizeof(problem) - 8, sizeof(problem) - 1, sizeof(problem) + 1,
                                   400, 4095, 4096, 4097, UINT32_MAX,          UINT64_MAX};
    problem.struct_bytes = one_in(8) ? (one_in(4) ? draw(UINT64_MAX) : pick(kSizes)) : sizeof(problem);
    operation_ = static_cast<int32_t>(draw(static_cast<uint64_t>(aot::kNumRowOperations) - 1));
    const aot::RowOperation& operation = aot::kRowOperations[operation_];
    problem.operation = one_in(30) ? static_cast<int32_t>(draw(UINT32_MAX)) : aot_rows_operation(operation.tag);
    problem.device = draw_device();
    problem.rows = draw_extent();
    problem.cols = one_in(3) ? draw_extent() : 128;
    if (operation.is_rotary() || one_in(100)) {
      problem.heads = one_in(4) ? draw_extent() : 8;
      problem.positions = one_in(4) ? draw_extent() : 16;
      problem.rotary_dim = one_in(4) ? draw_extent() : std::min<int64_t>(problem.cols, 128) / 2 * 2;
    }
    draw_operands(operation, &problem);
    problem.flags = one_in(20) ? draw(UINT64_MAX) : one_in(2) ? 0 : draw(15);
    const size_t num_bytes = problem.struct_bytes <= kMostBytes ? std::max<size_t>(problem.struct_bytes, 8) : 8;
    bytes_ = static_cast<unsigned char*>(std::malloc(num_bytes));
    std::memset(bytes_, 0, num_bytes);
    std::memcpy(bytes_, &problem, std::min(num_bytes, sizeof(problem)));
    if (num_bytes > sizeof(problem) && one_in(2)) bytes_[num_bytes - 1] = 1;
  }
  ~Problem() { std::free(bytes_); }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  int32_t operation() const { return operation_; }

  const aot_rows_problem_t* get() const {
    return one_in(200) ? nullptr : reinterpret_cast<const aot_rows_problem_t*>(bytes_);
  }

 private:
  int32_t operation_;
  unsigned char* bytes_;
};

int32_t draw_kernel(int32_t operation) {
  const int32_t count = aot_rows_num_kernels();
  const int32_t outside[] = {-1, count, INT32_MAX, INT32_MIN};
  if (one_in(10)) return pick(outside);
  auto kernel = static_cast<int32_t>(draw(static_cast<uint64_t>(count) - 1));
  if (one_in(10)) return kernel;
  while (aot::kKernels[aot::kNumKernels + kernel].operation != aot::kNumOperations + operation) kernel = (kernel + 1) % count;
  return kernel;
}

aot_gemm_status_t call_select(const aot_rows_problem_t* problem) {
  constexpr uint64_t kSizes[] = {0, 8, sizeof(aot_rows_selection_t) - 1, sizeof(aot_rows_selection_t) + 8, UINT64_MAX};
  const uint64_t stated = one_in(6) ? pick(kSizes) : sizeof(aot_rows_selection_t);
  const size_t num_bytes = std::min<uint64_t>(std::max<uint64_t>(stated, 8), sizeof(aot_rows_selection_t));
  auto* bytes = static_cast<unsigned char*>(std::calloc(1, num_bytes));
  std::memcpy(bytes, &stated, sizeof(stated));
  const aot_gemm_status_t status =
      aot_rows_select(problem, one_in(200) ? nullptr : reinterpret_cast<aot_rows_selection_t*>(bytes));
  std::free(bytes);
  return status;
}

aot_gemm_status_t call(uint64_t function) {
  const Problem problem;
  void* stream = draw_address();
  switch (function) {
    case 0: return call_select(problem.get());
    case 1:
    case 2:
    case 3: return aot_rows_launch(problem.get(), stream);
    case 4: return aot_rows_launch_kernel(draw_kernel(problem.operation()), problem.get(), stream);
    case 5: return one_in(20) ? aot_gemm_preload(draw_device()) : AOT_GEMM_OK;
    case 6: {
      const char* tags[] = {"bf16_rms_norm", "bf16_e4m3_quantize", "bf16", "", "rms_norm", "%s%n", nullptr};
      const int32_t operation = aot_rows_operation(pick(tags));
      return operation < 0 ? static_cast<aot_gemm_status_t>(-operation) : AOT_GEMM_OK;
    }
    default: {
      const int32_t kernel = draw_kernel(problem.operation());
      const bool is_one = kernel >= 0 && kernel < aot_rows_num_kernels();
      if ((aot_rows_kernel_name(kernel) != nullptr) != is_one) std::abort();
      return AOT_GEMM_OK;
    }
  }
}

// Launches of each operation, up to now.
std::vector<uint64_t> launches_of;

void count_launches() {
  int32_t launch[256];  // which begins with the kernel
  for (int32_t i = 0; i < recorder_num_rows(); ++i) {
    recorder_rows(i, launch);
    ++launches_of[static_cast<size_t>(aot::kKernels[aot::kNumKernels + launch[0]].operation - aot::kNumOperations)];
  }
}

}  // namespace

int main(int, char** arguments) {
  launches_of.resize(static_cast<size_t>(aot::kNumRowOperations));
  return drive(arguments, 7, &call, &count_launches, &recorder_reset_rows, launches_of);
}
