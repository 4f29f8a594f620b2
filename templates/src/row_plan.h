// A problem of a row operation and the kernel that computes it.
#ifndef AOT_GEMM_ROW_PLAN_H_
#define AOT_GEMM_ROW_PLAN_H_

#include <cstdint>

#include "aot_gemm.h"

namespace aot {

// Finds the kernel that one table has for a problem.
aot_gemm_status_t select_rows_in(int32_t table, const aot_rows_problem_t& problem, aot_rows_selection_t* selection);

}  // namespace aot

#endif  // AOT_GEMM_ROW_PLAN_H_
