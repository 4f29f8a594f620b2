// C++ over aot_gemm.h, in this header and aot_gemm_view.hpp beside it: matrices as views that know their extents, problems
// that are checked as they are put together, errors as values, and a workspace that frees itself. C++17 or newer; nothing
// here throws, and what a caller's own functions throw ends at this header, so that no exception crosses the C functions.
// It compiles without exceptions and run-time types too.
//
//   auto operation = aot_gemm::Operation::find("bf16");
//   if (!operation) return fail(operation.error().message);
//   auto problem = aot_gemm::Problem::make(*operation, aot_gemm::row_major(a, m, k), aot_gemm::row_major(b, n, k),
//                                          aot_gemm::row_major(d, m, n));
//   if (!problem) return fail(problem.error().message);
//   auto done = aot_gemm::launch(problem->with_constant_b(), workspace, stream);
//   if (!done) return fail(done.error().message);
//
// What each operand is, and when a promise holds, aot_gemm.h says. Views do not own, and pointers are of the device.
#ifndef AOT_GEMM_HPP_
#define AOT_GEMM_HPP_

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>

#include "aot_gemm.h"
#include "aot_gemm_view.hpp"

namespace aot_gemm {

namespace detail {

// Takes the calling thread's last error over.
inline Error last_error(aot_gemm_status_t status) { return {status, aot_gemm_last_error()}; }

inline Result<void> result_of(aot_gemm_status_t status) {
  if (status == AOT_GEMM_OK) return {};
  return last_error(status);
}

// std::to_string is no template: a program would have to link what defines it.
inline std::string text_of(int64_t value) {
  char characters[24];
  std::snprintf(characters, sizeof(characters), "%" PRId64, value);
  return characters;
}

inline std::string extents_text(int64_t rows, int64_t columns) {
  return "(" + text_of(rows) + ", " + text_of(columns) + ")";
}

// Calls what a caller gave, and says what it returned, or null where it threw.
template <typename Allocate>
void* call_allocate(Allocate& allocate, size_t num_bytes) noexcept {
#if defined(__cpp_exceptions)
  try {
    return allocate(num_bytes);
  } catch (...) {
    return nullptr;
  }
#else
  return allocate(num_bytes);
#endif
}

}  // namespace detail

// An operation of the library: the element types and what is done to the sum.
class Operation {
 public:
  // Finds one by its tag, such as "bf16"; the error of an unknown one lists those that there are.
  static Result<Operation> find(const char* tag) {
    const int32_t id = aot_gemm_operation(tag);
    if (id < 0) return detail::last_error(static_cast<aot_gemm_status_t>(-id));
    return Operation(id);
  }
  static Result<Operation> find(const std::string& tag) { return find(tag.c_str()); }

  int32_t id() const { return id_; }

 private:
  explicit Operation(int32_t id) : id_(id) {}
  int32_t id_;
};

// One product D (m, n) = A (m, k) @ B (n, k)^T, whose extents its views say. A value: each `with_` gives another.
class Problem {
 public:
  // Puts the operands together. Fails where their extents do not make a product. Of an operation with a gate B has 2 n
  // rows: `make_gated`.
  static Result<Problem> make(Operation operation, ConstMatrix a, ConstMatrix b, Matrix d) {
    return make(operation, a, b, d, b.rows());
  }
  static Result<Problem> make_gated(Operation operation, ConstMatrix a, ConstMatrix b, Matrix d) {
    if (b.rows() % 2 != 0) {
      return Error{AOT_GEMM_ERROR_SHAPE,
                   "B has " + detail::text_of(b.rows()) + " rows; expected an even number with a gate"};
    }
    return make(operation, a, b, d, b.rows() / 2);
  }

