// The TVM-FFI binding: `linear` and `matmul` over DLPack tensors. `aot_gemm` in Python is a thin cover of this file.
//
// The functions of two or three tensors run on the stream that TVM-FFI takes from the tensors' framework and allocate
// with its allocator. Those that end in `_on` are told the stream and the workspace, for frameworks that TVM-FFI cannot
// ask.
#include <cstdint>

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "aot_gemm.h"
#include "operands.h"

namespace aot {

namespace {

int raise_status(aot_gemm_status_t status) {
  static constexpr const char* kKinds[] = {"AotGemmError", "AotGemmError", "DtypeError",
                                           "ShapeError",   "StrideError",  "NoGpuError",
                                           "ArchitectureError", "CudaError", "AotGemmError"};
  return raise_error(kKinds[status], "%s", aot_gemm_last_error());
}

// A tensor that TVM-FFI allocated, released at the end of the scope unless it is handed on.
class Allocation {
 public:
  Allocation() = default;
  ~Allocation() {
    if (handle_ != nullptr) TVMFFIObjectDecRef(handle_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  int allocate(DLDevice device, DLDataType dtype, const int64_t* extents, int32_t num_dims) {
    DLTensor prototype{};
    prototype.device = device;
    prototype.dtype = dtype;
    prototype.ndim = num_dims;
    prototype.shape = const_cast<int64_t*>(extents);
    return TVMFFIEnvTensorAlloc(&prototype, &handle_);
  }

  const DLTensor* tensor() const { return TVMFFITensorGetDLTensorPtr(handle_); }
  void* data() const { return static_cast<char*>(tensor()->data) + tensor()->byte_offset; }

  void hand_on(TVMFFIAny* result) {
    result->type_index = kTVMFFITensor;
    result->zero_padding = 0;
    result->v_obj = static_cast<TVMFFIObject*>(handle_);
    handle_ = nullptr;
  }

 private:
  TVMFFIObjectHandle handle_ = nullptr;
};

int read_tensor(const TVMFFIAny& argument, const char* name, const DLTensor** tensor) {
  if (argument.type_index == kTVMFFITensor) {
    *tensor = TVMFFITensorGetDLTensorPtr(argument.v_obj);
    return 0;
  }
  if (argument.type_index == kTVMFFIDLTensorPtr) {
    *tensor = static_cast<const DLTensor*>(argument.v_ptr);
    return 0;
  }
  return raise_error("DtypeError", "%s is not a tensor; expected one that speaks DLPack", name);
}

int read_operands(const TVMFFIAny* arguments, int32_t num_arguments, int32_t expected, Operands* operands) {
  if (num_arguments != expected) {
    return raise_error("AotGemmError", "got %d arguments; expected %d", num_arguments, expected);
  }
  if (read_tensor(arguments[0], "the left operand", &operands->left) != 0) return -1;
  if (read_tensor(arguments[1], "the right operand", &operands->right) != 0) return -1;
  operands->out = nullptr;
  return arguments[2].type_index == kTVMFFINone ? 0 : read_tensor(arguments[2], "out", &operands->out);
}

int run(Product product, const TVMFFIAny* arguments, int32_t num_arguments, TVMFFIAny* result) {
  Operands operands;
  if (read_operands(arguments, num_arguments, 3, &operands) != 0) return -1;
  Shape shape;
  if (check_operands(product, operands, &shape) != 0) return -1;
  const DLDevice device = operands.left->device;
  Allocation out;
  const bool allocates = operands.out == nullptr;
  if (allocates) {
    if (out.allocate(device, operands.left->dtype, shape.extents, shape.num_dims) != 0) return -1;
    operands.out = out.tensor();
  }
  aot_gemm_problem_t problem;
  if (state_problem(product, operands, shape, &problem) != 0) return -1;
  size_t num_bytes = 0;
  aot_gemm_status_t status = aot_gemm_workspace_bytes(&problem, &num_bytes);
  if (status != AOT_GEMM_OK) return raise_status(status);
  Allocation workspace;
  if (num_bytes > 0) {
    const auto extent = static_cast<int64_t>(num_bytes);
    if (workspace.allocate(device, DLDataType{kDLUInt, 8, 1}, &extent, 1) != 0) return -1;
  }
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  status = aot_gemm_launch(&problem, num_bytes > 0 ? workspace.data() : nullptr, num_bytes, stream);
  if (status != AOT_GEMM_OK) return raise_status(status);
  if (allocates) out.hand_on(result);
  return 0;
}

int state(Product product, const TVMFFIAny* arguments, int32_t num_arguments, int32_t expected,
          aot_gemm_problem_t* problem) {
  Operands operands;
  Shape shape;
  if (read_operands(arguments, num_arguments, expected, &operands) != 0) return -1;
  if (operands.out == nullptr) return raise_error("AotGemmError", "`out` is None; expected a tensor");
  if (check_operands(product, operands, &shape) != 0) return -1;
  return state_problem(product, operands, shape, problem);
}

// Arguments: left, right, out, workspace (uint8, or None), stream (an integer).
int run_on(Product product, const TVMFFIAny* arguments, int32_t num_arguments) {
  aot_gemm_problem_t problem;
  if (state(product, arguments, num_arguments, 5, &problem) != 0) return -1;
  const DLTensor* workspace = nullptr;
  if (arguments[3].type_index != kTVMFFINone && read_tensor(arguments[3], "workspace", &workspace) != 0) return -1;
  void* data = workspace == nullptr ? nullptr : static_cast<char*>(workspace->data) + workspace->byte_offset;
  const auto num_bytes = static_cast<size_t>(workspace == nullptr ? 0 : workspace->shape[0]);
  const aot_gemm_status_t status =
      aot_gemm_launch(&problem, data, num_bytes, reinterpret_cast<void*>(arguments[4].v_int64));
  return status == AOT_GEMM_OK ? 0 : raise_status(status);
}

// Arguments: left, right, out.
int measure_workspace(Product product, const TVMFFIAny* arguments, int32_t num_arguments, TVMFFIAny* result) {
  aot_gemm_problem_t problem;
  if (state(product, arguments, num_arguments, 3, &problem) != 0) return -1;
  size_t num_bytes = 0;
  const aot_gemm_status_t status = aot_gemm_workspace_bytes(&problem, &num_bytes);
  if (status != AOT_GEMM_OK) return raise_status(status);
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = static_cast<int64_t>(num_bytes);
  return 0;
}

}  // namespace

}  // namespace aot

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_linear(void*, const TVMFFIAny* arguments, int32_t num_arguments, TVMFFIAny* result) {
  return aot::run(aot::Product::kLinear, arguments, num_arguments, result);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_matmul(void*, const TVMFFIAny* arguments, int32_t num_arguments, TVMFFIAny* result) {
  return aot::run(aot::Product::kMatmul, arguments, num_arguments, result);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_linear_on(void*, const TVMFFIAny* arguments, int32_t num_arguments, TVMFFIAny*) {
  return aot::run_on(aot::Product::kLinear, arguments, num_arguments);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_matmul_on(void*, const TVMFFIAny* arguments, int32_t num_arguments, TVMFFIAny*) {
  return aot::run_on(aot::Product::kMatmul, arguments, num_arguments);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_linear_workspace_bytes(void*, const TVMFFIAny* arguments, int32_t num_arguments,
                                                        TVMFFIAny* result) {
  return aot::measure_workspace(aot::Product::kLinear, arguments, num_arguments, result);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_matmul_workspace_bytes(void*, const TVMFFIAny* arguments, int32_t num_arguments,
                                                        TVMFFIAny* result) {
  return aot::measure_workspace(aot::Product::kMatmul, arguments, num_arguments, result);
}

// Argument: whether `linear` may read the weight before the kernel in front has ended. Gives what held before.
TVM_FFI_DLL_EXPORT int __tvm_ffi_exchange_early_weights(void*, const TVMFFIAny* arguments, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIBool;
  result->zero_padding = 0;
  result->v_int64 = aot::exchange_early_weights(arguments[0].v_int64 != 0) ? 1 : 0;
  return 0;
}

}  // extern "C"
