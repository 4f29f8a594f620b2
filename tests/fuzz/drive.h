// What the drivers of the C API have in common: what they draw arguments by, from one generator, so that a seed says a run,
// and the loop of calls, whose outcomes are held against what any function promises.
#ifndef AOT_GEMM_TESTS_DRIVE_H_
#define AOT_GEMM_TESTS_DRIVE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "aot_gemm.h"

extern "C" {
void recorder_reset();
void recorder_fail(int32_t call, int32_t error);
}

inline std::mt19937_64 generator;

inline uint64_t draw(uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(generator); }

inline bool one_in(uint64_t count) { return draw(count - 1) == 0; }

template <typename Value, size_t count>
Value pick(const Value (&values)[count]) {
  return values[draw(count - 1)];
}

inline int64_t draw_extent() {
  constexpr int64_t kExtents[] = {0,   1,    2,     3,     7,         8,           16,         24,
                                  64,  100,  256,   4096,  14336,     20000,       INT32_MAX,  INT32_MAX - 7,
                                  INT64_C(1) << 31, INT64_MAX, INT64_MIN, -1};
  constexpr size_t kNumLegal = 16;
  return one_in(40) ? kExtents[draw(std::size(kExtents) - 1)] : kExtents[draw(kNumLegal - 1)];
}

inline int64_t draw_stride(int64_t inner) {
  const int64_t limits[] = {0, -1, -8, 3, INT64_C(1) << 39, INT64_C(1) << 40, INT64_C(1) << 62, INT64_MAX, INT64_MIN};
  if (one_in(8)) return pick(limits);
  const auto plus = static_cast<int64_t>(draw(3) * 8);
  return inner > 0 && inner <= INT32_MAX ? inner + (one_in(2) ? plus : 0) : plus;
}

inline void* draw_address() {
  const uint64_t addresses[] = {0, 1, 2, 16, UINT64_C(1) << 40, UINT64_MAX - 15, UINT64_MAX};
  const uint64_t region = (1 + draw(one_in(4) ? 7 : 240)) << 56;  // of one that other operands are often in, or seldom
  const uint64_t address = one_in(10) ? pick(addresses) : region + (draw(64) << (one_in(4) ? 1 : 20));
  return reinterpret_cast<void*>(address);
}

inline int32_t draw_device() {
  constexpr int32_t kDevices[] = {-1, 0, 1, 7, 63, 64, INT32_MAX, INT32_MIN, -2};
  return one_in(4) ? pick(kDevices) : -1;
}

constexpr int32_t kNumStatuses = 10;
constexpr int32_t kNumRecorderCalls = 11;

// Makes calls of functions 0 to `last`, some of which the recorder makes fail, and prints what came of them. `arguments` are
// the program's: the number of calls, and a seed. Gives the program's exit code.
inline int drive(char** arguments, uint64_t last, aot_gemm_status_t (*call)(uint64_t), void (*count_launches)(),
                 void (*reset)(), const std::vector<uint64_t>& launches) {
  const uint64_t count = std::strtoull(arguments[1], nullptr, 10);
  generator.seed(std::strtoull(arguments[2], nullptr, 10));
  uint64_t statuses[kNumStatuses] = {};
  for (uint64_t i = 0; i < count; ++i) {
    if (i % 1000 == 0) {
      count_launches();
      recorder_reset();
      reset();
      if (i % 8000 == 0) recorder_fail(static_cast<int32_t>(draw(kNumRecorderCalls - 1)), one_in(2) ? 100 : 719);
    }
    const std::string before = aot_gemm_last_error();
    const uint64_t function = draw(last);
    const aot_gemm_status_t status = call(function);
    const bool is_known = status >= 0 && status < kNumStatuses;
    const char* text = aot_gemm_last_error();
    if (!is_known || (status != AOT_GEMM_OK && text[0] == '\0') || (status == AOT_GEMM_OK && before != text)) {
      std::printf("call %zu of function %zu: status %d, text \"%s\"\n", static_cast<size_t>(i),
                  static_cast<size_t>(function), static_cast<int>(status), text);
      return 1;
    }
    ++statuses[status];
  }
  count_launches();
  std::printf("{\"statuses\": [");
  for (int32_t i = 0; i < kNumStatuses; ++i) std::printf("%s%zu", i > 0 ? ", " : "", static_cast<size_t>(statuses[i]));
  std::printf("], \"launches\": [");
  for (size_t i = 0; i < launches.size(); ++i) {
    std::printf("%s%zu", i > 0 ? ", " : "", static_cast<size_t>(launches[i]));
  }
  std::printf("]}\n");
  return 0;
}

#endif  // AOT_GEMM_TESTS_DRIVE_H_
