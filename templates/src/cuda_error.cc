#include "cuda_error.h"

#include <cinttypes>

#include "error.h"
#include "kernel.h"

namespace aot {

aot_gemm_status_t fail_cuda(cuda::Error error, const char* what, const char* name, int32_t device) {
  const char* text = cuda::describe(error);
  if (cuda::means_no_gpu(error)) {
    return fail(AOT_GEMM_ERROR_NO_GPU,
                "no usable NVIDIA GPU: %s (CUDA error %" PRId32 "); expected a %s GPU and a driver for CUDA 13.0 "
                "or newer; see what nvidia-smi says",
                text, error, kArch);
  }
  return fail(AOT_GEMM_ERROR_CUDA, "%s %s failed on device %" PRId32 ": %s (CUDA error %" PRId32 ")", what, name,
              device, text, error);
}

}  // namespace aot
