// What the functions of the binding share: their arguments, capsules and tuples.
#ifndef AOT_GEMM_CAPSULES_H_
#define AOT_GEMM_CAPSULES_H_

#include <cstdint>

#include "exchange.h"
#include "python_state.h"

namespace aot {

using FastFunction = PyObject*(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments);

// Says whether there are as many arguments as expected; else a Python error is set.
bool has_arguments(const State& state, Py_ssize_t given, int expected);

// Reads a capsule that the caller keeps. Says false with a Python error set where it is none.
bool read_capsule(const State& state, const char* name, PyObject* object, HeldTensor* tensor);

// Gives a tuple of integers; null with a Python error set.
PyObject* make_tuple(const int64_t* values, Py_ssize_t num_values);

}  // namespace aot

#endif  // AOT_GEMM_CAPSULES_H_
