#include <cinttypes>

#include "batch.h"
#include "checks.h"
#include "error.h"
#include "groups.h"
#include "lattice.h"
#include "problem.h"
#include "problem_operands.h"
#include "written.h"

namespace aot {

namespace {

aot_gemm_status_t check_flags(uint64_t flags, const Operation& operation) {
  // Rows of a gate that take turns would share blocks of factors, or packed bytes.
  const bool may_take_turns = operation.has_gate() && operation.scale != Scale::kBlock && !operation.weight.is_packed();
  const uint64_t any = AOT_GEMM_B_CONSTANT | AOT_GEMM_BATCH_INVARIANT | AOT_GEMM_DETERMINISTIC;
  const bool may_have_parts = operation.has_gate() && !operation.has_offsets() && !operation.is_interleaved();
  const uint64_t known = any | (may_take_turns ? AOT_GEMM_GATE_INTERLEAVED : 0) |
                         (may_have_parts ? AOT_GEMM_GATE_PARTS : 0) |
                         (operation.has_offsets() ? AOT_GEMM_OFFSETS_START : 0);
  constexpr uint64_t kBoth = AOT_GEMM_GATE_INTERLEAVED | AOT_GEMM_GATE_PARTS;
  if ((flags & ~known) == 0 && (flags & kBoth) == kBoth) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "flags are 0x%" PRIx64 "; expected AOT_GEMM_GATE_INTERLEAVED or AOT_GEMM_GATE_PARTS: "
                "rows in pairs are in one matrix", flags);
  }
  if (operation.is_interleaved() && (flags & AOT_GEMM_GATE_INTERLEAVED) == 0) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "flags are 0x%" PRIx64 "; expected AOT_GEMM_GATE_INTERLEAVED (0x%" PRIx64 ") of operation "
                "%s, whose factors lie in atoms of 128 rows; put the rows of the gate and the linear ones in turns, and their "
                "factors", flags, AOT_GEMM_GATE_INTERLEAVED, operation.tag);
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

// Checks that rows of D, whose elements share bytes, end with one.
aot_gemm_status_t check_columns_of_pairs(int64_t n, const Operation& operation) {
  const int64_t sharing = 8 / bits_in(operation.d);
  if (n % sharing == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE, "n is %" PRId64 "; expected a multiple of %" PRId64 " of %s, whose elements of D share bytes; "
              "pad B with rows of zeros", n, sharing, operation.tag);
}

aot_gemm_status_t check_extents(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status = check_extent("m", problem.m);
  if (status == AOT_GEMM_OK) status = check_extent("n", problem.n);
  if (status == AOT_GEMM_OK) status = check_extent("k", problem.k);
  if (status == AOT_GEMM_OK) status = check_extent("num_groups", problem.num_groups);
  if (status == AOT_GEMM_OK) status = check_extent("rows_of_a", problem.rows_of_a);
  if (status == AOT_GEMM_OK && is_packed(operation.d)) status = check_columns_of_pairs(problem.n, operation);
  if (status != AOT_GEMM_OK || rows_of_b(problem, operation) <= kMaxExtent) return status;
  return fail(AOT_GEMM_ERROR_SHAPE,
              "n is %" PRId64 "; expected 0 to %" PRId64 " with a gate, whose B has twice as many rows; split the problem",
              problem.n, kMaxExtent / 2);
}

// Checks that there are as many weights as the operation takes, which have the rows of B between them.
aot_gemm_status_t check_which_parts(const aot_gemm_problem_t& problem, const Operation& operation) {
  const bool is_given = problem.parts != nullptr || problem.num_parts != 0;
  if (!operation.has_parts()) {
    if (!is_given) return AOT_GEMM_OK;
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got %" PRId64 " parts, which operation %s does not take; expected null and 0, or an "
                "operation of several weights, such as bf16_many", problem.num_parts, operation.tag);
  }
  if (problem.parts == nullptr || problem.num_parts < 1 || problem.num_parts > AOT_GEMM_MAX_PARTS) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got %" PRId64 " parts at %p, operation %s; expected 1 to %d; launch more weights one "
                "after the other", problem.num_parts, static_cast<const void*>(problem.parts), operation.tag, AOT_GEMM_MAX_PARTS);
  }
  if (problem.b.data != nullptr || problem.d.data != nullptr || problem.bias.data != nullptr || problem.num_groups > 1) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got b, d, a bias or groups beside parts, operation %s; expected none: each part has "
                "its own, and a batch none; leave them away", operation.tag);
  }
  int64_t rows = 0;
  for (int64_t i = 0; i < problem.num_parts; ++i) {
    const aot_gemm_status_t status = check_extent("parts[i].n", problem.parts[i].n);
    if (status != AOT_GEMM_OK) return status;
    rows += problem.parts[i].n;
  }
  if (rows == problem.n) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE, "n is %" PRId64 ", and the parts' together %" PRId64 "; expected n to be that of all parts",
              problem.n, rows);
}

