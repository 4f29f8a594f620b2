// The operands of a product with a packed weight, as a call of the Python API has them.
#ifndef AOT_GEMM_PACKED_OPERANDS_H_
#define AOT_GEMM_PACKED_OPERANDS_H_

#include "aot_gemm.h"
#include "operands.h"

namespace aot {

// Checks the operands: x (..., k), the weight's bytes (rows, bytes) of a format, factors of its rows or one, a bias (n). Finds
// the operation and the extents of `out`. Gives 0, or -1 with the calling thread's refusal set.
int check_packed_linear(const Operands& operands, Result* result);

// Checks that packed weights of so many rows are for the k of x, of which `shape` becomes that of one's bytes.
int check_packed_shape(Product product, const DLTensor& x, const Options& options, int64_t* shape);

// Checks that float32 factors are given where weights of the format have some, and nowhere else.
int check_packed_scale(Product product, const Operands& operands);

// States such a product whose operands are checked.
int state_packed_linear(const Operands& operands, const Result& result, aot_gemm_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_PACKED_OPERANDS_H_
