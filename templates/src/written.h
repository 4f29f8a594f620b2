// What a launch writes: it may share no element with itself, or with what is read.
#ifndef AOT_GEMM_WRITTEN_H_
#define AOT_GEMM_WRITTEN_H_

#include <cstdint>

#include "aot_gemm.h"
#include "lattice.h"
#include "operation.h"

namespace aot {

// Reads a matrix whose elements share bytes, side by side in rows that begin with one, as the bytes that it is; any other as
// it is.
inline aot_gemm_tensor_t in_bytes(const aot_gemm_tensor_t& tensor, int64_t rows, Element element) {
  if (!is_packed(element)) return tensor;
  return {tensor.data, {rows > 1 ? size_of(element, tensor.strides[0]) : 0, 1}};
}

// D, or the factors that are written with it, and what shares no element with it.
class WrittenMatrix {
 public:
  explicit WrittenMatrix(const aot_gemm_tensor_t& tensor, const char* name = "D") : tensor_(tensor), name_(name) {}

  // Checks that all elements lie in the address space, and are its own.
  aot_gemm_status_t check(int64_t rows, int64_t columns, int64_t element_bytes);

  // Checks that an operand lies in the address space, apart from it. Without addresses, as in queries, there is nothing to
  // compare.
  aot_gemm_status_t check_apart(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                                int64_t element_bytes) const;

  // Checks the same of a matrix whose elements may share bytes.
  aot_gemm_status_t check_apart_packed(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k,
                                       Element element) const;

 private:
  aot_gemm_tensor_t tensor_;
  const char* name_;
  Lattice lattice_;
};

// Checks the atoms of narrow factors, whose strides are not looked at.
aot_gemm_status_t check_atoms(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k,
                              const AtomFormat& format, const WrittenMatrix& written);

// Checks the factors that are written with D, which may share memory with nothing that is read.
aot_gemm_status_t check_factors_of_d(const aot_gemm_problem_t& problem, const Operation& operation, const WrittenMatrix& d);

}  // namespace aot

#endif  // AOT_GEMM_WRITTEN_H_
