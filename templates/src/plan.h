// A problem and the kernel that computes it: what every function that takes a problem goes through.
#ifndef AOT_GEMM_PLAN_H_
#define AOT_GEMM_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "aot_gemm.h"
#include "problem.h"

namespace aot {

// A problem resolved to a kernel, in the form that this kernel takes.
struct Plan {
  int32_t kernel;
  int64_t workspace_bytes;
  Canonical problem;
};

// A problem as the caller states it, in the struct of this library's own header.
class Stated {
 public:
  explicit Stated(const aot_gemm_problem_t* problem) : status_(take(problem, &storage_, &problem_)) {}
  Stated(const Stated&) = delete;
  Stated& operator=(const Stated&) = delete;

  aot_gemm_status_t status() const { return status_; }
  const aot_gemm_problem_t& operator*() const { return *problem_; }

 private:
  aot_gemm_problem_t storage_;  // written only for a caller of another header
  const aot_gemm_problem_t* problem_ = nullptr;
  aot_gemm_status_t status_;
};

aot_gemm_status_t check_argument(const void* pointer, const char* name);

// Finds the kernel that the dispatch table has for a problem.
aot_gemm_status_t select(const aot_gemm_problem_t& problem, aot_gemm_selection_t* selection, Plan* plan);

// Plans a problem with a kernel of the caller's choice, which must be able to take it.
aot_gemm_status_t plan_kernel(int32_t kernel, const aot_gemm_problem_t& problem, Plan* plan);

// Enqueues what was planned for a problem that is not empty.
aot_gemm_status_t launch_plan(const aot_gemm_problem_t& problem, const Plan& plan, void* workspace, size_t num_bytes,
                              void* stream);

}  // namespace aot

#endif  // AOT_GEMM_PLAN_H_
