#include "row_group_operands.h"

#include "refusal.h"

namespace aot {

int check_row_groups(Product product, const Operands& operands, Result* result) {
  const DLTensor* offsets = operands[kOffsets];
  const DLTensor* index = operands[kIndex];
  const RowOperation& operation = result->computed_on_rows();
  result->num_groups = 0;
  if (offsets == nullptr && index == nullptr) return 0;
  if (!operation.takes_groups()) {
    return refuse("OperandError", "%s: got %s, which go with nvfp4, mxfp4 and mxfp8; %s does not take them; leave them away",
                  product_name(product), offsets == nullptr ? "an index" : "offsets", operation.tag);
  }
  if (offsets == nullptr) {
    return refuse("OperandError", "%s: got an index without offsets; expected where each group ends", product_name(product));
  }
  const DLTensor& x = *operands[kLeft];
  if (x.ndim != 2) {
    return refuse("ShapeError", "%s: x has shape %s beside offsets; expected (rows, cols)", product_name(product),
                  shape_text(x).characters);
  }
  if (check_integers(product, "offsets", *offsets, x) != 0) return -1;
  if (index != nullptr && check_integers(product, "index", *index, x) != 0) return -1;
  result->num_groups = offsets->shape[0] - (operands.options.offsets_start ? 1 : 0);
  if (result->num_groups < 1 || result->num_groups > kMaxRowGroups) {
    return refuse("ShapeError", "%s: offsets has shape %s; expected where each group ends, of 1 to %lld, beside groups= also "
                  "(groups + 1,), the first group's start in front", product_name(product), shape_text(*offsets).characters,
                  static_cast<long long>(kMaxRowGroups));
  }
  if (index != nullptr) result->extents[0] = index->shape[0];
  return 0;
}

void state_row_groups(const Operands& operands, const Result& result, aot_rows_problem_t* problem) {
  if (result.num_groups == 0) return;
  problem->num_groups = result.num_groups;
  problem->offsets = {data_of(*operands[kOffsets]), {1, 1, 0}};
  if (operands.options.offsets_start) problem->flags |= AOT_ROWS_OFFSETS_START;
  if (operands[kIndex] == nullptr) return;
  problem->index = {data_of(*operands[kIndex]), {1, 1, 0}};
  problem->rows_of_x = problem->rows;
  problem->rows = result.extents[0];
}

}  // namespace aot
