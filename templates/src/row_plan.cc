// The functions of aot_gemm.h and aot_gemm_tuning.h that are of row operations.
#include "row_plan.h"

#include <cinttypes>
#include <cstdio>

#include "aot_gemm_tuning.h"
#include "cuda_entry.h"
#include "devices.h"
#include "error.h"
#include "kernel.h"
#include "plan.h"
#include "row_problem.h"
#include "runtime.h"
#include "stated.h"

namespace aot {

namespace {

// Enqueues a kernel on the current device for a checked problem that it takes.
aot_gemm_status_t launch_rows(int32_t index, const aot_rows_problem_t& problem, const RowOperation& operation, void* stream,
                              int32_t device) {
  aot_gemm_status_t status = check_addresses_of_rows(problem, operation);
  if (status == AOT_GEMM_OK) status = ensure_loaded(index, device);
  if (status != AOT_GEMM_OK) return status;
  RowOperands operands = write_rows(problem, operation);
  ArgumentValues values;
  values[Argument::kX] = &operands.x;
  values[Argument::kResidual] = &operands.residual;
  values[Argument::kWeight] = &operands.weight;
  values[Argument::kBias] = &operands.bias;
  values[Argument::kCos] = &operands.cos;
  values[Argument::kSin] = &operands.sin;
  values[Argument::kKeys] = &operands.keys;
  values[Argument::kValues] = &operands.values;
  values[Argument::kKeyCache] = &operands.key_cache;
  values[Argument::kValueCache] = &operands.value_cache;
  values[Argument::kCachePosition] = &operands.cache_position;
  values[Argument::kY] = &operands.y;
  values[Argument::kResidualOut] = &operands.residual_out;
  values[Argument::kScale] = &operands.scale;
  values[Argument::kTensorScale] = &operands.tensor_scale;
  values[Argument::kOffsets] = &operands.offsets;
  values[Argument::kIndex] = &operands.index;
  values[Argument::kEps] = &operands.eps;
  values[Argument::kWeightOffset] = &operands.weight_offset;
  values[Argument::kFlags] = &operands.flags;
  values[Argument::kStream] = &stream;
  const int32_t result = call_entry(kKernels[index], values);
  if (result == 0) return AOT_GEMM_OK;
  char sizes[64];
  std::snprintf(sizes, sizeof(sizes), "%" PRId64 " rows of %" PRId64, problem.rows, problem.cols);
  return fail_launch(result, kKernels[index].name, sizes, "split the rows", device);
}

// Finds the table that answers for a device; the first one where there is no device that the kernels run on, which a launch
// will say.
int32_t ask_table(int32_t ordinal) {
  if (kNumTables == 1) return 0;
  const Device* device = known_device(ordinal);
  if (device != nullptr) return device->table;
  if (ordinal < 0 && cuda::get_device(&ordinal) != 0) return 0;
  return find_device(ordinal, &device) == AOT_GEMM_OK ? device->table : 0;
}

// Checks a problem for a kernel of the caller's choice, by its number among those on rows. Finds the index of the operation.
aot_gemm_status_t check_kernel(int32_t number, const aot_rows_problem_t& problem, int32_t* operation) {
  if (number < 0 || number >= kNumRowKernels) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "row kernel index is %" PRId32 "; expected one of %" PRId32, number, kNumRowKernels);
  }
  const aot_gemm_status_t status = check_rows(problem, operation);
  if (status != AOT_GEMM_OK) return status;
  const int32_t index = kNumKernels + number;
  const Kernel& kernel = kKernels[index];
  if (kernel.operation != kNumOperations + *operation) {
    return fail(AOT_GEMM_ERROR_OPERATION, "kernel %s is for %s; the problem is %s", kernel.name, tag_of(kernel.operation),
                kRowOperations[*operation].tag);
  }
  if (takes(index, problem, kRowOperations[*operation])) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "kernel %s cannot take these operands; expected up to %" PRId64 " columns, a multiple of %" PRId32
              ", last strides of 1, addresses and strides that are multiples of %" PRId32 " bytes; use aot_rows_launch",
              kernel.name, kernel.max_columns, kMultiples[index].n, kernel.load_alignment);
}

}  // namespace

