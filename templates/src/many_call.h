// One call of `linear_many`: several weights of one x, whose results are tensors of their own, in one launch.
#ifndef AOT_GEMM_MANY_CALL_H_
#define AOT_GEMM_MANY_CALL_H_

#include "python_state.h"

namespace aot {

// Computes x @ weight^T + bias of each of a tuple of weights. `biases` and `outs` are tuples as long, of which the first may
// have None; all are checked, and may not overlap. Gives None, or null with an error set.
PyObject* call_many(State* state, PyObject* x, PyObject* weights, PyObject* biases, PyObject* outs);

}  // namespace aot

#endif  // AOT_GEMM_MANY_CALL_H_
