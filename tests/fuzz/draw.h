// What the drivers of the C API draw their arguments by: from one generator, so that a seed says a run.
#ifndef AOT_GEMM_TESTS_DRAW_H_
#define AOT_GEMM_TESTS_DRAW_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>

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

#endif  // AOT_GEMM_TESTS_DRAW_H_
