// Tensors as DLPack gives them, read as the matrices of a product.
#ifndef AOT_GEMM_OPERANDS_H_
#define AOT_GEMM_OPERANDS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "matrix.h"

namespace aot {

// What a function of the Python API computes. The products both give D = A @ B^T; they differ in how the right operand
// is held. kConstant stands for the function that only looks at a weight, as the left operand.
enum class Product { kLinear, kMatmul, kConstant };

// Gives the name of the function.
const char* product_name(Product product);

struct Operands {
  const DLTensor* left;   // x (..., k), or a (..., m, k), or a (k)
  const DLTensor* right;  // weight (n, k), or b (k, n), or b (k)
  const DLTensor* bias;   // (n); null: there is none
  const DLTensor* out;    // null: to be allocated
};

// The shape that `out` has.
struct Shape {
  int64_t extents[kMaxDims];
  int32_t num_dims;
};

// The functions below that give an int give 0, or -1 with the calling thread's refusal set.

// Checks device, element type and shape of a left operand by itself.
int check_left(Product product, const DLTensor& left);

// Checks devices, element types and shapes of the operands that are given, and works out the shape of `out`.
int check_operands(Product product, const Operands& operands, Shape* shape);

// Refuses an `out` that reaches into the memory of a left operand which a copy stands for. The copy would be whole; but
// whether one is made depends on strides alone, and out may never overlap an operand.
int check_apart(Product product, const Span& left, const DLTensor& out);

// States the product for the C API. `operands` are checked and `out` is there. `right_is_constant` is the caller's
// promise for the right operand, AOT_GEMM_B_CONSTANT.
int state_problem(Product product, const Operands& operands, const Shape& shape, bool right_is_constant,
                  aot_gemm_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_OPERANDS_H_
