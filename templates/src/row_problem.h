// A problem of a row operation as the caller states it, checked, and as the kernels take it.
#ifndef AOT_GEMM_ROW_PROBLEM_H_
#define AOT_GEMM_ROW_PROBLEM_H_

#include <cstdint>

#include "aot_gemm.h"
#include "kernel.h"
#include "problem.h"
#include "row_operation.h"

namespace aot {

// A matrix of heads: (tokens, heads, elements of a head).
struct HeadsTensor {
  void* data;
  int32_t shape[3];
  int64_t strides[3];
};

// A cache: (batch, cache length, heads, elements of a head), which are adjacent.
struct CacheTensor {
  void* data;
  int32_t shape[4];
  int64_t strides[3];
};

// What a kernel takes of a matrix; which of the two it is, the operation says. A kernel of vectors reads all strides but
// the last, which is 1.
union RowOperand {
  Tensor matrix;
  HeadsTensor heads;  // of a rotary embedding
};

// The operands as the C entries of the kernels read them.
struct RowOperands {
  RowOperand x;
  RowOperand residual;
  Vector weight;
  Vector bias;
  Tensor cos;
  Tensor sin;
  RowOperand keys;
  RowOperand values;
  RowOperand y;
  CacheTensor key_cache;
  CacheTensor value_cache;
  RowOperand residual_out;
  Tensor scale;  // of factors in atoms bytes: a row of atoms for each 128 rows
  Vector tensor_scale;
  Vector offsets;
  Vector index;
  Vector cache_position;
  float eps;
  float weight_offset;
  int32_t flags;  // of RowFlag
};

inline bool is_empty(const aot_rows_problem_t& problem, const RowOperation& operation) {
  return problem.rows == 0 || problem.cols == 0 || (operation.is_rotary() && problem.heads == 0);
}

// The rows that the table is asked for.
inline int64_t num_rows(const aot_rows_problem_t& problem, const RowOperation& operation) {
  return operation.is_rotary() ? problem.rows * (problem.heads + 2 * problem.key_heads) : problem.rows;
}

inline int64_t columns_of_x(const aot_rows_problem_t& problem, const RowOperation& operation) {
  return operation.width * problem.cols;
}

// Scales of a row, or the bytes of a row of atoms.
inline int64_t scales_of_row(const aot_rows_problem_t& problem, const RowOperation& operation) {
  if (operation.has_factors()) return operation.factors.num_bytes(1, problem.cols);
  return operation.scale == RowScale::kBlock ? num_blocks(problem.cols) : 1;
}

// The rows that X has: those of Y, or those that an index names.
inline int64_t rows_of_x(const aot_rows_problem_t& problem) {
  return problem.index.data != nullptr ? problem.rows_of_x : problem.rows;
}

inline int64_t num_offsets(const aot_rows_problem_t& problem) {
  return problem.num_groups + ((problem.flags & AOT_ROWS_OFFSETS_START) != 0 ? 1 : 0);
}

// Rows of scales, or of atoms.
inline int64_t rows_of_scales(const aot_rows_problem_t& problem, const RowOperation& operation) {
  if (operation.has_factors()) return num_atom_rows(problem.rows, problem.num_groups > 0 ? problem.num_groups : 1);
  return operation.scale == RowScale::kTensor ? 1 : problem.rows;
}

// Gives the scales as a matrix: of atoms their bytes, which follow one another.
inline aot_rows_tensor_t scales_of(const aot_rows_problem_t& problem, const RowOperation& operation) {
  return operation.has_factors() ? aot_rows_tensor_t{problem.scale.data, {scales_of_row(problem, operation), 1, 0}}
                                 : problem.scale;
}

// Sequences whose keys and values go to caches.
inline int64_t num_sequences(const aot_rows_problem_t& problem) {
  return problem.num_positions > 0 ? problem.rows / problem.num_positions : 0;
}

// Checks operation, flags, extents, strides, which operands there are, and what shares memory with what. Finds the index of
// the operation.
aot_gemm_status_t check_rows(const aot_rows_problem_t& problem, int32_t* operation);

// Checks the extents' and operands' memory: the last part of check_rows, of a problem that is not empty.
aot_gemm_status_t check_memory_of_rows(const aot_rows_problem_t& problem, const RowOperation& operation);

// Checks that the operands that a launch reads and writes have addresses.
aot_gemm_status_t check_addresses_of_rows(const aot_rows_problem_t& problem, const RowOperation& operation);

// Says whether a kernel, by its index in kKernels, takes a checked problem.
bool takes(int32_t kernel, const aot_rows_problem_t& problem, const RowOperation& operation);

// Gives a problem of packed operands that is asked about only, by the C API's number of its operation.
aot_rows_problem_t packed_rows(int32_t operation, int64_t rows, int64_t cols);

// Writes a checked problem as its kernels read it.
RowOperands write_rows(const aot_rows_problem_t& problem, const RowOperation& operation);

}  // namespace aot

#endif  // AOT_GEMM_ROW_PROBLEM_H_
