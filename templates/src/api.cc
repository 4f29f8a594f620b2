// The C API: checks, the look-up, and the runtime brought together.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "aot_gemm.h"
#include "cuda_entry.h"
#include "dispatch.h"
#include "error.h"
#include "kernel.h"
#include "misses.h"
#include "problem.h"
#include "runtime.h"

namespace aot {

namespace {

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

const char* dtype_name(int32_t dtype) { return dtype == AOT_GEMM_BFLOAT16 ? "bfloat16" : "float16"; }

aot_gemm_status_t check_argument(const void* pointer, const char* name) {
  if (pointer != nullptr) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "`%s` is null; expected an address", name);
}

// The least that a caller of any header has room for.
constexpr uint64_t kLeastSelectionBytes = sizeof(aot_gemm_selection_t);

aot_gemm_status_t check_selection_bytes(uint64_t num_bytes) {
  if (num_bytes >= kLeastSelectionBytes) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT,
              "struct_bytes of the selection is %" PRIu64 "; expected sizeof(aot_gemm_selection_t), at least %" PRIu64
              "; set it",
              num_bytes, kLeastSelectionBytes);
}

// Writes what the caller's struct has room for, and leaves its struct_bytes.
void give(const aot_gemm_selection_t& found, aot_gemm_selection_t* selection) {
  constexpr size_t kSizeField = sizeof(found.struct_bytes);
  const size_t num_bytes = std::min<uint64_t>(selection->struct_bytes, sizeof(found));
  std::memcpy(reinterpret_cast<char*>(selection) + kSizeField, reinterpret_cast<const char*>(&found) + kSizeField,
              num_bytes - kSizeField);
}

aot_gemm_status_t check_operands(const aot_gemm_problem_t& problem) {
  aot_gemm_status_t status = check_argument(problem.d.data, "d.data");
  if (status == AOT_GEMM_OK && problem.k > 0) status = check_argument(problem.a.data, "a.data");
  if (status == AOT_GEMM_OK && problem.k > 0) status = check_argument(problem.b.data, "b.data");
  return status;
}

// A kernel of two strides takes the problem as stated.
constexpr uint32_t kAsStated = 0;

aot_gemm_status_t measure_workspace(Plan* plan) {
  const int64_t num_bytes = workspace_bytes(kKernels[plan->kernel].workspace, plan->problem.m, plan->problem.n);
  plan->workspace_bytes = num_bytes;
  if (num_bytes / 4 <= INT32_MAX) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE,
              "kernel %s would need a workspace of %" PRId64 " bytes for m %" PRId64 " n %" PRId64
              "; at most 8 GiB can be addressed; split the problem",
              kKernels[plan->kernel].name, num_bytes, plan->problem.m, plan->problem.n);
}

aot_gemm_status_t select(const aot_gemm_problem_t& problem, aot_gemm_selection_t* selection, Plan* plan) {
  if (kTableFault != nullptr) {
    return fail(AOT_GEMM_ERROR_TABLE, "the dispatch table of this library contradicts itself: %s; build it again",
                kTableFault);
  }
  const aot_gemm_status_t status = check(problem);
  if (status != AOT_GEMM_OK) return status;
  const uint32_t layouts = kLayouts[problem.dtype];
  if (layouts == 0) {
    return fail(AOT_GEMM_ERROR_DTYPE, "no %s kernels in this library; expected %s", dtype_name(problem.dtype),
                dtype_name(kSections[0].dtype));
  }
  const Canonical& canonical = plan->problem;
  canonicalise(problem, layouts, &plan->problem);
  int32_t section = find_section(problem.dtype, canonical.layout);
  if (section < 0) section = find_section(problem.dtype);
  const Choice choice =
      choose(kSections[section], kMultiples, canonical.m, canonical.n, canonical.k, canonical.aligned);
  *selection = {sizeof(*selection), choice.kernel,       choice.tier, section,     choice.index,
                canonical.layout,   canonical.exchanged, canonical.m, canonical.n, canonical.k};
  const Kernel& kernel = kKernels[choice.kernel];  // a section's fallback takes both strides: kTableFault sees to it
  plan->kernel = choice.kernel;
  if (canonical.aligned && kernel.num_strides == 2) canonicalise(problem, kAsStated, &plan->problem);
  return measure_workspace(plan);
}

aot_gemm_status_t check_kernel(int32_t kernel) {
  if (kernel >= 0 && kernel < kNumKernels) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "kernel index is %" PRId32 "; expected 0 to %" PRId32, kernel, kNumKernels - 1);
}

