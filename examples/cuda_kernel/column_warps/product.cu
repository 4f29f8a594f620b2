// D = A @ B^T in bf16: a warp for each column of D, which reads a row of B once and multiplies it with ROWS rows of A.
//
// ROWS and WARPS are given by the command line. Addresses are multiples of 16 bytes and leading strides of 8 elements,
// as the family's `Alignment()` asks; extents are any.

#include <stdint.h>

using bf16 = uint16_t;  // the upper half of a float
constexpr int kLanes = 32;
constexpr int kElements = 8;  // of bf16, in 16 bytes, which a lane loads at once

__device__ float wide(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x) << 16); }

__device__ bf16 rounded(float x) {
  bf16 found;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(found) : "f"(x));
  return found;
}

__device__ float product_of(uint4 a, uint4 b, float sum) {
  const uint32_t of_a[] = {a.x, a.y, a.z, a.w}, of_b[] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(of_a[i] << 16), __uint_as_float(of_b[i] << 16), sum);
    sum = fmaf(__uint_as_float(of_a[i] & 0xffff0000u), __uint_as_float(of_b[i] & 0xffff0000u), sum);
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(kLanes * WARPS)
    column_warps(const bf16 *__restrict__ a, const bf16 *__restrict__ b, bf16 *d, int m,
                 int n, int k, long long lda, long long ldb, long long ldd) {
  const int blocks = (n + WARPS - 1) / WARPS;
  const int lane = threadIdx.x % kLanes;
  const int column = blockIdx.x % blocks * WARPS + threadIdx.x / kLanes;
  const int row = blockIdx.x / blocks * ROWS;
  if (column >= n) return;
  b += column * ldb;
  float sums[ROWS] = {};
  const int whole = k / kElements * kElements;
  for (int i = lane * kElements; i < whole; i += kLanes * kElements) {
    const uint4 of_b = *reinterpret_cast<const uint4 *>(b + i);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (row + r < m) sums[r] = product_of(*reinterpret_cast<const uint4 *>(a + (row + r) * lda + i), of_b, sums[r]);
    }
  }
  if (whole + lane < k) {
    const float of_b = wide(b[whole + lane]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (row + r < m) sums[r] = fmaf(wide(a[(row + r) * lda + whole + lane]), of_b, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], step);
    if (lane == 0 && row + r < m) d[(row + r) * ldd + column] = rounded(sums[r]);
  }
}