  // The device of the operands and the stream; without it, the calling thread's current one.
  Problem with_device(int32_t ordinal) const {
    return with([ordinal](aot_gemm_problem_t& x) { x.device = ordinal; });
  }
  // AOT_GEMM_B_CONSTANT: a promise, which aot_gemm.h states.
  Problem with_constant_b() const {
    return with([](aot_gemm_problem_t& x) { x.flags |= AOT_GEMM_B_CONSTANT; });
  }
  Problem with_interleaved_gate() const {
    return with([](aot_gemm_problem_t& x) { x.flags |= AOT_GEMM_GATE_INTERLEAVED; });
  }
  // AOT_GEMM_GATE_PARTS: b is the gate's matrix (n, k), with as many linear rows `step` elements behind its first,
  // or in front of it where `step` is below 0.
  Problem with_parts_of_gate(int64_t step) const {
    return with([step](aot_gemm_problem_t& x) {
      x.flags |= AOT_GEMM_GATE_PARTS;
      x.group_strides.b = step;
    });
  }
  // n elements that are adjacent, or 2 n with a gate.
  Problem with_bias(const void* data) const {
    return with([data](aot_gemm_problem_t& x) { x.bias = {const_cast<void*>(data), {0, 1}}; });
  }
  Problem with_residual(ConstMatrix residual) const {
    return with([&residual](aot_gemm_problem_t& x) { x.residual = tensor_of(residual); });
  }
  // Factors: one for each row of A and of B, as views of one column; or one for each block. The strides of a single one
  // for all are 0: `one_factor`.
  Problem with_scales(MatrixView<const float> scale_a, MatrixView<const float> scale_b) const {
    return with([&](aot_gemm_problem_t& x) {
      x.scale_a = tensor_of(scale_a);
      x.scale_b = tensor_of(scale_b);
    });
  }
  Problem with_scale_d(const float* scale) const {
    return with([scale](aot_gemm_problem_t& x) { x.scale_d = {const_cast<float*>(scale), {0, 0}}; });
  }

  // The atoms that the factors of D's blocks are written to, of an operation such as nvfp4_nvfp4, and D's own factor; null of
  // one such as mxfp8_mxfp8, which has none.
  Problem with_factors_of_d(void* factors, const float* own) const {
    return with([=](aot_gemm_problem_t& x) {
      x.factors_d = {factors, {0, 0}};
      x.own_d = {const_cast<float*>(own), {0, 0}};
    });
  }

  // Groups of rows, of which each has a B of its own, `step` elements behind the one before it; the problem's is the first.
  // `offsets` are int32 on the device: where each ends.
  Problem with_groups(int64_t count, const int32_t* offsets, int64_t step) const {
    return with([=](aot_gemm_problem_t& x) {
      x.num_groups = count;
      x.offsets = {const_cast<int32_t*>(offsets), {1, 1}};
      x.group_strides.b = step;
    });
  }
  // The same where each group's B has an address of its own, and the strides of the problem's B, which itself is not read.
  // The addresses, as many, are in host memory, and must be there at each call.
  Problem with_groups(int64_t count, const int32_t* offsets, const void* const* b_of_groups) const {
    return with_groups(count, offsets, int64_t{0}).with([b_of_groups](aot_gemm_problem_t& x) {
      x.b.data = nullptr;
      x.b_of_groups = b_of_groups;
    });
  }
  // The same of the factors of B in atoms, whose own matrix has then no address.
  Problem with_scale_b_of_groups(const void* const* scale_b_of_groups) const {
    return with([scale_b_of_groups](aot_gemm_problem_t& x) {
      x.scale_b = {};
      x.group_strides.scale_b = 0;
      x.scale_b_of_groups = scale_b_of_groups;
    });
  }
  // Steps from group to group of a bias, and of the factors of B.
  Problem with_group_steps(int64_t bias, int64_t scale_b = 0) const {
    return with([=](aot_gemm_problem_t& x) {
      x.group_strides.bias = bias;
      x.group_strides.scale_b = scale_b;
    });
  }
  // Row i of the groups is the row index[i] of `a`, int32 on the device, of an operation that gathers rows.
  Problem with_index(const int32_t* index, ConstMatrix a) const {
    return with([index, &a](aot_gemm_problem_t& x) {
      x.index = {const_cast<int32_t*>(index), {1, 1}};
      x.a = tensor_of(a);
      x.rows_of_a = a.rows();
    });
  }