aot_gemm_status_t plan_kernel(int32_t index, const aot_gemm_problem_t& problem, Plan* plan) {
  aot_gemm_status_t status = check_kernel(index);
  if (status == AOT_GEMM_OK) status = check(problem);
  if (status != AOT_GEMM_OK) return status;
  const Kernel& kernel = kKernels[index];
  if (kernel.dtype != problem.dtype) {
    return fail(AOT_GEMM_ERROR_DTYPE, "kernel %s is for %s; the problem is %s", kernel.name, dtype_name(kernel.dtype),
                dtype_name(problem.dtype));
  }
  plan->kernel = index;
  canonicalise(problem, kernel.num_strides == 2 ? kAsStated : 1u << kernel.layout, &plan->problem);
  if (kernel.num_strides == 2 || is_empty(problem)) return measure_workspace(plan);
  const Canonical& canonical = plan->problem;
  if (!canonical.aligned) {
    return fail(AOT_GEMM_ERROR_STRIDE,
                "kernel %s cannot take these operands; expected A contiguous along %s, B along %s, addresses, leading "
                "strides and rows of D multiples of 16 bytes, k above 0; use aot_gemm_launch",
                kernel.name, kernel.layout >> 1 ? "m" : "k", kernel.layout & 1 ? "n" : "k");
  }
  const Multiples& multiples = kMultiples[index];
  if (canonical.m % multiples.m != 0 || canonical.n % multiples.n != 0) {
    return fail(AOT_GEMM_ERROR_SHAPE,
                "kernel %s takes whole tiles; expected m a multiple of %" PRId32 " and n of %" PRId32 ", got m %" PRId64
                " n %" PRId64 "; use aot_gemm_launch",
                kernel.name, multiples.m, multiples.n, canonical.m, canonical.n);
  }
  return measure_workspace(plan);
}

aot_gemm_status_t launch_plan(const aot_gemm_problem_t& problem, const Plan& plan, void* workspace, size_t num_bytes,
                              void* stream) {
  const aot_gemm_status_t status = check_operands(problem);
  if (status != AOT_GEMM_OK) return status;
  const DeviceScope scope(problem.device);
  if (scope.status() != AOT_GEMM_OK) return scope.status();
  return launch(plan.kernel, plan.problem, workspace, num_bytes, stream, scope.device());
}

// Launches what was selected for a problem, and has the miss log hear of it.
aot_gemm_status_t launch_selected(const aot_gemm_problem_t& problem, const aot_gemm_selection_t& selection,
                                  const Plan& plan, void* workspace, size_t num_bytes, void* stream) {
  const aot_gemm_status_t status = launch_plan(problem, plan, workspace, num_bytes, stream);
  if (selection.tier != AOT_GEMM_TIER_TUNED && kLogsMisses && status == AOT_GEMM_OK) {
    log_miss(problem.dtype, selection);
  }
  return status;
}

}  // namespace

}  // namespace aot

aot_gemm_status_t aot_gemm_select(const aot_gemm_problem_t* problem, aot_gemm_selection_t* selection) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_argument(selection, "selection");
  if (status == AOT_GEMM_OK) status = aot::check_selection_bytes(selection->struct_bytes);
  if (status != AOT_GEMM_OK) return status;
  aot_gemm_selection_t found;
  aot::Plan plan;
  status = aot::select(*stated, &found, &plan);
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
  status = aot::select(*stated, &selection, &plan);
  if (status == AOT_GEMM_OK) *num_bytes = static_cast<size_t>(plan.workspace_bytes);
  return status;
}

aot_gemm_status_t aot_gemm_launch(const aot_gemm_problem_t* problem, void* workspace, size_t workspace_bytes,
                                  void* stream) {
  const aot::Stated stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  aot_gemm_selection_t selection;
  aot::Plan plan;
  const aot_gemm_status_t status = aot::select(*stated, &selection, &plan);
  if (status != AOT_GEMM_OK || aot::is_empty(*stated)) return status;
  return aot::launch_selected(*stated, selection, plan, workspace, workspace_bytes, stream);
}

aot_gemm_status_t aot_gemm_launch_allocating(const aot_gemm_problem_t* problem, aot_gemm_allocate_t allocate,
                                             void* context, void* stream) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_argument(reinterpret_cast<void*>(allocate), "allocate");
  if (status != AOT_GEMM_OK) return status;
  aot_gemm_selection_t selection;
  aot::Plan plan;
  status = aot::select(*stated, &selection, &plan);
  if (status != AOT_GEMM_OK || aot::is_empty(*stated)) return status;
  const auto num_bytes = static_cast<size_t>(plan.workspace_bytes);
  void* workspace = num_bytes > 0 ? allocate(context, num_bytes) : nullptr;
  return aot::launch_selected(*stated, selection, plan, workspace, workspace == nullptr ? 0 : num_bytes, stream);
}

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
  const aot::Stated stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  aot::Plan plan;
  const aot_gemm_status_t status = aot::plan_kernel(kernel, *stated, &plan);
  if (status != AOT_GEMM_OK || aot::is_empty(*stated)) return status;
  return aot::launch_plan(*stated, plan, workspace, workspace_bytes, stream);
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

int32_t aot_gemm_num_kernels() { return aot::kNumKernels; }

const char* aot_gemm_kernel_name(int32_t kernel) {
  return kernel >= 0 && kernel < aot::kNumKernels ? aot::kKernels[kernel].name : nullptr;
}

aot_gemm_status_t aot_gemm_preload(int32_t device) {
  const aot::DeviceScope scope(device);
  aot_gemm_status_t status = scope.status();
  for (int32_t kernel = 0; kernel < aot::kNumKernels && status == AOT_GEMM_OK; ++kernel) {
    status = aot::ensure_loaded(kernel, scope.device());
  }
  return status;
}

aot_gemm_status_t aot_gemm_synchronize(int32_t device, void* stream) {
  const aot::DeviceScope scope(device);
  return scope.status() == AOT_GEMM_OK ? aot::synchronize(stream, scope.device()) : scope.status();
}

int32_t aot_gemm_abi_version() { return AOT_GEMM_ABI_VERSION; }

const char* aot_gemm_version() { return aot::kVersion; }

const char* aot_gemm_arch() { return aot::kArch; }
