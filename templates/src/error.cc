#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace aot {

namespace {

// A fixed buffer: an error must be reportable when memory is short.
thread_local char last_error[1024] = "";

}  // namespace

aot_gemm_status_t fail(aot_gemm_status_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace aot

const char* aot_gemm_last_error() { return aot::last_error; }
