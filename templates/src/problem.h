// A problem as the caller states it, checked, and as the kernels take it.
#ifndef AOT_GEMM_PROBLEM_H_
#define AOT_GEMM_PROBLEM_H_

#include <cstdint>

#include "aot_gemm.h"
#include "operation.h"

namespace aot {

// The operands as the C entries of the kernels read them: the twins of the structs that export_to_c declares.

// A matrix. Kernels of one stride read `strides[0]` only: the leading one.
struct Tensor {
  void* data;
  int32_t shape[2];
  int64_t strides[2];
};

// Matrices at steps of one stride: the two parts of a gate's B, (2, n, k), or those of a batch or of groups. Kernels of
// one stride read `strides[0]`, from matrix to matrix, and `strides[1]`, the leading one.
struct Stack {
  void* data;
  int32_t shape[3];
  int64_t strides[3];
};

// The parts of each group's B, with a gate: (groups, 2, n, k).
struct GateStack {
  void* data;
  int32_t shape[4];
  int64_t strides[4];
};

// A vector whose elements are adjacent: a bias, the workspace, or the factor of D, of one element.
struct Vector {
  void* data;
  int32_t shape[1];
};

// The addresses of the B of groups, or of their atoms, that are no one stack, in host memory.
struct Addresses {
  const void* const* data;
  int32_t shape[1];
};

// A vector of factors: adjacent, or with a stride of 0 one for all.
struct StridedVector {
  void* data;
  int32_t shape[1];
  int64_t strides[1];
};

// What a kernel takes of an operand; which of them it is, the operation says.
union RightOperand {
  Tensor matrix;
  Stack parts;  // with a gate
  Stack stack;  // of groups of rows
  GateStack stack_of_parts;
};
union Bias {
  Vector vector;
  Tensor parts;  // (2, n), with a gate
  Tensor stack;  // (groups, n)
  Stack stack_of_parts;
};
union Factors {
  StridedVector vector;
  Tensor matrix;  // of blocks; or (2, n) of B, with a gate; or (groups, n)
  Stack stack;    // (groups, 2, n) of B, with a gate; or of blocks of groups
  Vector atoms;   // bytes of narrow factors; of groups whose atoms lie apart as many as lie between two places
};

// The products of a batch, or the groups; 1 and 0 of a single one.
struct Batch {
  int64_t num_products;
  int64_t a;  // steps from product to product, in elements
  int64_t b;
  int64_t d;
};

// A problem in the one form that the TMA kernels take: D and a residual row-major, A and B contiguous along one mode;
// addresses, leading strides and the rows of D multiples of 16 bytes, the address of a bias too. Where `aligned` is false
// and `loads` is not 0, it is in that form but for what is a multiple of what; where `loads` is 0 too, only the fallback can
// compute it, as it was stated.
//
// Only what the operation has is written of the operands from `bias` on.
struct Canonical {
  bool aligned;
  int32_t loads;    // bytes, at most 16, of which addresses and leading strides of A and B are multiples
  bool between_sectors;  // of aligned operands: rows of A or B are odd multiples of 16 bytes apart, wherever A and B begin
  bool exchanged;   // D was column-major: A and B, m and n have changed places
  bool b_constant;  // AOT_GEMM_B_CONSTANT, and B is still B
  int32_t layout;   // bit 1: A is contiguous along m; bit 0: B is contiguous along n; -1: neither
  int64_t m;
  int64_t n;
  int64_t k;
  Tensor a;
  RightOperand b;
  Tensor d;
  Bias bias;  // of 0 elements where there is none
  Factors scale_a;
  Factors scale_b;
  Tensor residual;
  Vector scale_d;
  Vector own_d;
  Vector factors_d;  // bytes
  Batch batch;
  Vector offsets;
  Vector index;
  Addresses b_of_groups;  // of 0 elements where they are one stack, as the next
  Addresses scale_b_of_groups;
  int64_t parts[AOT_GEMM_MAX_PARTS][kNumPartWords];  // of several weights, as PART_WORDS of aot.core.signature has them
};

// States several weights by the first that has rows, with the n of all: what a table is asked for. The problem has been
// checked, and is not empty.
aot_gemm_problem_t as_first_part(const aot_gemm_problem_t& problem);

// Bytes of a factor of A, B or D: float32.
constexpr int64_t kFactorBytes = 4;

inline bool is_empty(const aot_gemm_problem_t& problem) { return problem.m == 0 || problem.n == 0; }

// Counts the products that a problem asks for: of a batch, or the groups.
inline int64_t num_groups_of(const aot_gemm_problem_t& problem) { return problem.num_groups > 1 ? problem.num_groups : 1; }

// Says whether TMA takes the steps from product to product of a batch.
bool has_aligned_steps(const aot_gemm_problem_t& problem, const Operation& operation);

inline int64_t rows_of_b(const aot_gemm_problem_t& problem, const Operation& operation) {
  return operation.has_gate() ? 2 * problem.n : problem.n;
}

// Says whether the two packed weights of a gate are tensors of their own, each of which has its own factors where it has some.
inline bool has_own_factors(const aot_gemm_problem_t& problem, const Operation& operation) {
  return operation.weight.is_packed() && (problem.flags & AOT_GEMM_GATE_PARTS) != 0;
}

// Counts the rows that A has: those that are gathered are of more, or of fewer, than D's.
inline int64_t rows_of_a(const aot_gemm_problem_t& problem, const Operation& operation) {
  return operation.gathers() ? problem.rows_of_a : problem.m;
}

// Counts the offsets of groups; their first start may stand in front of the ends.
inline int64_t num_offsets(const aot_gemm_problem_t& problem) {
  return num_groups_of(problem) + ((problem.flags & AOT_GEMM_OFFSETS_START) != 0 ? 1 : 0);
}

// Says whether there is a bias to add: one that may be left away is there where it has an address.
inline bool adds_bias(const aot_gemm_problem_t& problem, const Operation& operation) {
  return operation.bias == Presence::kRequired || (operation.bias == Presence::kOptional && problem.bias.data != nullptr);
}

// Checks operation, flags, extents, strides, which operands there are, and that D shares no element with itself or any of
// them. Finds the index of the operation.
aot_gemm_status_t check(const aot_gemm_problem_t& problem, int32_t* operation);

// Brings a checked problem into canonical form, preferring the roles and the layouts as stated. Only layouts whose bit
// is set in `layouts` are taken: those that the library has a table for, or the one that a named kernel is for.
//
// Exchanging A and B would turn a bias of columns into one of rows, and nothing between the accumulator and D is for a
// transposed D: A and B stay where they are unless `can_exchange`.
void canonicalise(const aot_gemm_problem_t& problem, const Operation& operation, uint32_t layouts, Canonical* canonical);

}  // namespace aot

#endif  // AOT_GEMM_PROBLEM_H_
