#include "group_operands.h"

#include <cinttypes>

#include "atoms.h"
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

int check_bias(const Operands& operands, const Result& result) {
  if (operands[kBias] == nullptr) return 0;
  const int64_t expected[] = {operands[kRight]->shape[0], operands[kRight]->shape[1]};
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
  const int64_t rows = weight.shape[weight.ndim - 2];
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

}  // namespace

int check_grouped(const Operands& operands, Result* result) {
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
  if (check_scale_out(kProduct, operands, *result, groups_k(operands) ? 1 : weight.shape[0]) != 0) return -1;
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
  problem->m = result.extents[0];
  problem->n = result.extents[1];
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
  if (operands[kScaleX] == nullptr) return 0;
  const Scale kind = operation.scale;
  if (kind == Scale::kAtoms) return state_narrow_factors(operands, operation, problem);
  if (state_scale(kProduct, "scale_x", *operands[kScaleX], kind, &problem->scale_a) != 0) return -1;
  return state_group_scale(*operands[kScaleW], kind, &problem->scale_b, &problem->group_strides.scale_b);
}

}  // namespace aot
