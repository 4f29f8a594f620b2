#include "scales.h"

#include <cinttypes>

#include "matrix.h"
#include "refusal.h"

namespace aot {

namespace {

bool has_shape(const DLTensor& tensor, int64_t first) { return tensor.ndim == 1 && tensor.shape[0] == first; }

bool has_shape(const DLTensor& tensor, int64_t first, int64_t second) {
  return tensor.ndim == 2 && tensor.shape[0] == first && tensor.shape[1] == second;
}

bool has_shape(const DLTensor& tensor, int64_t first, int64_t second, int64_t third) {
  return tensor.ndim == 3 && tensor.shape[0] == first && tensor.shape[1] == second && tensor.shape[2] == third;
}

// Says whether a tensor has the leading dimensions of x, and behind them what else: one of `last` elements, or none.
bool leads_as(const DLTensor& tensor, const DLTensor& x, int64_t last) {
  if (tensor.ndim != x.ndim || tensor.shape[x.ndim - 1] != last) return false;
  for (int32_t i = 0; i + 1 < x.ndim; ++i) {
    if (tensor.shape[i] != x.shape[i]) return false;
  }
  return true;
}

bool leads_as(const DLTensor& tensor, const DLTensor& x) {
  if (tensor.ndim != x.ndim - 1) return false;
  for (int32_t i = 0; i + 1 < x.ndim; ++i) {
    if (tensor.shape[i] != x.shape[i]) return false;
  }
  return true;
}

// The rows that the leading dimensions of x make.
int64_t num_rows(const DLTensor& x) {
  Mode rows;
  join(x, 0, x.ndim - 1, &rows);
  return rows.extent;
}

// Reads the shapes of the factors of x (rows, k), and of a stack of weights (groups, rows, k).
ScaleShapes read_group_scale_shapes(const DLTensor& scale_x, const DLTensor& scale_w, const DLTensor& x,
                                    const DLTensor& weight) {
  const int64_t groups = weight.shape[0];
  const int64_t rows = weight.shape[1];
  const int64_t k_blocks = num_blocks(x.shape[1]);
  const int64_t m = x.shape[0];
  const bool x_is_vector = is_one_element(scale_x) || has_shape(scale_x, m) || has_shape(scale_x, m, 1);
  const bool w_is_vector = is_one_element(scale_w) || has_shape(scale_w, groups) || has_shape(scale_w, groups, 1) ||
                           has_shape(scale_w, groups, rows) || has_shape(scale_w, groups, rows, 1) ||
                           has_shape(scale_w, groups, 1, rows) || has_shape(scale_w, groups, 1, 1);
  return {x_is_vector && w_is_vector,
          has_shape(scale_x, m, k_blocks) && has_shape(scale_w, groups, num_blocks(rows), k_blocks)};
}

}  // namespace

ScaleShapes read_scale_shapes(const DLTensor& scale_x, const DLTensor& scale_w, const DLTensor& x, const DLTensor& weight) {
  if (weight.ndim == 3) return read_group_scale_shapes(scale_x, scale_w, x, weight);
  const int64_t rows = weight.shape[0];
  const int64_t m = num_rows(x);
  const int64_t k_blocks = num_blocks(x.shape[x.ndim - 1]);
  const bool x_is_vector = is_one_element(scale_x) || has_shape(scale_x, m) || has_shape(scale_x, m, 1) ||
                           leads_as(scale_x, x) || leads_as(scale_x, x, 1);
  const bool w_is_vector = is_one_element(scale_w) || has_shape(scale_w, rows) || has_shape(scale_w, rows, 1) ||
                           has_shape(scale_w, 1, rows);
  const bool x_is_blocks = has_shape(scale_x, m, k_blocks) || leads_as(scale_x, x, k_blocks);
  const bool w_is_blocks = has_shape(scale_w, num_blocks(rows), k_blocks);
  return {x_is_vector && w_is_vector, x_is_blocks && w_is_blocks};
}

int refuse_scale_shapes(Product product, const DLTensor& scale_x, const DLTensor& scale_w, const DLTensor& x,
                        const DLTensor& weight) {
  if (weight.ndim == 3) {
    return refuse("ShapeError", "%s: scale_x has shape %s and scale_w %s, beside x %s and weight %s; expected one element or "
                  "(rows,) or (rows, 1), and one element, (groups,) or (groups, n); or one for each block: (rows, ceil(k / 128)) "
                  "and (groups, ceil(n / 128), ceil(k / 128))", product_name(product), shape_text(scale_x).characters,
                  shape_text(scale_w).characters, shape_text(x).characters, shape_text(weight).characters);
  }
  const int64_t m = num_rows(x);
  const int64_t n = weight.shape[0];
  const int64_t k_blocks = num_blocks(x.shape[x.ndim - 1]);
  return refuse("ShapeError", "%s: scale_x has shape %s and scale_w %s, beside x %s and weight %s; expected one element "
                "or an element for each row: scale_x (1,), (%" PRId64 ",) or (%" PRId64 ", 1), and scale_w (1,), (%" PRId64
                ",), (%" PRId64 ", 1) or (1, %" PRId64 "); or one for each block: scale_x (%" PRId64 ", %" PRId64
                ") and scale_w (%" PRId64 ", %" PRId64 ")", product_name(product), shape_text(scale_x).characters,
                shape_text(scale_w).characters, shape_text(x).characters, shape_text(weight).characters, m, m, n, n, n,
                m, k_blocks, num_blocks(n), k_blocks);
}

int state_scale(Product product, const char* name, const DLTensor& scale, Scale kind, aot_gemm_tensor_t* stated) {
  Matrix blocks;
  if (kind == Scale::kBlock && read_matrix(scale, scale.ndim - 1, &blocks)) {
    *stated = {blocks.data, {blocks.strides[0], blocks.strides[1]}};
    return 0;
  }
  Mode elements;
  const bool is_vector = kind == Scale::kVector && join(scale, 0, scale.ndim, &elements);
  if (is_vector && (elements.extent <= 1 || elements.stride == 0 || elements.stride == 1)) {
    *stated = {data_of(scale), {elements.extent > 1 ? elements.stride : 0, 0}};
    return 0;
  }
  return refuse("StrideError", "%s: %s of shape %s has the strides %s; expected elements that are adjacent, or one that is "
                "repeated; make it contiguous", product_name(product), name, shape_text(scale).characters,
                stride_text(scale).characters);
}

int state_group_scale(const DLTensor& scale, Scale kind, aot_gemm_tensor_t* stated, int64_t* step) {
  Mode groups = {1, 0};
  Mode elements = {1, 0};
  if (!is_one_element(scale)) {
    groups = {scale.shape[0], stride_of(scale, 0)};
    if (kind == Scale::kBlock) {
      *stated = {data_of(scale), {stride_of(scale, 1), stride_of(scale, 2)}};
      *step = groups.stride;
      return 0;
    }
    if (!join(scale, 1, scale.ndim, &elements)) elements = {2, -1};
  }
  if (elements.extent <= 1 || elements.stride == 0 || elements.stride == 1) {
    *stated = {data_of(scale), {elements.extent > 1 ? elements.stride : 0, 0}};
    *step = groups.stride;
    return 0;
  }
  return refuse("StrideError", "grouped_linear: scale_w of shape %s has the strides %s; expected a group's elements "
                "adjacent, or one that is repeated; make it contiguous", shape_text(scale).characters,
                stride_text(scale).characters);
}

}  // namespace aot
