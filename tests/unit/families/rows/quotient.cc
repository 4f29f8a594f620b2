// The quotient of `aot/row_families/_quotient.py`, in the host's float32, beside the exact one.
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#define FAST __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FAST
#endif

namespace {

float of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline __attribute__((always_inline)) float quotient(float x, float scale, float minus_inverse, int corrections = 2) {
  float found = x * -minus_inverse;
  for (int i = 0; i < corrections; ++i) {
    found = __builtin_fmaf(__builtin_fmaf(found, scale, -x), minus_inverse, found);
  }
  return found;
}

}  // namespace

extern "C" {

// Counts the differences over all significands of `bits` bits of X, from `first` on in steps, and all of the scale.
FAST uint64_t count_of_significands(int32_t bits, uint32_t first, uint32_t step) {
  uint64_t count = 0;
  for (uint32_t i = first; i < (1u << (bits - 1)); i += step) {
    const float x = of_bits(0x3f800000u | (i << (24 - bits)));
    uint32_t different = 0;
    for (uint32_t j = 0; j < (1u << 23); ++j) {
      const float scale = of_bits(0x3f800000u | j);
      different += quotient(x, scale, -(1.0f / scale)) != x / scale;
    }
    count += different;
  }
  return count;
}

// Writes the quotient that kernels compute, and the exact one, of pairs.
FAST void quotients(int64_t count, const float* x, const float* scale, float* found, float* exact) {
  for (int64_t i = 0; i < count; ++i) {
    found[i] = quotient(x[i], scale[i], -(1.0f / scale[i]));
    exact[i] = x[i] / scale[i];
  }
}

// Counts the differences over random significands of both, of 24 bits.
FAST uint64_t count_of_random(uint64_t count, uint64_t seed, int32_t corrections) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1, different = 0;
  for (uint64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t mixed = (state >> 18) ^ state;
    const float x = of_bits(0x3f800000u | (static_cast<uint32_t>(mixed >> 40) & 0x7fffffu));
    const float scale = of_bits(0x3f800000u | (static_cast<uint32_t>(mixed >> 13) & 0x7fffffu));
    different += bits_of(quotient(x, scale, -(1.0f / scale), corrections)) != bits_of(x / scale);
  }
  return different;
}
}
