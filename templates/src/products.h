// The products that a call of the Python API asks for: one, or those of a batch whose leading dimensions broadcast.
#ifndef AOT_GEMM_PRODUCTS_H_
#define AOT_GEMM_PRODUCTS_H_

#include <cstdint>

#include "aot_gemm.h"
#include "matrix.h"
#include "operands.h"

namespace aot {

// A dimension of a batch: how many steps, and how far one leads in each operand, in elements; 0 where that broadcasts.
struct BatchDim {
  int64_t extent;
  int64_t a;
  int64_t b;
  int64_t d;
};

// Problems for the C API, which differ in the addresses of A, B and D alone. A batch whose leading dimensions lie as one
// is one problem; where they do not join, as of heads that stand between rows, there is one for each step of the others.
struct Problems {
  aot_gemm_problem_t first;
  int64_t count = 1;
  int32_t num_dims = 0;
  BatchDim dims[kMaxDims];  // only the first `num_dims` are written
  int64_t element_bytes[3];

  // Gives one of them.
  aot_gemm_problem_t at(int64_t number) const;
};

// Says whether a product is one of a batch of right operands.
inline bool is_batched(Product product, const DLTensor& right) { return product == Product::kMatmul && right.ndim > 2; }

// Works out the extents of `out` of a batch. Fails where the leading dimensions do not broadcast.
int find_batch_extents(const DLTensor& left, const DLTensor& right, Result* result);

// States a batch whose operands are checked. The matrices and the steps between them are written to `problems`, whose
// first problem has all else.
int state_batch(const Operands& operands, const Result& result, Problems* problems);

}  // namespace aot

#endif  // AOT_GEMM_PRODUCTS_H_
