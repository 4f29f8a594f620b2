// The kernels of row operations, and the table that one is looked up in: the twin of aot/kinds/rows/dispatch.py, which states
// the rule; tests/runtime proves the two equal.
#ifndef AOT_GEMM_ROW_DISPATCH_H_
#define AOT_GEMM_ROW_DISPATCH_H_

#include <cstdint>

#include "kernel.h"

namespace aot {

// What a kernel's C entry takes, each as a pointer to a value; the stream is the last before the result: the twin of
// aot.kinds.rows.signature.
enum class RowArgument : int32_t {
  kX,             // RowOperand
  kResidual,      // RowOperand
  kWeight,        // Vector
  kBias,          // Vector
  kCos,           // Tensor
  kSin,           // Tensor
  kY,             // RowOperand
  kResidualOut,   // RowOperand
  kScale,         // Tensor of float32
  kEps,           // float
  kWeightOffset,  // float
  kFlags,         // int32_t: RowFlag
  kStream,        // void*
};
constexpr int32_t kNumRowArguments = 13;

// Bits of the argument kFlags.
enum RowFlag : int32_t {
  kHasResidual = 1,
  kHasWeight = 2,
  kHasBias = 4,
  kHasResidualOut = 8,
  kScaleIsGiven = 16,
  kIsInterleaved = 32,
  kRoundsNorm = 64,
};

// What a kernel asks of a problem: the twin of aot.kinds.rows.candidate.RowLimits.
struct RowLimits {
  int32_t alignment_bytes;  // of addresses and strides of X's type; 1: none, and any last stride
  int32_t cols_multiple;
  int64_t max_cols;
};

// Most columns of Y: aot.kinds.rows.operation.MAX_COLS.
constexpr int64_t kMaxCols = int64_t{1} << 30;

struct RowKernel {
  const char* name;
  int32_t operation;  // index into kRowOperations
  int32_t num_arguments;
  RowArgument signature[kNumRowArguments];
  RowLimits limits;
  Entry* entry;
  Loader* init;
  Loader* load;
};

// Columns ascend by `cols`, the edges of rows in each too. `edges` and `kernels` have num_steps entries.
struct RowColumn {
  const int64_t* edges;
  const int32_t* kernels;
  int32_t num_steps;
  int32_t first_step;  // steps of the section's columns before this one
};

struct RowSection {
  int32_t operation;  // index into kRowOperations
  const int64_t* cols;
  const RowColumn* columns;
  int32_t num_columns;
  int32_t fallback;
  int32_t table;   // index into kTables
  int32_t number;  // among the row sections of its table
};

// Written by row_table.cc. There may be none of all but the tables.
extern const RowKernel* const kRowKernels;
extern KernelState* const row_kernel_states;
extern const int32_t kNumRowKernels;
extern const RowSection* const kRowSections;
extern const int32_t kNumRowSections;
// By table and row operation, the index of the section that answers; -1 where there is none.
extern const int32_t* const kRowSectionOf;

// What is wrong with the table, found when the library is loaded; null where nothing is.
extern const char* const kRowTableFault;

struct RowChoice {
  int32_t kernel;
  int32_t index;
};

// Looks up the kernel for extents of 1 and more. Whether it takes the problem is not asked.
RowChoice choose_rows(const RowSection& section, int64_t rows, int64_t cols);

}  // namespace aot

#endif  // AOT_GEMM_ROW_DISPATCH_H_
