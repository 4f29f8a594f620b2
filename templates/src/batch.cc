#include "batch.h"

#include <algorithm>
#include <cinttypes>

#include "error.h"
#include "lattice.h"
#include "problem.h"

namespace aot {

namespace {

// Pairs of products that are compared one by one: more than that counts as an overlap, so that the time of a check is
// bounded.
constexpr int64_t kMaxComparedPairs = 1 << 16;

// The matrices of one operand, one for each product.
struct Matrices {
  const char* name;
  uintptr_t address;
  Axis rows;
  Axis columns;
  int64_t step;  // in elements
  int64_t element_bytes;

  Matrices(const char* operand, const aot_gemm_tensor_t& tensor, int64_t num_rows, int64_t num_columns, int64_t between,
           Element element)
      : name(operand),
        address(reinterpret_cast<uintptr_t>(tensor.data)),
        rows({num_rows, num_rows > 1 ? tensor.strides[0] : 0}),
        columns({num_columns, num_columns > 1 ? tensor.strides[1] : 0}),
        step(between),
        element_bytes(bytes_of(element)) {}

  // Reads one of them, which check_reach has seen to lie in the address space.
  Lattice read(int64_t number) const {
    Lattice lattice;
    const uintptr_t begin = address + static_cast<uintptr_t>(number * step * element_bytes);
    make_lattice(begin, rows, columns, element_bytes, &lattice);
    return lattice;
  }
};

aot_gemm_status_t check_step(const Matrices& matrices) {
  if (matrices.step >= 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "group_strides of %s is %" PRId64 "; expected none below 0; copy %s", matrices.name,
              matrices.step, matrices.name);
}

// Checks that all products of an operand lie in the address space.
aot_gemm_status_t check_reach(const Matrices& matrices, int64_t num_products) {
  int64_t bytes = 0;
  uintptr_t last = 0;
  Lattice lattice;
  const bool fits = !__builtin_mul_overflow(num_products - 1, matrices.step, &bytes) &&
                    !__builtin_mul_overflow(bytes, matrices.element_bytes, &bytes) &&
                    !__builtin_add_overflow(matrices.address, static_cast<uintptr_t>(bytes), &last) &&
                    make_lattice(last, matrices.rows, matrices.columns, matrices.element_bytes, &lattice);
  if (fits) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "%s of %" PRId64 " products, %" PRId64 " elements apart, at address %p reaches past the end of the address "
              "space; mend its strides",
              matrices.name, num_products, matrices.step, reinterpret_cast<void*>(matrices.address));
}

// Says whether two products share an element of D: those that are as far apart as the first is from some other one do as
// those two.
bool repeats(const Matrices& d, int64_t num_products) {
  const Lattice first = d.read(0);
  if (first.begin == first.end || num_products == 1) return false;
  if (d.step == 0) return true;
  const auto span = static_cast<int64_t>(first.end - first.begin);
  const int64_t within = std::min((span - 1) / (d.step * d.element_bytes), num_products - 1);
  if (within > kMaxComparedPairs) return true;
  for (int64_t i = 1; i <= within; ++i) {
    if (overlap(first, d.read(i))) return true;
  }
  return false;
}

// Says whether some product of an operand shares an element with some product of D.
bool overlap(const Matrices& operand, const Matrices& d, int64_t num_products) {
  const uintptr_t operand_end = operand.read(num_products - 1).end;
  const uintptr_t d_end = d.read(num_products - 1).end;
  if (operand_end <= d.address || d_end <= operand.address) return false;
  const int64_t of_operand = operand.step == 0 ? 1 : num_products;
  if (of_operand > kMaxComparedPairs / num_products) return true;
  for (int64_t i = 0; i < of_operand; ++i) {
    const Lattice matrix = operand.read(i);
    for (int64_t j = 0; j < num_products; ++j) {
      if (overlap(matrix, d.read(j))) return true;
    }
  }
  return false;
}

// Checks that D shares no element with an operand. Without addresses, as in queries, there is nothing to compare.
aot_gemm_status_t check_apart(const Matrices& operand, const Matrices& d, int64_t num_products) {
  if (operand.address == 0 || d.address == 0 || !overlap(operand, d, num_products)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "D overlaps %s in a batch of %" PRId64 " products; expected a D that shares no element with an operand, "
              "which would be overwritten while it is read; give D storage of its own",
              operand.name, num_products);
}

aot_gemm_status_t check_matrices(const aot_gemm_problem_t& problem, const Operation& operation) {
  const int64_t count = problem.num_groups;
  const Matrices d("D", problem.d, problem.m, problem.n, problem.group_strides.d, operation.d);
  const Matrices operands[] = {
      {"A", problem.a, problem.m, problem.k, problem.group_strides.a, operation.a},
      {"B", problem.b, rows_of_b(problem, operation), problem.k, problem.group_strides.b, operation.b}};
  aot_gemm_status_t status = check_step(d);
  if (status == AOT_GEMM_OK) status = check_reach(d, count);
  if (status != AOT_GEMM_OK) return status;
  if (repeats(d, count)) {
    return fail(AOT_GEMM_ERROR_STRIDE,
                "D of %" PRId64 " products, %" PRId64 " elements apart, overlaps itself; expected distinct elements; give "
                "D storage of its own",
                count, d.step);
  }
  for (const Matrices& operand : operands) {
    status = check_step(operand);
    if (status == AOT_GEMM_OK && problem.k > 0) status = check_reach(operand, count);
    if (status == AOT_GEMM_OK && problem.k > 0) status = check_apart(operand, d, count);
    if (status != AOT_GEMM_OK) return status;
  }
  if (!adds_bias(problem, operation)) return AOT_GEMM_OK;
  return check_apart({"the bias", problem.bias, 1, problem.n, 0, operation.bias_element}, d, count);
}

bool has_other_steps(const aot_gemm_group_strides_t& strides) {
  return strides.bias != 0 || strides.scale_a != 0 || strides.scale_b != 0 || strides.residual != 0;
}

}  // namespace

