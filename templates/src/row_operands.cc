#include "row_operands.h"

#include <cstring>
#include <initializer_list>

#include "checks.h"
#include "operands.h"
#include "refusal.h"
#include "row_cache_operands.h"
#include "row_group_operands.h"

namespace aot {

namespace {

RowFunction function_of(Product product, const Options& options) {
  if (product == Product::kRows) return options.function;
  return static_cast<RowFunction>(static_cast<int32_t>(product) - static_cast<int32_t>(Product::kRmsNorm));
}

// Checks the dimensions of x, and works out the shape of y.
int find_shape(Product product, const DLTensor& x, Result* result) {
  const RowOperation& operation = result->computed_on_rows();
  const int32_t least = operation.is_rotary() ? 2 : 1;
  if (x.ndim < least) {
    return refuse("ShapeError", "%s: x has shape %s; expected %s", product_name(product), shape_text(x).characters,
                  least == 2 ? "(..., heads, dim)" : "(..., cols)");
  }
  result->num_dims = x.ndim;
  std::memcpy(result->extents, x.shape, static_cast<size_t>(x.ndim) * sizeof(int64_t));
  int64_t& cols = result->extents[x.ndim - 1];
  if (operation.is_pair()) {
    if (cols % 2 != 0) {
      return refuse("ShapeError", "%s: x has shape %s; expected an even last extent: the gate's elements and as many linear ones",
                    product_name(product), shape_text(x).characters);
    }
    cols /= 2;
  }
  result->cols = cols;
  if (!is_packed(operation.y)) return 0;
  if (cols % kElementsInByte != 0) {
    return refuse("ShapeError", "%s: x has shape %s, for rows of %lld elements of 4 bits; expected an even number, two of which "
                  "are a byte; pad x with zeros", product_name(product), shape_text(x).characters, static_cast<long long>(cols));
  }
  cols /= kElementsInByte;
  return 0;
}

RowScale scale_of(const Options& options, Element y) {
  if (options.has_nvfp4 || options.has_mx) return options.has_mx ? RowScale::kMx : RowScale::kNvfp4;
  if (bytes_of(y) != 1) return RowScale::kNone;
  return options.has_blocks ? RowScale::kBlock : options.has_one_scale ? RowScale::kTensor : RowScale::kRow;
}

// Refuses what an operation does not take, of a call of any function: those of one have no such fields.
int check_taken(Product product, const Operands& operands, const RowOperation& operation) {
  const Options& options = operands.options;
  const struct {
    const char* name;
    bool is_given;
    bool is_taken;
  } all[] = {
      {"weight", operands[kRight] != nullptr, operation.takes(Argument::kWeight)},
      {"bias", operands[kBias] != nullptr, operation.takes(Argument::kBias)},
      {"residual", operands[kResidual] != nullptr, operation.takes(Argument::kResidual)},
      {"weight_offset", options.weight_offset != 0, operation.has_offset()},
      {"round_norm", options.rounds_norm, operation.has_offset()},
      {"interleaved", options.is_interleaved, operation.is_pair()},
  };
  for (const auto& each : all) {
    if (!each.is_given || each.is_taken) continue;
    return refuse("OperandError", "%s: got %s, which %s does not take; leave it away", product_name(product), each.name,
                  word_of(operation.function));
  }
  return 0;
}

// Finds the operation. Python has the words for one that there is none of.
int find_operation_of(Product product, const Operands& operands, Result* result) {
  Element x;
  Element y;
  if (check_tensor(product, "x", *operands[kLeft], *operands[kLeft], &x) != 0) return -1;
  if (find_element_of_out(product, operands, x, &y) != 0) return -1;
  const RowScale scale = scale_of(operands.options, y);
  const RowFunction function = function_of(product, operands.options);
  result->operation = find_row_operation(function, x, y, scale);
  if (result->operation >= 0) return 0;
  return refuse(kNoOperation, "rows %s %s %s %s", word_of(function), word_of(x), word_of(y), word_of(scale));
}

bool is_empty(const DLTensor& tensor) {
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return true;
  }
  return false;
}

// Checks the scale of all of Y, and the tensor that factors in atoms are to be written to, and works out their number.
int check_factors(Product product, const Operands& operands, Result* result) {
  const RowOperation& operation = result->computed_on_rows();
  const DLTensor* given = operands[kScale];
  result->writes_scale = true;
  if (given == nullptr && operation.has_tensor_scale()) {
    return refuse("OperandError", "%s: scale is missing; expected the tensor's own factor of nvfp4, a float32 tensor of one "
                  "element; aot_gemm.torch.quantize finds it", product_name(product));
  }
  if (given != nullptr && !operation.has_tensor_scale()) {
    return refuse("OperandError", "%s: got scale, which goes with nvfp4; %s has factors of blocks alone; leave it away",
                  product_name(product), operation.tag);
  }
  if (given != nullptr) {
    if (check_tensor_of(product, "scale", *given, *operands[kLeft], Element::kFloat32) != 0) return -1;
    if (!is_one_element(*given)) {
      return refuse("ShapeError", "%s: scale has shape %s; expected one element, the tensor's own factor", product_name(product),
                    shape_text(*given).characters);
    }
  }
  Mode rows;
  join(*operands[kLeft], 0, operands[kLeft]->ndim - 1, &rows);
  const bool is_counted = rows.extent <= kMaxExtent && result->cols <= kMaxExtent;  // past them the number could overflow
  const int64_t num_rows = operands[kIndex] != nullptr ? result->extents[0] : rows.extent;
  const int64_t down = num_atom_rows(num_rows, result->num_groups > 0 ? result->num_groups : 1);
  result->scale_extents[0] = is_counted ? times(down, operation.factors.row_bytes(result->cols)) : 0;
  if (!is_counted || result->scale_extents[0] > kMaxExtent) {
    return refuse("ShapeError", "%s: x has shape %s, whose factors take more than %lld bytes; expected at most so many; split x "
                  "by rows", product_name(product), shape_text(*operands[kLeft]).characters, static_cast<long long>(kMaxExtent));
  }
  result->num_scale_dims = 1;
  return check_of(product, operands, kScaleOut, operation.factors.element, result->scale_extents, 1,
                  ", the bytes of the factors' atoms");
}

// Checks the scale that is given, or the tensor that scales are to be written to, and works out their shape.
int check_scales(Product product, const Operands& operands, Result* result) {
  const RowOperation& operation = result->computed_on_rows();
  if (operation.has_factors()) return check_factors(product, operands, result);
  const int64_t cols = result->cols;
  const DLTensor* given = operands[kScale];
  result->writes_scale = operation.has_scale() && given == nullptr;
  for (const Field which : {kScale, kScaleOut}) {
    const bool is_taken = operation.has_scale() && (which == kScaleOut ? given == nullptr : operation.scale == RowScale::kRow);
    if (operands[which] == nullptr || is_taken) continue;
    return refuse("OperandError", "%s: got %s, which goes with a result of 8 bits%s; the result is %s; leave it away",
                  product_name(product), kOperandNames[which],
                  which == kScaleOut ? " whose scales are computed" : " that has no blocks", type_of(operation.y).name);
  }
  const bool has_one = operation.scale == RowScale::kTensor;
  result->num_scale_dims = result->num_dims;
  for (int32_t i = 0; i < result->num_dims; ++i) result->scale_extents[i] = has_one ? 1 : result->extents[i];
  result->scale_extents[result->num_dims - 1] = operation.scale == RowScale::kBlock ? num_blocks(cols) : 1;
  if (result->writes_scale && has_one && is_empty(*operands[kLeft])) {
    return refuse("ShapeError", "%s: x has shape %s; expected at least 1 element, of which the scale is computed; pass scale=",
                  product_name(product), shape_text(*operands[kLeft]).characters);
  }
  if (result->writes_scale && operation.scale == RowScale::kRow && cols == 0) {
    return refuse("ShapeError", "%s: x has shape %s; expected at least 1 column, of whose values a row's scale is computed; "
                  "pass scale=", product_name(product), shape_text(*operands[kLeft]).characters);
  }
  const DLTensor* written = operands[kScaleOut];
  if (has_one && written != nullptr) {
    if (check_tensor_of(product, "scale_out", *written, *operands[kLeft], Element::kFloat32) != 0) return -1;
    if (is_one_element(*written)) return 0;
  }
  if (given == nullptr) {
    return check_of(product, operands, kScaleOut, Element::kFloat32, result->scale_extents, result->num_dims);
  }
  if (check_tensor_of(product, "scale", *given, *operands[kLeft], Element::kFloat32) != 0) return -1;
  Mode rows;
  join(*operands[kLeft], 0, operands[kLeft]->ndim - 1, &rows);
  const bool is_of_rows = (given->ndim == 1 || (given->ndim == 2 && given->shape[1] == 1)) && given->shape[0] == rows.extent;
  if (is_one_element(*given) || is_of_rows || have_shape(*given, result->scale_extents, result->num_dims) ||
      have_shape(*given, result->scale_extents, result->num_dims - 1)) {
    return 0;
  }
  return refuse("ShapeError", "%s: scale has shape %s; expected one element, or %s, one for each row", product_name(product),
                shape_text(*given).characters, Text(result->scale_extents, result->num_dims).characters);
}

int refuse_angles(Product product, const Operands& operands) {
  return refuse("ShapeError", "%s: cos has shape %s and sin %s, beside x %s; expected both (positions, rotary_dim / 2) or "
                "(positions, rotary_dim), where rotary_dim is even and up to dim, and the tokens are as many as the positions, "
                "or a multiple", product_name(product), shape_text(*operands[kCos]).characters,
                shape_text(*operands[kSin]).characters, shape_text(*operands[kLeft]).characters);
}

// Checks the angles of a rotary embedding, and works out how much of a head is turned.
int check_angles(Product product, const Operands& operands, Result* result) {
  const DLTensor& x = *operands[kLeft];
  const Element element = result->computed_on_rows().x;
  for (const Field which : {kCos, kSin}) {
    const DLTensor* angles = operands[which];
    if (angles == nullptr) {
      return refuse("OperandError", "%s: %s is missing; expected cos and sin of each position", product_name(product),
                    kOperandNames[which]);
    }
    if (check_tensor_of(product, kOperandNames[which], *angles, x, element) != 0) return -1;
  }
  const DLTensor& cos = *operands[kCos];
  if (cos.ndim < 1 || !have_shape(*operands[kSin], cos.shape, cos.ndim)) return refuse_angles(product, operands);
  const int64_t width = cos.shape[cos.ndim - 1];
  const int64_t dim = x.shape[x.ndim - 1];
  const int64_t asked = operands.options.rotary_dim;
  result->rotary_dim = asked >= 0 ? asked : width == dim ? dim : 2 * width;
  Mode positions;
  Mode tokens;
  join(cos, 0, cos.ndim - 1, &positions);
  join(x, 0, x.ndim - 2, &tokens);
  const bool is_whole = result->rotary_dim == width || result->rotary_dim == 2 * width;
  const bool is_legal = is_whole && result->rotary_dim <= dim && result->rotary_dim % 2 == 0;
  const bool has_all = tokens.extent == 0 || (positions.extent > 0 && tokens.extent % positions.extent == 0);
  return is_legal && has_all ? 0 : refuse_angles(product, operands);
}

// Reads a tensor as a matrix of rows and the last dimension.
int state_matrix(Product product, Field which, const DLTensor& tensor, aot_rows_tensor_t* stated) {
  Matrix matrix;
  if (read_matrix(product, kOperandNames[which], tensor, tensor.ndim - 1, &matrix) != 0) return -1;
  *stated = {matrix.data, {matrix.strides[0], matrix.strides[1], 0}};
  return 0;
}

int state_rotary(Product product, const Operands& operands, const Result& result, aot_rows_problem_t* problem) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& cos = *operands[kCos];
  if (state_heads(product, "x", x, &problem->x) != 0) return -1;
  if (state_heads(product, "out", *operands[kOut], &problem->y) != 0) return -1;
  if (state_matrix(product, kCos, cos, &problem->cos) != 0) return -1;
  if (state_matrix(product, kSin, *operands[kSin], &problem->sin) != 0) return -1;
  Mode tokens;
  Mode positions;
  join(x, 0, x.ndim - 2, &tokens);
  join(cos, 0, cos.ndim - 1, &positions);
  problem->rows = tokens.extent;
  problem->heads = x.shape[x.ndim - 2];
  problem->positions = positions.extent;
  problem->rotary_dim = result.rotary_dim;
  // An angle for each element has each of them twice: side by side, or in two halves.
  const bool has_twice = cos.shape[cos.ndim - 1] == result.rotary_dim;
  if (has_twice && operands.options.is_interleaved) {
    problem->cos.strides[1] *= 2;
    problem->sin.strides[1] *= 2;
  }
  return state_cache(product, operands, problem);
}

