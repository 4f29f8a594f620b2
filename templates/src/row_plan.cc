// The functions of aot_gemm.h and aot_gemm_tuning.h that are of row operations.
#include "row_plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstring>

#include "aot_gemm_tuning.h"
#include "cuda_entry.h"
#include "cuda_error.h"
#include "devices.h"
#include "error.h"
#include "grid.h"
#include "plan.h"
#include "row_dispatch.h"
#include "row_problem.h"
#include "runtime.h"

namespace aot {

namespace {

// The least that a caller of any header has room for: today's struct.
constexpr uint64_t kLeastRowSelectionBytes = sizeof(aot_rows_selection_t);

aot_gemm_status_t fail_launch(cuda::Error error, const char* name, const aot_rows_problem_t& problem, int32_t device) {
  if (error != kGridTooLarge) return fail_cuda(error, "launching kernel", name, device);
  const Grid3 grid = refused_grid();
  return fail(AOT_GEMM_ERROR_SHAPE,
              "kernel %s would need a grid of %" PRIu32 " x %" PRIu32 " x %" PRIu32 " blocks for %" PRId64 " rows of %" PRId64
              "; CUDA launches at most %" PRIu32 " x %" PRIu32 " x %" PRIu32 "; split the rows",
              name, grid.x, grid.y, grid.z, problem.rows, problem.cols, kMaxGrid.x, kMaxGrid.y, kMaxGrid.z);
}

// Enqueues a kernel on the current device for a checked problem that it takes.
aot_gemm_status_t launch_rows(int32_t index, const aot_rows_problem_t& problem, void* stream, int32_t device) {
  const RowKernel& kernel = kRowKernels[index];
  const RowOperation& operation = kRowOperations[kernel.operation];
  aot_gemm_status_t status = check_addresses_of_rows(problem, operation);
  if (status == AOT_GEMM_OK) status = ensure_row_kernel_loaded(index, device);
  if (status != AOT_GEMM_OK) return status;
  RowOperands operands = write_rows(problem, operation);
  int32_t result = 0;
  // By RowArgument.
  void* const values[kNumRowArguments] = {
      &operands.x,            &operands.residual, &operands.weight, &operands.bias,          &operands.cos,
      &operands.sin,          &operands.y,        &operands.residual_out, &operands.scale,   &operands.eps,
      &operands.weight_offset, &operands.flags,   &stream};
  void* arguments[kNumRowArguments + 1];
  int32_t count = 0;
  while (count < kernel.num_arguments) {
    arguments[count] = values[static_cast<int32_t>(kernel.signature[count])];
    ++count;
  }
  arguments[count++] = &result;
  kernel.entry(arguments, count);
  return result == 0 ? AOT_GEMM_OK : fail_launch(result, kernel.name, problem, device);
}

aot_gemm_status_t check_table() {
  if (kRowTableFault == nullptr) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_TABLE, "the dispatch table of this library contradicts itself: %s; build it again",
              kRowTableFault);
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

aot_gemm_status_t check_kernel(int32_t index, const aot_rows_problem_t& problem) {
  if (index < 0 || index >= kNumRowKernels) {
    return fail(AOT_GEMM_ERROR_ARGUMENT, "row kernel index is %" PRId32 "; expected one of %" PRId32, index, kNumRowKernels);
  }
  int32_t operation = 0;
  const aot_gemm_status_t status = check_rows(problem, &operation);
  if (status != AOT_GEMM_OK) return status;
  const RowKernel& kernel = kRowKernels[index];
  if (kernel.operation != operation) {
    return fail(AOT_GEMM_ERROR_OPERATION, "kernel %s is for %s; the problem is %s", kernel.name,
                kRowOperations[kernel.operation].tag, kRowOperations[operation].tag);
  }
  if (takes(kernel.limits, problem, kRowOperations[operation])) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE,
              "kernel %s cannot take these operands; expected up to %" PRId64 " columns, a multiple of %" PRId32
              ", last strides of 1, addresses and strides that are multiples of %" PRId32 " bytes; use aot_rows_launch",
              kernel.name, kernel.limits.max_cols, kernel.limits.cols_multiple, kernel.limits.alignment_bytes);
}

}  // namespace

