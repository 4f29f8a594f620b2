#include "packed_operands.h"

#include <cinttypes>

#include "refusal.h"
#include "scales.h"

namespace aot {

namespace {

constexpr Product kPackedProduct = Product::kPackedLinear;

// Checks that the bytes are those of a weight of so many rows, for the k of x.
int check_bytes(const DLTensor& x, const DLTensor& weight, const Options& options) {
  int64_t extents[2];
  if (check_packed_shape(kPackedProduct, x, options, extents) != 0) return -1;
  if (weight.ndim == 2 && weight.shape[0] == extents[0] && weight.shape[1] == extents[1]) return 0;
  return refuse("ShapeError", "packed_linear: weight has shape %s; expected %s, the bytes of %" PRId64 " rows of %s for x %s",
                shape_text(weight).characters, Text(extents, 2).characters, options.columns, word_of(options.weight_format),
                shape_text(x).characters);
}

// Checks the factors of the weight: one for each of its rows, or one for all.
int check_scale(const Operands& operands) {
  const DLTensor* scale = operands[kScaleW];
  const Options& options = operands.options;
  if (check_packed_scale(kPackedProduct, operands) != 0) return -1;
  if (scale == nullptr) return 0;
  if ((operands.weights != nullptr) != (operands.factors != nullptr)) {
    return refuse("OperandError", "packed_linear: got %s; expected factors of each of a gate's weights",
                  operands.factors == nullptr ? "one scale_w beside two weights" : "two scale_w beside one weight");
  }
  if (is_one_element(*scale) || (scale->ndim == 1 && scale->shape[0] == options.columns) ||
      (scale->ndim == 2 && scale->shape[0] == options.columns && scale->shape[1] == 1)) {
    return 0;
  }
  return refuse("ShapeError", "packed_linear: scale_w has shape %s; expected (1,), (%" PRId64 ",) or (%" PRId64 ", 1)",
                shape_text(*scale).characters, options.columns, options.columns);
}

// Checks that there are two weights where there is a gate.
int check_gate(const Operands& operands) {
  const bool has_gate = operands.options.epilogue != Epilogue::kNone;
  if (has_gate == (operands.weights != nullptr)) return 0;
  return refuse("OperandError", "packed_linear: got %s; expected two packed weights with a gate, and one without",
                has_gate ? "one weight of a gate" : "two weights and no gate");
}

// States where a gate's linear weight lies, and its factors: either may be in front of the gate's.
void state_linear(const Operands& operands, aot_gemm_problem_t* problem) {
  const auto step_of = [](const void* const* addresses) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(addresses[1]) - reinterpret_cast<uintptr_t>(addresses[0]));
  };
  problem->flags |= AOT_GEMM_GATE_PARTS;
  problem->group_strides.b = step_of(operands.weights);
  if (operands.factors != nullptr) problem->group_strides.scale_b = step_of(operands.factors) / bytes_of(Element::kFloat32);
}

}  // namespace

int check_packed_shape(Product product, const DLTensor& x, const Options& options, int64_t* shape) {
  const PackedFormat format = {options.weight_format};
  const int64_t k = x.ndim > 0 ? x.shape[x.ndim - 1] : 0;
  shape[0] = format.num_rows(options.columns);
  shape[1] = format.row_bytes(k);
  if (k % format.quantum() == 0) return 0;
  return refuse("ShapeError", "%s: x %s has k %" PRId64 "; expected a multiple of %" PRId64 ", of which weights of %s are packed",
                product_name(product), shape_text(x).characters, k, format.quantum(), word_of(options.weight_format));
}

int check_packed_scale(Product product, const Operands& operands) {
  const DLTensor* scale = operands[kScaleW];
  const WeightFormat format = operands.options.weight_format;
  const bool is_scaled = kWeightHasRowFactors[static_cast<int32_t>(format)];
  if ((scale != nullptr) != is_scaled) {
    return refuse("OperandError", "%s: got %s; expected %s, as weights of %s have", product_name(product),
                  scale == nullptr ? "no scale_w" : "scale_w",
                  is_scaled ? "float32 factors, one or one for each row" : "none", word_of(format));
  }
  return scale == nullptr ? 0 : check_tensor_of(product, "scale_w", *scale, *operands[kLeft], Element::kFloat32);
}

int check_packed_linear(const Operands& operands, Result* result) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  const Options& options = operands.options;
  Request request = {};
  request.factor_d = Element::kFloat32;
  if (check_tensor(kPackedProduct, "x", x, x, &request.a) != 0) return -1;
  if (check_tensor_of(kPackedProduct, "weight", weight, x, Element::kUint8) != 0) return -1;
  if (x.ndim < 1) return refuse("ShapeError", "packed_linear: x has shape (); expected (..., k)");
  if (check_gate(operands) != 0 || check_bytes(x, weight, options) != 0) return -1;
  request.b = Element::kUint8;
  request.weight = options.weight_format;
  request.epilogue = options.epilogue;
  request.scale = operands[kScaleW] == nullptr ? Scale::kNone : Scale::kVector;
  request.has_bias = operands[kBias] != nullptr;
  if (find_element_of_out(kPackedProduct, operands, request.a, &request.d) != 0) return -1;
  if (check_scale(operands) != 0) return -1;
  result->operation = find_operation(request);
  if (result->operation < 0) return refuse(kNoOperation, "%s", write_request(kPackedProduct, request).characters);
  result->num_dims = x.ndim;
  for (int32_t i = 0; i + 1 < x.ndim; ++i) result->extents[i] = x.shape[i];
  result->extents[x.ndim - 1] = options.columns;
  const bool has_gate = result->computed_by().has_gate();
  const int64_t of_rows[] = {has_gate ? times(2, options.columns) : options.columns};
  const char* reason = has_gate ? ", an element for each row of both weights, the gate's first" : ", an element for each row of the weight";
  if (check_of(kPackedProduct, operands, kBias, result->computed_by().bias_element, of_rows, 1, reason) != 0) return -1;
  return check_out(kPackedProduct, operands, *result);
}

int state_packed_linear(const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  Matrix a;
  Matrix d;
  Mode bytes;
  const DLTensor& weight = *operands[kRight];
  if (read_matrix(kPackedProduct, "x", *operands[kLeft], operands[kLeft]->ndim - 1, &a) != 0) return -1;
  if (read_matrix(kPackedProduct, "out", *operands[kOut], result.num_dims - 1, &d) != 0) return -1;
  if (!join(weight, 0, 2, &bytes) || (bytes.extent > 1 && bytes.stride != 1)) {
    return refuse("StrideError", "packed_linear: weight of shape %s has the strides %s; expected bytes that are adjacent; make it "
                  "contiguous", shape_text(weight).characters, stride_text(weight).characters);
  }
  if (operands[kBias] != nullptr) problem->bias = {data_of(*operands[kBias]), {0, stride_of(*operands[kBias], 0)}};
  problem->m = a.extents[0];
  problem->n = d.extents[1];
  problem->k = a.extents[1];
  problem->a = {a.data, {a.strides[0], a.strides[1]}};
  problem->b = {data_of(weight), {0, 0}};
  problem->d = {d.data, {d.strides[0], d.strides[1]}};
  if (operands.weights != nullptr) state_linear(operands, problem);
  if (operands[kScaleW] == nullptr) return 0;
  return state_scale(kPackedProduct, "scale_w", *operands[kScaleW], Scale::kVector, &problem->scale_b);
}

}  // namespace aot
