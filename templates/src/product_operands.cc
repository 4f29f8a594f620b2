#include "product_operands.h"

#include <cinttypes>

#include "atoms.h"
#include "products.h"
#include "refusal.h"
#include "scales.h"

namespace aot {

namespace {

const char* right_name(Product product) { return product == Product::kMatmul ? "b" : "weight"; }

bool is_narrow(Element element) { return bits_in(element) <= 8; }

// The element type that D has where a call says nothing of it: torch's for its scaled products, else that of x.
Element default_element(Element left, bool is_scaled) {
  if (is_scaled) return Element::kBfloat16;
  return left == Element::kInt8 ? Element::kInt32 : left;
}

int check_scales(Product product, const Operands& operands, const Request& request) {
  const bool is_given = operands[kScaleX] != nullptr;
  if (is_given != (operands[kScaleW] != nullptr)) {
    return refuse("OperandError", "%s: got %s and no %s; expected both, or none", product_name(product),
                  is_given ? "scale_x" : "scale_w", is_given ? "scale_w" : "scale_x");
  }
  const bool are_narrow = is_narrow(request.a) && is_narrow(request.b);
  const bool has_packed = is_packed(request.a) || is_packed(request.b);  // beside wider elements there is no product
  if (is_given && !are_narrow && !has_packed) {
    return refuse("OperandError", "%s: got scale_x and scale_w, which go with float8 and int8 operands; x is %s and weight "
                  "%s; leave them away", product_name(product), type_of(request.a).name, type_of(request.b).name);
  }
  if (is_given || !are_narrow || request.d == Element::kInt32) return 0;
  if (has_packed) {
    return refuse("OperandError", "%s: bytes that hold two elements of 4 bits each need factors, of which the format is known; "
                  "expected float8_e4m3fn or float8_e8m0fnu tensors in GPU memory; pass them as linear(x, weight, scale_x=, "
                  "scale_w=)", product_name(product));
  }
  return refuse("OperandError", "%s: %s operands of a %s result need factors, by which they are multiplied; expected "
                "float32 tensors in GPU memory, of one element, or of one for each row; pass them as linear(x, weight, "
                "scale_x=, scale_w=)", product_name(product), type_of(request.a).name, type_of(request.d).name);
}

int refuse_request(Product product, const Request& request) {
  return refuse(kNoOperation, "%s", write_request(product, request).characters);
}

// Finds the operation of operands that have factors. Such that each serve a whole row, as where k is up to 128, may be of
// either kind: then the one that the library has.
int resolve_scaled(Product product, const Operands& operands, Request* request, int32_t* operation) {
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  const DLTensor& scale_x = *operands[kScaleX];
  const DLTensor& scale_w = *operands[kScaleW];
  if (are_of_atoms(operands, request->a, request->b)) return resolve_atoms(product, operands, request, operation);
  request->scale = Scale::kVector;
  if (request->grouping == Grouping::kKgrouped) return refuse_request(product, *request);
  if (check_tensor_of(product, "scale_x", scale_x, left, Element::kFloat32) != 0) return -1;
  if (check_tensor_of(product, "scale_w", scale_w, left, Element::kFloat32) != 0) return -1;
  const ScaleShapes shapes = read_scale_shapes(scale_x, scale_w, left, right);
  if (!shapes.are_vectors && !shapes.are_blocks) return refuse_scale_shapes(product, scale_x, scale_w, left, right);
  if (!shapes.are_vectors) request->scale = Scale::kBlock;
  *operation = find_operation(*request);
  if (*operation >= 0) return 0;
  Request by_blocks = *request;
  by_blocks.scale = Scale::kBlock;
  if (shapes.are_blocks) *operation = find_operation(by_blocks);
  return *operation >= 0 ? 0 : refuse_request(product, *request);
}

// Checks the factors that groups have, one each.
int check_scales_of_groups(const DLTensor& scale, int64_t groups) {
  if (scale.ndim != 1 || scale.shape[0] != groups) {
    return refuse("ShapeError", "grouped_linear: scale_out has shape %s; expected (%" PRId64 ",), the product of x's own factor and "
                  "that of each group's weight; expand the weights' to one for each group", shape_text(scale).characters, groups);
  }
  if (groups <= 1 || stride_of(scale, 0) == 1) return 0;
  return refuse("StrideError", "grouped_linear: scale_out has the stride %" PRId64 "; expected adjacent elements; make it contiguous",
                stride_of(scale, 0));
}

// Gives k in elements of a mode that holds so many, or so many bytes of two each.
int64_t k_of(int64_t held, Element element) {
  int64_t k = held;
  return is_packed(element) && __builtin_mul_overflow(held, kElementsInByte, &k) ? INT64_MAX : k;
}

// Checks that a left and a right operand make a product. Where one alone is packed beside wider elements than bytes, of which
// there is none, k is not compared.
int check_shapes(Product product, const DLTensor& left, const DLTensor& right, Element a, Element b) {
  const bool is_matmul = product == Product::kMatmul;
  if (left.ndim < 1 || right.ndim < 1 || (!is_matmul && right.ndim != 2)) {
    return refuse("ShapeError", "%s: got %s %s and %s %s; expected %s", product_name(product), left_name(product),
                  shape_text(left).characters, right_name(product), shape_text(right).characters,
                  is_matmul ? "a (..., m, k) or (k,), and b (..., k, n) or (k,)" : "x (..., k) and weight (n, k)");
  }
  const int64_t left_k = k_of(left.shape[left.ndim - 1], a);
  const int64_t right_k = k_of(right.shape[is_matmul ? (right.ndim == 1 ? 0 : right.ndim - 2) : 1], b);
  const bool have_one_k = is_packed(a) == is_packed(b) || (is_narrow(a) && is_narrow(b));
  if (have_one_k && left_k != right_k) {
    return refuse("ShapeError", "%s: %s %s has k %" PRId64 ", %s %s has k %" PRId64 "; expected one k",
                  product_name(product), left_name(product), shape_text(left).characters, left_k,
                  right_name(product), shape_text(right).characters, right_k);
  }
  if (product != Product::kGatedLinear || right.shape[0] % 2 == 0) return 0;
  return refuse("ShapeError", "%s: weight has shape %s; expected an even number of rows, those of the gate and as many "
                "linear ones", product_name(product), shape_text(right).characters);
}

aot_gemm_tensor_t as_tensor(const Matrix& matrix) { return {matrix.data, {matrix.strides[0], matrix.strides[1]}}; }

// States the operands that a plain product has none of.
int state_others(Product product, const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  const Scale kind = result.computed_by().scale;
  if (kind == Scale::kAtoms) {
    if (state_atoms(product, "scale_x", *operands[kScaleX], &problem->scale_a) != 0) return -1;
    if (state_atoms(product, "scale_w", *operands[kScaleW], &problem->scale_b) != 0) return -1;
  } else if (operands[kScaleX] != nullptr) {
    if (state_scale(product, "scale_x", *operands[kScaleX], kind, &problem->scale_a) != 0) return -1;
    if (state_scale(product, "scale_w", *operands[kScaleW], kind, &problem->scale_b) != 0) return -1;
  }
  if (operands[kResidual] != nullptr) {
    Matrix residual;
    const DLTensor& tensor = *operands[kResidual];
    if (read_matrix(product, "residual", tensor, result.num_dims - 1, &residual) != 0) return -1;
    problem->residual = as_tensor(residual);
  }
  if (operands[kScaleD] != nullptr) problem->scale_d = {data_of(*operands[kScaleD]), {0, 0}};
  return 0;
}

// States the two weights of a gate, which are tensors of their own: the linear one lies behind the gate's or in front.
int state_parts(const Operands& operands, aot_gemm_problem_t* problem) {
  const auto gate = reinterpret_cast<uintptr_t>(operands.weights[0]);
  const auto linear = reinterpret_cast<uintptr_t>(operands.weights[1]);
  const auto step = static_cast<int64_t>(linear - gate);
  const int64_t element_bytes = operands[kRight]->dtype.bits / 8;
  if (step % element_bytes != 0) {
    return refuse("StrideError", "gated_linear: the gate's weight is at address %p, the linear one at %p; expected them to be a "
                  "whole number of elements apart; compute the two products by linear", operands.weights[0],
                  operands.weights[1]);
  }
  problem->flags |= AOT_GEMM_GATE_PARTS;
  problem->group_strides.b = step / element_bytes;
  return 0;
}

}  // namespace

int resolve(Product product, const Operands& operands, Grouping grouping, Element a, Element b, int32_t* operation) {
  const Options& options = operands.options;
  Request request = {a,
                     b,
                     a,
                     Scale::kNone,
                     Element::kFloat32,
                     options.has_nvfp4 ? Element::kE4m3 : options.has_mx ? Element::kE8m0 : Element::kFloat32,
                     options.epilogue,
                     grouping,
                     operands[kBias] != nullptr,
                     operands[kResidual] != nullptr,
                     options.allow_tf32,
                     options.use_fast_accum};
  const Element otherwise = default_element(a, operands[kScaleX] != nullptr);
  if (find_element_of_out(product, operands, otherwise, &request.d) != 0) return -1;
  if (check_scales(product, operands, request) != 0) return -1;
  if (operands[kScaleX] != nullptr) return resolve_scaled(product, operands, &request, operation);
  *operation = find_operation(request);
  return *operation >= 0 ? 0 : refuse_request(product, request);
}

int check_scale_out(Product product, const Operands& operands, const Result& result, int64_t num_factors) {
  const Operation& operation = result.computed_by();
  if (operands[kScaleD] == nullptr) {
    if (!operation.scales_d()) return 0;
    if (operation.writes_factors()) {
      return refuse("OperandError", "%s: out_dtype is nvfp4 beside operands without own factors, whose product the sum is multiplied "
                    "by; expected pairs, scale_x=(factors, factor) and scale_w=(factors, factor); a factor of tensors that have none "
                    "is 1.0", product_name(product));
    }
    if (operation.scale == Scale::kAtoms) {
      return refuse("OperandError", "%s: NVFP4 needs the tensors' own factors, by which D is multiplied; expected pairs, scale_x="
                    "(factors, factor) and scale_w=(factors, factor); or the product of the two as scale_out=, a float32 tensor of "
                    "%s in GPU memory, 1.0 where the tensors have none", product_name(product),
                    product == Product::kGroupedLinear ? "(groups,)" : "one element");
    }
    return refuse("OperandError", "%s: a %s result needs scale_out, by which it is multiplied before it is rounded; expected "
                  "a float32 tensor of one element in GPU memory; pass scale_out=", product_name(product),
                  type_of(operation.d).name);
  }
  if (!operation.scales_d()) {
    return refuse("OperandError", "%s: got scale_out, which goes with a float8 result%s; the result is %s; leave it away",
                  product_name(product), operation.scale == Scale::kAtoms ? ", and with NVFP4" : "", type_of(operation.d).name);
  }
  const DLTensor& scale = *operands[kScaleD];
  if (check_tensor_of(product, "scale_out", scale, *operands[kLeft], Element::kFloat32) != 0) return -1;
  if (product == Product::kGroupedLinear) return check_scales_of_groups(scale, num_factors);
  if (is_one_element(scale)) return 0;
  return refuse("ShapeError", "%s: scale_out has shape %s; expected one element", product_name(product),
                shape_text(scale).characters);
}

int check_factors_of_d(Product product, const Operands& operands, int64_t rows, int64_t groups, Result* result) {
  const Operation& operation = result->computed_by();
  if (!operation.writes_factors()) return 0;
  const bool has_own = operation.takes(Argument::kOwnD);
  const DLTensor* own = operands[kOwnD];
  if (has_own && own == nullptr) {
    return refuse("OperandError", "%s: out_dtype is nvfp4 and scale_out is missing, the result's own factor, which has to be known "
                  "before; expected a float32 tensor of one element in GPU memory: the largest magnitude that the result is to hold, "
                  "over 6 * 448; take one that aot_gemm.torch.quantize found of such results", product_name(product));
  }
  if (!has_own && own != nullptr) {
    return refuse("OperandError", "%s: got scale_out, which goes with nvfp4; the result has factors of blocks alone; leave it away",
                  product_name(product));
  }
  if (own != nullptr) {
    if (check_tensor_of(product, "scale_out", *own, *operands[kLeft], Element::kFloat32) != 0) return -1;
    if (!is_one_element(*own)) {
      return refuse("ShapeError", "%s: scale_out has shape %s; expected one element, the result's own factor",
                    product_name(product), shape_text(*own).characters);
    }
  }
  int64_t& columns = result->extents[result->num_dims - 1];
  const bool is_counted = rows <= INT32_MAX && columns <= INT32_MAX;  // past them the number could overflow
  result->scale_extents[0] = is_counted ? times(num_atom_rows(rows, groups), operation.blocks_d.row_bytes(columns)) : 0;
  result->num_scale_dims = 1;
  if (!is_counted || result->scale_extents[0] > INT32_MAX) {
    return refuse("ShapeError", "%s: the result has %" PRId64 " rows of %" PRId64 ", whose factors take more than %d bytes; expected "
                  "at most so many; split x by rows", product_name(product), rows, columns, INT32_MAX);
  }
  if (is_packed(operation.d)) {
    if (columns % kElementsInByte != 0) {
      return refuse("ShapeError", "%s: the result has rows of %" PRId64 " elements of 4 bits; expected an even number, two of which "
                    "are a byte; pad the weight with rows of zeros", product_name(product), columns);
    }
    columns /= kElementsInByte;
  }
  if (operands[kFactorsD] == nullptr) return 0;
  if (check_tensor_of(product, "the factors of out", *operands[kFactorsD], *operands[kLeft], operation.blocks_d.element) != 0) {
    return -1;
  }
  return check_shape(product, kFactorsD, *operands[kFactorsD], result->scale_extents, 1, ", the bytes of the factors' atoms");
}

int state_factors_of_d(Product product, const Operands& operands, aot_gemm_problem_t* problem) {
  if (operands[kOwnD] != nullptr) problem->own_d = {data_of(*operands[kOwnD]), {0, 0}};
  if (operands[kFactorsD] == nullptr) return 0;
  return state_atoms(product, "the factors of out", *operands[kFactorsD], &problem->factors_d);
}

int unpack(Product product, const char* name, Matrix* matrix) {
  if (matrix->extents[1] > 1 && matrix->strides[1] != 1) {
    return refuse("StrideError", "%s: %s (%" PRId64 ", %" PRId64 ") has the strides (%" PRId64 ", %" PRId64 "); expected bytes that "
                  "are adjacent along k; make it contiguous", product_name(product), name, matrix->extents[0],
                  matrix->extents[1], matrix->strides[0], matrix->strides[1]);
  }
  matrix->extents[1] *= kElementsInByte;  // at most INT32_MAX, as the factors were checked
  if (__builtin_mul_overflow(matrix->strides[0], kElementsInByte, &matrix->strides[0])) matrix->strides[0] = INT64_MAX;
  matrix->strides[1] = 1;
  return 0;
}

int check_product(Product product, const Operands& operands, Result* result) {
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  Element a;
  Element b;
  const auto check = takes_packed(product) ? &check_packable : &check_tensor;
  if (check(product, left_name(product), left, left, &a) != 0) return -1;
  if (check(product, right_name(product), right, left, &b) != 0) return -1;
  if (check_shapes(product, left, right, a, b) != 0) return -1;
  if (resolve(product, operands, Grouping::kDense, a, b, &result->operation) != 0) return -1;
  if (is_batched(product, right)) {
    if (find_batch_extents(left, right, result) != 0) return -1;
    return check_out(product, operands, *result);
  }
  result->num_dims = left.ndim - 1;
  for (int32_t i = 0; i < result->num_dims; ++i) result->extents[i] = left.shape[i];
  const int64_t num_rows = right.ndim == 2 ? right.shape[product == Product::kMatmul ? 1 : 0] : 1;
  const int64_t n = product == Product::kGatedLinear ? num_rows / 2 : num_rows;
  if (right.ndim == 2) result->extents[result->num_dims++] = n;
  const Operation& operation = result->computed_by();
  const char* reason = ", an element for each row of weight; an output is named by keyword: linear(x, weight, out=out)";
  if (check_of(product, operands, kBias, operation.bias_element, &num_rows, 1, reason) != 0) return -1;
  reason = ", as the result";
  if (check_of(product, operands, kResidual, operation.d, result->extents, result->num_dims, reason) != 0) return -1;
  if (check_scale_out(product, operands, *result, 1) != 0) return -1;
  Mode leading;
  join(left, 0, left.ndim - 1, &leading);
  if (check_factors_of_d(product, operands, leading.extent, 1, result) != 0) return -1;
  return check_out(product, operands, *result);
}

int state_product(Product product, const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  Matrix a;
  Matrix b;
  Matrix d;
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  if (read_matrix(product, left_name(product), left, left.ndim - 1, &a) != 0) return -1;
  if (read_matrix(product, right_name(product), right, 1, &b) != 0) return -1;
  // Where b is a vector, D has one column and all dimensions of `out` are rows.
  if (read_matrix(product, "out", *operands[kOut], result.num_dims - (right.ndim - 1), &d) != 0) return -1;
  const Operation& operation = result.computed_by();
  if (is_packed(operation.a) && unpack(product, "x", &a) != 0) return -1;
  if (is_packed(operation.b) && unpack(product, "weight", &b) != 0) return -1;
  if (is_packed(operation.d) && unpack(product, "out", &d) != 0) return -1;
  const int rows = product == Product::kMatmul ? 1 : 0;  // which mode of the right operand is n
  if (operands[kBias] != nullptr) problem->bias = {data_of(*operands[kBias]), {0, stride_of(*operands[kBias], 0)}};
  problem->m = a.extents[0];
  problem->n = product == Product::kGatedLinear ? b.extents[rows] / 2 : b.extents[rows];
  problem->k = a.extents[1];
  problem->a = as_tensor(a);
  problem->b = {b.data, {b.strides[rows], b.strides[1 - rows]}};
  problem->d = as_tensor(d);
  if (operands.weights != nullptr && state_parts(operands, problem) != 0) return -1;
  if (state_factors_of_d(product, operands, problem) != 0) return -1;
  return state_others(product, operands, result, problem);
}

}  // namespace aot
