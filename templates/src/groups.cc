#include "groups.h"

#include <algorithm>
#include <cinttypes>

#include "checks.h"
#include "error.h"
#include "lattice.h"
#include "problem.h"
#include "written.h"

namespace aot {

namespace {

// Checks that no step from group to group is below 0.
aot_gemm_status_t check_steps(const aot_gemm_problem_t& problem) {
  const aot_gemm_group_strides_t& steps = problem.group_strides;
  const int64_t all[] = {steps.a, steps.b, steps.d, steps.bias, steps.scale_a, steps.scale_b, steps.residual};
  constexpr const char* kNames[] = {"a", "b", "d", "bias", "scale_a", "scale_b", "residual"};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i) {
    if (all[i] >= 0) continue;
    return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.%s is %" PRId64 "; expected 0 or more; copy the operand", kNames[i],
                all[i]);
  }
  return AOT_GEMM_OK;
}

// Bytes of an offset, and of an index: int32.
constexpr int64_t kIndexBytes = 4;

// Checks a vector of int32 on the device: that its elements are adjacent, at multiples of 4 bytes.
aot_gemm_status_t check_integers(const char* name, const aot_gemm_tensor_t& tensor, int64_t count) {
  const aot_gemm_status_t status = check_address(name, tensor.data, kIndexBytes);
  if (status != AOT_GEMM_OK || count <= 1 || tensor.strides[0] == 1) return status;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s of %" PRId64 " int32 has the stride %" PRId64
              "; expected 1, elements that are adjacent; copy it", name, count, tensor.strides[0]);
}

// Checks what groups and their rows are found by.
aot_gemm_status_t check_offsets(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status = check_integers("offsets", problem.offsets, num_offsets(problem));
  if (status == AOT_GEMM_OK && operation.gathers()) status = check_integers("the index", problem.index, problem.m);
  return status;
}

// Steps of a tensor map are below 2^40 bytes. Source: CUDA driver API, cuTensorMapEncodeTiled.
constexpr uintptr_t kStepLimitBytes = uintptr_t{1} << 40;
// The largest step between places: any power of two that leaves 31 bits for a place.
constexpr uintptr_t kLargestStep = uintptr_t{1} << 30;

// How addresses lie: from the least one on, each a multiple of a step behind it.
struct Spacing {
  uintptr_t base;
  uintptr_t step;
  uintptr_t reach;   // of the largest address behind the base
  bool is_regular;   // address i is i steps behind the first one
};

uintptr_t address_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// Finds the largest step, a power of two, of which all addresses are multiples behind the least.
Spacing find_places(const void* const* addresses, int64_t count) {
  uintptr_t base = address_of(addresses[0]);
  uintptr_t last = base;
  for (int64_t i = 1; i < count; ++i) {
    base = std::min(base, address_of(addresses[i]));
    last = std::max(last, address_of(addresses[i]));
  }
  uintptr_t bits = kLargestStep;
  for (int64_t i = 0; i < count; ++i) bits |= address_of(addresses[i]) - base;
  return {base, bits & -bits, last - base, false};
}

Spacing find_spacing(const void* const* addresses, int64_t count) {
  const uintptr_t first = address_of(addresses[0]);
  const uintptr_t step = count > 1 ? address_of(addresses[1]) - first : 0;
  bool is_regular = step < kStepLimitBytes;
  for (int64_t i = 1; i < count && is_regular; ++i) {
    is_regular = address_of(addresses[i]) - address_of(addresses[i - 1]) == step;
  }
  if (is_regular) return {first, step, address_of(addresses[count - 1]) - first, true};
  return find_places(addresses, count);
}

// Finds how the groups' atoms lie, of so many bytes each: regularly where one run of bytes has them all, as kernels take them.
Spacing find_spacing_of_atoms(const aot_gemm_problem_t& problem, int64_t num_bytes) {
  const int64_t groups = num_groups_of(problem);
  const Spacing spacing = find_spacing(problem.scale_b_of_groups, groups);
  const bool is_run = spacing.is_regular && (groups == 1 || spacing.step == static_cast<uintptr_t>(num_bytes));
  return is_run ? spacing : find_places(problem.scale_b_of_groups, groups);
}

