#include "problem.h"

#include <cinttypes>
#include <utility>

#include "error.h"

namespace aot {

namespace {

constexpr int64_t kElementBytes = 2;  // bfloat16 and float16, the only types there are
// cuTensorMapEncodeTiled: addresses and strides are multiples of 16 bytes, strides are below 2^40 bytes.
constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kStrideLimitBytes = int64_t{1} << 40;
constexpr int64_t kMaxExtent = INT32_MAX;

aot_gemm_status_t check_extent(const char* name, int64_t extent) {
  if (extent >= 0 && extent <= kMaxExtent) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE, "%s is %" PRId64 "; expected 0 to %" PRId64 "; split the problem", name, extent,
              kMaxExtent);
}

aot_gemm_status_t check_strides(const char* name, const int64_t* strides, int64_t rows, int64_t columns) {
  if ((rows <= 1 || strides[0] >= 0) && (columns <= 1 || strides[1] >= 0)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s (%" PRId64 ", %" PRId64 ") has strides (%" PRId64 ", %" PRId64 "); expected none below 0; copy %s",
              name, rows, columns, strides[0], strides[1], name);
}

// Says whether rows of the one stride hold whole rows of the other, so that no element is written twice.
bool nests(int64_t outer, int64_t outer_stride, int64_t inner, int64_t inner_stride) {
  return inner_stride >= (inner > 1 ? 1 : 0) && (outer <= 1 || outer_stride > (inner - 1) * inner_stride);
}

aot_gemm_status_t check_distinct(const aot_gemm_problem_t& problem) {
  const int64_t row = problem.m > 1 ? problem.d_strides[0] : 0;
  const int64_t column = problem.n > 1 ? problem.d_strides[1] : 0;
  if (nests(problem.m, row, problem.n, column) || nests(problem.n, column, problem.m, row)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "D (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64
              ") overlaps itself; expected distinct elements; give D storage of its own",
              problem.m, problem.n, row, column);
}

struct View {
  const void* data;
  int64_t outer;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
};

// Finds the leading stride of a matrix seen as `outer` runs of `inner` adjacent elements; 0 where it is not that, or
// not aligned. The stride of a single run is never used, so that any legal one stands for it.
int64_t leading_stride(const View& view) {
  if (view.inner > 1 && view.inner_stride != 1) return 0;
  if (reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes != 0) return 0;
  constexpr int64_t kStep = kAlignmentBytes / kElementBytes;
  if (view.outer <= 1) return (view.inner + kStep - 1) / kStep * kStep;
  const bool legal = view.outer_stride >= view.inner && view.outer_stride % kStep == 0 &&
                     view.outer_stride < kStrideLimitBytes / kElementBytes;
  return legal ? view.outer_stride : 0;
}

// Sees a logical (rows, k) operand as contiguous along k (`major` 0) or along its rows (`major` 1).
int64_t leading_stride(const void* data, int64_t rows, int64_t k, const int64_t* strides, int32_t major) {
  return major == 0 ? leading_stride({data, rows, k, strides[0], strides[1]})
                    : leading_stride({data, k, rows, strides[1], strides[0]});
}

Tensor make_tensor(const void* data, int64_t rows, int64_t columns, int64_t leading) {
  return {const_cast<void*>(data), {static_cast<int32_t>(rows), static_cast<int32_t>(columns)}, {leading, 0}};
}

aot_gemm_problem_t exchange(const aot_gemm_problem_t& problem) {
  aot_gemm_problem_t exchanged = problem;
  std::swap(exchanged.m, exchanged.n);
  std::swap(exchanged.a, exchanged.b);
  std::swap(exchanged.a_strides, exchanged.b_strides);
  std::swap(exchanged.d_strides[0], exchanged.d_strides[1]);
  exchanged.flags &= ~AOT_GEMM_B_READY;
  return exchanged;
}

bool align(const aot_gemm_problem_t& problem, uint32_t layouts, Canonical* canonical) {
  const int64_t d = leading_stride({problem.d, problem.m, problem.n, problem.d_strides[0], problem.d_strides[1]});
  if (d == 0) return false;
  for (int32_t layout = 0; layout < 4; ++layout) {
    if ((layouts >> layout & 1) == 0) continue;
    const int64_t a = leading_stride(problem.a, problem.m, problem.k, problem.a_strides, layout >> 1);
    const int64_t b = leading_stride(problem.b, problem.n, problem.k, problem.b_strides, layout & 1);
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
                  (problem.flags & AOT_GEMM_B_READY) != 0};
    return true;
  }
  return false;
}

// Names the contiguous mode of a (rows, k) operand, aligned or not: 0 for k, 1 for the rows, -1 for neither.
int32_t contiguous_mode(int64_t rows, int64_t k, const int64_t* strides) {
  if (k <= 1 || strides[1] == 1) return 0;
  return rows <= 1 || strides[0] == 1 ? 1 : -1;
}

Tensor make_strided(const void* data, int64_t rows, int64_t columns, const int64_t* strides) {
  Tensor tensor = make_tensor(data, rows, columns, strides[0]);
  tensor.strides[1] = strides[1];
  return tensor;
}

}  // namespace

aot_gemm_status_t check(const aot_gemm_problem_t& problem) {
  if (problem.dtype != AOT_GEMM_BFLOAT16 && problem.dtype != AOT_GEMM_FLOAT16) {
    return fail(AOT_GEMM_ERROR_DTYPE, "element type %" PRId32 " is unknown; expected 0 (bfloat16) or 1 (float16)",
                problem.dtype);
  }
  if ((problem.flags & ~AOT_GEMM_B_READY) != 0) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "flags are 0x%" PRIx64 "; expected 0 or AOT_GEMM_B_READY (0x%" PRIx64 ")",
                problem.flags, AOT_GEMM_B_READY);
  }
  aot_gemm_status_t status = check_extent("m", problem.m);
  if (status == AOT_GEMM_OK) status = check_extent("n", problem.n);
  if (status == AOT_GEMM_OK) status = check_extent("k", problem.k);
  if (status != AOT_GEMM_OK || is_empty(problem)) return status;
  status = check_strides("A", problem.a_strides, problem.m, problem.k);
  if (status == AOT_GEMM_OK) status = check_strides("B", problem.b_strides, problem.n, problem.k);
  if (status == AOT_GEMM_OK) status = check_strides("D", problem.d_strides, problem.m, problem.n);
  return status == AOT_GEMM_OK ? check_distinct(problem) : status;
}

void canonicalise(const aot_gemm_problem_t& problem, uint32_t layouts, Canonical* canonical) {
  if (problem.k > 0 && layouts != 0) {
    if (align(problem, layouts, canonical)) return;
    if (align(exchange(problem), layouts, canonical)) {
      canonical->exchanged = true;
      return;
    }
  }
  const int32_t a = contiguous_mode(problem.m, problem.k, problem.a_strides);
  const int32_t b = contiguous_mode(problem.n, problem.k, problem.b_strides);
  *canonical = {false,
                false,
                a < 0 || b < 0 ? -1 : a * 2 + b,
                problem.m,
                problem.n,
                problem.k,
                make_strided(problem.a, problem.m, problem.k, problem.a_strides),
                make_strided(problem.b, problem.n, problem.k, problem.b_strides),
                make_strided(problem.d, problem.m, problem.n, problem.d_strides),
                0};
}

}  // namespace aot
