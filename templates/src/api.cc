// The functions of aot_gemm.h.
#include <cstddef>

#include "aot_gemm.h"
#include "devices.h"
#include "dispatch.h"
#include "error.h"
#include "kernel.h"
#include "misses.h"
#include "plan.h"
#include "runtime.h"
#include "stated.h"

namespace aot {

namespace {

// Launches what was selected for a problem, and has the miss log hear of it.
aot_gemm_status_t launch_selected(const aot_gemm_problem_t& problem, const aot_gemm_selection_t& selection,
                                  Plan* plan, void* workspace, size_t num_bytes, void* stream) {
  const aot_gemm_status_t status = launch_plan(problem, plan, workspace, num_bytes, stream);
  if (selection.tier != AOT_GEMM_TIER_TUNED && kLogsMisses && status == AOT_GEMM_OK) {
    log_miss(selection);
  }
  return status;
}

}  // namespace

}  // namespace aot

aot_gemm_status_t aot_gemm_select(const aot_gemm_problem_t* problem, aot_gemm_selection_t* selection) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_selection(selection);
  if (status != AOT_GEMM_OK) return status;
  aot_gemm_selection_t found;
  aot::Plan plan;
  status = aot::select(*stated, aot::Asking::kForQuery, &found, &plan);
  if (status == AOT_GEMM_OK) aot::give(found, selection);
  return status;
}

aot_gemm_status_t aot_gemm_workspace_bytes(const aot_gemm_problem_t* problem, size_t* num_bytes) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_argument(num_bytes, "num_bytes");
  if (status != AOT_GEMM_OK) return status;
  aot_gemm_selection_t selection;
  aot::Plan plan;
  status = aot::select(*stated, aot::Asking::kForQuery, &selection, &plan);
  if (status == AOT_GEMM_OK) *num_bytes = static_cast<size_t>(plan.workspace_bytes);
  return status;
}

aot_gemm_status_t aot_gemm_launch(const aot_gemm_problem_t* problem, void* workspace, size_t workspace_bytes,
                                  void* stream) {
  const aot::Stated stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  aot_gemm_selection_t selection;
  aot::Plan plan;
  const aot_gemm_status_t status = aot::select(*stated, aot::Asking::kForLaunch, &selection, &plan);
  if (status != AOT_GEMM_OK || aot::is_empty(*stated)) return status;
  return aot::launch_selected(*stated, selection, &plan, workspace, workspace_bytes, stream);
}

aot_gemm_status_t aot_gemm_launch_allocating(const aot_gemm_problem_t* problem, aot_gemm_allocate_t allocate,
                                             void* context, void* stream) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_argument(reinterpret_cast<void*>(allocate), "allocate");
  if (status != AOT_GEMM_OK) return status;
  aot_gemm_selection_t selection;
  aot::Plan plan;
  status = aot::select(*stated, aot::Asking::kForLaunch, &selection, &plan);
  if (status != AOT_GEMM_OK || aot::is_empty(*stated)) return status;
  const auto num_bytes = static_cast<size_t>(plan.workspace_bytes);
  void* workspace = num_bytes > 0 ? allocate(context, num_bytes) : nullptr;
  return aot::launch_selected(*stated, selection, &plan, workspace, workspace == nullptr ? 0 : num_bytes, stream);
}

int32_t aot_gemm_num_kernels() { return aot::kNumKernels; }

const char* aot_gemm_kernel_name(int32_t kernel) {
  return kernel >= 0 && kernel < aot::kNumKernels ? aot::kKernels[kernel].name : nullptr;
}

int32_t aot_gemm_num_tables() { return aot::kNumTables; }

const char* aot_gemm_table_target(int32_t table) {
  return table >= 0 && table < aot::kNumTables ? aot::kTables[table].target : nullptr;
}

aot_gemm_status_t aot_gemm_device_table(int32_t device, int32_t* table, const char** reason) {
  aot_gemm_status_t status = aot::check_argument(table, "table");
  if (status == AOT_GEMM_OK) status = aot::check_argument(reason, "reason");
  if (status != AOT_GEMM_OK) return status;
  const aot::Device* found = nullptr;
  status = aot::find_stated(&device, &found);
  if (status != AOT_GEMM_OK) return status;
  *table = found->table;
  *reason = found->reason;
  return AOT_GEMM_OK;
}

aot_gemm_status_t aot_gemm_choices(int32_t device, const char** sha256) {
  aot_gemm_status_t status = aot::check_argument(sha256, "sha256");
  if (status != AOT_GEMM_OK) return status;
  const aot::Device* found = nullptr;
  status = aot::find_stated(&device, &found);
  if (status == AOT_GEMM_OK) *sha256 = found->choices;
  return status;
}

aot_gemm_status_t aot_gemm_synchronize(int32_t device, void* stream) {
  const aot::DeviceScope scope(device);
  return scope.status() == AOT_GEMM_OK ? aot::synchronize(stream, scope.device()) : scope.status();
}

int32_t aot_gemm_abi_version() { return AOT_GEMM_ABI_VERSION; }

const char* aot_gemm_version() { return aot::kVersion; }

const char* aot_gemm_arch() { return aot::kArch; }