aot_gemm_status_t check_which(const aot_gemm_problem_t& problem, const Operation& operation) {
  const uint64_t given =
      bit_if_given(Argument::kBias, problem.bias.data) | bit_if_given(Argument::kScaleA, problem.scale_a.data) |
      bit_if_given(Argument::kScaleB, problem.scale_b.data) | bit_if_given(Argument::kResidual, problem.residual.data) |
      bit_if_given(Argument::kScaleD, problem.scale_d.data) | bit_if_given(Argument::kOwnD, problem.own_d.data) |
      bit_if_given(Argument::kFactorsD, problem.factors_d.data) | bit_if_given(Argument::kOffsets, problem.offsets.data) |
      bit_if_given(Argument::kIndex, problem.index.data);
  aot_gemm_status_t status = check_absent(given, operation.arguments, operation.tag);
  if (status == AOT_GEMM_OK && !operation.groups_rows() && problem.b_of_groups != nullptr) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got b_of_groups, which operation %s does not take; expected null, or an operation of "
                "groups of rows", operation.tag);
  }
  if (status == AOT_GEMM_OK && !operation.has_atoms_of_groups() && problem.scale_b_of_groups != nullptr) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got scale_b_of_groups, which operation %s does not take; expected null, or an operation "
                "of groups of rows whose factors lie in atoms", operation.tag);
  }
  if (status == AOT_GEMM_OK) status = check_which_parts(problem, operation);
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

