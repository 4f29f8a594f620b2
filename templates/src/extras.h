// What a call has beside left, right, bias and out, as the Python package's `_extras` puts it into a tuple: the tensors
// scale_x, scale_w, residual, scale_out, offsets and index, each or None, and three integers; then, where the weights of
// groups or of a gate are tensors of their own, a tuple of them, of which the right operand is the first.
#ifndef AOT_GEMM_EXTRAS_H_
#define AOT_GEMM_EXTRAS_H_

#include "python_state.h"
#include "request.h"

namespace aot {

constexpr Py_ssize_t kNumExtraTensors = 6;

// Gives the weights of groups or of a gate of such a tuple, borrowed, and how many there are; null where they are one tensor.
PyObject* weights_of(PyObject* extras, Py_ssize_t* count);

// Reads the integers of such a tuple: the epilogue, which is a gate where the product is gated, and may be where it is grouped, the element type of D or
// -1, and flags. Gives 0, or -1 with a Python error set.
int read_options(const State& state, Product product, PyObject* extras, Options* options);

}  // namespace aot

#endif  // AOT_GEMM_EXTRAS_H_