aot_gemm_status_t select_rows_in(int32_t table, const aot_rows_problem_t& problem, aot_rows_selection_t* selection) {
  if (kTableFault != nullptr) return fail_table(kTableFault);
  int32_t index = 0;
  const aot_gemm_status_t status = check_rows(problem, &index);
  if (status != AOT_GEMM_OK) return status;
  const RowOperation& operation = kRowOperations[index];
  const int32_t found = find_section(kTables[table], kNumOperations + index, 0);
  if (found < 0) {
    return fail(AOT_GEMM_ERROR_OPERATION, "the dispatch table of this library has no section of %s; launch its kernels by "
                "index", operation.tag);
  }
  const char* const fault = fault_of_section(found);
  if (fault != nullptr) return fail_table(fault);
  const Section& section = kSections[found];
  const int64_t rows = num_rows(problem, operation);
  const RowChoice choice = choose_rows(section, rows, problem.cols);
  const bool is_taken = takes(choice.kernel, problem, operation);
  *selection = {sizeof(*selection),
                (is_taken ? choice.kernel : section.fallback) - kNumKernels,
                static_cast<int32_t>(is_taken ? AOT_GEMM_TIER_GRID : AOT_GEMM_TIER_FALLBACK),
                section.number,
                is_taken ? choice.step : 0,
                rows,
                problem.cols,
                section.table,
                0};
  return AOT_GEMM_OK;
}

}  // namespace aot

aot_gemm_status_t aot_rows_select(const aot_rows_problem_t* problem, aot_rows_selection_t* selection) {
  const aot::Stated stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_selection(selection);
  if (status != AOT_GEMM_OK) return status;
  aot_rows_selection_t found;
  status = aot::select_rows_in(aot::ask_table((*stated).device), *stated, &found);
  if (status == AOT_GEMM_OK) aot::give(found, selection);
  return status;
}

aot_gemm_status_t aot_rows_launch(const aot_rows_problem_t* problem, void* stream) {
  const aot::Stated stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  const aot_rows_problem_t& rows = *stated;
  aot_rows_selection_t selection;
  const aot_gemm_status_t status = aot::select_rows_in(aot::ask_table(rows.device), rows, &selection);
  if (status != AOT_GEMM_OK) return status;
  const int32_t kernel = aot::kNumKernels + selection.kernel;
  const aot::RowOperation& operation = aot::kRowOperations[aot::kKernels[kernel].operation - aot::kNumOperations];
  if (aot::is_empty(rows, operation)) return AOT_GEMM_OK;
  const aot::DeviceScope scope(rows.device);
  return scope.status() == AOT_GEMM_OK ? aot::launch_rows(kernel, rows, operation, stream, scope.device()) : scope.status();
}

aot_gemm_status_t aot_rows_launch_kernel(int32_t kernel, const aot_rows_problem_t* problem, void* stream) {
  const aot::Stated stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  const aot::DeviceScope scope((*stated).device);
  int32_t index = 0;
  aot_gemm_status_t status = aot::check_kernel(kernel, *stated, &index);
  if (status == AOT_GEMM_OK) status = scope.status();
  if (status != AOT_GEMM_OK || aot::is_empty(*stated, aot::kRowOperations[index])) return status;
  return aot::launch_rows(aot::kNumKernels + kernel, *stated, aot::kRowOperations[index], stream, scope.device());
}

int32_t aot_rows_num_kernels() { return aot::kNumRowKernels; }

const char* aot_rows_kernel_name(int32_t kernel) {
  const bool is_there = kernel >= 0 && kernel < aot::kNumRowKernels;
  return is_there ? aot::kKernels[aot::kNumKernels + kernel].name : nullptr;
}
