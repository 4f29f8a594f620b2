// The keys and values that a call of `rotary` writes to a cache.
#ifndef AOT_GEMM_ROW_CACHE_OPERANDS_H_
#define AOT_GEMM_ROW_CACHE_OPERANDS_H_

#include "operands.h"

namespace aot {

// Checks keys, values, their caches and the positions, of which a call has all or none. Gives 0, or -1 with a refusal.
int check_cache(Product product, const Operands& operands, const Result& result);

// States those of a checked call. Gives 0, or -1 with a refusal.
int state_cache(Product product, const Operands& operands, aot_rows_problem_t* problem);

// Reads a tensor as tokens, heads and the elements of a head. Gives 0, or -1 with a refusal.
int state_heads(Product product, const char* name, const DLTensor& tensor, aot_rows_tensor_t* stated);

}  // namespace aot

#endif  // AOT_GEMM_ROW_CACHE_OPERANDS_H_
