// How a launch's CTAs are spread over the SMs, where it begins before the kernel in front has ended.
//
// Behind a kernel whose CTAs fill the SMs, an SM that comes free takes as many CTAs of the next kernel as it has room
// for. A kernel of which an SM holds two, and whose CTAs are no more than the SMs, then has two on half of them and none
// on the others, and takes up to twice as long on an H200 (docs/log/2026-11-24-spread.md). Shared memory that nobody
// uses is asked for with the launch, so much that no SM takes more than an even share.
#ifndef AOT_GEMM_SPREAD_H_
#define AOT_GEMM_SPREAD_H_

#include <cuda.h>

namespace aot::cuda {

// What a launch begins behind.
struct Front {
  CUfunction function;  // null where it is not one kernel
  unsigned int smem_bytes;
};

// Has a launch ask for the shared memory that spreads it. Behind the same kernel, launched as it is, it stays as it is:
// there the CTAs of both fit beside each other, and they come one by one.
void spread(CUfunction function, const Front& front, CUlaunchConfig* config);

}  // namespace aot::cuda

#endif  // AOT_GEMM_SPREAD_H_
