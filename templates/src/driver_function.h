// Driver functions, found at run time: the library links no libcuda, so that it loads where there is no driver.
#ifndef AOT_GEMM_DRIVER_FUNCTION_H_
#define AOT_GEMM_DRIVER_FUNCTION_H_

#include <cuda_runtime_api.h>

#include <atomic>

namespace aot::cuda {

// Finds the function of a name that a version of CUDA, 12030 for 12.3, has under it.
template <typename Function>
cudaError_t find_driver_function(const char* name, unsigned int version, Function* function) {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &symbol, version, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorInsufficientDriver;
  *function = reinterpret_cast<Function>(symbol);
  return cudaSuccess;
}

// The same, asked for until it is found; null where it is not.
template <typename Function>
Function find_once(std::atomic<Function>* known, const char* name, unsigned int version) {
  Function function = known->load(std::memory_order_relaxed);
  if (function == nullptr && find_driver_function(name, version, &function) == cudaSuccess) {
    known->store(function, std::memory_order_relaxed);
  }
  return function;
}

}  // namespace aot::cuda

#endif  // AOT_GEMM_DRIVER_FUNCTION_H_
