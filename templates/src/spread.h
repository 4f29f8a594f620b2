// How a launch's CTAs are spread over the SMs, where it begins before the kernel in front has ended.
//
// Behind a kernel whose CTAs fill the SMs, one of which an SM holds two takes up to nearly twice as long on an H200. It is
// taken that an SM that comes free takes as many CTAs of the next kernel as it has room for, so that others get none; that
// was not stamped (research/log/2026-11-24-spread.md). What cures it: shared memory that nobody uses is asked for with the
// launch, so much that no SM takes more than an even share.
#ifndef AOT_GEMM_SPREAD_H_
#define AOT_GEMM_SPREAD_H_

#include <cuda.h>

namespace aot::cuda {

// What a launch begins behind.
struct Front {
  CUfunction function;  // null where it is not one kernel, or not known
  unsigned int smem_bytes;
};

// Has a launch behind one kernel of ours ask for the shared memory that spreads it. Behind the same kernel, launched as it
// is, it stays as it is: it is not slower there, and spread it would be.
void spread(CUfunction function, const Front& front, CUlaunchConfig* config);

}  // namespace aot::cuda

#endif  // AOT_GEMM_SPREAD_H_
