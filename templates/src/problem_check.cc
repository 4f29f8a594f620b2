#include <cinttypes>

#include "batch.h"
#include "checks.h"
#include "error.h"
#include "groups.h"
#include "lattice.h"
#include "problem.h"

namespace aot {

namespace {

aot_gemm_status_t check_flags(uint64_t flags, const Operation& operation) {
  // Rows of a gate that take turns would share blocks of factors.
  const bool may_take_turns = operation.has_gate() && operation.scale != Scale::kBlock;
  const uint64_t any = AOT_GEMM_B_CONSTANT | AOT_GEMM_BATCH_INVARIANT | AOT_GEMM_DETERMINISTIC;
  const bool may_have_parts = operation.has_gate() && !operation.has_offsets();
  const uint64_t known = any | (may_take_turns ? AOT_GEMM_GATE_INTERLEAVED : 0) |
                         (may_have_parts ? AOT_GEMM_GATE_PARTS : 0) |
                         (operation.has_offsets() ? AOT_GEMM_OFFSETS_START : 0);
  constexpr uint64_t kBoth = AOT_GEMM_GATE_INTERLEAVED | AOT_GEMM_GATE_PARTS;
  if ((flags & ~known) == 0 && (flags & kBoth) == kBoth) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "flags are 0x%" PRIx64 "; expected AOT_GEMM_GATE_INTERLEAVED or AOT_GEMM_GATE_PARTS: "
                "rows in pairs are in one matrix", flags);
  }
  if ((flags & ~known) == 0) return AOT_GEMM_OK;
  const bool is_turned = (flags & AOT_GEMM_GATE_INTERLEAVED) != 0 && !operation.has_gate();
  return fail(AOT_GEMM_ERROR_ARGUMENT,
              "flags are 0x%" PRIx64 "; expected 0, or of AOT_GEMM_B_CONSTANT (0x%" PRIx64 "), AOT_GEMM_BATCH_INVARIANT (0x%" PRIx64
              "), AOT_GEMM_DETERMINISTIC (0x%" PRIx64 "), with a gate AOT_GEMM_GATE_INTERLEAVED (0x%" PRIx64
              ") or AOT_GEMM_GATE_PARTS (0x%" PRIx64 ") and of groups AOT_GEMM_OFFSETS_START (0x%" PRIx64 "): of 0x%" PRIx64
              " here%s",
              flags, AOT_GEMM_B_CONSTANT, AOT_GEMM_BATCH_INVARIANT, AOT_GEMM_DETERMINISTIC, AOT_GEMM_GATE_INTERLEAVED,
              AOT_GEMM_GATE_PARTS, AOT_GEMM_OFFSETS_START, known, is_turned ? "; the operation has no gate" : "");
}

aot_gemm_status_t check_extents(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status = check_extent("m", problem.m);
  if (status == AOT_GEMM_OK) status = check_extent("n", problem.n);
  if (status == AOT_GEMM_OK) status = check_extent("k", problem.k);
  if (status == AOT_GEMM_OK) status = check_extent("num_groups", problem.num_groups);
  if (status == AOT_GEMM_OK) status = check_extent("rows_of_a", problem.rows_of_a);
  if (status != AOT_GEMM_OK || rows_of_b(problem, operation) <= kMaxExtent) return status;
  return fail(AOT_GEMM_ERROR_SHAPE,
              "n is %" PRId64 "; expected 0 to %" PRId64 " with a gate, whose B has twice as many rows; split the problem",
              problem.n, kMaxExtent / 2);
}

aot_gemm_status_t check_which(const aot_gemm_problem_t& problem, const Operation& operation) {
  const uint32_t given =
      bit_if_given(Argument::kBias, problem.bias.data) | bit_if_given(Argument::kScaleA, problem.scale_a.data) |
      bit_if_given(Argument::kScaleB, problem.scale_b.data) | bit_if_given(Argument::kResidual, problem.residual.data) |
      bit_if_given(Argument::kScaleD, problem.scale_d.data) | bit_if_given(Argument::kOffsets, problem.offsets.data) |
      bit_if_given(Argument::kIndex, problem.index.data);
  const aot_gemm_status_t status = check_absent(given, operation.arguments, operation.tag);
  if (status == AOT_GEMM_OK && !operation.groups_rows() && problem.b_of_groups != nullptr) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got b_of_groups, which operation %s does not take; expected null, or an operation of "
                "groups of rows", operation.tag);
  }
  if (status != AOT_GEMM_OK || operation.gathers() || problem.rows_of_a == 0) return status;
  return fail(AOT_GEMM_ERROR_ARGUMENT,
              "rows_of_a is %" PRId64 ", which operation %s does not take; expected 0, or an operation that gathers rows",
              problem.rows_of_a, operation.tag);
}

}  // namespace

