// The miss log: launches that no tuned (n, k) answered, counted in a file that the next tuning reads. It is off, and
// nothing of it runs, unless AOT_GEMM_MISSES named a file when the library was loaded.
#ifndef AOT_GEMM_MISSES_H_
#define AOT_GEMM_MISSES_H_

#include <cstdint>

#include "aot_gemm.h"

namespace aot {

// Whether the log is on: decided once, when the library is loaded.
extern const bool kLogsMisses;

// Counts one launch that tier 2 or the fallback answered. Never fails: what cannot be written is said once on stderr.
void log_miss(const aot_gemm_selection_t& selection);

}  // namespace aot

#endif  // AOT_GEMM_MISSES_H_
