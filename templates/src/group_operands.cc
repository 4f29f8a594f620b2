#include "group_operands.h"

#include <cinttypes>

#include "atoms.h"
#include "packed_operands.h"
#include "product_operands.h"
#include "refusal.h"
#include "scales.h"

namespace aot {

namespace {

constexpr Product kProduct = Product::kGroupedLinear;

bool is_gate(Epilogue epilogue) { return epilogue == Epilogue::kSwiglu || epilogue == Epilogue::kGeglu; }

// Says whether the groups are runs of k, and each has a result of its own: the weight is one matrix then.
bool groups_k(const Operands& operands) { return operands[kRight]->ndim == 2; }

int check_shapes(const Operands& operands, bool have_one_k) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  if (x.ndim != 2 || (weight.ndim != 3 && weight.ndim != 2) || (weight.ndim == 3 && weight.shape[0] == 0)) {
    return refuse("ShapeError", "grouped_linear: got x %s and weight %s; expected x (rows, k) and weight (groups, n, k), of "
                  "one group or more, or (n, k) where the groups are runs of k", shape_text(x).characters,
                  shape_text(weight).characters);
  }
  const int64_t k = weight.shape[weight.ndim - 1];
  if (have_one_k && x.shape[1] != k) {
    return refuse("ShapeError", "grouped_linear: x %s has k %" PRId64 ", weight %s has k %" PRId64 "; expected one k",
                  shape_text(x).characters, x.shape[1], shape_text(weight).characters, k);
  }
  if (groups_k(operands)) return 0;
  if (!is_gate(operands.options.epilogue) || weight.shape[1] % 2 == 0) return 0;
  return refuse("ShapeError", "grouped_linear: weight has shape %s; expected an even number of rows in each group, those of "
                "the gate and as many linear ones", shape_text(weight).characters);
}

int check_offsets_of_k(const Operands& operands) {
  if (operands[kIndex] != nullptr) {
    return refuse("OperandError", "grouped_linear: got an index beside a weight %s, whose groups are runs of k; an index is of "
                  "rows; leave it away", shape_text(*operands[kRight]).characters);
  }
  if (operands[kOffsets]->shape[0] > 0) return 0;
  return refuse("ShapeError", "grouped_linear: offsets has shape (0,); expected where each run of k ends, one or more");
}

int check_offsets(const Operands& operands) {
  if (operands[kOffsets] == nullptr) {
    return refuse("OperandError", "grouped_linear: offsets is None; expected an int32 tensor in GPU memory, where each group "
                  "ends");
  }
  const DLTensor& offsets = *operands[kOffsets];
  if (check_integers(kProduct, "offsets", offsets, *operands[kLeft]) != 0) return -1;
  if (groups_k(operands)) return check_offsets_of_k(operands);
  if (operands[kIndex] != nullptr && check_integers(kProduct, "index", *operands[kIndex], *operands[kLeft]) != 0) return -1;
  const int64_t groups = operands[kRight]->shape[0];
  const int64_t num_more = offsets.shape[0] - groups;
  if (num_more == 0 || num_more == 1) return 0;
  return refuse("ShapeError", "grouped_linear: offsets has shape %s, weight %s; expected (%" PRId64 ",), where each group ends, "
                "or (%" PRIu64 ",), the first group's start in front", shape_text(offsets).characters,
                shape_text(*operands[kRight]).characters, groups, static_cast<uint64_t>(groups) + 1);
}

// Checks that a list of factors is one for each group, and of such as lie in atoms: others are small, and a tensor of all.
int check_list_of_factors(const Operands& operands) {
  if (operands.factors == nullptr) return 0;
  const DLTensor& weight = *operands[kRight];
  const int64_t groups = groups_k(operands) ? 1 : weight.shape[0];
  if (operands[kScaleW]->dtype.bits != 8 || groups_k(operands)) {
    return refuse("OperandError", "grouped_linear: scale_w is a list of %" PRId64 " tensors of %d bits, beside weight %s; expected a list of "
                  "atoms of NVFP4 or MXFP8, beside weights of groups of rows; stack other factors, which are small",
                  operands.num_factors, operands[kScaleW]->dtype.bits, shape_text(weight).characters);
  }
  if (operands.num_factors == groups) return 0;
  return refuse("ShapeError", "grouped_linear: scale_w is a list of %" PRId64 " tensors, beside weight %s; expected %" PRId64
                ", one for each group", operands.num_factors, shape_text(weight).characters, groups);
}

Grouping grouping_of(const Operands& operands) {
  if (groups_k(operands)) return Grouping::kKgrouped;
  return operands[kIndex] == nullptr ? Grouping::kGrouped : Grouping::kGathered;
}

// Says whether the weights are packed, bytes that do not tell their rows.
bool are_packed_weights(const Operands& operands) { return operands.options.weight_format != WeightFormat::kNone; }

int check_bias(const Operands& operands, const Result& result) {
  if (operands[kBias] == nullptr) return 0;
  const DLTensor& weight = *operands[kRight];
  const int64_t expected[] = {weight.shape[0], are_packed_weights(operands) ? operands.options.columns : weight.shape[1]};
  if (check_of(kProduct, operands, kBias, result.computed_by().bias_element, expected, 2,
               ", an element for each row of each group's weight") != 0) {
    return -1;
  }
  const DLTensor& bias = *operands[kBias];
  if (expected[1] <= 1 || stride_of(bias, 1) == 1) return 0;
  return refuse("StrideError", "grouped_linear: bias has the strides %s; expected a group's elements adjacent; make it "
                "contiguous", stride_text(bias).characters);
}

void find_extents(const Operands& operands, Result* result) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  result->num_dims = 0;
  if (groups_k(operands)) result->extents[result->num_dims++] = operands[kOffsets]->shape[0];
  result->extents[result->num_dims++] = operands[kIndex] == nullptr ? x.shape[0] : operands[kIndex]->shape[0];
  const int64_t rows = are_packed_weights(operands) ? operands.options.columns : weight.shape[weight.ndim - 2];
  result->extents[result->num_dims++] = is_gate(operands.options.epilogue) ? rows / 2 : rows;
}

