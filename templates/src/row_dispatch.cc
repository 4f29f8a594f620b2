#include "row_dispatch.h"

#include "dispatch.h"

namespace aot {

RowChoice choose_rows(const RowSection& section, int64_t rows, int64_t cols) {
  const RowColumn& column = section.columns[round_up(cols, section.cols, section.num_columns)];
  const int32_t step = round_up(rows, column.edges, column.num_steps);
  return {column.kernels[step], column.first_step + step};
}

}  // namespace aot
