// Groups of rows in calls of operations on rows that write factors in atoms.
#ifndef AOT_GEMM_ROW_GROUP_OPERANDS_H_
#define AOT_GEMM_ROW_GROUP_OPERANDS_H_

#include "aot_gemm.h"
#include "operands.h"

namespace aot {

// Checks offsets and an index of a call whose operation and shape of `out` were found. Works out how many groups there are, and
// of how many rows `out` is. Gives 0, or -1 with the calling thread's refusal set.
int check_row_groups(Product product, const Operands& operands, Result* result);

// States those of a checked call.
void state_row_groups(const Operands& operands, const Result& result, aot_rows_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_ROW_GROUP_OPERANDS_H_
