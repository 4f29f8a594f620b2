// The row operations that the library has kernels for: the twin of aot.kinds.rows.operation.
#ifndef AOT_GEMM_ROW_OPERATION_H_
#define AOT_GEMM_ROW_OPERATION_H_

#include <cstdint>

#include "aot_gemm.h"
#include "operation.h"

namespace aot {

struct RowOperation {
  const char* tag;
  RowFunction function;
  int32_t width;  // elements of X for each one of Y: 2 of a pair, whose X has 2 cols columns
  Element x;  // and of all operands but Y and the scales
  Element y;
  // What Y is divided by before it is rounded: nothing, a scale for each row, one for each kScaleBlock columns of a row, or one
  // for all; or factors in atoms.
  RowScale scale;
  AtomFormat factors;  // of scales in atoms; of no block elsewhere
  uint64_t arguments;  // bits of those that its kernels take

  bool takes(Argument argument) const { return (arguments & bit_of(argument)) != 0; }
  bool is_pair() const { return width == 2; }
  bool is_rotary() const { return takes(Argument::kCos); }
  bool has_offset() const { return takes(Argument::kWeightOffset); }
  bool has_scale() const { return takes(Argument::kScale); }
  // Says whether scales are narrow factors in atoms.
  bool has_factors() const { return factors.block_k > 0; }
  // Says whether a scale of all of Y is given beside the factors.
  bool has_tensor_scale() const { return takes(Argument::kTensorScale); }
  // Says whether rows may be in groups, with whose first ones atoms of factors begin anew.
  bool takes_groups() const { return takes(Argument::kOffsets); }
};

// Gives the element type of an operation's scales.
inline Element element_of_scales(const RowOperation& operation) {
  return operation.has_factors() ? operation.factors.element : Element::kFloat32;
}

// Most groups of rows: each but the last may take an atom of 512 bytes, and factors take up to 2^31 - 1 in all.
constexpr int64_t kMaxRowGroups = (int64_t{1} << 22) - 1;

// Written by table.cc, in the order of the catalogue; there may be none.
extern const RowOperation kRowOperations[];
extern const int32_t kNumRowOperations;

// The C API's number of a row operation, apart from those of products, so that one cannot be taken for the other.
constexpr int32_t kFirstRowOperationId = 1 << 17;

inline int32_t row_id_of(int32_t index) { return kFirstRowOperationId + index; }

// Sections and kernels number the operations on rows behind those of products.
inline bool is_on_rows(int32_t operation) { return operation >= kNumOperations; }

inline const char* tag_of(int32_t operation) {
  return is_on_rows(operation) ? kRowOperations[operation - kNumOperations].tag : kOperations[operation].tag;
}

// Finds the index of a problem's operation, by the C API's number. Fails where there is none.
aot_gemm_status_t find_row_operation(int32_t id, int32_t* index);

// Finds the index of the operation of a function and types; -1 where the library has none.
int32_t find_row_operation(RowFunction function, Element x, Element y, RowScale scale);

}  // namespace aot

#endif  // AOT_GEMM_ROW_OPERATION_H_
