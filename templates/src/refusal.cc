#include "refusal.h"

#include <cstdarg>
#include <cstdio>

namespace aot {

namespace {

thread_local Refusal refusal = {"AotGemmError", {}};

}  // namespace

int refuse(const char* kind, const char* format, ...) {
  refusal.kind = kind;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(refusal.message, sizeof(refusal.message), format, arguments);
  va_end(arguments);
  return -1;
}

const Refusal& last_refusal() { return refusal; }

}  // namespace aot
