// By which kind of edge a CUDA graph orders a kernel of ours behind what is in front of it.
//
// A kernel that is launched programmatically begins before one in front of it has ended, if that one lets it. Behind any
// other kernel it takes 0.2 to 0.4 us more on an H200 than an ordinary launch (research/log/2026-11-23-graph-edges.md).
// While a stream is captured, what is in front of a launch can be asked for, and the launch is programmatic only where
// that gains. What is in front of a launch that is not captured cannot be asked for: it stays programmatic.
#ifndef AOT_GEMM_GRAPH_EDGE_H_
#define AOT_GEMM_GRAPH_EDGE_H_

#include <cuda.h>

namespace aot::cuda {

// Attributes of a launch, at most: one with more stays as it is.
constexpr unsigned int kMaxAttributes = 8;

// Makes a launch that is captured an ordinary one, if it is programmatic and anything in front of it does not let it
// begin early. `attributes` is room for the attributes that the configuration then has.
void choose_edge(CUfunction function, CUlaunchAttribute (&attributes)[kMaxAttributes], CUlaunchConfig* config);

}  // namespace aot::cuda

#endif  // AOT_GEMM_GRAPH_EDGE_H_
