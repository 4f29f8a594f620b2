#include "row_problem.h"

#include <cinttypes>

#include "checks.h"
#include "error.h"

namespace aot {

namespace {

aot_gemm_status_t check_flags(const aot_rows_problem_t& problem, const RowOperation& operation) {
  const bool takes_scale = operation.scale == RowScale::kRow;
  const bool has_halves = operation.is_pair() || operation.is_rotary();
  const uint64_t known = (takes_scale ? AOT_ROWS_SCALE_GIVEN : 0) | (has_halves ? AOT_ROWS_INTERLEAVED : 0) |
                         (operation.has_offset() ? AOT_ROWS_ROUND_NORM : 0) |
                         (operation.takes_groups() && problem.num_groups > 0 ? AOT_ROWS_OFFSETS_START : 0);
  if ((problem.flags & ~known) == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT,
              "flags are 0x%" PRIx64 "; %s takes of AOT_ROWS_SCALE_GIVEN (0x%" PRIx64 "), AOT_ROWS_INTERLEAVED (0x%" PRIx64
              "), AOT_ROWS_ROUND_NORM (0x%" PRIx64 ") and, of groups, AOT_ROWS_OFFSETS_START (0x%" PRIx64 ") those of 0x%" PRIx64,
              problem.flags, operation.tag, AOT_ROWS_SCALE_GIVEN, AOT_ROWS_INTERLEAVED, AOT_ROWS_ROUND_NORM,
              AOT_ROWS_OFFSETS_START, known);
}

// Checks how many groups and rows of X there are; the operands themselves with all others.
aot_gemm_status_t check_groups(const aot_rows_problem_t& problem, const RowOperation& operation) {
  const bool is_grouped = problem.num_groups != 0;
  if (is_grouped && !operation.takes_groups()) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "num_groups is %" PRId64 ", of groups, which %s does not take; expected 0",
                problem.num_groups, operation.tag);
  }
  aot_gemm_status_t status = check_extent("num_groups", problem.num_groups, kMaxRowGroups);
  if (status == AOT_GEMM_OK) status = check_extent("rows_of_x", problem.rows_of_x);
  if (status != AOT_GEMM_OK || is_grouped) return status;
  if (problem.offsets.data != nullptr || problem.index.data != nullptr || problem.rows_of_x != 0) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got offsets, an index or rows_of_x, and num_groups is 0; expected 1 or more, or none "
                "of these");
  }
  return AOT_GEMM_OK;
}

// Checks how many keys and values there are, and where they go; the operands themselves with all others.
aot_gemm_status_t check_extents_of_cache(const aot_rows_problem_t& problem) {
  aot_gemm_status_t status = check_extent("key_heads", problem.key_heads);
  if (status == AOT_GEMM_OK) status = check_extent("cache_length", problem.cache_length);
  if (status == AOT_GEMM_OK) status = check_extent("num_positions", problem.num_positions);
  if (status != AOT_GEMM_OK) return status;
  if (problem.key_heads == 0) {
    const bool has_some = problem.keys.data != nullptr || problem.values.data != nullptr || problem.key_cache.data != nullptr ||
                          problem.value_cache.data != nullptr || problem.cache_position.data != nullptr;
    if (!has_some && problem.cache_length == 0 && problem.num_positions == 0) return AOT_GEMM_OK;
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got keys, values, a cache or its extents, and key_heads is 0; expected 1 or more, or "
                "none of these");
  }
  if (problem.heads == 0) {
    return fail(AOT_GEMM_ERROR_SHAPE, "heads is 0 beside %" PRId64 " key_heads; expected at least 1", problem.key_heads);
  }
  const bool has_all = problem.rows == 0 || (problem.num_positions > 0 && problem.rows % problem.num_positions == 0);
  if (has_all && (problem.rows == 0 || problem.cache_length > 0)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE, "num_positions is %" PRId64 " and cache_length %" PRId64 ", of %" PRId64 " tokens; expected a "
              "position for each token of a sequence, of which the tokens are a multiple, and a cache that has one",
              problem.num_positions, problem.cache_length, problem.rows);
}

