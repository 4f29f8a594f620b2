// A problem as the caller states it, checked, and as the kernels take it.
#ifndef AOT_GEMM_PROBLEM_H_
#define AOT_GEMM_PROBLEM_H_

#include <cstdint>

#include "aot_gemm.h"
#include "operation.h"

namespace aot {

// One operand as the C entries of the kernels read it: the twin of the struct that export_to_c declares. Kernels of one
// stride read `strides[0]` only.
struct Tensor {
  void* data;
  int32_t shape[2];
  int64_t strides[2];
};

// One vector as the C entries read it: a bias, or the workspace.
struct Vector {
  void* data;
  int32_t shape[1];
};

// A problem in the one form that the TMA kernels take: D row-major, A and B contiguous along one mode, addresses, leading
// strides and the rows of D multiples of 16 bytes, that of a bias too. Where `aligned` is false only the fallback can compute it, as it was stated.
struct Canonical {
  bool aligned;
  bool exchanged;  // D was column-major: A and B, m and n have changed places; never with a bias
  int32_t layout;  // bit 1: A is contiguous along m; bit 0: B is contiguous along n; -1: neither
  int64_t m;
  int64_t n;
  int64_t k;
  Tensor a;
  Tensor b;
  Tensor d;
  Vector bias;
  bool b_constant;  // AOT_GEMM_B_CONSTANT, and B is still B
};

inline bool is_empty(const aot_gemm_problem_t& problem) { return problem.m == 0 || problem.n == 0; }

// Takes a problem as a caller states it, whose struct may be smaller or larger than ours: as it is, or copied to
// `storage`. Checks the pointer and the size alone.
aot_gemm_status_t take(const aot_gemm_problem_t* stated, aot_gemm_problem_t* storage,
                       const aot_gemm_problem_t** problem);

// Checks operation, flags, extents, strides, and that D shares no element with itself or an operand. Finds the index of
// the operation.
aot_gemm_status_t check(const aot_gemm_problem_t& problem, int32_t* operation);

// Brings a checked problem into canonical form, preferring the roles and the layouts as stated. Only layouts whose bit
// is set in `layouts` are taken: those that the library has a table for, or the one that a named kernel is for.
//
// Exchanging A and B would turn a bias, which is added to each row, into one that is added to each column. No kernel adds
// such a one: where there is a bias, A and B stay where they are.
void canonicalise(const aot_gemm_problem_t& problem, const Operation& operation, uint32_t layouts, Canonical* canonical);

}  // namespace aot

#endif  // AOT_GEMM_PROBLEM_H_