aot_gemm_status_t fail_absent(uint64_t operands, const char* tag) {
  return fail(AOT_GEMM_ERROR_ARGUMENT, "got %s, which operation %s does not take; expected null, or another operation",
              with_article(static_cast<Argument>(__builtin_ctzll(operands))), tag);
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

aot_gemm_status_t check_packed_run(const char* name, const void* data, int64_t k, const PackedFormat& weight) {
  if (k % weight.quantum() != 0) {
    return fail(AOT_GEMM_ERROR_SHAPE, "k is %" PRId64 "; expected a multiple of %" PRId64 ", of which weights of %s are packed; pad "
                "A and the weight with zeros", k, weight.quantum(), word_of(weight.format));
  }
  if (reinterpret_cast<uintptr_t>(data) % kPackedRunBytes == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s is at address %p; expected a multiple of %" PRId64 ", which packed weights begin at; "
              "copy it", name, data, kPackedRunBytes);
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

// Checks the step from the gate rows of B, or their factors, to the linear ones, which may lie in front.
aot_gemm_status_t check_step_of_parts(const char* name, int64_t step, const void* data, int64_t element_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const bool is_behind = step >= 0;
  const uintptr_t room = is_behind ? UINTPTR_MAX - address : data == nullptr ? UINTPTR_MAX : address;
  const auto distance = static_cast<uintptr_t>(step);
  if ((is_behind ? distance : -distance) <= room / static_cast<uintptr_t>(element_bytes)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.%s is %" PRId64 ", the step from the gate rows of B to the linear ones; "
              "expected one to within the address space; launch the two products one after the other", name, step);
}

// Gives the tensor that lies a step behind another.
aot_gemm_tensor_t stepped(const aot_gemm_tensor_t& tensor, int64_t step, int64_t element_bytes) {
  const uintptr_t moved = reinterpret_cast<uintptr_t>(tensor.data) + static_cast<uintptr_t>(times(step, element_bytes));
  return {tensor.data == nullptr ? nullptr : reinterpret_cast<void*>(moved), {tensor.strides[0], tensor.strides[1]}};
}

// Checks the bytes of a packed weight, or of a gate's two, whose strides are not looked at.
aot_gemm_status_t check_packed_weight(const aot_gemm_problem_t& problem, const Operation& operation, const WrittenMatrix& d) {
  const PackedFormat& weight = operation.weight;
  aot_gemm_status_t status = check_packed_run("B", problem.b.data, problem.k, weight);
  if (status != AOT_GEMM_OK) return status;
  const int64_t num_bytes = weight.num_bytes(problem.n, problem.k);
  const aot_gemm_tensor_t bytes = {problem.b.data, {0, 1}};
  status = d.check_apart("B", bytes, 1, num_bytes, 1);
  if (status != AOT_GEMM_OK || !operation.has_gate()) return status;
  const int64_t step = parts_of_b(problem, operation, weight.row_bytes(problem.k)).part;
  if (step % kPackedRunBytes != 0) {
    return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.b is %" PRId64 ", the bytes from the gate's packed weight to the linear one; "
                "expected a multiple of %" PRId64 ", which packed weights begin at; copy one of them", step, kPackedRunBytes);
  }
  status = check_step_of_parts("b", step, problem.b.data, 1);
  return status == AOT_GEMM_OK ? d.check_apart("B", stepped(bytes, step, 1), 1, num_bytes, 1) : status;
}

// Checks the factors of each of a gate's packed weights, where they are tensors of their own.
aot_gemm_status_t check_own_factors(const aot_gemm_problem_t& problem, const WrittenMatrix& d) {
  const int64_t step = problem.group_strides.scale_b;
  aot_gemm_status_t status = check_factors("scale_b", problem.scale_b, problem.n, 1, Scale::kVector);
  if (status == AOT_GEMM_OK) status = check_step_of_parts("scale_b", step, problem.scale_b.data, kFactorBytes);
  if (status == AOT_GEMM_OK) status = d.check_apart("scale_b", problem.scale_b, problem.n, 1, kFactorBytes);
  if (status != AOT_GEMM_OK) return status;
  return d.check_apart("scale_b", stepped(problem.scale_b, step, kFactorBytes), problem.n, 1, kFactorBytes);
}

// Checks what there is beside A, B and the bias: its strides and addresses, and that it lies apart from D.
aot_gemm_status_t check_further(const aot_gemm_problem_t& problem, const Operation& operation, const WrittenMatrix& d) {
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
    const int64_t rows = rows_of_b(problem, operation);
    if (status == AOT_GEMM_OK) status = check_atoms("scale_b", problem.scale_b, rows, problem.k, operation.atoms, d);
  } else if (status == AOT_GEMM_OK && operation.scale != Scale::kNone) {
    const bool is_blocked = operation.scale == Scale::kBlock;
    const int64_t columns = is_blocked ? num_blocks(problem.k) : 1;
    const int64_t rows = is_blocked ? num_blocks(problem.n) : rows_of_b(problem, operation);
    if (operation.takes(Argument::kScaleA)) {
      status = check_factors("scale_a", problem.scale_a, problem.m, columns, operation.scale);
      if (status == AOT_GEMM_OK) status = d.check_apart("scale_a", problem.scale_a, problem.m, columns, kFactorBytes);
    }
    if (has_own_factors(problem, operation)) return status == AOT_GEMM_OK ? check_own_factors(problem, d) : status;
    if (status == AOT_GEMM_OK) status = check_factors("scale_b", problem.scale_b, rows, columns, operation.scale);
    if (status == AOT_GEMM_OK) status = d.check_apart("scale_b", problem.scale_b, rows, columns, kFactorBytes);
  }
  if (status == AOT_GEMM_OK && operation.scales_d()) {
    status = check_address("scale_d", problem.scale_d.data, kFactorBytes);
    if (status == AOT_GEMM_OK) status = d.check_apart("scale_d", problem.scale_d, 1, 1, kFactorBytes);
  }
  if (status != AOT_GEMM_OK || !operation.writes_factors()) return status;
  return check_factors_of_d(problem, operation, d);
}

// Checks that all elements lie in the address space, and that those of D are its own.
aot_gemm_status_t check_memory(const aot_gemm_problem_t& problem, const Operation& operation) {
  const int64_t rows = rows_of_b(problem, operation);
  WrittenMatrix d(in_bytes(problem.d, problem.m, operation.d));
  const bool is_shared = is_packed(operation.d);
  aot_gemm_status_t status = AOT_GEMM_OK;
  if (is_shared) status = d.check(problem.m, size_of(operation.d, problem.n + 1), 1);
  if (status == AOT_GEMM_OK && !is_shared) status = d.check(problem.m, problem.n, bytes_of(operation.d));
  if (status == AOT_GEMM_OK && adds_bias(problem, operation)) {
    status = d.check_apart("the bias", problem.bias, 1, rows, bytes_of(operation.bias_element));
  }
  if (status == AOT_GEMM_OK && operation.takes_further()) status = check_further(problem, operation, d);
  if (status != AOT_GEMM_OK || problem.k == 0) return status;
  status = d.check_apart_packed("A", problem.a, problem.m, problem.k, operation.a);
  if (status != AOT_GEMM_OK) return status;
  if (operation.weight.is_packed()) return check_packed_weight(problem, operation, d);
  if ((problem.flags & AOT_GEMM_GATE_PARTS) == 0) {
    return d.check_apart_packed("B", problem.b, rows, problem.k, operation.b);
  }
  status = check_step_of_parts("b", problem.group_strides.b, problem.b.data, bytes_of(operation.b));
  if (status == AOT_GEMM_OK) status = d.check_apart("B", problem.b, problem.n, problem.k, bytes_of(operation.b));
  if (status != AOT_GEMM_OK || problem.b.data == nullptr) return status;
  const aot_gemm_tensor_t linear = stepped(problem.b, problem.group_strides.b, bytes_of(operation.b));
  return d.check_apart("B", linear, problem.n, problem.k, bytes_of(operation.b));
}