// From the first byte to past the last of a stack of matrices, or of vectors.
struct Bytes {
  uintptr_t begin;
  uintptr_t end;
};

// Finds those of `count` matrices at steps of `step` elements. Says false where they do not lie in the address space.
bool find_bytes(const aot_gemm_tensor_t& tensor, int64_t count, int64_t step, int64_t rows, int64_t columns,
                int64_t element_bytes, Bytes* bytes) {
  const Axis row = {rows, rows > 1 ? tensor.strides[0] : 0};
  const Axis column = {columns, columns > 1 ? tensor.strides[1] : 0};
  Lattice first;
  Lattice last;
  int64_t offset;
  if (__builtin_mul_overflow(count - 1, step, &offset) || __builtin_mul_overflow(offset, element_bytes, &offset)) {
    return false;
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  uintptr_t of_last;
  if (__builtin_add_overflow(address, static_cast<uintptr_t>(offset), &of_last)) return false;
  if (!make_lattice(address, row, column, element_bytes, &first)) return false;
  if (!make_lattice(of_last, row, column, element_bytes, &last)) return false;
  *bytes = {first.begin, last.end};
  return true;
}

// D, or the atoms that are written with it, and what lies apart from it. Of elements that share bytes it is those.
class GroupedResult {
 public:
  GroupedResult(const aot_gemm_problem_t& problem, const Operation& operation)
      : GroupedResult("D", in_bytes(problem.d, problem.m, operation.d), operation.groups_rows() ? 1 : num_groups_of(problem),
                      problem.group_strides.d, problem.m,
                      is_packed(operation.d) ? size_of(operation.d, problem.n + 1) : problem.n,
                      is_packed(operation.d) ? 1 : bytes_of(operation.d)) {}

  GroupedResult(const char* name, const aot_gemm_tensor_t& tensor, int64_t count, int64_t step, int64_t rows,
                int64_t columns, int64_t element_bytes)
      : name_(name), tensor_(tensor), count_(count), step_(step), rows_(rows), columns_(columns), element_bytes_(element_bytes) {}

  // Checks that all elements lie in the address space, and are its own.
  aot_gemm_status_t check() {
    if (!find_bytes(tensor_, count_, step_, rows_, columns_, element_bytes_, &bytes_)) return refuse_reach(name_, tensor_, step_);
    const Axis axes[] = {{count_, step_}, {rows_, tensor_.strides[0]}, {columns_, tensor_.strides[1]}};
    if (is_distinct(axes)) return AOT_GEMM_OK;
    return fail(AOT_GEMM_ERROR_STRIDE,
                "%s of %" PRId64 " matrices (%" PRId64 ", %" PRId64 ") with strides (%" PRId64 ", %" PRId64 ", %" PRId64
                ") overlaps itself; expected distinct elements; give %s storage of its own",
                name_, count_, rows_, columns_, step_, tensor_.strides[0], tensor_.strides[1], name_);
  }

  // Checks the same of matrices whose elements may share bytes, which rows and groups begin with.
  aot_gemm_status_t check_apart_packed(const char* name, const aot_gemm_tensor_t& tensor, int64_t count, int64_t step,
                                       int64_t rows, int64_t k, Element element) const {
    if (!is_packed(element)) return check_apart(name, tensor, count, step, rows, k, bytes_of(element));
    const aot_gemm_tensor_t bytes = {tensor.data, {rows > 1 ? size_of(element, tensor.strides[0]) : 0, 1}};
    return check_apart(name, bytes, count, size_of(element, step), rows, size_of(element, k + 1), 1);
  }

  // Checks that `count` matrices lie in the address space, and past the last byte of what is written or before its first.
  aot_gemm_status_t check_apart(const char* name, const aot_gemm_tensor_t& tensor, int64_t count, int64_t step,
                                int64_t rows, int64_t columns, int64_t element_bytes) const {
    Bytes bytes;
    if (rows == 0 || columns == 0) return AOT_GEMM_OK;
    if (!find_bytes(tensor, count, step, rows, columns, element_bytes, &bytes)) return refuse_reach(name, tensor, step);
    const bool is_apart = bytes.end <= bytes_.begin || bytes_.end <= bytes.begin;
    if (is_apart || tensor.data == nullptr || tensor_.data == nullptr) return AOT_GEMM_OK;
    return fail(AOT_GEMM_ERROR_STRIDE,
                "%s at address %p reaches into the memory of %s at address %p; expected a %s apart from all operands, which "
                "would be overwritten while they are read; give %s storage of its own",
                name_, tensor_.data, name, tensor.data, name_, name_);
  }

 private:
  static aot_gemm_status_t refuse_reach(const char* name, const aot_gemm_tensor_t& tensor, int64_t step) {
    return fail(AOT_GEMM_ERROR_STRIDE,
                "%s with strides (%" PRId64 ", %" PRId64 ") and steps of %" PRId64
                " at address %p reaches past the end of the address space; mend its strides",
                name, tensor.strides[0], tensor.strides[1], step, tensor.data);
  }

  // Says whether all elements are distinct: each axis, in the order of strides, reaches past all that are below it.
  static bool is_distinct(const Axis (&axes)[3]) {
    Axis sorted[] = {axes[0], axes[1], axes[2]};
    std::sort(sorted, sorted + 3, [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
    int64_t reach = 1;
    for (const Axis& axis : sorted) {
      if (axis.extent <= 1) continue;
      if (axis.stride < reach) return false;
      reach += (axis.extent - 1) * axis.stride;  // find_bytes has seen that it fits
    }
    return true;
  }

  const char* name_;
  aot_gemm_tensor_t tensor_;
  int64_t count_;
  int64_t step_;
  int64_t rows_;
  int64_t columns_;
  int64_t element_bytes_;
  Bytes bytes_ = {0, 0};
};

// Checks narrow factors in atoms: `count` runs of bytes, one behind the other.
aot_gemm_status_t check_atoms(const char* name, const aot_gemm_tensor_t& tensor, int64_t count, int64_t run_bytes,
                              const GroupedResult& d) {
  const aot_gemm_status_t status = check_address(name, tensor.data, kPackedRunBytes);
  if (status != AOT_GEMM_OK) return status;
  if (run_bytes > 0 && count > kMaxExtent / run_bytes) {
    return fail(AOT_GEMM_ERROR_SHAPE, "%s takes %" PRId64 " times %" PRId64 " bytes of atoms; expected at most %" PRId64
                "; split the problem", name, count, run_bytes, kMaxExtent);
  }
  return d.check_apart(name, {tensor.data, {0, 1}}, 1, 0, 1, count * run_bytes, 1);
}

// Checks that addresses of groups can be places of a stack.
aot_gemm_status_t check_spacing(const char* what, const Spacing& spacing) {
  if (spacing.is_regular || spacing.reach / spacing.step < INT32_MAX) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "the groups' %s lie up to %" PRIuPTR " bytes apart, at multiples of %" PRIuPTR " bytes; expected less than 2^31 "
              "such steps; allocate each at a multiple of 256 bytes, or copy them into one stack",
              what, spacing.reach, spacing.step);
}

// Checks that of what groups have an address each, nothing is said by a stack too.
aot_gemm_status_t check_no_stack(const char* name, const void* data, int64_t step) {
  if (data == nullptr && step == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT,
              "%s_of_groups is given, and %s.data is %p and group_strides.%s %" PRId64 "; expected null and 0: what the groups have "
              "is a stack or has an address each",
              name, name, data, name, step);
}

// Checks the atoms of groups that have an address each, of so many bytes.
aot_gemm_status_t check_atoms_of_groups(const aot_gemm_problem_t& problem, int64_t num_bytes, const GroupedResult& d) {
  const int64_t groups = num_groups_of(problem);
  aot_gemm_status_t status = check_no_stack("scale_b", problem.scale_b.data, problem.group_strides.scale_b);
  for (int64_t i = 0; i < groups && status == AOT_GEMM_OK; ++i) {
    const aot_gemm_tensor_t atoms = {const_cast<void*>(problem.scale_b_of_groups[i]), {0, 0}};
    status = check_atoms("scale_b of a group", atoms, 1, num_bytes, d);
  }
  return status == AOT_GEMM_OK ? check_spacing("scale_b", find_spacing_of_atoms(problem, num_bytes)) : status;
}

// Checks the factors of groups in atoms, and the factor that each group's sums are multiplied by.
aot_gemm_status_t check_narrow_factors(const aot_gemm_problem_t& problem, const Operation& operation, const GroupedResult& d) {
  const int64_t groups = num_groups_of(problem);
  const int64_t step = operation.atoms.num_bytes(rows_of_b(problem, operation), problem.k);
  const bool are_apart = problem.scale_b_of_groups != nullptr;
  if (!are_apart && groups > 1 && problem.group_strides.scale_b != step) {
    return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.scale_b is %" PRId64 "; expected %" PRId64 ", the bytes of a group's atoms, "
                "which lie one behind the other; copy them", problem.group_strides.scale_b, step);
  }
  const int64_t num_atoms = num_atom_rows(problem.m, groups);
  aot_gemm_status_t status = check_atoms("scale_a", problem.scale_a, num_atoms, operation.atoms.row_bytes(problem.k), d);
  if (status == AOT_GEMM_OK) {
    status = are_apart ? check_atoms_of_groups(problem, step, d) : check_atoms("scale_b", problem.scale_b, groups, step, d);
  }
  if (status != AOT_GEMM_OK || !operation.scales_d()) return status;
  status = check_address("scale_d", problem.scale_d.data, kFactorBytes);
  if (status == AOT_GEMM_OK && groups > 1 && problem.scale_d.strides[0] != 1) {
    return fail(AOT_GEMM_ERROR_STRIDE, "scale_d of %" PRId64 " groups has the stride %" PRId64
                "; expected 1, a factor for each group; copy it", groups, problem.scale_d.strides[0]);
  }
  if (status != AOT_GEMM_OK) return status;
  return d.check_apart("scale_d", {problem.scale_d.data, {1, 1}}, 1, 0, groups, 1, kFactorBytes);
}

// Checks the factors and the bias of groups.
aot_gemm_status_t check_of_groups(const aot_gemm_problem_t& problem, const Operation& operation, const GroupedResult& d) {
  aot_gemm_status_t status = AOT_GEMM_OK;
  const int64_t groups = num_groups_of(problem);
  const int64_t all_rows = rows_of_b(problem, operation);
  const aot_gemm_group_strides_t& steps = problem.group_strides;
  if (adds_bias(problem, operation)) {
    status = d.check_apart("the bias", problem.bias, groups, steps.bias, 1, all_rows, bytes_of(operation.bias_element));
  }
  if (status != AOT_GEMM_OK || operation.scale == Scale::kNone) return status;
  if (operation.scale == Scale::kAtoms) return check_narrow_factors(problem, operation, d);
  const bool is_blocked = operation.scale == Scale::kBlock;
  const int64_t columns = is_blocked ? num_blocks(problem.k) : 1;
  const int64_t rows = is_blocked ? num_blocks(all_rows) : all_rows;
  const int64_t rows_a = rows_of_a(problem, operation);
  const bool has_scale_a = operation.takes(Argument::kScaleA);  // which is not there beside a packed weight
  if (has_scale_a) status = check_factors("scale_a", problem.scale_a, rows_a, columns, operation.scale);
  if (status == AOT_GEMM_OK) status = check_factors("scale_b", problem.scale_b, rows, columns, operation.scale);
  if (status == AOT_GEMM_OK && has_scale_a) {
    status = d.check_apart("scale_a", problem.scale_a, 1, 0, rows_a, columns, kFactorBytes);
  }
  if (status != AOT_GEMM_OK) return status;
  return d.check_apart("scale_b", problem.scale_b, groups, steps.scale_b, rows, columns, kFactorBytes);
}

// Checks the bytes of so many packed weights, at steps of a stack.
aot_gemm_status_t check_packed_weights(const char* name, const void* data, int64_t count, int64_t step,
                                       const aot_gemm_problem_t& problem, const PackedFormat& weight, const GroupedResult& d) {
  const aot_gemm_status_t status = check_packed_run(name, data, problem.k, weight);
  if (status != AOT_GEMM_OK) return status;
  if (count > 1 && step % kPackedRunBytes != 0) {
    return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.b is %" PRId64 ", the bytes from a packed weight to the next; expected a multiple "
                "of %" PRId64 ", which packed weights begin at; copy B", step, kPackedRunBytes);
  }
  return d.check_apart(name, {const_cast<void*>(data), {0, 1}}, count, step, 1, weight.num_bytes(problem.n, problem.k), 1);
}

