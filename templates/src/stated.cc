#include "stated.h"

#include <cinttypes>

#include "error.h"

namespace aot {

// More than any header will have: a size past it is no size.
constexpr uint64_t kMostProblemBytes = 4096;

aot_gemm_status_t check_argument(const void* pointer, const char* name) {
  if (pointer != nullptr) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "`%s` is null; expected an address", name);
}

aot_gemm_status_t copy_stated(const char* name, const void* stated, uint64_t least_bytes, uint64_t own_bytes,
                              void* storage) {
  uint64_t num_bytes = 0;  // which both structs begin with
  std::memcpy(&num_bytes, stated, sizeof(num_bytes));
  if (num_bytes < least_bytes || num_bytes > kMostProblemBytes) {
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "struct_bytes of the problem is %" PRIu64 "; expected sizeof(%s), %" PRIu64 " here and at least %" PRIu64
                "; set it, or compile the program with the aot_gemm.h of this library (ABI version %d)",
                num_bytes, name, own_bytes, least_bytes, AOT_GEMM_ABI_VERSION);
  }
  const auto* bytes = static_cast<const unsigned char*>(stated);
  for (uint64_t i = own_bytes; i < num_bytes; ++i) {
    if (bytes[i] == 0) continue;
    return fail(AOT_GEMM_ERROR_ARGUMENT,
                "the problem has %" PRIu64 " bytes, and byte %" PRIu64 " of it, which this library does not know, is "
                "not 0; expected %" PRIu64 " bytes, or zeros past them; use a library as new as the program's aot_gemm.h",
                num_bytes, i, own_bytes);
  }
  std::memset(storage, 0, own_bytes);
  std::memcpy(storage, stated, std::min(num_bytes, own_bytes));
  std::memcpy(storage, &own_bytes, sizeof(own_bytes));
  return AOT_GEMM_OK;
}

aot_gemm_status_t check_selection_bytes(const char* name, uint64_t num_bytes, uint64_t least_bytes) {
  if (num_bytes >= least_bytes) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "struct_bytes of the selection is %" PRIu64 "; expected sizeof(%s), at least %" PRIu64
              "; set it", num_bytes, name, least_bytes);
}

}  // namespace aot
