// The functions of aot_gemm_memory.h, and aot_gemm_preload.
#include "aot_gemm_memory.h"

#include <cstring>

#include "devices.h"
#include "dispatch.h"
#include "error.h"
#include "kernel.h"
#include "operation.h"
#include "plan.h"
#include "row_operation.h"
#include "runtime.h"
#include "stated.h"

namespace aot {

namespace {

constexpr int32_t kAllOperations = -1;

// Loads the kernels of an operation that a device can run, and looks at the sections of the tables, whose faults no call
// needs to look for then.
aot_gemm_status_t preload(int32_t operation, int32_t device) {
  const DeviceScope scope(device);
  aot_gemm_status_t status = scope.status();
  const Device* found = nullptr;
  if (status == AOT_GEMM_OK) status = find_device(scope.device(), &found);
  for (int32_t section = 0; section < kNumSections && status == AOT_GEMM_OK; ++section) {
    const char* const fault = kTableFault != nullptr ? kTableFault : fault_of_section(section);
    if (fault != nullptr) status = fail_table(fault);
  }
  const int32_t num_kernels = kNumKernels + kNumRowKernels;
  for (int32_t kernel = 0; kernel < num_kernels && status == AOT_GEMM_OK; ++kernel) {
    if (operation != kAllOperations && kKernels[kernel].operation != operation) continue;
    const bool is_fit = kKernels[kernel].resident_sms <= found->num_sms;  // another answers for one that is not
    if (is_fit) status = ensure_loaded(kernel, scope.device());
  }
  return status;
}

// Gives the index of an operation of either kind as kernels have it, or the negative of a status.
int32_t operation_of(const char* tag) {
  if (tag == nullptr) return -fail(AOT_GEMM_ERROR_ARGUMENT, "`tag` is null; expected such as \"bf16\"");
  for (int32_t i = 0; i < kNumRowOperations; ++i) {
    if (std::strcmp(kRowOperations[i].tag, tag) == 0) return kNumOperations + i;
  }
  const int32_t id = aot_gemm_operation(tag);
  return id < 0 ? id : id - kFirstOperationId;
}

}  // namespace

}  // namespace aot

aot_gemm_status_t aot_gemm_preload(int32_t device) { return aot::preload(aot::kAllOperations, device); }

aot_gemm_status_t aot_gemm_preload_operation(const char* tag, int32_t device) {
  const int32_t operation = aot::operation_of(tag);
  return operation < 0 ? static_cast<aot_gemm_status_t>(-operation) : aot::preload(operation, device);
}

aot_gemm_status_t aot_gemm_memory(int32_t device, aot_gemm_memory_t* memory) {
  aot_gemm_status_t status = aot::check_argument(memory, "memory");
  if (status == AOT_GEMM_OK && memory->struct_bytes < sizeof(*memory)) {
    status = aot::fail(AOT_GEMM_ERROR_ARGUMENT,
                       "struct_bytes of the memory is %llu; expected sizeof(aot_gemm_memory_t), at least %zu; set it",
                       static_cast<unsigned long long>(memory->struct_bytes), sizeof(*memory));
  }
  if (status != AOT_GEMM_OK) return status;
  const aot::Device* found = nullptr;
  status = aot::find_stated(&device, &found);
  if (status != AOT_GEMM_OK) return status;
  aot_gemm_memory_t told = {sizeof(*memory), 0, 0, 0, 0};
  for (int32_t i = 0; i < aot::kNumKernels + aot::kNumRowKernels; ++i) {
    const aot::Kernel& kernel = aot::kKernels[i];
    if (kernel.object != i) continue;
    ++told.num_objects;
    told.object_bytes += kernel.object_bytes;
    const uint64_t devices = aot::kernel_states[i].devices.load(std::memory_order_acquire);
    const bool is_loaded = (devices >> device & 1) != 0;
    told.num_loaded += is_loaded ? 1 : 0;
    told.loaded_bytes += is_loaded ? kernel.object_bytes : 0;
  }
  const uint64_t struct_bytes = memory->struct_bytes;
  *memory = told;
  memory->struct_bytes = struct_bytes;
  return AOT_GEMM_OK;
}