// Checks the B of groups that have an address each.
aot_gemm_status_t check_b_of_groups(const aot_gemm_problem_t& problem, const Operation& operation,
                                    const GroupedResult& d) {
  const int64_t groups = num_groups_of(problem);
  const int64_t address_bytes = is_packed(operation.b) ? 1 : bytes_of(operation.b);
  const aot_gemm_status_t refused = check_no_stack("b", problem.b.data, problem.group_strides.b);
  if (refused != AOT_GEMM_OK) return refused;
  for (int64_t i = 0; i < groups; ++i) {
    const aot_gemm_tensor_t b = {const_cast<void*>(problem.b_of_groups[i]),
                                 {problem.b.strides[0], problem.b.strides[1]}};
    aot_gemm_status_t status = check_address("B of a group", b.data, address_bytes);
    if (status == AOT_GEMM_OK && operation.weight.is_packed()) {
      status = check_packed_weights("B of a group", b.data, 1, 0, problem, operation.weight, d);
    } else if (status == AOT_GEMM_OK) {
      status = d.check_apart_packed("B of a group", b, 1, 0, rows_of_b(problem, operation), problem.k, operation.b);
    }
    if (status != AOT_GEMM_OK) return status;
  }
  return check_spacing("B", find_spacing(problem.b_of_groups, groups));
}

