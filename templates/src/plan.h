// A problem and the kernel that computes it: what every function that takes a problem goes through.
#ifndef AOT_GEMM_PLAN_H_
#define AOT_GEMM_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "aot_gemm.h"
#include "dispatch.h"
#include "problem.h"

namespace aot {

// A problem resolved to a kernel, in the form that this kernel takes.
struct Plan {
  int32_t kernel;
  int32_t tile_order = 0;
  int32_t current_device = -1;  // the thread's, where it was asked for
  int64_t workspace_bytes;
  int64_t num_launches = 1;  // more of a batch that the library has no kernels for: one for each product
  Canonical problem;         // of several launches, the first's
};

// Fails by what is wrong with the dispatch table.
aot_gemm_status_t fail_table(const char* fault);

// What selecting may ask CUDA: which device a problem is for decides the table. A query asks only where it matters, and
// what only looks into a table asks nothing.
enum class Asking { kForLaunch, kForQuery };

// Finds the kernel that the dispatch table of a problem's device has for it. Where there is no device, the first table
// answers.
aot_gemm_status_t select(const aot_gemm_problem_t& problem, Asking asking, aot_gemm_selection_t* selection, Plan* plan);

// The same in one table, for a device that has the SMs of the table's own.
aot_gemm_status_t select_in(int32_t table, const aot_gemm_problem_t& problem, aot_gemm_selection_t* selection,
                            Plan* plan);

// Finds the cell by which a grid answered; zeros where no grid did.
Cell find_cell(const aot_gemm_selection_t& selection);

// Counts the launches that a problem takes: several of a batch that the library has no kernels for. 1 of what it refuses.
int64_t count_launches(const aot_gemm_problem_t& problem);

// Plans a problem with a kernel of the caller's choice, which must be able to take it.
aot_gemm_status_t plan_kernel(int32_t kernel, const aot_gemm_problem_t& problem, Plan* plan);

// Has a plan's kernel take its tiles in an order of the caller's choice.
aot_gemm_status_t plan_order(int32_t tile_order, Plan* plan);

// Enqueues what was planned for a problem that is not empty. A plan serves one launch.
aot_gemm_status_t launch_plan(const aot_gemm_problem_t& problem, Plan* plan, void* workspace, size_t num_bytes,
                              void* stream);

}  // namespace aot

#endif  // AOT_GEMM_PLAN_H_