aot_gemm_status_t ensure_row_kernel_loaded(int32_t index, int32_t device) {
  KernelState& state = row_kernel_states[index];
  const uint64_t devices = state.devices.load(std::memory_order_acquire);
  if (device >= 0 && device < kMaxDevices && (devices >> device & 1) != 0) return AOT_GEMM_OK;
  const Device* found = nullptr;
  const aot_gemm_status_t status = find_device(device, &found);
  if (status != AOT_GEMM_OK) return status;
  const RowKernel& kernel = kRowKernels[index];
  return load_binary(kernel.name, kernel.init, kernel.load, &state, device);
}

aot_gemm_status_t select_rows_in(int32_t table, const aot_rows_problem_t& problem, aot_rows_selection_t* selection) {
  aot_gemm_status_t status = check_table();
  int32_t index = 0;
  if (status == AOT_GEMM_OK) status = check_rows(problem, &index);
  if (status != AOT_GEMM_OK) return status;
  const RowOperation& operation = kRowOperations[index];
  const int32_t found = kRowSectionOf[table * kNumRowOperations + index];
  if (found < 0) {
    return fail(AOT_GEMM_ERROR_OPERATION, "the dispatch table of this library has no section of %s; launch its kernels by "
                "index", operation.tag);
  }
  const RowSection& section = kRowSections[found];
  const int64_t rows = num_rows(problem, operation);
  const RowChoice choice = choose_rows(section, rows, problem.cols);
  const bool is_taken = takes(kRowKernels[choice.kernel].limits, problem, operation);
  *selection = {sizeof(*selection),
                is_taken ? choice.kernel : section.fallback,
                static_cast<int32_t>(is_taken ? AOT_GEMM_TIER_GRID : AOT_GEMM_TIER_FALLBACK),
                section.number,
                is_taken ? choice.index : 0,
                rows,
                problem.cols,
                section.table,
                0};
  return AOT_GEMM_OK;
}

}  // namespace aot

aot_gemm_status_t aot_rows_select(const aot_rows_problem_t* problem, aot_rows_selection_t* selection) {
  const aot::StatedRows stated(problem);
  aot_gemm_status_t status = stated.status();
  if (status == AOT_GEMM_OK) status = aot::check_argument(selection, "selection");
  if (status != AOT_GEMM_OK) return status;
  if (selection->struct_bytes < aot::kLeastRowSelectionBytes) {
    return aot::fail(AOT_GEMM_ERROR_ARGUMENT,
                     "struct_bytes of the selection is %" PRIu64 "; expected sizeof(aot_rows_selection_t), at least %" PRIu64
                     "; set it", selection->struct_bytes, aot::kLeastRowSelectionBytes);
  }
  aot_rows_selection_t found;
  status = aot::select_rows_in(aot::ask_table((*stated).device), *stated, &found);
  if (status != AOT_GEMM_OK) return status;
  found.struct_bytes = selection->struct_bytes;
  *selection = found;
  return AOT_GEMM_OK;
}

aot_gemm_status_t aot_rows_launch(const aot_rows_problem_t* problem, void* stream) {
  const aot::StatedRows stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  const aot_rows_problem_t& rows = *stated;
  aot_rows_selection_t selection;
  const aot_gemm_status_t status = aot::select_rows_in(aot::ask_table(rows.device), rows, &selection);
  const int32_t operation = status == AOT_GEMM_OK ? aot::kRowKernels[selection.kernel].operation : 0;
  if (status != AOT_GEMM_OK || aot::is_empty(rows, aot::kRowOperations[operation])) return status;
  const aot::DeviceScope scope(rows.device);
  if (scope.status() != AOT_GEMM_OK) return scope.status();
  return aot::launch_rows(selection.kernel, rows, stream, scope.device());
}

aot_gemm_status_t aot_rows_launch_kernel(int32_t kernel, const aot_rows_problem_t* problem, void* stream) {
  const aot::StatedRows stated(problem);
  if (stated.status() != AOT_GEMM_OK) return stated.status();
  const aot::DeviceScope scope((*stated).device);
  aot_gemm_status_t status = aot::check_kernel(kernel, *stated);
  if (status == AOT_GEMM_OK) status = scope.status();
  if (status != AOT_GEMM_OK) return status;
  const aot::RowOperation& operation = aot::kRowOperations[aot::kRowKernels[kernel].operation];
  return aot::is_empty(*stated, operation) ? AOT_GEMM_OK : aot::launch_rows(kernel, *stated, stream, scope.device());
}

int32_t aot_rows_num_kernels() { return aot::kNumRowKernels; }

const char* aot_rows_kernel_name(int32_t kernel) {
  return kernel >= 0 && kernel < aot::kNumRowKernels ? aot::kRowKernels[kernel].name : nullptr;
}
