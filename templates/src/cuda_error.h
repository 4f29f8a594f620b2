// A failure of CUDA as an error of the library.
#ifndef AOT_GEMM_CUDA_ERROR_H_
#define AOT_GEMM_CUDA_ERROR_H_

#include <cstdint>

#include "aot_gemm.h"
#include "cuda_entry.h"

namespace aot {

// Keeps the text of a failed call for aot_gemm_last_error: what was done, to what, and CUDA's own word for it.
aot_gemm_status_t fail_cuda(cuda::Error error, const char* what, const char* name, int32_t device);

}  // namespace aot

#endif  // AOT_GEMM_CUDA_ERROR_H_
