// Tensors as DLPack gives them, read as the matrices of a product.
#ifndef AOT_GEMM_OPERANDS_H_
#define AOT_GEMM_OPERANDS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "matrix.h"
#include "operation.h"
#include "request.h"

namespace aot {

struct Operands {
  const DLTensor* left;   // x (..., k), or a (..., m, k), or a (k)
  const DLTensor* right;  // weight (n, k) or, of a gated product, (2 n, k); or b (..., k, n), or b (k)
  const DLTensor* bias;   // (n) or (2 n); null, as any of those below: there is none
  const DLTensor* out;    // null: to be allocated
  const DLTensor* scale_x = nullptr;
  const DLTensor* scale_w = nullptr;
  const DLTensor* residual = nullptr;   // of the shape of `out`
  const DLTensor* scale_out = nullptr;  // one element
  const DLTensor* offsets = nullptr;    // (groups) or (groups + 1); of runs of k (groups)
  const DLTensor* index = nullptr;      // (rows of out)
  Options options = {};
  const void* const* weights = nullptr;  // the addresses of weights that are no one tensor, which `right` stands for
};

// What `out` is, and by which operation it is computed.
struct Result {
  int64_t extents[kMaxDims];
  int32_t num_dims;
  int32_t operation;

  const Operation& computed_by() const { return kOperations[operation]; }
};

// Gives an element type as DLPack describes it.
DLDataType dlpack_type(Element element);

// The functions below that give an int give 0, or -1 with the calling thread's refusal set.

// Checks device, element type and dimensions of a tensor beside the left one.
int check_tensor(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element* element);

// The same of a tensor that is to be of one element type.
int check_tensor_of(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element expected);

// Reads a tensor as a matrix whose rows are its first `num_row_dims` dimensions.
int read_matrix(Product product, const char* name, const DLTensor& tensor, int32_t num_row_dims, Matrix* matrix);

// Finds the element type of D: the one that is asked for, or that `out` has.
int find_element_of_d(Product product, const Operands& operands, Element left, Element* element);

// Checks that there are both factors or none, as the element types have it.
int check_scales(Product product, const Operands& operands, const Request& request);

// Refuses what this library has no operation for. Gives -1.
int refuse_request(Product product, const Request& request);

// Says whether a tensor has a shape.
bool have_shape(const DLTensor& tensor, const int64_t* extents, int32_t num_dims);

// Checks device, element type and shape of a left operand by itself.
int check_left(Product product, const DLTensor& left);

// Checks devices, element types and shapes of the operands that are given, and works out what `out` is.
int check_operands(Product product, const Operands& operands, Result* result);

// Refuses an `out` that reaches into the memory of a left operand which a copy stands for. The copy would be whole; but
// whether one is made depends on strides alone, and out may never overlap an operand.
int check_apart(Product product, const Span& left, const DLTensor& out);

// States the products for the C API. `operands` are checked and `out` is there. `right_is_constant` is the caller's
// promise for the right operand, AOT_GEMM_B_CONSTANT.
struct Problems;
int state_problems(Product product, const Operands& operands, const Result& result, bool right_is_constant,
                   Problems* problems);

}  // namespace aot

#endif  // AOT_GEMM_OPERANDS_H_
