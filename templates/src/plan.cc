#include "plan.h"

#include <cinttypes>

#include "cuda_entry.h"
#include "devices.h"
#include "dispatch.h"
#include "error.h"
#include "kernel.h"
#include "runtime.h"

namespace aot {

namespace {

// Checks that what the operation takes beside A, B, D and a bias is there. Where k is 0, no block has a factor.
aot_gemm_status_t check_further(const aot_gemm_problem_t& problem, const Operation& operation) {
  const bool needs_factors = operation.scale == Scale::kVector || (operation.scale == Scale::kBlock && problem.k > 0);
  aot_gemm_status_t status = AOT_GEMM_OK;
  if (needs_factors) status = check_argument(problem.scale_a.data, "scale_a.data");
  if (status == AOT_GEMM_OK && needs_factors) status = check_argument(problem.scale_b.data, "scale_b.data");
  if (status == AOT_GEMM_OK && operation.scales_d) status = check_argument(problem.scale_d.data, "scale_d.data");
  if (status != AOT_GEMM_OK || !operation.has_residual()) return status;
  return check_argument(problem.residual.data, "residual.data");
}

aot_gemm_status_t check_operands(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status = check_argument(problem.d.data, "d.data");
  const bool needs_bias = operation.bias == Presence::kRequired;
  if (status == AOT_GEMM_OK && needs_bias) status = check_argument(problem.bias.data, "bias.data");
  if (status == AOT_GEMM_OK && operation.takes_further()) status = check_further(problem, operation);
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

aot_gemm_status_t check_kernel(int32_t kernel) {
  if (kernel >= 0 && kernel < kNumKernels) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "kernel index is %" PRId32 "; expected 0 to %" PRId32, kernel, kNumKernels - 1);
}

// Finds the device that a problem is for; null where there is none that the kernels run on, which a launch will say.
const Device* ask_device(int32_t ordinal, Plan* plan) {
  if (ordinal < 0) {
    const cuda::Error error = cuda::get_device(&plan->current_device);
    if (error != 0) {
      plan->current_device = -1;
      cuda::describe(error);  // which forgets it
      return nullptr;
    }
    ordinal = plan->current_device;
  }
  const Device* device = nullptr;
  find_device(ordinal, &device);
  return device;
}

// Looks a problem up in a table, for a device of so many SMs.
aot_gemm_status_t look_up(int32_t table, int32_t num_sms, const aot_gemm_problem_t& problem,
                          aot_gemm_selection_t* selection, Plan* plan) {
  if (kTableFault != nullptr) {
    return fail(AOT_GEMM_ERROR_TABLE, "the dispatch table of this library contradicts itself: %s; build it again",
                kTableFault);
  }
  int32_t index;
  const aot_gemm_status_t status = check(problem, &index);
  if (status != AOT_GEMM_OK) return status;
  const Operation& operation = kOperations[index];
  if (operation.layouts == 0) {
    return fail(AOT_GEMM_ERROR_OPERATION, "the dispatch table of this library has no section of %s; launch its kernels by "
                "index", operation.tag);
  }
  const Canonical& canonical = plan->problem;
  canonicalise(problem, operation, operation.layouts, &plan->problem);
  const Section& section = kSections[find_section(kTables[table], index, canonical.layout)];
  const Choice choice = choose(section, kMultiples, canonical.m, canonical.n, canonical.k, canonical.aligned);
  const bool is_fit = kKernels[choice.kernel].resident_sms <= num_sms;
  plan->kernel = is_fit ? choice.kernel : section.substitute;
  *selection = {sizeof(*selection), plan->kernel,        choice.tier, section.number, choice.index,
                canonical.layout,   canonical.exchanged, canonical.m, canonical.n,    canonical.k,
                section.table,      0};
  const Kernel& kernel = kKernels[plan->kernel];  // a section's fallback takes both strides: kTableFault sees to it
  if (canonical.aligned && kernel.num_strides == 2) canonicalise(problem, operation, kAsStated, &plan->problem);
  return measure_workspace(plan);
}

}  // namespace

aot_gemm_status_t check_argument(const void* pointer, const char* name) {
  if (pointer != nullptr) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "`%s` is null; expected an address", name);
}

aot_gemm_status_t select(const aot_gemm_problem_t& problem, Asking asking, aot_gemm_selection_t* selection, Plan* plan) {
  const Device* device = known_device(problem.device);
  const bool is_asked = asking == Asking::kForLaunch ? !is_empty(problem) : kNumTables > 1;
  if (device == nullptr && is_asked) device = ask_device(problem.device, plan);
  return device == nullptr ? look_up(0, INT32_MAX, problem, selection, plan)
                           : look_up(device->table, device->num_sms, problem, selection, plan);
}

aot_gemm_status_t select_in(int32_t table, const aot_gemm_problem_t& problem, aot_gemm_selection_t* selection,
                            Plan* plan) {
  return look_up(table, INT32_MAX, problem, selection, plan);
}

aot_gemm_status_t plan_kernel(int32_t index, const aot_gemm_problem_t& problem, Plan* plan) {
  int32_t operation = 0;
  aot_gemm_status_t status = check_kernel(index);
  if (status == AOT_GEMM_OK) status = check(problem, &operation);
  if (status != AOT_GEMM_OK) return status;
  const Kernel& kernel = kKernels[index];
  if (kernel.operation != operation) {
    return fail(AOT_GEMM_ERROR_OPERATION, "kernel %s is for %s; the problem is %s", kernel.name,
                kOperations[kernel.operation].tag, kOperations[operation].tag);
  }
  plan->kernel = index;
  canonicalise(problem, kOperations[operation], kernel.num_strides == 2 ? kAsStated : 1u << kernel.layout, &plan->problem);
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

aot_gemm_status_t launch_plan(const aot_gemm_problem_t& problem, Plan* plan, void* workspace, size_t num_bytes,
                              void* stream) {
  const aot_gemm_status_t status = check_operands(problem, kOperations[kKernels[plan->kernel].operation]);
  if (status != AOT_GEMM_OK) return status;
  const DeviceScope scope(problem.device, plan->current_device);
  if (scope.status() != AOT_GEMM_OK) return scope.status();
  return launch(plan->kernel, &plan->problem, workspace, num_bytes, stream, scope.device());
}

}  // namespace aot
