// Tensors as DLPack gives them, read as the operands of products of groups.
#ifndef AOT_GEMM_GROUP_OPERANDS_H_
#define AOT_GEMM_GROUP_OPERANDS_H_

#include "operands.h"

namespace aot {

// The functions give 0, or -1 with the calling thread's refusal set.

// Checks devices, element types and shapes: x (rows, k), weight (groups, n, k), or with a gate (groups, 2 n, k), and what
// belongs to them; works out what `out` is, (rows, n), of the rows of x or of the index.
int check_grouped(const Operands& operands, Result* result);

// States the groups for the C API, in a problem that has its operation and flags. `operands` are checked, `out` is there.
int state_grouped(const Operands& operands, const Result& result, aot_gemm_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_GROUP_OPERANDS_H_
