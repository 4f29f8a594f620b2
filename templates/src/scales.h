// The factors of x and of a weight: float32 tensors, one element, an element for each row, or one for each block.
#ifndef AOT_GEMM_SCALES_H_
#define AOT_GEMM_SCALES_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "operation.h"
#include "request.h"

namespace aot {

// What the shapes of a pair of tensors of factors allow. Where a block is a whole row, or all of an operand, it is both.
struct ScaleShapes {
  bool are_vectors;
  bool are_blocks;
};

// Reads the shapes of the factors of x (..., k) and of a weight (rows, k), or of x (rows, k) and of a stack of weights (groups,
// rows, k).
ScaleShapes read_scale_shapes(const DLTensor& scale_x, const DLTensor& scale_w, const DLTensor& x, const DLTensor& weight);

// Says in a refusal which shapes the factors of x and of a weight may have. Gives -1.
int refuse_scale_shapes(Product product, const DLTensor& scale_x, const DLTensor& scale_w, const DLTensor& x,
                        const DLTensor& weight);

// States factors of a kind for the C API, which are of a shape that is theirs. Gives 0, or -1 with the calling thread's
// refusal set.
int state_scale(Product product, const char* name, const DLTensor& scale, Scale kind, aot_gemm_tensor_t* stated);

// States the factors of a stack of weights, and the step from group to group.
int state_group_scale(const DLTensor& scale, Scale kind, aot_gemm_tensor_t* stated, int64_t* step);

}  // namespace aot

#endif  // AOT_GEMM_SCALES_H_