aot_rows_tensor_t vector_of(const DLTensor* tensor) {
  if (tensor == nullptr) return {};
  return {data_of(*tensor), {0, stride_of(*tensor, 0), 0}};
}

// States scales that are given: one for all, or one for each row.
int state_scale(Product product, const DLTensor& scale, aot_rows_tensor_t* stated) {
  Mode elements;
  if (!join(scale, 0, scale.ndim, &elements)) {
    return refuse("StrideError", "%s: scale of shape %s has the strides %s; expected elements of one stride; make it contiguous",
                  product_name(product), shape_text(scale).characters, stride_text(scale).characters);
  }
  *stated = {data_of(scale), {elements.extent > 1 ? elements.stride : 0, 1, 0}};
  return 0;
}

// States factors in atoms and the tensor's scale, and has the strides of elements that share bytes count them.
void state_factors(const Operands& operands, const RowOperation& operation, aot_rows_problem_t* problem) {
  int64_t& stride = problem->y.strides[0];
  if (is_packed(operation.y) && __builtin_mul_overflow(stride, kElementsInByte, &stride)) stride = INT64_MAX - 1;  // even, too
  if (operands[kScaleOut] != nullptr) problem->scale = {data_of(*operands[kScaleOut]), {}};
  if (operands[kScale] != nullptr) problem->tensor_scale = {data_of(*operands[kScale]), {}};
}

