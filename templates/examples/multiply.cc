// D = A @ B^T for bfloat16 matrices on the GPU, from C++ without Python and without exceptions. CMakeLists.txt beside
// this file builds it, and so does
//
//   c++ -std=c++17 multiply.cc $(pkg-config --cflags --libs PACKAGE) -lcuda
//
// where PACKAGE is the name by which Python imports the package; where that is not among the system's own libraries,
// with -Wl,-rpath,$(pkg-config --variable=libdir PACKAGE). The CUDA driver API stands for whatever owns the device
// memory in your program.
#include <cuda.h>

#include <cstdio>

#include "aot_gemm.hpp"

namespace {

constexpr int64_t kM = 16;
constexpr int64_t kN = 4096;
constexpr int64_t kK = 4096;
constexpr size_t kElementBytes = 2;

bool check(CUresult result) {
  const char* text = "unknown";
  if (result == CUDA_SUCCESS) return true;
  cuGetErrorString(result, &text);
  std::fprintf(stderr, "CUDA error %d: %s\n", static_cast<int>(result), text);
  return false;
}

int fail(const aot_gemm::Error& error) {
  std::fprintf(stderr, "error %d: %s\n", static_cast<int>(error.status), error.message.c_str());
  return 1;
}

// What a workspace takes its memory from.
struct DeviceMemory {
  void* allocate(size_t num_bytes) {
    CUdeviceptr data = 0;
    return check(cuMemAlloc(&data, num_bytes)) ? reinterpret_cast<void*>(data) : nullptr;
  }
  void free(void* data, size_t) { check(cuMemFree(reinterpret_cast<CUdeviceptr>(data))); }
};

// A matrix of zeros in device memory.
void* zeros(int64_t rows, int64_t columns) {
  const size_t num_bytes = static_cast<size_t>(rows * columns) * kElementBytes;
  void* data = DeviceMemory().allocate(num_bytes);
  const bool is_set = data != nullptr && check(cuMemsetD8(reinterpret_cast<CUdeviceptr>(data), 0, num_bytes));
  return is_set ? data : nullptr;
}

int multiply() {
  const auto operation = aot_gemm::Operation::find("bf16");
  if (!operation) return fail(operation.error());
  void* a = zeros(kM, kK);
  void* b = zeros(kN, kK);
  void* d = zeros(kM, kN);
  if (a == nullptr || b == nullptr || d == nullptr) return 1;
  const auto problem = aot_gemm::Problem::make(*operation, aot_gemm::row_major<const void>(a, kM, kK),
                                               aot_gemm::row_major<const void>(b, kN, kK),
                                               aot_gemm::row_major(d, kM, kN));
  if (!problem) return fail(problem.error());
  const auto selection = aot_gemm::select(*problem);
  if (!selection) return fail(selection.error());
  std::printf("kernel %s\n", aot_gemm::kernel_name(selection->kernel));
  aot_gemm::Workspace<DeviceMemory> workspace;
  const auto launched = aot_gemm::launch(*problem, workspace, nullptr);
  if (!launched) return fail(launched.error());
  const auto done = aot_gemm::synchronize(nullptr);
  return done ? 0 : fail(done.error());
}

}  // namespace

int main() {
  CUdevice device;
  CUcontext context;
  if (!check(cuInit(0)) || !check(cuDeviceGet(&device, 0)) || !check(cuDevicePrimaryCtxRetain(&context, device)) ||
      !check(cuCtxSetCurrent(context))) {
    return 1;
  }
  return multiply();
}
