// One call of a product from Python: its operands read, checked, ordered and launched.
#ifndef AOT_GEMM_CALL_H_
#define AOT_GEMM_CALL_H_

#include "python_state.h"

namespace aot {

// Runs a product. `bias` and `out` may be None. `extras` is what else a call has: a tuple that `_extras` of the Python
// package makes; null for none. Gives a new reference, or null with a Python error set.
PyObject* call_product(State* state, Product product, PyObject* left, PyObject* right, PyObject* bias, PyObject* out,
                       PyObject* extras);

// Reads a weight, and waits until what its framework has enqueued so far is done. Gives its address, or null with an
// error set.
PyObject* settle_weight(State* state, PyObject* weight);

}  // namespace aot

#endif  // AOT_GEMM_CALL_H_