aot_gemm_status_t check_heads(const aot_rows_problem_t& problem) {
  aot_gemm_status_t status = check_extent("heads", problem.heads);
  if (status == AOT_GEMM_OK) status = check_extents_of_cache(problem);
  const int64_t heads = problem.heads + 2 * problem.key_heads;
  if (status == AOT_GEMM_OK && heads > 0 && problem.rows > kMaxExtent / heads) {
    return fail(AOT_GEMM_ERROR_SHAPE,
                "there are %" PRId64 " tokens of %" PRId64 " heads; expected up to %" PRId64 " heads in all; split the problem",
                problem.rows, heads, kMaxExtent);
  }
  const int64_t least = problem.rows > 0 ? 1 : 0;
  if (status == AOT_GEMM_OK && (problem.positions < least || problem.positions > kMaxExtent)) {
    return fail(AOT_GEMM_ERROR_SHAPE, "positions is %" PRId64 "; expected 1 to %" PRId64 ", the rows of cos and sin",
                problem.positions, kMaxExtent);
  }
  const bool is_legal = problem.rotary_dim >= 0 && problem.rotary_dim <= problem.cols && problem.rotary_dim % 2 == 0;
  if (status != AOT_GEMM_OK || is_legal) return status;
  return fail(AOT_GEMM_ERROR_SHAPE, "rotary_dim is %" PRId64 "; expected an even number up to the %" PRId64
              " elements of a head", problem.rotary_dim, problem.cols);
}

aot_gemm_status_t check_extents(const aot_rows_problem_t& problem, const RowOperation& operation) {
  aot_gemm_status_t status = check_extent("rows", problem.rows);
  if (status == AOT_GEMM_OK) status = check_extent("cols", problem.cols, operation.is_pair() ? kMaxExtent / 2 : kMaxCols);
  if (status == AOT_GEMM_OK && is_packed(operation.y) && problem.cols % kElementsInByte != 0) {
    return fail(AOT_GEMM_ERROR_SHAPE, "cols is %" PRId64 "; expected an even number of elements of 4 bits, two of which are a "
                "byte; pad x with zeros", problem.cols);
  }
  if (status != AOT_GEMM_OK) return status;
  if (operation.is_rotary()) return check_heads(problem);
  const bool has_cache = problem.key_heads != 0 || problem.cache_length != 0 || problem.num_positions != 0;
  if (has_cache) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "key_heads, cache_length and num_positions are %" PRId64 ", %" PRId64 " and %" PRId64
                ", which %s does not take; expected 0", problem.key_heads, problem.cache_length, problem.num_positions,
                operation.tag);
  }
  if (problem.heads == 0 && problem.positions == 0 && problem.rotary_dim == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT,
              "heads, positions and rotary_dim are %" PRId64 ", %" PRId64 " and %" PRId64 ", which %s does not take; expected 0",
              problem.heads, problem.positions, problem.rotary_dim, operation.tag);
}

aot_gemm_status_t check_which(const aot_rows_problem_t& problem, const RowOperation& operation) {
  const uint64_t given =
      bit_if_given(Argument::kResidual, problem.residual.data) | bit_if_given(Argument::kWeight, problem.weight.data) |
      bit_if_given(Argument::kResidualOut, problem.residual_out.data) | bit_if_given(Argument::kBias, problem.bias.data) |
      bit_if_given(Argument::kCos, problem.cos.data) | bit_if_given(Argument::kSin, problem.sin.data) |
      bit_if_given(Argument::kScale, problem.scale.data) | bit_if_given(Argument::kTensorScale, problem.tensor_scale.data) |
      bit_if_given(Argument::kOffsets, problem.offsets.data) | bit_if_given(Argument::kIndex, problem.index.data) |
      bit_if_given(Argument::kKeys, problem.keys.data) | bit_if_given(Argument::kValues, problem.values.data) |
      bit_if_given(Argument::kKeyCache, problem.key_cache.data) |
      bit_if_given(Argument::kValueCache, problem.value_cache.data) |
      bit_if_given(Argument::kCachePosition, problem.cache_position.data);
  const aot_gemm_status_t status = check_absent(given, operation.arguments, operation.tag);
  if (status != AOT_GEMM_OK) return status;
  if (problem.residual_out.data != nullptr && problem.residual.data == nullptr) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got residual_out and no residual, whose sum with x it is for; expected both, or none");
  }
  return AOT_GEMM_OK;
}

// The alignment and last stride of one operand, as `takes` asks for them.
struct Alignment {
  int64_t bytes;
  int64_t elements;  // that they are

  bool holds(const void* data) const { return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0; }
  // Any stride may come here, of a problem without elements: it is divided, since a product could overflow.
  bool holds_stride(int64_t extent, int64_t stride) const { return extent <= 1 || stride % elements == 0; }

