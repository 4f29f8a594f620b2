#include "torch_guard.h"

namespace aot {

namespace {

// Takes the truth of a new reference; -1 where it is null or has none.
int take_truth(PyObject* object) {
  if (object == nullptr) return -1;
  const int truth = PyObject_IsTrue(object);
  Py_DecRef(object);
  return truth;
}

}  // namespace

TorchGuard::~TorchGuard() {
  if (hooks_ != nullptr) Py_DecRef(hooks_);
}

int TorchGuard::load(PyObject* routes) {
  PyObject* make = PyObject_GetAttrString(routes, "torch_hooks");
  if (make == nullptr) return -1;
  PyObject* hooks = PyObject_CallNoArgs(make);
  Py_DecRef(make);
  if (hooks == nullptr) return -1;
  PyObject** places[] = {&is_grad_enabled_, &forward_ad_, &is_neg_, &increment_version_, &storage_offset_,
                         &tracing_state_,   &requires_grad_, &level_,  &are_deterministic_, &exhausted_};
  Py_ssize_t index = 0;
  for (PyObject** place : places) {
    *place = PyTuple_GetItem(hooks, index++);
    if (*place == nullptr) {
      Py_DecRef(hooks);
      return -1;
    }
  }
  if (hooks_ != nullptr) Py_DecRef(hooks);  // another thread was first, in a Python without the GIL
  if (hooks_ == nullptr) hooks_ = hooks;
  return 0;
}

int TorchGuard::is_without_memory(PyObject* tensor, const DLTensor& view, bool* answer) const {
  // No offset into a tensor reaches as far: a larger address is one, and torch need not be asked.
  constexpr uintptr_t kLargestOffset = uintptr_t{1} << 40;
  *answer = false;
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address >= kLargestOffset || address == 0) return 0;  // null is refused for any framework
  PyObject* offset = PyObject_CallFunctionObjArgs(storage_offset_, tensor, nullptr);
  if (offset == nullptr) return -1;
  const long num_elements = PyLong_AsLong(offset);
  Py_DecRef(offset);
  if (num_elements == -1 && PyErr_Occurred() != nullptr) return -1;
  *answer = address == static_cast<uintptr_t>(num_elements) * ((view.dtype.bits + 7u) / 8);
  return 0;
}

int TorchGuard::is_negated(PyObject* tensor, const DLTensor& view, bool* answer) const {
  // Only views of complex tensors have the bit, whose parts are of these types.
  *answer = false;
  if (view.dtype.code != kDLFloat) return 0;
  const int truth = take_truth(PyObject_CallFunctionObjArgs(is_neg_, tensor, nullptr));
  *answer = truth > 0;
  return truth < 0 ? -1 : 0;
}

int TorchGuard::find_recording(Recording* recording) const {
  const int enabled = take_truth(PyObject_CallNoArgs(is_grad_enabled_));
  if (enabled < 0) return -1;
  PyObject* level = PyObject_GetAttr(forward_ad_, level_);
  if (level == nullptr) return -1;
  const long depth = PyLong_AsLong(level);  // -1 where it is off
  Py_DecRef(level);
  if (depth == -1 && PyErr_Occurred() != nullptr) return -1;
  PyObject* tracing = PyObject_CallNoArgs(tracing_state_);
  if (tracing == nullptr) return -1;
  *recording = {enabled > 0, depth >= 0 || tracing != &_Py_NoneStruct};
  Py_DecRef(tracing);
  return 0;
}

int TorchGuard::find_deterministic(bool* answer) const {
  const int truth = take_truth(PyObject_CallNoArgs(are_deterministic_));
  *answer = truth > 0;
  return truth < 0 ? -1 : 0;
}

int TorchGuard::requires_gradient(PyObject* tensor, bool* answer) const {
  const int truth = take_truth(PyObject_GetAttr(tensor, requires_grad_));
  *answer = truth > 0;
  return truth < 0 ? -1 : 0;
}

int TorchGuard::note_write(PyObject* tensor) const {
  PyObject* tensors = PyTuple_Pack(1, tensor);
  if (tensors == nullptr) return -1;
  PyObject* result = PyObject_CallFunctionObjArgs(increment_version_, tensors, nullptr);
  Py_DecRef(tensors);
  if (result == nullptr) return -1;
  Py_DecRef(result);
  return 0;
}

}  // namespace aot