namespace {

const char* with_article(Argument argument) {
  switch (argument) {
    case Argument::kBias: return "a bias";
    case Argument::kResidual: return "a residual";
    case Argument::kIndex: return "an index";
    case Argument::kWeight: return "a weight";
    case Argument::kScale: return "a scale";
    default: return word_of(argument);
  }
}

}  // namespace

aot_gemm_status_t fail_absent(uint32_t operands, const char* tag) {
  return fail(AOT_GEMM_ERROR_ARGUMENT, "got %s, which operation %s does not take; expected null, or another operation",
              with_article(static_cast<Argument>(__builtin_ctz(operands))), tag);
}

aot_gemm_status_t check_extent(const char* name, int64_t extent, int64_t most) {
  if (extent >= 0 && extent <= most) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE, "%s is %" PRId64 "; expected 0 to %" PRId64 "; split the problem", name, extent, most);
}

aot_gemm_status_t check_strides(const char* name, const int64_t* strides, int64_t rows, int64_t columns) {
  if ((rows <= 1 || strides[0] >= 0) && (columns <= 1 || strides[1] >= 0)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s (%" PRId64 ", %" PRId64 ") has strides (%" PRId64 ", %" PRId64 "); expected none below 0; copy %s",
              name, rows, columns, strides[0], strides[1], name);
}

aot_gemm_status_t check_address(const char* name, const void* data, int64_t element_bytes) {
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes) == 0) return AOT_GEMM_OK;
  const char* what = element_bytes == kPackedRunBytes ? "which its atoms begin at" : "the bytes of its elements";
  return fail(AOT_GEMM_ERROR_STRIDE, "%s is at address %p; expected a multiple of %" PRId64 ", %s; copy it", name, data,
              element_bytes, what);
}

aot_gemm_status_t check_factors(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                                Scale scale) {
  const aot_gemm_status_t status = check_address(name, tensor.data, kFactorBytes);
  if (status != AOT_GEMM_OK) return status;
  if (scale == Scale::kBlock) return check_strides(name, tensor.strides, rows, columns);
  if (rows <= 1 || tensor.strides[0] == 0 || tensor.strides[0] == 1) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s of %" PRId64 " factors has the stride %" PRId64
              "; expected 1, factors that are adjacent, or 0, one factor for all; copy it",
              name, rows, tensor.strides[0]);
}

namespace {

// Checks that the elements of a bias, where there is one, are adjacent.
aot_gemm_status_t check_bias(const aot_gemm_problem_t& problem, const Operation& operation) {
  const int64_t count = rows_of_b(problem, operation);
  if (!adds_bias(problem, operation) || count <= 1 || problem.bias.strides[1] == 1) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "the bias of %" PRId64 " elements has the stride %" PRId64
              "; expected 1, elements that are adjacent; copy it",
              count, problem.bias.strides[1]);
}