  // Says so of an operand of two dimensions, that there may not be.
  bool holds(const aot_rows_tensor_t& tensor, int64_t rows, int64_t columns) const {
    return holds(tensor.data) && holds_stride(rows, tensor.strides[0]) && (columns <= 1 || tensor.strides[1] == 1);
  }

  bool holds_heads(const aot_rows_tensor_t& tensor, int64_t heads, const aot_rows_problem_t& problem) const {
    return holds(tensor.data) && holds_stride(problem.rows, tensor.strides[0]) && holds_stride(heads, tensor.strides[1]) &&
           (problem.cols <= 1 || tensor.strides[2] == 1);
  }

  bool holds_cache(const aot_rows_tensor_t& tensor, const aot_rows_problem_t& problem) const {
    return holds(tensor.data) && holds_stride(num_sequences(problem), tensor.strides[0]) &&
           holds_stride(problem.cache_length, tensor.strides[1]) && holds_stride(problem.key_heads, tensor.strides[2]);
  }
};

bool takes_cache(const aot_rows_problem_t& problem, const Alignment& alignment) {
  return alignment.holds_heads(problem.keys, problem.key_heads, problem) &&
         alignment.holds_heads(problem.values, problem.key_heads, problem) &&
         alignment.holds_cache(problem.key_cache, problem) && alignment.holds_cache(problem.value_cache, problem);
}

bool takes_rotary(int64_t multiple, const aot_rows_problem_t& problem, const Alignment& alignment) {
  const int64_t half = problem.rotary_dim / 2;
  return half % multiple == 0 && alignment.holds_heads(problem.x, problem.heads, problem) &&
         alignment.holds_heads(problem.y, problem.heads, problem) && alignment.holds(problem.cos, problem.positions, half) &&
         alignment.holds(problem.sin, problem.positions, half) &&
         (problem.key_heads == 0 || takes_cache(problem, alignment));
}

Tensor matrix_of(const aot_rows_tensor_t& tensor, int64_t rows, int64_t columns) {
  return {tensor.data, {static_cast<int32_t>(rows), static_cast<int32_t>(columns)}, {tensor.strides[0], tensor.strides[1]}};
}

RowOperand operand_of(const aot_rows_tensor_t& tensor, int64_t rows, int64_t columns) {
  RowOperand operand;
  operand.matrix = matrix_of(tensor, rows, columns);
  return operand;
}

