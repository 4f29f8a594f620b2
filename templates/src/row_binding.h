// The functions of the binding that are of row operations, in the calling convention of METH_FASTCALL.
#ifndef AOT_GEMM_ROW_BINDING_H_
#define AOT_GEMM_ROW_BINDING_H_

#include "capsules.h"
#include "request.h"
#include "row_call.h"

namespace aot {

// Checks the capsules of a call, and gives a tuple of integers: the number of y's element type, whether the sum with a residual
// is written, whether there are scales, whether those are written, then the extents of y, and as many of the scales.
PyObject* describe_rows(const State& state, Product product, PyObject* x, PyObject* tensors, PyObject* numbers);

// Launches a call of capsules, none of which is missing, on a stream (an integer). Gives None.
PyObject* run_rows_on(const State& state, Product product, PyObject* const* arguments);

// Arguments: row operation, rows, cols, table (integers). Gives what the dispatch table says of packed operands, as a tuple:
// kernel, tier, section, index, and the table that answered.
FastFunction plan_rows;

// Arguments: x, the other tensors and the numbers, as `call_rows` takes them. Gives what that gives.
template <Product product>
PyObject* run_rows(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 3)) return nullptr;
  return call_rows(&state, product, arguments[0], arguments[1], arguments[2]);
}

// The same of capsules, which the caller keeps.
template <Product product>
PyObject* describe_rows(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 3)) return nullptr;
  return describe_rows(state, product, arguments[0], arguments[1], arguments[2]);
}

// Arguments: those of `describe_rows`, and the stream (an integer).
template <Product product>
PyObject* run_rows_on(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  return run_rows_on(state, product, arguments);
}

}  // namespace aot

#endif  // AOT_GEMM_ROW_BINDING_H_