// Checks that rows of elements that share bytes begin with a byte, and have their elements side by side.
aot_gemm_status_t check_packed(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k, Element element) {
  if (!is_packed(element)) return AOT_GEMM_OK;
  const int64_t sharing = 8 / bits_in(element);
  if ((k <= 1 || tensor.strides[1] == 1) && (rows <= 1 || tensor.strides[0] % sharing == 0)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s (%" PRId64 ", %" PRId64 ") of %s has strides (%" PRId64 ", %" PRId64
              "); expected elements that are adjacent along k, and rows at multiples of %" PRId64 " elements, which share a byte; "
              "copy %s", name, rows, k, type_of(element).name, tensor.strides[0], tensor.strides[1], sharing, name);
}

// Reads a matrix as its elements lie. Fails where they do not lie within the address space.
aot_gemm_status_t place(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                        int64_t element_bytes, Lattice* lattice) {
  const Axis row = {rows, rows > 1 ? tensor.strides[0] : 0};
  const Axis column = {columns, columns > 1 ? tensor.strides[1] : 0};
  if (make_lattice(reinterpret_cast<uintptr_t>(tensor.data), row, column, element_bytes, lattice)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64
              ") at address %p reaches past the end of the address space; mend its strides",
              name, rows, columns, row.stride, column.stride, tensor.data);
}

// D, and what shares no element with it.
class Result {
 public:
  explicit Result(const aot_gemm_tensor_t& tensor) : tensor_(tensor) {}

  // Checks that all elements lie in the address space, and are D's own.
  aot_gemm_status_t check(int64_t m, int64_t n, int64_t element_bytes) {
    const aot_gemm_status_t status = place("D", tensor_, m, n, element_bytes, &lattice_);
    if (status != AOT_GEMM_OK || is_distinct(lattice_)) return status;
    return fail(AOT_GEMM_ERROR_STRIDE,
                "D (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64
                ") overlaps itself; expected distinct elements; give D storage of its own",
                m, n, m > 1 ? tensor_.strides[0] : 0, n > 1 ? tensor_.strides[1] : 0);
  }

  // Checks the same of a matrix whose elements may share bytes, as check_packed has them.
  aot_gemm_status_t check_apart_packed(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k,
                                       Element element) const {
    if (!is_packed(element)) return check_apart(name, tensor, rows, k, bytes_of(element));
    const aot_gemm_tensor_t bytes = {tensor.data, {rows > 1 ? size_of(element, tensor.strides[0]) : 0, 1}};
    return check_apart(name, bytes, rows, size_of(element, k + 1), 1);
  }

  // Checks that an operand lies in the address space, apart from D. Without addresses, as in queries, there is nothing
  // to compare.
  aot_gemm_status_t check_apart(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                                int64_t element_bytes) const {
    Lattice operand;
    const aot_gemm_status_t status = place(name, tensor, rows, columns, element_bytes, &operand);
    if (status != AOT_GEMM_OK || tensor.data == nullptr || tensor_.data == nullptr) return status;
    if (!overlap(operand, lattice_)) return AOT_GEMM_OK;
    return fail(AOT_GEMM_ERROR_STRIDE,
                "D at address %p overlaps %s at address %p; expected a D that shares no element with an operand, which "
                "would be overwritten while it is read; give D storage of its own",
                tensor_.data, name, tensor.data);
  }

 private:
  const aot_gemm_tensor_t& tensor_;
  Lattice lattice_;
};

// Checks the atoms of narrow factors, whose strides are not looked at.
aot_gemm_status_t check_atoms(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k,
                              const AtomFormat& format, const Result& d) {
  const aot_gemm_status_t status = check_address(name, tensor.data, kPackedRunBytes);
  if (status != AOT_GEMM_OK) return status;
  const int64_t num_bytes = format.num_bytes(rows, k);
  if (num_bytes > kMaxExtent) {
    return fail(AOT_GEMM_ERROR_SHAPE, "%s of (%" PRId64 ", %" PRId64 ") takes %" PRId64 " bytes; expected at most %" PRId64
                "; split the problem", name, rows, k, num_bytes, kMaxExtent);
  }
  return d.check_apart(name, {tensor.data, {0, 1}}, 1, num_bytes, 1);
}

// Checks what there is beside A, B and the bias: its strides and addresses, and that it lies apart from D.
aot_gemm_status_t check_further(const aot_gemm_problem_t& problem, const Operation& operation, const Result& d) {
  aot_gemm_status_t status = AOT_GEMM_OK;
  if (operation.has_residual()) {
    status = check_strides("the residual", problem.residual.strides, problem.m, problem.n);
    const int64_t element_bytes = bytes_of(operation.d);
    if (status == AOT_GEMM_OK) {
      status = d.check_apart("the residual", problem.residual, problem.m, problem.n, element_bytes);
    }
  }
  if (status == AOT_GEMM_OK && operation.scale == Scale::kAtoms) {
    status = check_atoms("scale_a", problem.scale_a, problem.m, problem.k, operation.atoms, d);
    if (status == AOT_GEMM_OK) status = check_atoms("scale_b", problem.scale_b, problem.n, problem.k, operation.atoms, d);
  } else if (status == AOT_GEMM_OK && operation.scale != Scale::kNone) {
    const bool is_blocked = operation.scale == Scale::kBlock;
    const int64_t columns = is_blocked ? num_blocks(problem.k) : 1;
    const int64_t rows = is_blocked ? num_blocks(problem.n) : rows_of_b(problem, operation);
    status = check_factors("scale_a", problem.scale_a, problem.m, columns, operation.scale);
    if (status == AOT_GEMM_OK) status = check_factors("scale_b", problem.scale_b, rows, columns, operation.scale);
    if (status == AOT_GEMM_OK) status = d.check_apart("scale_a", problem.scale_a, problem.m, columns, kFactorBytes);
    if (status == AOT_GEMM_OK) status = d.check_apart("scale_b", problem.scale_b, rows, columns, kFactorBytes);
  }
  if (status == AOT_GEMM_OK && operation.scales_d()) {
    status = check_address("scale_d", problem.scale_d.data, kFactorBytes);
    if (status == AOT_GEMM_OK) status = d.check_apart("scale_d", problem.scale_d, 1, 1, kFactorBytes);
  }
  return status;
}

// Checks the step from the gate rows of B to the linear ones, which may lie in front.
aot_gemm_status_t check_step_of_parts(int64_t step, const void* data, int64_t element_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const bool is_behind = step >= 0;
  const uintptr_t room = is_behind ? UINTPTR_MAX - address : data == nullptr ? UINTPTR_MAX : address;
  const auto distance = static_cast<uintptr_t>(step);
  if ((is_behind ? distance : -distance) <= room / static_cast<uintptr_t>(element_bytes)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.b is %" PRId64 ", the step from the gate rows of B to the linear ones; "
              "expected one to within the address space; launch the two products one after the other", step);
}

// Checks that all elements lie in the address space, and that those of D are its own.
aot_gemm_status_t check_memory(const aot_gemm_problem_t& problem, const Operation& operation) {
  const int64_t rows = rows_of_b(problem, operation);
  Result d(problem.d);
  aot_gemm_status_t status = d.check(problem.m, problem.n, bytes_of(operation.d));
  if (status == AOT_GEMM_OK && adds_bias(problem, operation)) {
    status = d.check_apart("the bias", problem.bias, 1, rows, bytes_of(operation.bias_element));
  }
  if (status == AOT_GEMM_OK && operation.takes_further()) status = check_further(problem, operation, d);
  if (status != AOT_GEMM_OK || problem.k == 0) return status;
  status = d.check_apart_packed("A", problem.a, problem.m, problem.k, operation.a);
  if (status != AOT_GEMM_OK) return status;
  if ((problem.flags & AOT_GEMM_GATE_PARTS) == 0) {
    return d.check_apart_packed("B", problem.b, rows, problem.k, operation.b);
  }
  status = check_step_of_parts(problem.group_strides.b, problem.b.data, bytes_of(operation.b));
  if (status == AOT_GEMM_OK) status = d.check_apart("B", problem.b, problem.n, problem.k, bytes_of(operation.b));
  if (status != AOT_GEMM_OK || problem.b.data == nullptr) return status;
  aot_gemm_tensor_t linear = problem.b;
  linear.data = static_cast<char*>(linear.data) + problem.group_strides.b * bytes_of(operation.b);
  return d.check_apart("B", linear, problem.n, problem.k, bytes_of(operation.b));
}

}  // namespace

