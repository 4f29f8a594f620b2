/* D = A @ B^T for bfloat16 matrices on the GPU, from C. CMakeLists.txt beside this file builds it, and so does
 *
 *   cc multiply.c $(pkg-config --cflags --libs PACKAGE) -Wl,-rpath,$(pkg-config --variable=libdir PACKAGE) -lcuda
 *
 * where PACKAGE is the name by which Python imports the package. The CUDA driver API stands for whatever owns the device
 * memory in your program. */
#include <cuda.h>
#include <stdio.h>

#include "aot_gemm.h"

enum { M = 16, N = 4096, K = 4096, BYTES = 2 };

static int check(aot_gemm_status_t status) {
  if (status != AOT_GEMM_OK) fprintf(stderr, "error %d: %s\n", status, aot_gemm_last_error());
  return status == AOT_GEMM_OK;
}

static int check_cuda(CUresult result) {
  const char* text = "unknown";
  if (result == CUDA_SUCCESS) return 1;
  cuGetErrorString(result, &text);
  fprintf(stderr, "CUDA error %d: %s\n", result, text);
  return 0;
}

static int multiply(void) {
  const int32_t operation = aot_gemm_operation("bf16");
  CUdeviceptr a, b, d, workspace = 0;
  size_t workspace_bytes = 0;
  aot_gemm_selection_t selection = {.struct_bytes = sizeof(selection)};
  if (operation < 0) {
    fprintf(stderr, "error %d: %s\n", -operation, aot_gemm_last_error());
    return 1;
  }
  if (!check_cuda(cuMemAlloc(&a, (size_t)M * K * BYTES)) || !check_cuda(cuMemAlloc(&b, (size_t)N * K * BYTES)) ||
      !check_cuda(cuMemAlloc(&d, (size_t)M * N * BYTES)) || !check_cuda(cuMemsetD8(a, 0, (size_t)M * K * BYTES)) ||
      !check_cuda(cuMemsetD8(b, 0, (size_t)N * K * BYTES))) {
    return 1;
  }
  /* All three are row-major: one row after the other, columns adjacent. */
  const aot_gemm_problem_t problem = {
      .struct_bytes = sizeof(aot_gemm_problem_t),
      .operation = operation,
      .device = 0,
      .m = M,
      .n = N,
      .k = K,
      .a = {(void*)a, {K, 1}},
      .b = {(void*)b, {K, 1}},
      .d = {(void*)d, {N, 1}},
  };
  if (!check(aot_gemm_select(&problem, &selection))) return 1;
  printf("kernel %s\n", aot_gemm_kernel_name(selection.kernel));
  if (!check(aot_gemm_workspace_bytes(&problem, &workspace_bytes))) return 1;
  if (workspace_bytes > 0 && !check_cuda(cuMemAlloc(&workspace, workspace_bytes))) return 1;
  if (!check(aot_gemm_launch(&problem, (void*)workspace, workspace_bytes, NULL))) return 1;
  return check(aot_gemm_synchronize(0, NULL)) ? 0 : 1;
}

int main(void) {
  CUdevice device;
  CUcontext context;
  if (!check_cuda(cuInit(0)) || !check_cuda(cuDeviceGet(&device, 0)) ||
      !check_cuda(cuDevicePrimaryCtxRetain(&context, device)) || !check_cuda(cuCtxSetCurrent(context))) {
    return 1;
  }
  return multiply();
}
