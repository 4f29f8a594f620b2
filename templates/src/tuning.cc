// The functions of aot_gemm_tuning.h.
#include "aot_gemm_tuning.h"

#include "cuda_entry.h"
#include "plan.h"
#include "stated.h"

aot_gemm_status_t aot_gemm_kernel_workspace_bytes(int32_t kernel, const aot_gemm_problem_t* problem,
                                                  size_t* num_bytes) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_argument(num_bytes, "num_bytes");
  if (status != AOT_GEMM_OK) return status;
  aot::Plan plan;
  status = aot::plan_kernel(kernel, *stated, &plan);
  if (status == AOT_GEMM_OK) *num_bytes = static_cast<size_t>(plan.workspace_bytes);
  return status;
}

aot_gemm_status_t aot_gemm_launch_kernel(int32_t kernel, const aot_gemm_problem_t* problem, void* workspace,
                                         size_t workspace_bytes, void* stream) {
  return aot_gemm_launch_kernel_in_order(kernel, 0, problem, workspace, workspace_bytes, stream);
}

aot_gemm_status_t aot_gemm_launch_kernel_in_order(int32_t kernel, int32_t tile_order, const aot_gemm_problem_t* problem,
                                                  void* workspace, size_t workspace_bytes, void* stream) {
  const aot::cuda::ProgrammaticScope scope;
  const aot::Stated stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  aot::Plan plan;
  aot_gemm_status_t status = aot::plan_kernel(kernel, *stated, &plan);
  if (status == AOT_GEMM_OK) status = aot::plan_order(tile_order, &plan);
  if (status != AOT_GEMM_OK || aot::is_empty(*stated)) return status;
  return aot::launch_plan(*stated, &plan, workspace, workspace_bytes, stream);
}

aot_gemm_status_t aot_gemm_kernel_max_active_clusters(int32_t kernel, const aot_gemm_problem_t* problem,
                                                      void* workspace, size_t workspace_bytes,
                                                      int32_t* num_clusters) {
  const aot_gemm_status_t status = aot::check_argument(num_clusters, "num_clusters");
  if (status != AOT_GEMM_OK) return status;
  aot::cuda::begin_cluster_query();
  const aot_gemm_status_t launched = aot_gemm_launch_kernel(kernel, problem, workspace, workspace_bytes, nullptr);
  *num_clusters = aot::cuda::end_cluster_query();
  return launched;
}
