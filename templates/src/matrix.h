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

int64_t stride_of(const DLTensor& tensor, int32_t dim);

// Joins the dimensions [begin, end) into one mode of one stride. Says false where they do not join.
bool join(const DLTensor& tensor, int32_t begin, int32_t end, Mode* mode);

// Says whether the leading dimensions of a left operand join into rows of one stride, so that it is one matrix in
// memory.
bool is_matrix(const DLTensor& left);

// Reads a tensor as a matrix whose rows are its first `num_row_dims` dimensions. Says false where it is not one.
bool read_matrix(const DLTensor& tensor, int32_t num_row_dims, Matrix* matrix);

// The addresses from a tensor's first byte to past its last one.
struct Span {
  uintptr_t begin;
  uintptr_t end;
};

// Gives a tensor's span: none where it has no elements, all there is where its strides are not to be believed.
Span span_of(const DLTensor& tensor);

}  // namespace aot

#endif  // AOT_GEMM_MATRIX_H_
