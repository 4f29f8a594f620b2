#include "problem.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstring>
#include <utility>

#include "error.h"

namespace aot {

namespace {

// cuTensorMapEncodeTiled: addresses and strides are multiples of 16 bytes, strides are below 2^40 bytes.
constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kStrideLimitBytes = int64_t{1} << 40;

// Problems of callers that were compiled before `bias` came: the smallest there are.
constexpr uint64_t kLeastProblemBytes = offsetof(aot_gemm_problem_t, bias);
// More than any header will have: a size past it is no size.
constexpr uint64_t kMostProblemBytes = 4096;

struct View {
  const void* data;
  int64_t outer;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
};

// Finds the leading stride of a matrix seen as `outer` runs of `inner` adjacent elements; 0 where it is not that, or
// not aligned. The stride of a single run is never used, so that any legal one stands for it.
int64_t leading_stride(const View& view, int64_t element_bytes) {
  if (view.inner > 1 && view.inner_stride != 1) return 0;
  if (reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes != 0) return 0;
  const int64_t step = kAlignmentBytes / element_bytes;
  if (view.outer <= 1) return (view.inner + step - 1) / step * step;
  const bool legal = view.outer_stride >= view.inner && view.outer_stride % step == 0 &&
                     view.outer_stride < kStrideLimitBytes / element_bytes;
  return legal ? view.outer_stride : 0;
}

// Sees a logical (rows, k) operand as contiguous along k (`major` 0) or along its rows (`major` 1).
int64_t leading_stride(const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k, int32_t major, int64_t element_bytes) {
  const View by_rows = {tensor.data, rows, k, tensor.strides[0], tensor.strides[1]};
  const View by_columns = {tensor.data, k, rows, tensor.strides[1], tensor.strides[0]};
  return leading_stride(major == 0 ? by_rows : by_columns, element_bytes);
}

// The bias of a problem that has one; else what no kernel looks at.
Vector make_bias(const aot_gemm_problem_t& problem) { return {problem.bias.data, {static_cast<int32_t>(problem.n)}}; }

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kAlignmentBytes == 0; }

Tensor make_tensor(const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns, int64_t leading) {
  return {tensor.data, {static_cast<int32_t>(rows), static_cast<int32_t>(columns)}, {leading, 0}};
}

aot_gemm_problem_t exchange(const aot_gemm_problem_t& problem) {
  aot_gemm_problem_t exchanged = problem;
  std::swap(exchanged.m, exchanged.n);
  std::swap(exchanged.a, exchanged.b);
  std::swap(exchanged.d.strides[0], exchanged.d.strides[1]);
  exchanged.flags &= ~AOT_GEMM_B_CONSTANT;
  return exchanged;
}

// Says whether TMA can store rows of D of `columns` elements. It ends a load at a tensor's last element, but a store only
// at the next multiple of 16 bytes: on an H200, rows of 15 bfloat16 overwrote a sixteenth with zero.
bool ends_on_a_store(int64_t columns, int64_t element_bytes) { return columns * element_bytes % kAlignmentBytes == 0; }

bool align(const aot_gemm_problem_t& problem, int64_t element_bytes, uint32_t layouts, Canonical* canonical) {
  const int64_t d = leading_stride(problem.d, problem.m, problem.n, 0, element_bytes);
  if (d == 0 || !ends_on_a_store(problem.n, element_bytes) || !is_aligned(problem.bias.data)) return false;
  for (int32_t layout = 0; layout < 4; ++layout) {
    if ((layouts >> layout & 1) == 0) continue;
    const int64_t a = leading_stride(problem.a, problem.m, problem.k, layout >> 1, element_bytes);
    const int64_t b = leading_stride(problem.b, problem.n, problem.k, layout & 1, element_bytes);
    if (a == 0 || b == 0) continue;
    *canonical = {true,
                  false,
                  layout,
                  problem.m,
                  problem.n,
                  problem.k,
                  make_tensor(problem.a, problem.m, problem.k, a),
                  make_tensor(problem.b, problem.n, problem.k, b),
                  make_tensor(problem.d, problem.m, problem.n, d),
                  make_bias(problem),
                  (problem.flags & AOT_GEMM_B_CONSTANT) != 0};
    return true;
  }
  return false;
}

// Names the contiguous mode of a (rows, k) operand, aligned or not: 0 for k, 1 for the rows, -1 for neither.
int32_t contiguous_mode(const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k) {
  if (k <= 1 || tensor.strides[1] == 1) return 0;
  return rows <= 1 || tensor.strides[0] == 1 ? 1 : -1;
}

Tensor make_strided(const aot_gemm_tensor_t& stated, int64_t rows, int64_t columns) {
  Tensor tensor = make_tensor(stated, rows, columns, stated.strides[0]);
  tensor.strides[1] = stated.strides[1];
  return tensor;
}

}  // namespace

aot_gemm_status_t take(const aot_gemm_problem_t* stated, aot_gemm_problem_t* storage,
                       const aot_gemm_problem_t** problem) {
  if (stated == nullptr) return fail(AOT_GEMM_ERROR_ARGUMENT, "`problem` is null; expected an address");
  *problem = stated;
  const uint64_t num_bytes = stated->struct_bytes;
  if (num_bytes == sizeof(*storage)) return AOT_GEMM_OK;
  if (num_bytes < kLeastProblemBytes || num_bytes > kMostProblemBytes) {
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "struct_bytes of the problem is %" PRIu64 "; expected sizeof(aot_gemm_problem_t), %zu here and at "
                "least %" PRIu64 "; set it, or compile the program with the aot_gemm.h of this library (ABI version %d)",
                num_bytes, sizeof(*storage), kLeastProblemBytes, AOT_GEMM_ABI_VERSION);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(stated);
  for (uint64_t i = sizeof(*storage); i < num_bytes; ++i) {
    if (bytes[i] == 0) continue;
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "the problem has %" PRIu64 " bytes, and byte %" PRIu64 " of it, which this library does not know, is "
                "not 0; expected %zu bytes, or zeros past them; use a library as new as the program's aot_gemm.h",
                num_bytes, i, sizeof(*storage));
  }
  *storage = {};
  std::memcpy(storage, stated, std::min<uint64_t>(num_bytes, sizeof(*storage)));
  storage->struct_bytes = sizeof(*storage);
  *problem = storage;
  return AOT_GEMM_OK;
}

void canonicalise(const aot_gemm_problem_t& problem, const Operation& operation, uint32_t layouts, Canonical* canonical) {
  const int64_t element_bytes = type_of(operation.a).num_bytes();
  if (problem.k > 0 && layouts != 0) {
    if (align(problem, element_bytes, layouts, canonical)) return;
    if (operation.bias == Presence::kNone && align(exchange(problem), element_bytes, layouts, canonical)) {
      canonical->exchanged = true;
      return;
    }
  }
  const int32_t a = contiguous_mode(problem.a, problem.m, problem.k);
  const int32_t b = contiguous_mode(problem.b, problem.n, problem.k);
  *canonical = {false,
                false,
                a < 0 || b < 0 ? -1 : a * 2 + b,
                problem.m,
                problem.n,
                problem.k,
                make_strided(problem.a, problem.m, problem.k),
                make_strided(problem.b, problem.n, problem.k),
                make_strided(problem.d, problem.m, problem.n),
                make_bias(problem),
                false};
}

}  // namespace aot
