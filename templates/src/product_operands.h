// The tensors of products as DLPack gives them: what they compute, checked, and stated for the C API.
#ifndef AOT_GEMM_PRODUCT_OPERANDS_H_
#define AOT_GEMM_PRODUCT_OPERANDS_H_

#include "aot_gemm.h"
#include "operands.h"

namespace aot {

// The functions give 0, or -1 with the calling thread's refusal set.

// Finds the operation of operands whose sizes fit, by their element types, factors and options.
int resolve(Product product, const Operands& operands, Grouping grouping, Element a, Element b, int32_t* operation);

// Checks the factor of D, or those that each group has.
int check_scale_out(Product product, const Operands& operands, const Result& result, int64_t num_factors);

// Checks, of a D with so many rows in so many groups, its own factor and the tensor that the factors of its blocks are to be
// written to, and works out their number.
int check_factors_of_d(Product product, const Operands& operands, int64_t rows, int64_t groups, Result* result);

// States them.
int state_factors_of_d(Product product, const Operands& operands, aot_gemm_problem_t* problem);

// Counts in elements what was read as a matrix of bytes that hold two each.
int unpack(Product product, const char* name, Matrix* matrix);

// Checks devices, element types and shapes of operands that are not grouped, and works out what is computed.
int check_product(Product product, const Operands& operands, Result* result);

// States one product, in a problem that has its operation and flags. The operands are checked, and out is there.
int state_product(Product product, const Operands& operands, const Result& result, aot_gemm_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_PRODUCT_OPERANDS_H_