RowOperand heads_of(const aot_rows_tensor_t& tensor, int64_t heads, const aot_rows_problem_t& problem) {
  const auto rows = static_cast<int32_t>(problem.rows);
  RowOperand operand;
  operand.heads = {tensor.data, {rows, static_cast<int32_t>(heads), static_cast<int32_t>(problem.cols)},
                   {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
  return operand;
}

CacheTensor cache_of(const aot_rows_tensor_t& tensor, const aot_rows_problem_t& problem) {
  return {tensor.data,
          {static_cast<int32_t>(num_sequences(problem)), static_cast<int32_t>(problem.cache_length),
           static_cast<int32_t>(problem.key_heads), static_cast<int32_t>(problem.cols)},
          {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
}

int32_t flags_of(const aot_rows_problem_t& problem) {
  return (problem.residual.data != nullptr ? kHasResidual : 0) | (problem.weight.data != nullptr ? kHasWeight : 0) |
         (problem.bias.data != nullptr ? kHasBias : 0) | (problem.residual_out.data != nullptr ? kHasResidualOut : 0) |
         ((problem.flags & AOT_ROWS_SCALE_GIVEN) != 0 ? kScaleIsGiven : 0) |
         ((problem.flags & AOT_ROWS_INTERLEAVED) != 0 ? kIsInterleaved : 0) |
         ((problem.flags & AOT_ROWS_ROUND_NORM) != 0 ? kRoundsNorm : 0) |
         (problem.offsets.data != nullptr ? kHasOffsets : 0) | (problem.index.data != nullptr ? kHasIndex : 0) |
         ((problem.flags & AOT_ROWS_OFFSETS_START) != 0 ? kOffsetsStart : 0);
}

}  // namespace

aot_gemm_status_t check_rows(const aot_rows_problem_t& problem, int32_t* index) {
  aot_gemm_status_t status = find_row_operation(problem.operation, index);
  if (status != AOT_GEMM_OK) return status;
  const RowOperation& operation = kRowOperations[*index];
  status = check_flags(problem, operation);
  if (status == AOT_GEMM_OK) status = check_extents(problem, operation);
  if (status == AOT_GEMM_OK) status = check_which(problem, operation);
  if (status == AOT_GEMM_OK) status = check_groups(problem, operation);
  if (status != AOT_GEMM_OK || is_empty(problem, operation)) return status;
  return check_memory_of_rows(problem, operation);
}

bool takes(int32_t index, const aot_rows_problem_t& problem, const RowOperation& operation) {
  const Kernel& kernel = kKernels[index];
  const int64_t multiple = kMultiples[index].n;
  if (problem.cols > kernel.max_columns || problem.cols % multiple != 0) return false;
  if (kernel.num_strides == 2) return true;
  const int64_t x_bytes = bytes_of(operation.x);
  const int64_t elements = kernel.load_alignment / x_bytes;  // of X in a vector, and so of Y
  const Alignment alignment = {kernel.load_alignment, elements};
  if (operation.is_rotary()) return takes_rotary(multiple, problem, alignment);
  const Alignment of_y = {size_of(operation.y, elements), elements};
  return alignment.holds(problem.x, rows_of_x(problem), columns_of_x(problem, operation)) &&
         of_y.holds(problem.y, problem.rows, problem.cols) &&
         (problem.residual.data == nullptr || alignment.holds(problem.residual, problem.rows, problem.cols)) &&
         (problem.residual_out.data == nullptr || alignment.holds(problem.residual_out, problem.rows, problem.cols)) &&
         alignment.holds(problem.weight.data) && alignment.holds(problem.bias.data);
}

aot_rows_problem_t packed_rows(int32_t id, int64_t rows, int64_t cols) {
  aot_rows_problem_t problem = {};
  problem.struct_bytes = sizeof(problem);
  problem.operation = id;
  problem.device = -1;
  problem.rows = rows;
  problem.cols = cols;
  int32_t index = 0;
  if (find_row_operation(id, &index) != AOT_GEMM_OK) return problem;
  const RowOperation& operation = kRowOperations[index];
  if (!operation.has_factors()) problem.scale = {nullptr, {scales_of_row(problem, operation), 1, 0}};
  problem.x = {nullptr, {columns_of_x(problem, operation), 1, 0}};
  problem.y = {nullptr, {cols, 1, 0}};
  if (!operation.is_rotary()) return problem;
  problem.heads = problem.positions = 1;
  problem.rotary_dim = cols / 2 * 2;
  problem.x = problem.y = {nullptr, {cols, cols, 1}};
  problem.cos = problem.sin = {nullptr, {problem.rotary_dim / 2, 1, 0}};
  return problem;
}

RowOperands write_rows(const aot_rows_problem_t& problem, const RowOperation& operation) {
  RowOperands operands = {};
  const auto cols = static_cast<int32_t>(problem.cols);
  if (operation.is_rotary()) {
    operands.x = heads_of(problem.x, problem.heads, problem);
    operands.y = heads_of(problem.y, problem.heads, problem);
    operands.keys = heads_of(problem.keys, problem.key_heads, problem);
    operands.values = heads_of(problem.values, problem.key_heads, problem);
    operands.key_cache = cache_of(problem.key_cache, problem);
    operands.value_cache = cache_of(problem.value_cache, problem);
    operands.cache_position = {problem.cache_position.data, {static_cast<int32_t>(problem.num_positions)}};
    operands.cos = matrix_of(problem.cos, problem.positions, problem.rotary_dim / 2);
    operands.sin = matrix_of(problem.sin, problem.positions, problem.rotary_dim / 2);
  } else {
    operands.x = operand_of(problem.x, rows_of_x(problem), columns_of_x(problem, operation));
    operands.y = operand_of(problem.y, problem.rows, problem.cols);
    operands.residual = operand_of(problem.residual, problem.rows, problem.cols);
    operands.residual_out = operand_of(problem.residual_out, problem.rows, problem.cols);
    operands.weight = {problem.weight.data, {cols}};
    operands.bias = {problem.bias.data, {cols}};
    operands.scale = matrix_of(scales_of(problem, operation), rows_of_scales(problem, operation),
                               scales_of_row(problem, operation));
    operands.tensor_scale = {problem.tensor_scale.data, {1}};
    operands.offsets = {problem.offsets.data, {static_cast<int32_t>(num_offsets(problem))}};
    operands.index = {problem.index.data, {static_cast<int32_t>(problem.rows)}};
  }
  operands.eps = problem.eps;
  operands.weight_offset = problem.weight_offset;
  operands.flags = flags_of(problem);
  return operands;
}

}  // namespace aot
