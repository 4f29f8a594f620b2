// What the functions of the binding share: their arguments, capsules and tuples.
#ifndef AOT_GEMM_CAPSULES_H_
#define AOT_GEMM_CAPSULES_H_

#include <cstdint>
#include <initializer_list>

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

// Puts an item into a dictionary, and takes its reference. Says false with a Python error set, as where the item is null.
bool set_item(PyObject* dictionary, const char* name, PyObject* item);

// Gives a dictionary of integers by their names; null with a Python error set.
struct NamedInteger {
  const char* name;
  int64_t value;
};
PyObject* make_record(std::initializer_list<NamedInteger> integers);

}  // namespace aot

#endif  // AOT_GEMM_CAPSULES_H_
