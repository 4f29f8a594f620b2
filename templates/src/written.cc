#include "written.h"

#include <cinttypes>

#include "checks.h"
#include "error.h"
#include "problem.h"

namespace aot {

namespace {

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

}  // namespace

aot_gemm_status_t WrittenMatrix::check(int64_t rows, int64_t columns, int64_t element_bytes) {
  const aot_gemm_status_t status = place(name_, tensor_, rows, columns, element_bytes, &lattice_);
  if (status != AOT_GEMM_OK || is_distinct(lattice_)) return status;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64
              ") overlaps itself; expected distinct elements; give %s storage of its own",
              name_, rows, columns, rows > 1 ? tensor_.strides[0] : 0, columns > 1 ? tensor_.strides[1] : 0, name_);
}

aot_gemm_status_t WrittenMatrix::check_apart_packed(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k,
                                              Element element) const {
  if (!is_packed(element)) return check_apart(name, tensor, rows, k, bytes_of(element));
  return check_apart(name, in_bytes(tensor, rows, element), rows, size_of(element, k + 1), 1);
}

aot_gemm_status_t WrittenMatrix::check_apart(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                                       int64_t element_bytes) const {
  Lattice operand;
  const aot_gemm_status_t status = place(name, tensor, rows, columns, element_bytes, &operand);
  if (status != AOT_GEMM_OK || tensor.data == nullptr || tensor_.data == nullptr) return status;
  if (!overlap(operand, lattice_)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s at address %p overlaps %s at address %p; expected a %s that shares no element with an operand, which "
              "would be overwritten while it is read; give %s storage of its own",
              name_, tensor_.data, name, tensor.data, name_, name_);
}

aot_gemm_status_t check_atoms(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k,
                              const AtomFormat& format, const WrittenMatrix& written) {
  const aot_gemm_status_t status = check_address(name, tensor.data, kPackedRunBytes);
  if (status != AOT_GEMM_OK) return status;
  const int64_t num_bytes = format.num_bytes(rows, k);
  if (num_bytes > kMaxExtent) {
    return fail(AOT_GEMM_ERROR_SHAPE, "%s of (%" PRId64 ", %" PRId64 ") takes %" PRId64 " bytes; expected at most %" PRId64
                "; split the problem", name, rows, k, num_bytes, kMaxExtent);
  }
  return written.check_apart(name, {tensor.data, {0, 1}}, 1, num_bytes, 1);
}

aot_gemm_status_t check_factors_of_d(const aot_gemm_problem_t& problem, const Operation& operation, const WrittenMatrix& d) {
  aot_gemm_status_t status = check_atoms("factors_d", problem.factors_d, problem.m, problem.n, operation.blocks_d, d);
  if (status == AOT_GEMM_OK && operation.takes(Argument::kOwnD)) {
    status = check_address("own_d", problem.own_d.data, kFactorBytes);
    if (status == AOT_GEMM_OK) status = d.check_apart("own_d", problem.own_d, 1, 1, kFactorBytes);
  }
  if (status != AOT_GEMM_OK) return status;
  const int64_t num_bytes = operation.blocks_d.num_bytes(problem.m, problem.n);
  const aot_gemm_tensor_t run = {problem.factors_d.data, {0, 1}};
  WrittenMatrix factors(run, "factors_d");
  status = factors.check(1, num_bytes, 1);
  const int64_t rows = rows_of_b(problem, operation);
  const bool reads = problem.k > 0;
  if (status == AOT_GEMM_OK && reads) status = factors.check_apart_packed("A", problem.a, problem.m, problem.k, operation.a);
  if (status == AOT_GEMM_OK && reads) status = factors.check_apart_packed("B", problem.b, rows, problem.k, operation.b);
  if (status == AOT_GEMM_OK) status = check_atoms("scale_a", problem.scale_a, problem.m, problem.k, operation.atoms, factors);
  if (status == AOT_GEMM_OK) status = check_atoms("scale_b", problem.scale_b, rows, problem.k, operation.atoms, factors);
  if (status == AOT_GEMM_OK && adds_bias(problem, operation)) {
    status = factors.check_apart("the bias", problem.bias, 1, rows, bytes_of(operation.bias_element));
  }
  if (status == AOT_GEMM_OK) status = factors.check_apart("scale_d", problem.scale_d, 1, 1, kFactorBytes);
  return status == AOT_GEMM_OK ? factors.check_apart("own_d", problem.own_d, 1, 1, kFactorBytes) : status;
}

}  // namespace aot