int state_matrices(Product product, const Operands& operands, const Result& result, aot_rows_problem_t* problem) {
  const RowOperation& operation = result.computed_on_rows();
  Matrix x;
  if (read_matrix(product, "x", *operands[kLeft], operands[kLeft]->ndim - 1, &x) != 0) return -1;
  problem->x = {x.data, {x.strides[0], x.strides[1], 0}};
  problem->rows = x.extents[0];
  state_row_groups(operands, result, problem);
  if (state_matrix(product, kOut, *operands[kOut], &problem->y) != 0) return -1;
  const DLTensor* residual = operands[kResidual];
  const DLTensor* residual_out = operands[kResidualOut];
  if (residual != nullptr && state_matrix(product, kResidual, *residual, &problem->residual) != 0) return -1;
  if (residual_out != nullptr && state_matrix(product, kResidualOut, *residual_out, &problem->residual_out) != 0) return -1;
  problem->weight = vector_of(operands[kRight]);
  problem->bias = vector_of(operands[kBias]);
  if (operation.has_factors()) {
    state_factors(operands, operation, problem);
    return 0;
  }
  const DLTensor* written = operands[kScaleOut];
  const DLTensor* given = operands[kScale];
  if (written != nullptr && is_one_element(*written)) return state_scale(product, *written, &problem->scale);
  if (written != nullptr) return state_matrix(product, kScaleOut, *written, &problem->scale);
  return given == nullptr ? 0 : state_scale(product, *given, &problem->scale);
}

}  // namespace

