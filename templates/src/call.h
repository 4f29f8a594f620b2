// One call from Python: its tensors read, checked, ordered and launched.
#ifndef AOT_GEMM_CALL_H_
#define AOT_GEMM_CALL_H_

#include "python_state.h"
#include "record.h"

namespace aot {

// Runs a function of the Python package by its record, which `is_whole`. Gives a new reference to what is written: `out`, or a
// tuple of it, the sum with a residual where that is written, and the scales where there are any; null with a Python error set.
PyObject* call(State* state, Product product, const Record& record);

// Reads a weight, and waits until what its framework has enqueued so far is done. Gives its address, or null with an
// error set.
PyObject* settle_weight(State* state, PyObject* weight);

}  // namespace aot

#endif  // AOT_GEMM_CALL_H_