// Checks the strides of each of several weights, of its D, and of its bias.
aot_gemm_status_t check_strides_of_parts(const aot_gemm_problem_t& problem) {
  aot_gemm_status_t status = check_strides("A", problem.a.strides, problem.m, problem.k);
  for (int64_t i = 0; i < problem.num_parts && status == AOT_GEMM_OK; ++i) {
    const aot_gemm_part_t& part = problem.parts[i];
    status = check_strides("B of a part", part.b.strides, part.n, problem.k);
    if (status == AOT_GEMM_OK) status = check_strides("D of a part", part.d.strides, problem.m, part.n);
    if (status != AOT_GEMM_OK || part.bias.data == nullptr || part.n <= 1 || part.bias.strides[1] == 1) continue;
    status = fail(AOT_GEMM_ERROR_STRIDE, "the bias of part %" PRId64 ", of %" PRId64 " elements, has the stride %" PRId64
                  "; expected 1, elements that are adjacent; copy it", i, part.n, part.bias.strides[1]);
  }
  return status;
}

// Checks that D of a part shares no element with itself, an operand, or D of a later part.
aot_gemm_status_t check_memory_of_part(const aot_gemm_problem_t& problem, const Operation& operation, int64_t number) {
  const int64_t element_bytes = bytes_of(operation.d);
  WrittenMatrix d(problem.parts[number].d);
  aot_gemm_status_t status = d.check(problem.m, problem.parts[number].n, element_bytes);
  const bool reads = problem.k > 0;
  if (status == AOT_GEMM_OK && reads) status = d.check_apart("A", problem.a, problem.m, problem.k, bytes_of(operation.a));
  for (int64_t i = 0; i < problem.num_parts && status == AOT_GEMM_OK; ++i) {
    const aot_gemm_part_t& part = problem.parts[i];
    if (part.n == 0) continue;
    if (reads) status = d.check_apart("B of a part", part.b, part.n, problem.k, bytes_of(operation.b));
    if (status == AOT_GEMM_OK && part.bias.data != nullptr) {
      status = d.check_apart("the bias of a part", part.bias, 1, part.n, bytes_of(operation.bias_element));
    }
    if (status == AOT_GEMM_OK && i > number) status = d.check_apart("D of another part", part.d, problem.m, part.n, element_bytes);
  }
  return status;
}

aot_gemm_status_t check_parts(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status = check_strides_of_parts(problem);
  for (int64_t i = 0; i < problem.num_parts && status == AOT_GEMM_OK; ++i) {
    if (problem.parts[i].n > 0) status = check_memory_of_part(problem, operation, i);
  }
  return status;
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
  if (operation.has_parts()) return check_parts(problem, operation);
  status = check_bias(problem, operation);
  if (status == AOT_GEMM_OK) status = check_strides("A", problem.a.strides, rows_of_a(problem, operation), problem.k);
  if (status == AOT_GEMM_OK && !operation.weight.is_packed()) {
    status = check_strides("B", problem.b.strides, rows_of_b(problem, operation), problem.k);
  }
  if (status == AOT_GEMM_OK) status = check_strides("D", problem.d.strides, problem.m, problem.n);
  if (status == AOT_GEMM_OK) status = check_packed("A", problem.a, problem.m, problem.k, operation.a);
  if (status == AOT_GEMM_OK) status = check_packed("B", problem.b, problem.n, problem.k, operation.b);
  if (status == AOT_GEMM_OK) status = check_packed("D", problem.d, problem.m, problem.n, operation.d);
  if (status != AOT_GEMM_OK) return status;
  if (operation.has_offsets()) return check_groups(problem, operation);
  status = check_memory(problem, operation);
  return status == AOT_GEMM_OK ? check_batch(problem, operation) : status;
}

}  // namespace aot