bool is_heads(const DLTensor& x) {
  Mode tokens;
  return x.ndim < 2 || join(x, 0, x.ndim - 2, &tokens);
}

int check_row_operands(Product product, const Operands& operands, Result* result) {
  if (find_operation_of(product, operands, result) != 0 || find_shape(product, *operands[kLeft], result) != 0) return -1;
  if (check_row_groups(product, operands, result) != 0) return -1;
  const RowOperation& operation = result->computed_on_rows();
  if (product == Product::kRows && check_taken(product, operands, operation) != 0) return -1;
  const int64_t cols = result->cols;
  const DLTensor& x = *operands[kLeft];
  result->writes_residual = operands[kResidual] != nullptr;
  if (operands[kResidualOut] != nullptr && !result->writes_residual) {
    return refuse("OperandError", "%s: got residual_out and no residual, whose sum with x it is for; expected both, or none",
                  product_name(product));
  }
  if (check_of(product, operands, kRight, operation.x, &cols, 1) != 0) return -1;
  if (check_of(product, operands, kBias, operation.x, &cols, 1) != 0) return -1;
  if (check_of(product, operands, kResidual, operation.x, x.shape, x.ndim) != 0) return -1;
  if (check_of(product, operands, kResidualOut, operation.x, x.shape, x.ndim) != 0) return -1;
  if (check_out(product, operands, *result) != 0) return -1;
  if (check_scales(product, operands, result) != 0) return -1;
  result->rotary_dim = 0;
  if (!operation.is_rotary()) return 0;
  return check_angles(product, operands, result) != 0 ? -1 : check_cache(product, operands, *result);
}

int state_rows(Product product, const Operands& operands, const Result& result, aot_rows_problem_t* problem) {
  const Options& options = operands.options;
  *problem = {};
  problem->struct_bytes = sizeof(*problem);
  problem->operation = row_id_of(result.operation);
  problem->device = operands[kLeft]->device.device_id;
  problem->cols = result.cols;
  const bool gives_scale = operands[kScale] != nullptr && !result.computed_on_rows().has_factors();
  problem->flags = (gives_scale ? AOT_ROWS_SCALE_GIVEN : 0) |
                   (options.is_interleaved ? AOT_ROWS_INTERLEAVED : 0) |
                   (options.rounds_norm ? AOT_ROWS_ROUND_NORM : 0);
  problem->eps = options.eps;
  problem->weight_offset = options.weight_offset;
  if (result.computed_on_rows().is_rotary()) return state_rotary(product, operands, result, problem);
  return state_matrices(product, operands, result, problem);
}

}  // namespace aot
