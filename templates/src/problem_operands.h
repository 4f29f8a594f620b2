// What kernels read of a problem, written once it is known by which strides they read each operand.
#ifndef AOT_GEMM_PROBLEM_OPERANDS_H_
#define AOT_GEMM_PROBLEM_OPERANDS_H_

#include <cstdint>

#include "aot_gemm.h"
#include "operation.h"
#include "problem.h"

namespace aot {

// How the rows of B of a gate, and what belongs to them, lie: from a gate row to its linear row, and from row to row.
struct Parts {
  int64_t part;
  int64_t row;
};

// Finds the steps of B from the one between its rows, or those of its bytes. The linear rows may lie anywhere, in front of the
// gate's too: by a step below 0.
Parts parts_of_b(const aot_gemm_problem_t& problem, const Operation& operation, int64_t stride);

// The strides, of rows and of columns, that a kernel reads matrices by; one of one stride reads the first alone.
struct Strides {
  int64_t a[2];
  int64_t b[2];
  int64_t d[2];
  int64_t residual[2];
};

// Writes the operands of a problem, of several weights all but those.
void write_operands(const aot_gemm_problem_t& problem, const Operation& operation, const Strides& strides,
                    Canonical* canonical);

// Writes where a weight of several, its D and its bias lie, read by strides of rows and of columns.
void write_part(const aot_gemm_part_t& part, const int64_t* b, const int64_t* d, int64_t* words);

// Has parts that there are not be read where the first lies, without rows.
void fill_parts(int32_t count, Canonical* canonical);

}  // namespace aot

#endif  // AOT_GEMM_PROBLEM_OPERANDS_H_
