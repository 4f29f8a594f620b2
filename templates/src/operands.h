// The tensors of a call as DLPack gives them; those of products read as matrices.
#ifndef AOT_GEMM_OPERANDS_H_
#define AOT_GEMM_OPERANDS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "fields.h"
#include "matrix.h"
#include "operation.h"
#include "request.h"
#include "row_operation.h"

namespace aot {

// The tensors of a call and what it says beside them, whatever it computes.
struct Operands {
  // By Field; null: there is none, or it is to be allocated. Of products x is (..., k), a (..., m, k) or (k); the right operand
  // (n, k), of a gated product (2 n, k), or b (..., k, n) or (k); a bias (n) or (2 n); the residual of the shape of `out`; the
  // factor of D one element; offsets (groups) or (groups + 1), of runs of k (groups); an index (rows of out).
  const DLTensor* tensors[kNumOperands];
  Options options = {};
  const void* const* weights = nullptr;  // the addresses of weights that are no one tensor, which the right operand stands for
  const void* const* factors = nullptr;  // likewise of their atoms of factors, which kScaleW stands for
  int64_t num_factors = 0;

  const DLTensor* operator[](Field field) const { return tensors[field]; }
};

// What a call computes: what `out` is, and by which operation.
struct Result {
  int64_t extents[kMaxDims];
  int32_t num_dims;
  int32_t operation;  // index into kOperations, or on rows into kRowOperations
  // The rest is written of operations on rows alone, but for the extents of factors that a product writes.
  int64_t cols;  // of elements, which are as many as those of a row of `out`, or twice as many where two are a byte
  bool writes_residual;
  bool writes_scale;
  int64_t rotary_dim;
  int64_t num_groups;  // of rows; 0 where there are no offsets
  int64_t scale_extents[kMaxDims];
  int32_t num_scale_dims;  // as many as `out` has; of atoms one

  const Operation& computed_by() const { return kOperations[operation]; }
  const RowOperation& computed_on_rows() const { return kRowOperations[operation]; }
};

// A tensor that a call writes.
struct Written {
  Element element;
  const int64_t* extents;
  int32_t num_dims;
};

// What Python calls the left operand.
const char* left_name(Product product);

// Gives an element type as DLPack describes it.
DLDataType dlpack_type(Element element);

// Writes a tensor's element type.
struct TypeText {
  char characters[32];
};
TypeText dtype_text(const DLTensor& tensor);

// The functions below that give an int give 0, or -1 with the calling thread's refusal set.

// Checks device and dimensions of a tensor beside the left one, of any element type.
int check_memory(Product product, const char* name, const DLTensor& tensor, const DLTensor& left);

// Checks its element type too.
int check_tensor(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element* element);

// Says whether operands of a function may be packed: each element of a tensor is then a byte, which holds two.
inline bool takes_packed(Product product) {
  return product == Product::kLinear || product == Product::kGatedLinear || product == Product::kGroupedLinear;
}

// The same as check_tensor of an operand that may be packed.
int check_packable(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element* element);

// The same of a tensor that is to be of one element type.
int check_tensor_of(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element expected);

// Checks a vector of int32 on the device, whose elements are adjacent.
int check_integers(Product product, const char* name, const DLTensor& tensor, const DLTensor& x);

// Reads a tensor as a matrix whose rows are its first `num_row_dims` dimensions.
int read_matrix(Product product, const char* name, const DLTensor& tensor, int32_t num_row_dims, Matrix* matrix);

// Checks the shape of a tensor. `reason` ends the refusal of another.
int check_shape(Product product, Field which, const DLTensor& tensor, const int64_t* extents, int32_t num_dims,
                const char* reason = "");

// Checks an operand, where there is one, that is to be of an element type and a shape.
int check_given(Product product, const Operands& operands, Field which, Element element, const int64_t* extents,
                int32_t num_dims, const char* reason);
inline int check_of(Product product, const Operands& operands, Field which, Element element, const int64_t* extents,
                    int32_t num_dims, const char* reason = "") {
  if (operands[which] == nullptr) return 0;
  return check_given(product, operands, which, element, extents, num_dims, reason);
}

// Checks the shape of `out`, where there is one, whose element type was found.
int check_out(Product product, const Operands& operands, const Result& result);

// Finds the element type of `out`: the one that it has, or that is asked for, or else another.
int find_element_of_out(Product product, const Operands& operands, Element otherwise, Element* element);

// Says whether a tensor has a shape.
bool have_shape(const DLTensor& tensor, const int64_t* extents, int32_t num_dims);

// Checks device, element type and shape of a left operand by itself.
int check_left(Product product, const DLTensor& left);

// Checks devices, element types and shapes of the operands that are given, and works out what is computed.
int check_operands(Product product, const Operands& operands, Result* result);

// Says what is written as a field of a checked call; false where it writes no such thing.
bool find_written(Product product, const Operands& operands, const Result& result, Field field, Written* written);

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