aot_gemm_status_t check(const aot_gemm_problem_t& problem, int32_t* index) {
  aot_gemm_status_t status = find_operation(problem.operation, index);
  if (status != AOT_GEMM_OK) return status;
  const Operation& operation = kOperations[*index];
  status = check_flags(problem.flags, operation);
  if (status == AOT_GEMM_OK) status = check_extents(problem, operation);
  if (status == AOT_GEMM_OK) status = check_which(problem, operation);
  if (status == AOT_GEMM_OK && is_empty(problem)) status = check_batch(problem, operation);
  if (status != AOT_GEMM_OK || is_empty(problem)) return status;
  status = check_bias(problem, operation);
  if (status == AOT_GEMM_OK) status = check_strides("A", problem.a.strides, rows_of_a(problem, operation), problem.k);
  if (status == AOT_GEMM_OK) status = check_strides("B", problem.b.strides, rows_of_b(problem, operation), problem.k);
  if (status == AOT_GEMM_OK) status = check_strides("D", problem.d.strides, problem.m, problem.n);
  if (status == AOT_GEMM_OK) status = check_packed("A", problem.a, problem.m, problem.k, operation.a);
  if (status == AOT_GEMM_OK) status = check_packed("B", problem.b, problem.n, problem.k, operation.b);
  if (status != AOT_GEMM_OK) return status;
  if (operation.has_offsets()) return check_groups(problem, operation);
  status = check_memory(problem, operation);
  return status == AOT_GEMM_OK ? check_batch(problem, operation) : status;
}

}  // namespace aot