  int64_t m() const { return problem_.m; }
  int64_t n() const { return problem_.n; }
  int64_t k() const { return problem_.k; }
  // What the C functions take.
  const aot_gemm_problem_t& c() const { return problem_; }

 private:
  explicit Problem(const aot_gemm_problem_t& problem) : problem_(problem) {}

  template <typename T>
  static aot_gemm_tensor_t tensor_of(const MatrixView<T>& view) {
    return {const_cast<void*>(static_cast<const void*>(view.data())), {view.row_stride(), view.column_stride()}};
  }

  static Result<Problem> make(Operation operation, ConstMatrix a, ConstMatrix b, Matrix d, int64_t n) {
    if (a.columns() != b.columns() || d.rows() != a.rows() || d.columns() != n) {
      return Error{AOT_GEMM_ERROR_SHAPE, "A is " + detail::extents_text(a.rows(), a.columns()) + ", B " +
                                             detail::extents_text(b.rows(), b.columns()) + " and D " +
                                             detail::extents_text(d.rows(), d.columns()) + "; expected D " +
                                             detail::extents_text(a.rows(), n) + " and one k; B is held (n, k): " +
                                             "give a (k, n) matrix as its transposed()"};
    }
    aot_gemm_problem_t problem = {};
    problem.struct_bytes = sizeof(problem);
    problem.operation = operation.id();
    problem.device = -1;
    problem.m = a.rows();
    problem.n = n;
    problem.k = a.columns();
    problem.a = tensor_of(a);
    problem.b = tensor_of(b);
    problem.d = tensor_of(d);
    return Problem(problem);
  }

  template <typename Change>
  Problem with(const Change& change) const {
    Problem other(problem_);
    change(other.problem_);
    return other;
  }