int check_matrix(const char* name, const DLTensor& tensor, Matrix* matrix) {
  if (read_matrix(tensor, 1, matrix)) return 0;
  return refuse("StrideError", "grouped_linear: %s of shape %s and strides %s is not one matrix in memory; make it contiguous",
                name, shape_text(tensor).characters, stride_text(tensor).characters);
}

// Counts in elements the strides of weights that were read as bytes that hold two each.
int unpack_weights(const DLTensor& weight, aot_gemm_problem_t* problem) {
  Matrix rows = {problem->b.data, {weight.shape[1], weight.shape[2]}, {problem->b.strides[0], problem->b.strides[1]}};
  if (unpack(kProduct, "weight", &rows) != 0) return -1;
  problem->b.strides[0] = rows.strides[0];
  problem->b.strides[1] = rows.strides[1];
  int64_t* const step = &problem->group_strides.b;
  if (__builtin_mul_overflow(*step, kElementsInByte, step)) *step = INT64_MAX;
  return 0;
}

// States factors in atoms, and the factors of groups' own.
int state_narrow_factors(const Operands& operands, const Operation& operation, aot_gemm_problem_t* problem) {
  if (state_atoms(kProduct, "scale_x", *operands[kScaleX], &problem->scale_a) != 0) return -1;
  if (operands.factors != nullptr) {
    problem->scale_b_of_groups = operands.factors;
  } else {
    if (state_atoms(kProduct, "scale_w", *operands[kScaleW], &problem->scale_b) != 0) return -1;
    problem->group_strides.scale_b = operation.atoms.num_bytes(operands[kRight]->shape[1], problem->k);
  }
  if (operands[kScaleD] != nullptr) problem->scale_d = {data_of(*operands[kScaleD]), {1, 1}};
  return 0;
}

