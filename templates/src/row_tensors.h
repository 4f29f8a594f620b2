// The tensors of a row operation as DLPack gives them: checked, and stated for the C API.
#ifndef AOT_GEMM_ROW_TENSORS_H_
#define AOT_GEMM_ROW_TENSORS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "matrix.h"
#include "request.h"
#include "row_operation.h"

namespace aot {

// The tensors beside x, in the order in which `_rows` of the Python package puts them into a tuple. What is written is from
// kOut on.
enum RowTensor : int32_t { kWeight, kBias, kResidual, kCos, kSin, kScale, kOut, kResidualOut, kScaleOut, kNumRowTensors };

// Gives a tensor's name in Python.
const char* name_of(RowTensor tensor);

// What a call says beside its tensors.
struct RowOptions {
  bool gives_element = false;  // of y: the next field
  Element element = Element::kBfloat16;
  bool has_blocks = false;     // of quantize: a scale for each kScaleBlock columns
  bool has_one_scale = false;  // of quantize: one for all, which is computed
  bool is_interleaved = false;
  bool rounds_norm = false;
  int64_t rotary_dim = -1;  // -1: by the shape of cos
  float eps = 0;
  float weight_offset = 0;
};

struct RowTensors {
  const DLTensor* x;
  const DLTensor* others[kNumRowTensors];  // by RowTensor; null where there is none
  RowOptions options;
};

// What is computed, by which operation.
struct RowResult {
  int32_t operation;
  int64_t extents[kMaxDims];  // of y
  int64_t scale_extents[kMaxDims];
  int32_t num_dims;  // of both
  bool writes_residual;
  bool writes_scale;
  int64_t rotary_dim;

  const RowOperation& computed_by() const { return kRowOperations[operation]; }
};

// Says whether x can be read where it lies: its leading dimensions join into rows, or into tokens.
bool is_rows(const DLTensor& x);
bool is_heads(const DLTensor& x);

// The functions below give 0, or -1 with the calling thread's refusal set.

// Checks devices, element types and shapes of the tensors that are given, and works out what is computed.
int check_row_tensors(Product product, const RowTensors& tensors, RowResult* result);

// States the problem for the C API. The tensors are checked, and those that are written are there.
int state_rows(Product product, const RowTensors& tensors, const RowResult& result, aot_rows_problem_t* problem);

}  // namespace aot

#endif  // AOT_GEMM_ROW_TENSORS_H_