// Checks the offsets and the index.
aot_gemm_status_t check_vectors(const aot_gemm_problem_t& problem, const Operation& operation, const GroupedResult& d) {
  const aot_gemm_tensor_t offsets = {problem.offsets.data, {1, 1}};
  const aot_gemm_status_t status = d.check_apart("the offsets", offsets, 1, 0, num_offsets(problem), 1, kIndexBytes);
  if (status != AOT_GEMM_OK || !operation.gathers()) return status;
  const aot_gemm_tensor_t index = {problem.index.data, {1, 1}};
  return d.check_apart("the index", index, 1, 0, problem.m, 1, kIndexBytes);
}

// Checks that A and B, all of the groups', lie apart from what is written.
aot_gemm_status_t check_multiplied(const aot_gemm_problem_t& problem, const Operation& operation, const GroupedResult& d) {
  const int64_t rows_a = rows_of_a(problem, operation);
  const int64_t count_b = operation.groups_rows() ? num_groups_of(problem) : 1;
  const aot_gemm_status_t status = d.check_apart_packed("A", problem.a, 1, 0, rows_a, problem.k, operation.a);
  if (status != AOT_GEMM_OK) return status;
  if (problem.b_of_groups != nullptr) return check_b_of_groups(problem, operation, d);
  if (operation.weight.is_packed()) {
    return check_packed_weights("B", problem.b.data, count_b, problem.group_strides.b, problem, operation.weight, d);
  }
  if (is_packed(operation.b) && problem.group_strides.b % kElementsInByte != 0) {
    return fail(AOT_GEMM_ERROR_STRIDE, "group_strides.b is %" PRId64 "; expected a multiple of %" PRId64 " elements, which share a "
                "byte; copy B", problem.group_strides.b, kElementsInByte);
  }
  const int64_t rows_b = rows_of_b(problem, operation);
  return d.check_apart_packed("B", problem.b, count_b, problem.group_strides.b, rows_b, problem.k, operation.b);
}