aot_gemm_status_t check_batch(const aot_gemm_problem_t& problem, const Operation& operation) {
  if (problem.num_groups < 0 || problem.num_groups > INT32_MAX) {
    return fail(AOT_GEMM_ERROR_SHAPE, "num_groups is %" PRId64 "; expected 0 to %" PRId32 "; split the batch",
                problem.num_groups, INT32_MAX);
  }
  const bool has_offsets = operation.grouping != Grouping::kDense && operation.grouping != Grouping::kBatched;
  if (!has_offsets && (problem.offsets.data != nullptr || problem.index.data != nullptr)) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "got offsets or an index, which operation %s does not take; expected null",
                operation.tag);
  }
  if (!is_batch(problem, operation) || is_empty(problem)) return AOT_GEMM_OK;
  if (has_other_steps(problem.group_strides) || operation.takes_further() || operation.has_gate() ||
      operation.weight.is_packed()) {
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "a batch of %" PRId64 " products of operation %s; expected an operation of A, B, D and a bias that all share; "
                "launch each product by itself",
                problem.num_groups, operation.tag);
  }
  return check_matrices(problem, operation);
}

aot_gemm_problem_t product_of(const aot_gemm_problem_t& batch, const Operation& operation, int64_t number) {
  aot_gemm_problem_t product = batch;
  const auto move = [number](aot_gemm_tensor_t* tensor, int64_t step, Element element) {
    // What no kernel will look at may wrap: operands of a k of 0 are not checked.
    const uintptr_t elements = static_cast<uintptr_t>(number) * static_cast<uintptr_t>(step);
    const uintptr_t moved = reinterpret_cast<uintptr_t>(tensor->data) + elements * static_cast<uintptr_t>(bytes_of(element));
    if (tensor->data != nullptr) tensor->data = reinterpret_cast<void*>(moved);
  };
  move(&product.a, batch.group_strides.a, operation.a);
  move(&product.b, batch.group_strides.b, operation.b);
  move(&product.d, batch.group_strides.d, operation.d);
  product.num_groups = 0;
  product.group_strides = {};
  return product;
}

bool fold(const aot_gemm_problem_t& batch, const Operation& operation, aot_gemm_problem_t* folded) {
  const aot_gemm_group_strides_t& steps = batch.group_strides;
  if (operation.grouping != Grouping::kDense || steps.b != 0) return false;
  int64_t rows = 0;
  if (__builtin_mul_overflow(batch.m, batch.num_groups, &rows) || rows > INT32_MAX) return false;
  *folded = batch;
  folded->m = rows;
  folded->num_groups = 0;
  folded->group_strides = {};
  if (batch.m == 1) {
    folded->a.strides[0] = steps.a;
    folded->d.strides[0] = steps.d;
    return true;
  }
  const auto joins = [&batch](const aot_gemm_tensor_t& tensor, int64_t step) {
    int64_t whole = 0;
    return !__builtin_mul_overflow(batch.m, tensor.strides[0], &whole) && whole == step;
  };
  return joins(batch.a, steps.a) && joins(batch.d, steps.d);
}

}  // namespace aot
