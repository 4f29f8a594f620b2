#include <cinttypes>

#include "error.h"
#include "lattice.h"
#include "problem.h"

namespace aot {

namespace {

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

}  // namespace

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

}  // namespace aot