// States runs of k, each of which has a result of its own.
int state_runs_of_k(const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  const DLTensor& out = *operands[kOut];
  problem->m = x.shape[0];
  problem->n = weight.shape[0];
  problem->k = x.shape[1];
  problem->a = {data_of(x), {stride_of(x, 0), stride_of(x, 1)}};
  problem->b = {data_of(weight), {stride_of(weight, 0), stride_of(weight, 1)}};
  problem->d = {data_of(out), {stride_of(out, 1), stride_of(out, 2)}};
  problem->num_groups = result.extents[0];
  problem->group_strides.d = stride_of(out, 0);
  problem->offsets = {data_of(*operands[kOffsets]), {1, 1}};
  return 0;
}

// Checks x and the bytes of packed weights, one for each group.
int check_packed_shapes(const Operands& operands) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  const Options& options = operands.options;
  if (x.ndim != 2 || weight.ndim != 3 || weight.shape[0] == 0) {
    return refuse("ShapeError", "grouped_linear: got x %s and packed weight %s; expected x (rows, k) and weight (groups, rows, bytes), "
                  "of one group or more", shape_text(x).characters, shape_text(weight).characters);
  }
  int64_t extents[] = {weight.shape[0], 0, 0};
  if (check_packed_shape(kProduct, x, options, extents + 1) != 0) return -1;
  if (weight.shape[1] == extents[1] && weight.shape[2] == extents[2]) return 0;
  return refuse("ShapeError", "grouped_linear: packed weight has shape %s; expected %s, the bytes of %" PRId64 " rows of %s in each group "
                "for x %s", shape_text(weight).characters, Text(extents, 3).characters, options.columns,
                word_of(options.weight_format), shape_text(x).characters);
}

// Checks the factors of packed weights: one for all, one for each group, or one for each row.
int check_packed_factors(const Operands& operands) {
  if (check_packed_scale(kProduct, operands) != 0) return -1;
  const DLTensor* scale = operands[kScaleW];
  if (scale == nullptr || is_one_element(*scale)) return 0;
  const int64_t expected[] = {operands[kRight]->shape[0], operands.options.columns};
  if (have_shape(*scale, expected, 1) || have_shape(*scale, expected, 2)) return 0;
  return refuse("ShapeError", "grouped_linear: scale_w has shape %s; expected (1,), (%" PRId64 ",) or (%" PRId64 ", %" PRId64 ")",
                shape_text(*scale).characters, expected[0], expected[0], expected[1]);
}

// Checks groups of packed weights, and finds the operation.
int check_packed_groups(const Operands& operands, Result* result) {
  const DLTensor& x = *operands[kLeft];
  Request request = {};
  if (check_tensor(kProduct, "x", x, x, &request.a) != 0) return -1;
  if (check_tensor_of(kProduct, "weight", *operands[kRight], x, Element::kUint8) != 0) return -1;
  if (check_packed_shapes(operands) != 0 || check_offsets(operands) != 0 || check_packed_factors(operands) != 0) return -1;
  request.b = Element::kUint8;
  request.factor_d = Element::kFloat32;
  request.weight = operands.options.weight_format;
  request.epilogue = operands.options.epilogue;
  request.scale = operands[kScaleW] == nullptr ? Scale::kNone : Scale::kVector;
  request.grouping = grouping_of(operands);
  request.has_bias = operands[kBias] != nullptr;
  if (find_element_of_out(kProduct, operands, request.a, &request.d) != 0) return -1;
  result->operation = find_operation(request);
  return result->operation >= 0 ? 0 : refuse(kNoOperation, "%s", write_request(kProduct, request).characters);
}

// States the bytes of packed weights.
int state_packed_weights(const DLTensor& weight, aot_gemm_problem_t* problem) {
  Mode bytes;
  problem->b.strides[0] = problem->b.strides[1] = 0;
  if (join(weight, 1, 3, &bytes) && (bytes.extent <= 1 || bytes.stride == 1)) return 0;
  return refuse("StrideError", "grouped_linear: packed weight of shape %s has the strides %s; expected a group's bytes adjacent; make it "
                "contiguous", shape_text(weight).characters, stride_text(weight).characters);
}

}  // namespace

