// What aot_gemm.hpp takes and gives: values or errors in their place, and matrices as views that know their extents.
#ifndef AOT_GEMM_VIEW_HPP_
#define AOT_GEMM_VIEW_HPP_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "aot_gemm.h"

namespace aot_gemm {

// What failed: a status other than AOT_GEMM_OK, and what the library says of it.
struct Error {
  aot_gemm_status_t status;
  std::string message;
};

// A value, or the error that there is in its place. To look at the one that is not there is undefined.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}            // NOLINT: as std::expected
  Result(Error error) : error_(std::move(error)) {}        // NOLINT
  explicit operator bool() const noexcept { return value_.has_value(); }
  bool has_value() const noexcept { return value_.has_value(); }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }
  T value_or(T other) const { return value_.has_value() ? *value_ : std::move(other); }
  const Error& error() const noexcept { return *error_; }

 private:
  std::optional<T> value_;
  std::optional<Error> error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: as std::expected
  explicit operator bool() const noexcept { return !error_.has_value(); }
  bool has_value() const noexcept { return !error_.has_value(); }
  const Error& error() const noexcept { return *error_; }

 private:
  std::optional<Error> error_;
};

// A matrix in device memory that is somebody else's, as a span of two dimensions: strides are in elements. T is of the
// elements, or void; const where the matrix is only read.
template <typename T>
class MatrixView {
 public:
  constexpr MatrixView() = default;
  constexpr MatrixView(T* data, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride)
      : data_(data), extents_{rows, columns}, strides_{row_stride, column_stride} {}
  // A view of what is written is one of what is read.
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U*, T*>>>
  constexpr MatrixView(const MatrixView<U>& other)  // NOLINT: as std::span
      : MatrixView(other.data(), other.rows(), other.columns(), other.row_stride(), other.column_stride()) {}

  constexpr T* data() const { return data_; }
  constexpr int64_t rows() const { return extents_[0]; }
  constexpr int64_t columns() const { return extents_[1]; }
  constexpr int64_t row_stride() const { return strides_[0]; }
  constexpr int64_t column_stride() const { return strides_[1]; }
  constexpr bool empty() const { return extents_[0] == 0 || extents_[1] == 0; }
  // The same elements with rows for columns: the (k, n) right operand of a matrix product is B (n, k) so.
  constexpr MatrixView transposed() const {
    return {data_, extents_[1], extents_[0], strides_[1], strides_[0]};
  }

 private:
  T* data_ = nullptr;
  int64_t extents_[2] = {0, 0};
  int64_t strides_[2] = {0, 0};
};

// Rows one after the other, columns adjacent; `row_stride` where rows are further apart.
template <typename T>
constexpr MatrixView<T> row_major(T* data, int64_t rows, int64_t columns) {
  return {data, rows, columns, columns, 1};
}
template <typename T>
constexpr MatrixView<T> row_major(T* data, int64_t rows, int64_t columns, int64_t row_stride) {
  return {data, rows, columns, row_stride, 1};
}

// Columns one after the other.
template <typename T>
constexpr MatrixView<T> column_major(T* data, int64_t rows, int64_t columns) {
  return {data, rows, columns, 1, rows};
}

// The views that a problem takes: whatever the elements, which the operation names.
using ConstMatrix = MatrixView<const void>;
using Matrix = MatrixView<void>;

// One factor that serves all rows.
inline MatrixView<const float> one_factor(const float* data) { return {data, 1, 1, 0, 0}; }
// A factor for each row, adjacent.
inline MatrixView<const float> row_factors(const float* data, int64_t rows) { return {data, rows, 1, 1, 1}; }

}  // namespace aot_gemm

#endif  // AOT_GEMM_VIEW_HPP_
