// What a check of a table found wrong, as a text that stays; and what such checks have in common.
#ifndef AOT_GEMM_FAULT_TEXT_H_
#define AOT_GEMM_FAULT_TEXT_H_

#include <cstdint>

namespace aot {

struct FaultText {
  char characters[256];

  // Keeps a formatted text, and gives it.
  const char* write(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

// Says whether there are edges, which are above 0 and ascend.
bool ascends(const int64_t* edges, int32_t num_edges);

}  // namespace aot

#endif  // AOT_GEMM_FAULT_TEXT_H_
