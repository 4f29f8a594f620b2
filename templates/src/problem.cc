#include "problem.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstring>
#include <utility>

#include "error.h"
#include "lattice.h"

namespace aot {

namespace {

// cuTensorMapEncodeTiled: addresses and strides are multiples of 16 bytes, strides are below 2^40 bytes.
constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kStrideLimitBytes = int64_t{1} << 40;
constexpr int64_t kMaxExtent = INT32_MAX;

// Problems of callers that were compiled before `bias` came: the smallest there are.
constexpr uint64_t kLeastProblemBytes = offsetof(aot_gemm_problem_t, bias);
// More than any header will have: a size past it is no size.
constexpr uint64_t kMostProblemBytes = 4096;

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

// Reads a matrix as its elements lie. Fails where they do not lie within the address space.
aot_gemm_status_t place(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                        int64_t element_bytes, Lattice* lattice) {
  const Axis row = {rows, rows > 1 ? tensor.strides[0] : 0};
  const Axis column = {columns, columns > 1 ? tensor.strides[1] : 0};
  if (make_lattice(reinterpret_cast<uintptr_t>(tensor.data), row, column, element_bytes, lattice)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64
              ") at address %p reaches past the end of the address space; mend its strides",
              name, rows, columns, row.stride, column.stride, tensor.data);
}

// Checks D against an operand. Without addresses, as in queries, there is nothing to compare.
aot_gemm_status_t check_apart(const char* name, const aot_gemm_tensor_t& tensor, const Lattice& operand,
                              const aot_gemm_tensor_t& d, const Lattice& result) {
  if (tensor.data == nullptr || d.data == nullptr || !overlap(operand, result)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "D at address %p overlaps %s at address %p; expected a D that shares no element with an operand, which "
              "would be overwritten while it is read; give D storage of its own",
              d.data, name, tensor.data);
}

// Checks that all elements lie in the address space, and that those of D are its own.
aot_gemm_status_t check_memory(const aot_gemm_problem_t& problem, const Operation& operation) {
  const int64_t num_bytes = type_of(operation.a).num_bytes();
  Lattice d;
  aot_gemm_status_t status = place("D", problem.d, problem.m, problem.n, num_bytes, &d);
  if (status != AOT_GEMM_OK) return status;
  if (!is_distinct(d)) {
    return fail(AOT_GEMM_ERROR_STRIDE,
                "D (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64
                ") overlaps itself; expected distinct elements; give D storage of its own",
                problem.m, problem.n, problem.m > 1 ? problem.d.strides[0] : 0,
                problem.n > 1 ? problem.d.strides[1] : 0);
  }
  Lattice operand;
  if (operation.bias != Presence::kNone) {
    status = place("the bias", problem.bias, 1, problem.n, num_bytes, &operand);
    if (status == AOT_GEMM_OK) status = check_apart("the bias", problem.bias, operand, problem.d, d);
  }
  if (status != AOT_GEMM_OK || problem.k == 0) return status;
  status = place("A", problem.a, problem.m, problem.k, num_bytes, &operand);
  if (status == AOT_GEMM_OK) status = check_apart("A", problem.a, operand, problem.d, d);
  if (status == AOT_GEMM_OK) status = place("B", problem.b, problem.n, problem.k, num_bytes, &operand);
  return status == AOT_GEMM_OK ? check_apart("B", problem.b, operand, problem.d, d) : status;
}

// Checks the descriptor of a bias: there is none, or its elements are adjacent.
aot_gemm_status_t check_bias(const aot_gemm_problem_t& problem, const Operation& operation) {
  if (operation.bias == Presence::kNone && problem.bias.data != nullptr) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got a bias, which operation %s does not add; expected null, or another operation",
                operation.tag);
  }
  if (operation.bias == Presence::kNone || problem.n <= 1 || problem.bias.strides[1] == 1) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "the bias of %" PRId64 " elements has the stride %" PRId64 "; expected 1, elements that are adjacent; copy it",
              problem.n, problem.bias.strides[1]);
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

aot_gemm_status_t check(const aot_gemm_problem_t& problem, int32_t* index) {
  aot_gemm_status_t status = find_operation(problem.operation, index);
  if (status != AOT_GEMM_OK) return status;
  const Operation& operation = kOperations[*index];
  if ((problem.flags & ~AOT_GEMM_B_CONSTANT) != 0) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "flags are 0x%" PRIx64 "; expected 0 or AOT_GEMM_B_CONSTANT (0x%" PRIx64 ")",
                problem.flags, AOT_GEMM_B_CONSTANT);
  }
  status = check_extent("m", problem.m);
  if (status == AOT_GEMM_OK) status = check_extent("n", problem.n);
  if (status == AOT_GEMM_OK) status = check_extent("k", problem.k);
  if (status == AOT_GEMM_OK) status = check_bias(problem, operation);
  if (status != AOT_GEMM_OK || is_empty(problem)) return status;
  status = check_strides("A", problem.a.strides, problem.m, problem.k);
  if (status == AOT_GEMM_OK) status = check_strides("B", problem.b.strides, problem.n, problem.k);
  if (status == AOT_GEMM_OK) status = check_strides("D", problem.d.strides, problem.m, problem.n);
  return status == AOT_GEMM_OK ? check_memory(problem, operation) : status;
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
