#include "matrix.h"

#include <cinttypes>
#include <cstdio>

namespace aot {

namespace {

// The product of numbers that are not below 0; INT64_MAX, which no extent or stride may be, where it is larger.
int64_t multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

}  // namespace

Text::Text(const int64_t* values, int32_t num_values) {
  size_t used = static_cast<size_t>(std::snprintf(characters, sizeof(characters), "("));
  for (int32_t i = 0; i < num_values && used < sizeof(characters) - 24; ++i) {
    used += static_cast<size_t>(std::snprintf(characters + used, sizeof(characters) - used, "%s%" PRId64,
                                              i == 0 ? "" : ", ", values[i]));
  }
  std::snprintf(characters + used, sizeof(characters) - used, num_values == 1 ? ",)" : ")");
}

Text shape_text(const DLTensor& tensor) { return {tensor.shape, tensor.ndim}; }

Text stride_text(const DLTensor& tensor) {
  int64_t strides[kMaxDims];
  for (int32_t i = 0; i < tensor.ndim; ++i) strides[i] = stride_of(tensor, i);
  return {strides, tensor.ndim};
}

bool is_one_element(const DLTensor& tensor) {
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] != 1) return false;
  }
  return true;
}

int64_t packed_stride(const DLTensor& tensor, int32_t dim) {
  int64_t stride = 1;
  for (int32_t i = dim + 1; i < tensor.ndim; ++i) stride = multiply(stride, tensor.shape[i]);
  return stride;
}

bool join_any(const DLTensor& tensor, int32_t begin, int32_t end, Mode* mode) {
  *mode = {1, 0};
  bool joins = true;
  for (int32_t i = end - 1; i >= begin; --i) {
    if (tensor.shape[i] == 1) continue;
    const int64_t stride = stride_of(tensor, i);
    if (mode->extent == 1) {
      mode->stride = stride;
    } else {
      joins = joins && stride == multiply(mode->stride, mode->extent);
    }
    mode->extent = multiply(mode->extent, tensor.shape[i]);
  }
  for (int32_t i = 0; i < tensor.ndim; ++i) joins = joins || tensor.shape[i] == 0;  // there is nothing to step over
  return joins;
}

Span span_of(const DLTensor& tensor) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data_of(tensor));
  int64_t num_elements = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return {begin, begin};
    const int64_t reach = multiply(tensor.shape[i] - 1, stride_of(tensor, i));
    if (__builtin_add_overflow(num_elements, reach, &num_elements)) return {0, UINTPTR_MAX};
  }
  const int64_t num_bytes = multiply(num_elements, (tensor.dtype.bits + 7) / 8);
  uintptr_t end = 0;
  if (__builtin_add_overflow(begin, static_cast<uintptr_t>(num_bytes), &end)) return {0, UINTPTR_MAX};
  return {begin, end};
}

}  // namespace aot
