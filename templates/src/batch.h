// Batches: products of the same sizes, each of whose operands lies a step behind that of the product before it.
#ifndef AOT_GEMM_BATCH_H_
#define AOT_GEMM_BATCH_H_

#include <cstdint>

#include "aot_gemm.h"
#include "operation.h"

namespace aot {

// Says whether a problem is of several products that have no grouping of their own.
inline bool is_batch(const aot_gemm_problem_t& problem, const Operation& operation) {
  const bool may_be = operation.grouping == Grouping::kDense || operation.grouping == Grouping::kBatched;
  return may_be && problem.num_groups > 1;
}

// Checks what a batch has beside its first product: its number of products and its steps, and that no two products share
// an element of D, nor D one with an operand. What goes with groups is refused where the operation has none.
aot_gemm_status_t check_batch(const aot_gemm_problem_t& problem, const Operation& operation);

// States one product of a batch by itself. Addresses that are null stay so.
aot_gemm_problem_t product_of(const aot_gemm_problem_t& batch, const Operation& operation, int64_t number);

// States a batch whose products share B, and whose rows of A and of D lie as those of one matrix, as one product of all
// rows. Says false where it is none such.
bool fold(const aot_gemm_problem_t& batch, const Operation& operation, aot_gemm_problem_t* folded);

}  // namespace aot

#endif  // AOT_GEMM_BATCH_H_