// Checks all that is read of the groups against what is written.
aot_gemm_status_t check_read(const aot_gemm_problem_t& problem, const Operation& operation, const GroupedResult& written) {
  aot_gemm_status_t status = AOT_GEMM_OK;
  if (operation.groups_rows()) status = check_of_groups(problem, operation, written);
  if (status == AOT_GEMM_OK) status = check_vectors(problem, operation, written);
  if (status == AOT_GEMM_OK && operation.takes(Argument::kOwnD)) {
    status = check_address("own_d", problem.own_d.data, kFactorBytes);
    if (status == AOT_GEMM_OK) status = written.check_apart("own_d", {problem.own_d.data, {1, 1}}, 1, 0, 1, 1, kFactorBytes);
  }
  return status == AOT_GEMM_OK && problem.k > 0 ? check_multiplied(problem, operation, written) : status;
}

// Checks the atoms that the factors of D are written to, as many as those of the A that D is to the next product.
aot_gemm_status_t check_factors_of_d(const aot_gemm_problem_t& problem, const Operation& operation, const GroupedResult& d) {
  const int64_t num_atoms = num_atom_rows(problem.m, num_groups_of(problem));
  const int64_t row_bytes = operation.blocks_d.row_bytes(problem.n);
  aot_gemm_status_t status = check_atoms("factors_d", problem.factors_d, num_atoms, row_bytes, d);
  if (status != AOT_GEMM_OK) return status;
  GroupedResult factors("factors_d", {problem.factors_d.data, {0, 1}}, 1, 0, 1, num_atoms * row_bytes, 1);
  status = factors.check();
  return status == AOT_GEMM_OK ? check_read(problem, operation, factors) : status;
}

}  // namespace

