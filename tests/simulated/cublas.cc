// A simulated libcublas.so.13: its product of 16-bit operands over the simulated driver, as a kernel called cublas.
//
// Matrices are column-major, or the transpose of one that is, and C (n, m) column-major is D (m, n) row-major. Source:
// cuBLAS 13 documentation, cublasGemmEx.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "simulated.h"

namespace {

constexpr int kNotInitialised = 1, kInvalidValue = 7;
constexpr int kTransposed = 1, kFloat16 = 2, kBFloat16 = 14, kCompute32F = 68;
constexpr size_t kWorkspaceBytes = 32 << 20;

void* the_stream = nullptr;
void* the_workspace = nullptr;

// op(X) with `rows` rows, as the driver's launch takes an operand: with both strides.
SimulatedTensor tensor(void* data, int32_t rows, int32_t columns, int64_t row_stride, int64_t column_stride) {
  return {data, {rows, columns}, {row_stride, column_stride}};
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return *handle = &the_stream, 0; }
int cublasGetVersion_v2(void*, int* version) { return *version = 130201, 0; }

int cublasSetStream_v2(void*, void* stream) {
  the_stream = stream;
  the_workspace = nullptr;
  return 0;
}

int cublasSetWorkspace_v2(void*, void* workspace, size_t num_bytes) {
  the_workspace = workspace;
  return num_bytes == kWorkspaceBytes ? 0 : kInvalidValue;
}

int cublasGemmEx(void* handle, int op_x, int op_y, int n, int m, int k, const float* alpha, void* x, int x_type, int ldx,
                 void* y, int y_type, int ldy, const float* beta, void* c, int c_type, int ldc, int compute, int) {
  if (handle != &the_stream || the_stream == nullptr || the_workspace == nullptr) return kNotInitialised;
  if (x_type != y_type || x_type != c_type || (x_type != kFloat16 && x_type != kBFloat16)) return kInvalidValue;
  if (*alpha != 1.0F || *beta != 0.0F || compute != kCompute32F) return kInvalidValue;
  if (ldx < (op_x == kTransposed ? k : n) || ldy < (op_y == kTransposed ? m : k) || ldc < n) return kInvalidValue;
  const SimulatedTensor b = op_x == kTransposed ? tensor(x, n, k, ldx, 1) : tensor(x, n, k, 1, ldx);
  const SimulatedTensor a = op_y == kTransposed ? tensor(y, m, k, 1, ldy) : tensor(y, m, k, ldy, 1);
  const SimulatedCall call{"cublas", x_type == kFloat16 ? 1 : 0, 0, 2, a, b, tensor(c, m, n, ldc, 1)};
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return kNotInitialised;
  auto* launch = reinterpret_cast<int32_t (*)(const SimulatedCall*)>(dlsym(driver, "simulated_launch"));
  return launch(&call);
}

}  // extern "C"
