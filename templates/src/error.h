// The calling thread's last error.
#ifndef AOT_GEMM_ERROR_H_
#define AOT_GEMM_ERROR_H_

#include "aot_gemm.h"

namespace aot {

// Keeps a formatted text for aot_gemm_last_error and gives `status` back.
aot_gemm_status_t fail(aot_gemm_status_t status, const char* format, ...) __attribute__((format(printf, 2, 3), cold));

}  // namespace aot

#endif  // AOT_GEMM_ERROR_H_