  aot_gemm_problem_t problem_;
};

// What the dispatch table says of a problem. Needs no GPU.
inline Result<aot_gemm_selection_t> select(const Problem& problem) {
  aot_gemm_selection_t selection = {};
  selection.struct_bytes = sizeof(selection);
  const aot_gemm_status_t status = aot_gemm_select(&problem.c(), &selection);
  if (status != AOT_GEMM_OK) return detail::last_error(status);
  return selection;
}

// The name of a kernel, stable from release to release; null where there is none of that index.
inline const char* kernel_name(int32_t kernel) { return aot_gemm_kernel_name(kernel); }

// The bytes of workspace that a launch needs; often 0. Needs no GPU.
inline Result<size_t> workspace_bytes(const Problem& problem) {
  size_t num_bytes = 0;
  const aot_gemm_status_t status = aot_gemm_workspace_bytes(&problem.c(), &num_bytes);
  if (status != AOT_GEMM_OK) return detail::last_error(status);
  return num_bytes;
}

// Device memory that grows as it is asked for more, and is freed with this. Memory has `void* allocate(size_t)`, which
// gives null where there is none, and `void free(void*, size_t)`. One serves launches of one stream; to grow frees what
// launches before may still use, unless Memory frees in the order of the stream, as cudaFreeAsync does.
template <typename Memory>
class Workspace {
 public:
  explicit Workspace(Memory memory = Memory()) : memory_(std::move(memory)) {}
  ~Workspace() { release(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  Workspace(Workspace&& other) noexcept
      : memory_(std::move(other.memory_)),
        data_(std::exchange(other.data_, nullptr)),
        num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    if (this != &other) {
      release();
      memory_ = std::move(other.memory_);
      data_ = std::exchange(other.data_, nullptr);
      num_bytes_ = std::exchange(other.num_bytes_, 0);
    }
    return *this;
  }

  // Has room for a number of bytes, or for a problem.
  Result<void> reserve(size_t num_bytes) {
    if (num_bytes <= num_bytes_) return {};
    release();
    const auto allocate = [this](size_t size) { return memory_.allocate(size); };
    data_ = detail::call_allocate(allocate, num_bytes);
    if (data_ == nullptr) {
      std::string text = "there is no memory for a workspace of ";
      text += detail::text_of(static_cast<int64_t>(num_bytes));
      text += " bytes";
      return Error{AOT_GEMM_ERROR_WORKSPACE, text};
    }
    num_bytes_ = num_bytes;
    return {};
  }
  Result<void> reserve(const Problem& problem) {
    const Result<size_t> num_bytes = workspace_bytes(problem);
    if (!num_bytes) return num_bytes.error();
    return reserve(*num_bytes);
  }

  void* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  void release() noexcept {
    if (data_ != nullptr) memory_.free(data_, num_bytes_);
    data_ = nullptr;
    num_bytes_ = 0;
  }

  Memory memory_;
  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// Enqueue a product on a stream (a cudaStream_t). The workspace is the caller's memory; or one that grows as needed.
inline Result<void> launch(const Problem& problem, void* workspace, size_t num_bytes, void* stream) {
  return detail::result_of(aot_gemm_launch(&problem.c(), workspace, num_bytes, stream));
}
template <typename Memory>
Result<void> launch(const Problem& problem, Workspace<Memory>& workspace, void* stream) {
  Result<void> reserved = workspace.reserve(problem);
  if (!reserved) return reserved;
  return launch(problem, workspace.data(), workspace.num_bytes(), stream);
}

// The same with a function that gives memory at once: `void* allocate(size_t)`, called where a workspace is needed. One
// look-up serves size and launch. One that throws, or gives null, makes an error of the workspace.
template <typename Allocate>
Result<void> launch_allocating(const Problem& problem, Allocate&& allocate, void* stream) {
  using Function = std::remove_reference_t<Allocate>;
  const aot_gemm_allocate_t call = [](void* context, size_t num_bytes) -> void* {
    return detail::call_allocate(*static_cast<Function*>(context), num_bytes);
  };
  void* context = const_cast<void*>(static_cast<const void*>(&allocate));
  return detail::result_of(aot_gemm_launch_allocating(&problem.c(), call, context, stream));
}

// Load every kernel onto a device now (-1: the current one).
inline Result<void> preload(int32_t device = -1) { return detail::result_of(aot_gemm_preload(device)); }

// Wait until a stream of a device (-1: the current one) is done.
inline Result<void> synchronize(void* stream, int32_t device = -1) {
  return detail::result_of(aot_gemm_synchronize(device, stream));
}

// The table that answers for a device, by its target's name, and why.
struct DeviceTable {
  const char* target;
  const char* reason;
};
inline Result<DeviceTable> device_table(int32_t device = -1) {
  int32_t table = 0;
  const char* reason = nullptr;
  const aot_gemm_status_t status = aot_gemm_device_table(device, &table, &reason);
  if (status != AOT_GEMM_OK) return detail::last_error(status);
  return DeviceTable{aot_gemm_table_target(table), reason};
}

// Gives the SHA-256 of all that decides which kernel a problem gets on a device: see aot_gemm_choices.
inline Result<const char*> choices(int32_t device = -1) {
  const char* sha256 = nullptr;
  const aot_gemm_status_t status = aot_gemm_choices(device, &sha256);
  if (status != AOT_GEMM_OK) return detail::last_error(status);
  return sha256;
}

// Fails where the library that was loaded has another binary interface than this header.
inline Result<void> check_abi() {
  const int32_t found = aot_gemm_abi_version();
  if (found == AOT_GEMM_ABI_VERSION) return {};
  return Error{AOT_GEMM_ERROR_ARGUMENT, "the library has ABI version " + detail::text_of(found) +
                                            ", this program was built for " + detail::text_of(AOT_GEMM_ABI_VERSION) +
                                            "; build it again with the library's own header"};
}

}  // namespace aot_gemm

#endif  // AOT_GEMM_HPP_