int check_grouped(const Operands& operands, Result* result) {
  if (are_packed_weights(operands)) {
    if (check_packed_groups(operands, result) != 0) return -1;
    find_extents(operands, result);
    return check_bias(operands, *result) == 0 ? check_out(kProduct, operands, *result) : -1;
  }
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  Element a;
  Element b;
  if (check_packable(kProduct, "x", x, x, &a) != 0 || check_packable(kProduct, "weight", weight, x, &b) != 0) return -1;
  if (check_shapes(operands, is_packed(a) == is_packed(b)) != 0 || check_offsets(operands) != 0) return -1;
  if (check_list_of_factors(operands) != 0) return -1;
  if (resolve(kProduct, operands, grouping_of(operands), a, b, &result->operation) != 0) return -1;
  find_extents(operands, result);
  if (check_bias(operands, *result) != 0) return -1;
  const int64_t groups = groups_k(operands) ? 1 : weight.shape[0];
  if (check_scale_out(kProduct, operands, *result, groups) != 0) return -1;
  if (check_factors_of_d(kProduct, operands, result->extents[0], groups, result) != 0) return -1;
  return check_out(kProduct, operands, *result);
}

int state_grouped(const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  if (groups_k(operands)) return state_runs_of_k(operands, result, problem);
  Matrix a;
  Matrix d;
  const DLTensor& weight = *operands[kRight];
  if (check_matrix("x", *operands[kLeft], &a) != 0 || check_matrix("out", *operands[kOut], &d) != 0) return -1;
  problem->b = {data_of(weight), {stride_of(weight, 1), stride_of(weight, 2)}};
  problem->group_strides.b = stride_of(weight, 0);
  const Operation& operation = result.computed_by();
  if (is_packed(operation.a) && unpack(kProduct, "x", &a) != 0) return -1;
  if (is_packed(operation.b) && unpack_weights(weight, problem) != 0) return -1;
  if (is_packed(operation.d) && unpack(kProduct, "out", &d) != 0) return -1;
  if (operation.weight.is_packed() && state_packed_weights(weight, problem) != 0) return -1;
  problem->m = result.extents[0];
  problem->n = d.extents[1];
  problem->k = a.extents[1];
  problem->a = {a.data, {a.strides[0], a.strides[1]}};
  problem->d = {d.data, {d.strides[0], d.strides[1]}};
  problem->num_groups = weight.shape[0];
  if (operands.weights != nullptr) {
    problem->b.data = nullptr;
    problem->group_strides.b = 0;
    problem->b_of_groups = operands.weights;
  }
  problem->offsets = {data_of(*operands[kOffsets]), {1, 1}};
  if (operands[kOffsets]->shape[0] > weight.shape[0]) problem->flags |= AOT_GEMM_OFFSETS_START;
  if (operands[kIndex] != nullptr) {
    problem->index = {data_of(*operands[kIndex]), {1, 1}};
    problem->rows_of_a = a.extents[0];
  }
  if (operands[kBias] != nullptr) {
    problem->bias = {data_of(*operands[kBias]), {0, 1}};
    problem->group_strides.bias = stride_of(*operands[kBias], 0);
  }
  if (state_factors_of_d(kProduct, operands, problem) != 0) return -1;
  if (operands[kScaleW] == nullptr) return 0;
  const Scale kind = operation.scale;
  if (kind == Scale::kAtoms) return state_narrow_factors(operands, operation, problem);
  if (operands[kScaleX] != nullptr && state_scale(kProduct, "scale_x", *operands[kScaleX], kind, &problem->scale_a) != 0) {
    return -1;
  }
  return state_group_scale(*operands[kScaleW], kind, &problem->scale_b, &problem->group_strides.scale_b);
}

}  // namespace aot
