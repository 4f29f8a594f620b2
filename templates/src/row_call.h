// One call of a row operation from Python: its tensors read, checked, ordered and launched.
#ifndef AOT_GEMM_ROW_CALL_H_
#define AOT_GEMM_ROW_CALL_H_

#include "python_state.h"
#include "row_tensors.h"

namespace aot {

// Runs a row operation. `tensors` and `numbers` are tuples that `_rows` of the Python package makes: the tensors beside x, by
// RowTensor, each or None, and what `read_row_options` reads. Gives a new reference to what is written: y, or a tuple of
// y, the sum with a residual where there is one, and the scales where there are any; null with a Python error set.
PyObject* call_rows(State* state, Product product, PyObject* x, PyObject* tensors, PyObject* numbers);

// Reads the numbers: the element type of y or -1, flags, rotary_dim or -1, eps, and what is added to weights. Gives 0, or -1
// with a Python error set.
int read_row_options(const State& state, PyObject* numbers, RowOptions* options);

}  // namespace aot

#endif  // AOT_GEMM_ROW_CALL_H_
