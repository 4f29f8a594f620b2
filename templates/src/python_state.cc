#include "python_state.h"

#include "refusal.h"

namespace aot {

PyObject* raise(const State& state, const char* kind, const char* message) {
  PyObject* type = PyObject_GetAttrString(state.errors, kind);
  if (type != nullptr) {
    PyErr_SetString(type, message);
    Py_DecRef(type);
  }
  return nullptr;
}

PyObject* raise_refusal(const State& state) {
  const Refusal& refusal = last_refusal();
  if (!refusal.is_of_operation()) return raise(state, refusal.kind, refusal.message);
  PyObject* request = PyUnicode_FromString(refusal.message);
  if (request == nullptr) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(state.refuse_request.get(), request, nullptr);
  Py_DecRef(request);
  if (result != nullptr) Py_DecRef(result);  // which never is: the function raises
  return nullptr;
}

PyObject* raise_status(const State& state, aot_gemm_status_t status) {
  PyObject* kinds = PyObject_GetAttrString(state.errors, "OF_STATUS");
  if (kinds == nullptr) return nullptr;
  PyObject* type = PyTuple_GetItem(kinds, status);  // borrowed from the tuple
  if (type != nullptr) PyErr_SetString(type, aot_gemm_last_error());
  Py_DecRef(kinds);
  return nullptr;
}

PyObject* call_route(const Shared& function, Product product, PyObject* first, PyObject* second, PyObject* third,
                     PyObject* fourth, PyObject* fifth) {
  PyObject* name = PyUnicode_FromString(product_name(product));
  if (name == nullptr) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(function.get(), name, first, second, third, fourth, fifth, nullptr);
  Py_DecRef(name);
  return result;
}

int tell_route(const Shared& function, Product product, PyObject* first, PyObject* second) {
  PyObject* result = call_route(function, product, first, second, nullptr);
  if (result == nullptr) return -1;
  Py_DecRef(result);
  return 0;
}

bool is_none(PyObject* object) { return object == &_Py_NoneStruct; }

PyObject* give_none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

}  // namespace aot
