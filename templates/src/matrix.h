// Tensors as DLPack gives them, read as matrices.
#ifndef AOT_GEMM_MATRIX_H_
#define AOT_GEMM_MATRIX_H_

#include <cstdint>

#include <dlpack/dlpack.h>

namespace aot {

// Most dimensions that an operand may have; torch's own limit.
constexpr int32_t kMaxDims = 64;

// Gives the address of a tensor's first element. A sum that wraps is an address like any other here, and is not read.
inline void* data_of(const DLTensor& tensor) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset);
}

struct Matrix {
  void* data;
  int64_t extents[2];
  int64_t strides[2];
};

struct Mode {
  int64_t extent;
  int64_t stride;
};

// Extents or strides in words, such as "(2, 3)".
struct Text {
  char characters[256];

  Text(const int64_t* values, int32_t num_values);
};

// Writes a tensor's shape, and its strides.
Text shape_text(const DLTensor& tensor);
Text stride_text(const DLTensor& tensor);

// Gives the stride of a tensor that states none.
int64_t packed_stride(const DLTensor& tensor, int32_t dim);

inline int64_t stride_of(const DLTensor& tensor, int32_t dim) {
  return tensor.strides != nullptr ? tensor.strides[dim] : packed_stride(tensor, dim);
}

// Says whether a tensor has one element.
bool is_one_element(const DLTensor& tensor);

// Joins none or several dimensions.
bool join_any(const DLTensor& tensor, int32_t begin, int32_t end, Mode* mode);

// Joins the dimensions [begin, end) into one mode of one stride. Says false where they do not join.
inline bool join(const DLTensor& tensor, int32_t begin, int32_t end, Mode* mode) {
  if (end - begin != 1) return join_any(tensor, begin, end, mode);
  const int64_t extent = tensor.shape[begin];  // both modes of nearly every operand
  *mode = {extent, extent == 1 ? 0 : stride_of(tensor, begin)};
  return true;
}

// Says whether the leading dimensions of a left operand join into rows of one stride, so that it is one matrix in
// memory.
inline bool is_matrix(const DLTensor& left) {
  Mode rows;
  return left.ndim == 0 || join(left, 0, left.ndim - 1, &rows);
}

// Reads a tensor as a matrix whose rows are its first `num_row_dims` dimensions. Says false where it is not one.
inline bool read_matrix(const DLTensor& tensor, int32_t num_row_dims, Matrix* matrix) {
  Mode rows;
  Mode columns;
  if (!join(tensor, 0, num_row_dims, &rows) || !join(tensor, num_row_dims, tensor.ndim, &columns)) return false;
  *matrix = {data_of(tensor), {rows.extent, columns.extent}, {rows.stride, columns.stride}};
  return true;
}

// The addresses from a tensor's first byte to past its last one.
struct Span {
  uintptr_t begin;
  uintptr_t end;
};

// Gives a tensor's span: none where it has no elements, all there is where its strides are not to be believed.
Span span_of(const DLTensor& tensor);

}  // namespace aot

#endif  // AOT_GEMM_MATRIX_H_
