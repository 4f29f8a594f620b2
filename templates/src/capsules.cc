#include "capsules.h"

#include "refusal.h"

namespace aot {

bool has_arguments(const State& state, Py_ssize_t given, int expected) {
  if (given == expected) return true;
  refuse("AotGemmError", "got %zd arguments; expected %d", given, expected);
  raise_refusal(state);
  return false;
}

bool read_capsule(const State& state, const char* name, PyObject* object, HeldTensor* tensor) {
  if (!is_capsule(object)) {
    refuse("DtypeError", "%s is not a DLPack capsule, or one that was consumed", name);
    raise_refusal(state);
    return false;
  }
  Py_IncRef(object);
  return tensor->read_capsule(object) == 0;
}

PyObject* make_tuple(const int64_t* values, Py_ssize_t num_values) {
  PyObject* tuple = PyTuple_New(num_values);
  for (Py_ssize_t i = 0; tuple != nullptr && i < num_values; ++i) {
    PyObject* value = PyLong_FromLongLong(values[i]);
    if (value != nullptr && PyTuple_SetItem(tuple, i, value) == 0) continue;  // which takes the reference
    Py_DecRef(tuple);
    tuple = nullptr;
  }
  return tuple;
}

bool set_item(PyObject* dictionary, const char* name, PyObject* item) {
  if (item == nullptr) return false;
  const int status = PyDict_SetItemString(dictionary, name, item);
  Py_DecRef(item);
  return status == 0;
}

PyObject* make_record(std::initializer_list<NamedInteger> integers) {
  PyObject* record = PyDict_New();
  for (const NamedInteger& integer : integers) {
    if (record == nullptr || set_item(record, integer.name, PyLong_FromLongLong(integer.value))) continue;
    Py_DecRef(record);
    record = nullptr;
  }
  return record;
}

}  // namespace aot