aot_gemm_status_t check_groups(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status = check_steps(problem);
  if (status == AOT_GEMM_OK) status = check_offsets(problem, operation);
  GroupedResult d(problem, operation);
  if (status == AOT_GEMM_OK) status = d.check();
  if (status == AOT_GEMM_OK) status = check_read(problem, operation, d);
  return status == AOT_GEMM_OK && operation.writes_factors() ? check_factors_of_d(problem, operation, d) : status;
}

aot_gemm_problem_t stack_of_groups(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_problem_t stack = problem;
  const int64_t groups = num_groups_of(problem);
  if (problem.b_of_groups != nullptr) {
    const Spacing spacing = find_spacing(problem.b_of_groups, groups);
    stack.b.data = reinterpret_cast<void*>(spacing.base);
    stack.group_strides.b = static_cast<int64_t>(spacing.step) * 8 / bits_in(operation.b);
    if (spacing.is_regular || problem.k == 0) stack.b_of_groups = nullptr;
  }
  if (problem.scale_b_of_groups != nullptr) {
    const int64_t num_bytes = operation.atoms.num_bytes(rows_of_b(problem, operation), problem.k);
    const Spacing spacing = find_spacing_of_atoms(problem, num_bytes);
    stack.scale_b.data = reinterpret_cast<void*>(spacing.base);
    stack.group_strides.scale_b = spacing.is_regular ? num_bytes : static_cast<int64_t>(spacing.step);
    if (spacing.is_regular || problem.k == 0) stack.scale_b_of_groups = nullptr;
  }
  return stack;
}

}  // namespace aot
