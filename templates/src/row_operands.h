// The tensors of a row operation as DLPack gives them: checked, and stated for the C API.
#ifndef AOT_GEMM_ROW_OPERANDS_H_
#define AOT_GEMM_ROW_OPERANDS_H_

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "operands.h"

namespace aot {

// Says whether x can be read where it lies: its leading dimensions join into tokens.
bool is_heads(const DLTensor& x);

// The functions below give 0, or -1 with the calling thread's refusal set.

// Checks devices, element types and shapes of the tensors that are given, and works out what is computed.
int check_row_operands(Product product, const Operands& operands, Result* result);

// States the problem for the C API. The tensors are checked, and those that are written are there.
int state_rows(Product product, const Operands& operands, const Result& result, aot_rows_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_ROW_OPERANDS_H_
