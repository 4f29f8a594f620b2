// The structs of the C API as callers state them, of this library's header or of another: each begins with its size in bytes.
#ifndef AOT_GEMM_STATED_H_
#define AOT_GEMM_STATED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aot_gemm.h"

namespace aot {

// What a struct is called, and the least bytes of it that a caller of any header states, or has room for.
template <typename Struct>
struct Form;
template <>
struct Form<aot_gemm_problem_t> {
  static constexpr const char* kName = "aot_gemm_problem_t";
  static constexpr uint64_t kLeastBytes = offsetof(aot_gemm_problem_t, bias);
};
template <>
struct Form<aot_rows_problem_t> {
  static constexpr const char* kName = "aot_rows_problem_t";
  static constexpr uint64_t kLeastBytes = offsetof(aot_rows_problem_t, tensor_scale);
};
template <>
struct Form<aot_gemm_selection_t> {
  static constexpr const char* kName = "aot_gemm_selection_t";
  static constexpr uint64_t kLeastBytes = offsetof(aot_gemm_selection_t, table);
};
template <>
struct Form<aot_rows_selection_t> {
  static constexpr const char* kName = "aot_rows_selection_t";
  static constexpr uint64_t kLeastBytes = sizeof(aot_rows_selection_t);
};

aot_gemm_status_t check_argument(const void* pointer, const char* name);

// Copies a problem to a struct of ours of `own_bytes`: fields that it lacks become 0. Fails where it is smaller than
// `least_bytes`, or has something that we do not know.
aot_gemm_status_t copy_stated(const char* name, const void* stated, uint64_t least_bytes, uint64_t own_bytes, void* storage);

// Checks the size of a selection that a caller gives to be written.
aot_gemm_status_t check_selection_bytes(const char* name, uint64_t num_bytes, uint64_t least_bytes);

// A problem as the caller states it, in the struct of this library's own header.
template <typename Problem>
class Stated {
 public:
  explicit Stated(const Problem* problem) : problem_(problem), status_(take()) {}
  Stated(const Stated&) = delete;
  Stated& operator=(const Stated&) = delete;

  aot_gemm_status_t status() const { return status_; }
  const Problem& operator*() const { return *problem_; }

 private:
  aot_gemm_status_t take() {
    if (problem_ == nullptr) return check_argument(nullptr, "problem");
    if (problem_->struct_bytes == sizeof(Problem)) return AOT_GEMM_OK;
    const void* const stated = problem_;
    problem_ = &storage_;
    return copy_stated(Form<Problem>::kName, stated, Form<Problem>::kLeastBytes, sizeof(Problem), &storage_);
  }

  Problem storage_;  // written only for a caller of another header
  const Problem* problem_;
  aot_gemm_status_t status_;
};

// Checks a selection that a caller gives to be written.
template <typename Selection>
aot_gemm_status_t check_selection(const Selection* selection) {
  const aot_gemm_status_t status = check_argument(selection, "selection");
  if (status != AOT_GEMM_OK) return status;
  return check_selection_bytes(Form<Selection>::kName, selection->struct_bytes, Form<Selection>::kLeastBytes);
}

// Writes what the caller's struct has room for, and leaves its struct_bytes.
template <typename Selection>
void give(const Selection& found, Selection* selection) {
  constexpr size_t kSizeField = sizeof(found.struct_bytes);
  const size_t num_bytes = std::min<uint64_t>(selection->struct_bytes, sizeof(found));
  std::memcpy(reinterpret_cast<char*>(selection) + kSizeField, reinterpret_cast<const char*>(&found) + kSizeField,
              num_bytes - kSizeField);
}

}  // namespace aot

#endif  // AOT_GEMM_STATED_H_
