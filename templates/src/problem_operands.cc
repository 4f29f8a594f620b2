#include "problem_operands.h"

#include <cstring>

namespace aot {

namespace {

bool is_interleaved(const aot_gemm_problem_t& problem) { return (problem.flags & AOT_GEMM_GATE_INTERLEAVED) != 0; }

// Finds the steps of a gate's parts from the step between rows as they lie. What no kernel will look at may wrap: strides of an empty
// problem, of a B without elements, and of a single row.
Parts parts_of(const aot_gemm_problem_t& problem, int64_t stride) {
  const auto step = static_cast<uint64_t>(stride);
  const uint64_t part = is_interleaved(problem) ? step : step * static_cast<uint64_t>(problem.n);
  const uint64_t row = is_interleaved(problem) ? 2 * step : step;
  return {static_cast<int64_t>(part), static_cast<int64_t>(row)};
}

Tensor make_tensor(void* data, int64_t rows, int64_t columns, const int64_t* strides) {
  return {data, {static_cast<int32_t>(rows), static_cast<int32_t>(columns)}, {strides[0], strides[1]}};
}

// Reads a packed weight as the matrix of bytes that it is.
Tensor packed_weight(const aot_gemm_problem_t& problem, const PackedFormat& weight) {
  const int64_t strides[] = {weight.row_bytes(problem.k), 1};
  return make_tensor(problem.b.data, weight.num_rows(problem.n), strides[0], strides);
}

// Writes what has a part for the gate and one for the linear rows: B is two matrices, of bytes where it is packed. A bias that
// there is not has no elements.
void write_parts(const aot_gemm_problem_t& problem, const Operation& operation, const Strides& strides, Canonical* canonical) {
  const auto n = static_cast<int32_t>(problem.n);
  Tensor one = {problem.b.data, {n, static_cast<int32_t>(problem.k)}, {strides.b[0], strides.b[1]}};
  if (operation.weight.is_packed()) one = packed_weight(problem, operation.weight);
  const Parts b = parts_of_b(problem, operation, one.strides[0]);
  canonical->b.parts = {one.data, {2, one.shape[0], one.shape[1]}, {b.part, b.row, one.strides[1]}};
  const Parts bias = parts_of(problem, 1);
  canonical->bias.parts = {problem.bias.data, {2, problem.bias.data == nullptr ? 0 : n}, {bias.part, bias.row}};
}

// The stride of a vector of factors; 0 of a single one, which any index then finds.
int64_t step_of(const aot_gemm_tensor_t& factors, int64_t count) { return count > 1 ? factors.strides[0] : 0; }

void write_factors(const aot_gemm_problem_t& problem, const Operation& operation, Canonical* canonical) {
  const auto m = static_cast<int32_t>(problem.m);
  const auto n = static_cast<int32_t>(problem.n);
  if (operation.scale == Scale::kAtoms) {
    canonical->scale_a.atoms = {problem.scale_a.data, {static_cast<int32_t>(operation.atoms.num_bytes(m, problem.k))}};
    const int64_t of_b = operation.atoms.num_bytes(rows_of_b(problem, operation), problem.k);
    canonical->scale_b.atoms = {problem.scale_b.data, {static_cast<int32_t>(of_b)}};
    return;
  }
  if (operation.scale == Scale::kBlock) {
    const int64_t blocks = num_blocks(problem.k);
    canonical->scale_a.matrix = make_tensor(problem.scale_a.data, m, blocks, problem.scale_a.strides);
    canonical->scale_b.matrix = make_tensor(problem.scale_b.data, num_blocks(n), blocks, problem.scale_b.strides);
    return;
  }
  canonical->scale_a.vector = {problem.scale_a.data, {m}, {step_of(problem.scale_a, m)}};
  if (operation.has_gate()) {
    Parts steps = parts_of(problem, problem.scale_b.strides[0]);
    if (has_own_factors(problem, operation)) steps = {problem.group_strides.scale_b, problem.scale_b.strides[0]};
    canonical->scale_b.matrix = {problem.scale_b.data, {2, n}, {steps.part, steps.row}};
  } else {
    canonical->scale_b.vector = {problem.scale_b.data, {n}, {step_of(problem.scale_b, n)}};
  }
}

Stack make_stack(void* data, int64_t count, int64_t step, int64_t rows, int64_t columns, const int64_t* strides) {
  const int32_t shape[] = {static_cast<int32_t>(count), static_cast<int32_t>(rows), static_cast<int32_t>(columns)};
  return {data, {shape[0], shape[1], shape[2]}, {step, strides[0], strides[1]}};
}

// Writes D's own factor, and the atoms of the factors of its blocks, those of so many groups of rows.
void write_factors_of_d(const aot_gemm_problem_t& problem, const Operation& operation, int64_t groups, Canonical* canonical) {
  const int64_t of_d = times(num_atom_rows(problem.m, groups), operation.blocks_d.row_bytes(problem.n));
  canonical->own_d = {problem.own_d.data, {1}};
  canonical->factors_d = {problem.factors_d.data, {static_cast<int32_t>(of_d)}};
}

// Writes the bias and the factors of groups of rows: those of B are a group's own.
void write_of_groups(const aot_gemm_problem_t& problem, const Operation& operation, Canonical* canonical) {
  const int64_t count = num_groups_of(problem);
  const auto groups = static_cast<int32_t>(count);
  const auto n = static_cast<int32_t>(problem.n);
  const aot_gemm_group_strides_t& steps = problem.group_strides;
  const int32_t bias_columns = problem.bias.data == nullptr ? 0 : n;
  const Parts bias = parts_of(problem, 1);
  if (operation.has_gate()) {
    canonical->bias.stack_of_parts = {problem.bias.data, {groups, 2, bias_columns}, {steps.bias, bias.part, bias.row}};
  } else {
    canonical->bias.stack = {problem.bias.data, {groups, bias_columns}, {steps.bias, 1}};
  }
  const int64_t rows = rows_of_a(problem, operation);
  if (operation.scale == Scale::kBlock) {
    const int64_t blocks = num_blocks(problem.k);
    const int64_t blocks_of_b = num_blocks(rows_of_b(problem, operation));
    canonical->scale_a.matrix = make_tensor(problem.scale_a.data, rows, blocks, problem.scale_a.strides);
    canonical->scale_b.stack =
        make_stack(problem.scale_b.data, count, steps.scale_b, blocks_of_b, blocks, problem.scale_b.strides);
    return;
  }
  if (operation.scale == Scale::kAtoms) {
    const int64_t of_a = times(num_atom_rows(problem.m, count), operation.atoms.row_bytes(problem.k));
    const bool are_apart = problem.scale_b_of_groups != nullptr;
    const int64_t of_group = operation.atoms.num_bytes(rows_of_b(problem, operation), problem.k);
    const int64_t of_b = are_apart ? steps.scale_b : times(count, of_group);
    canonical->scale_b_of_groups = {problem.scale_b_of_groups, {are_apart ? groups : 0}};
    canonical->scale_a.atoms = {problem.scale_a.data, {static_cast<int32_t>(of_a)}};
    canonical->scale_b.atoms = {problem.scale_b.data, {static_cast<int32_t>(of_b)}};
    canonical->scale_d = {problem.scale_d.data, {groups}};
    if (operation.writes_factors()) write_factors_of_d(problem, operation, count, canonical);
    return;
  }
  if (operation.scale != Scale::kVector) return;
  canonical->scale_a.vector = {problem.scale_a.data, {static_cast<int32_t>(rows)}, {step_of(problem.scale_a, rows)}};
  if (operation.has_gate()) {
    const Parts factors = parts_of(problem, problem.scale_b.strides[0]);
    canonical->scale_b.stack = {problem.scale_b.data, {groups, 2, n}, {steps.scale_b, factors.part, factors.row}};
  } else {
    canonical->scale_b.matrix = {problem.scale_b.data, {groups, n}, {steps.scale_b, step_of(problem.scale_b, n)}};
  }
}

// Writes the operands of groups. Where k is grouped, D is written as a group's, and `batch` says how far they are apart.
void write_groups(const aot_gemm_problem_t& problem, const Operation& operation, const Strides& strides,
                  Canonical* canonical) {
  const int64_t count = num_groups_of(problem);
  // Where each group has a place of its own in the stack, the stack has as many as there can be.
  const int64_t count_of_b = problem.b_of_groups == nullptr ? count : INT32_MAX;
  const int64_t n = problem.n;
  const int64_t k = problem.k;
  canonical->a = make_tensor(problem.a.data, rows_of_a(problem, operation), k, strides.a);
  canonical->d = make_tensor(problem.d.data, problem.m, n, strides.d);
  if (operation.grouping == Grouping::kKgrouped) {
    canonical->b.matrix = make_tensor(problem.b.data, n, k, strides.b);
  } else if (operation.has_gate()) {
    const Parts rows = parts_of(problem, strides.b[0]);
    canonical->b.stack_of_parts = {problem.b.data,
                                   {static_cast<int32_t>(count_of_b), 2, static_cast<int32_t>(n), static_cast<int32_t>(k)},
                                   {problem.group_strides.b, rows.part, rows.row, strides.b[1]}};
  } else if (operation.weight.is_packed()) {
    const Tensor one = packed_weight(problem, operation.weight);
    canonical->b.stack = make_stack(one.data, count_of_b, problem.group_strides.b, one.shape[0], one.shape[1], one.strides);
  } else {
    canonical->b.stack = make_stack(problem.b.data, count_of_b, problem.group_strides.b, n, k, strides.b);
  }
  if (operation.groups_rows()) write_of_groups(problem, operation, canonical);
  const bool has_places = problem.b_of_groups != nullptr;
  canonical->b_of_groups = {problem.b_of_groups, {has_places ? static_cast<int32_t>(count) : 0}};
  canonical->offsets = {problem.offsets.data, {static_cast<int32_t>(num_offsets(problem))}};
  canonical->index = {problem.index.data, {static_cast<int32_t>(problem.m)}};
}

}  // namespace

Parts parts_of_b(const aot_gemm_problem_t& problem, const Operation& operation, int64_t stride) {
  if ((problem.flags & AOT_GEMM_GATE_PARTS) != 0) return {problem.group_strides.b, stride};
  if (operation.weight.is_packed()) return {times(operation.weight.num_rows(problem.n), stride), stride};
  return parts_of(problem, stride);
}

void write_operands(const aot_gemm_problem_t& problem, const Operation& operation, const Strides& strides,
                    Canonical* canonical) {
  canonical->m = problem.m;
  canonical->n = problem.n;
  canonical->k = problem.k;
  const bool has_parts = (problem.flags & AOT_GEMM_GATE_PARTS) != 0;  // whose step is no step from product to product
  const int64_t step_of_b = has_parts ? 0 : problem.group_strides.b;
  canonical->batch = {num_groups_of(problem), problem.group_strides.a, step_of_b, problem.group_strides.d};
  if (operation.has_offsets()) {
    write_groups(problem, operation, strides, canonical);
    return;
  }
  canonical->a = make_tensor(problem.a.data, problem.m, problem.k, strides.a);
  canonical->d = make_tensor(problem.d.data, problem.m, problem.n, strides.d);
  if (operation.has_gate()) {
    write_parts(problem, operation, strides, canonical);
  } else {
    const PackedFormat& weight = operation.weight;
    canonical->b.matrix = weight.is_packed() ? packed_weight(problem, weight)
                                             : make_tensor(problem.b.data, problem.n, problem.k, strides.b);
    const int64_t count = problem.bias.data == nullptr ? 0 : problem.n;
    canonical->bias.vector = {problem.bias.data, {static_cast<int32_t>(count)}};
  }
  if (!operation.takes_further()) return;
  if (operation.scale != Scale::kNone) write_factors(problem, operation, canonical);
  canonical->residual = make_tensor(problem.residual.data, problem.m, problem.n, strides.residual);
  canonical->scale_d = {problem.scale_d.data, {1}};
  if (operation.writes_factors()) write_factors_of_d(problem, operation, 1, canonical);
}

void write_part(const aot_gemm_part_t& part, const int64_t* b, const int64_t* d, int64_t* words) {
  const auto address_of = [](const aot_gemm_tensor_t& x) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.data)); };
  const int64_t found[] = {part.n, address_of(part.b), b[0], b[1], address_of(part.d), d[0], d[1], address_of(part.bias)};
  static_assert(sizeof(found) == sizeof(int64_t) * kNumPartWords);
  std::memcpy(words, found, sizeof(found));
}

void fill_parts(int32_t count, Canonical* canonical) {
  for (int32_t i = count; i < AOT_GEMM_MAX_PARTS; ++i) {
    std::memcpy(canonical->parts[i], canonical->parts[0], sizeof(canonical->parts[0]));
    canonical->parts[i][0] = 0;
  }
}

}  // namespace aot
