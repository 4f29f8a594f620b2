#include "reading.h"

#include <initializer_list>

#include "devices.h"
#include "plan.h"
#include "refusal.h"
#include "runtime.h"

namespace aot {

namespace {

// Has the framework's error, that a tensor is not to be read as plain memory, become one of ours, with it as the cause.
int raise_unreadable(const State& state, Product product, PyObject* object) {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0 || PyErr_ExceptionMatches(PyExc_MemoryError) != 0) return -1;
  PyObject* kind = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&kind, &value, &traceback);
  PyErr_NormalizeException(&kind, &value, &traceback);
  tell_route(state.refuse_unreadable, product, object, value);
  for (PyObject* part : {kind, value, traceback}) {
    if (part != nullptr) Py_DecRef(part);
  }
  return -1;
}

int refuse_operand(const State& state, Product product, const char* what) {
  refuse("OperandError", "%s: %s", product_name(product), what);
  raise_refusal(state);
  return -1;
}

// Asks torch what its tensor's memory does not tell.
int check_torch(const State& state, Product product, const Operand& operand) {
  bool answer = false;
  if (state.torch.is_without_memory(operand.object, *operand.view(), &answer) != 0) {
    return raise_unreadable(state, product, operand.object);
  }
  if (answer) {
    return refuse_operand(state, product, "got a tensor that has no memory, as functional and zero tensors; expected one "
                          "in GPU memory; pass the tensor that it stands for");
  }
  if (state.torch.is_negated(operand.object, *operand.view(), &answer) != 0) {
    return raise_unreadable(state, product, operand.object);
  }
  if (!answer) return 0;
  return refuse_operand(state, product, "got a tensor whose memory holds the negative of its values (is_neg()); expected "
                        "a plain one; pass tensor.resolve_neg()");
}

}  // namespace

int Reader::refused() const {
  raise_refusal(state_);
  return -1;
}

// Reads a tensor through the exchange API of its type.
int Reader::read(Operand* operand) {
  if (operand->tensor.read(*operand->type.api, operand->object) != 0) {
    return raise_unreadable(state_, product_, operand->object);
  }
  if (!operand->type.is_of_torch) return 0;
  return check_gradient(*operand) == 0 ? check_torch(state_, product_, *operand) : -1;
}

// Refuses an operand whose gradient torch would record. Whether it records is asked once a call.
int Reader::check_gradient(const Operand& operand) {
  if (!has_asked_) {
    if (state_.torch.find_recording(&recording_) != 0) return -1;
    has_asked_ = true;
  }
  bool requires_gradient = false;
  if (recording_.gradients && state_.torch.requires_gradient(operand.object, &requires_gradient) != 0) {
    return raise_unreadable(state_, product_, operand.object);
  }
  if (!requires_gradient && !recording_.always) return 0;
  return tell_route(state_.check_gradient, product_, operand.object, nullptr);
}

int Reader::read_left() {
  if (read(&left_) != 0) return -1;
  if (check_left(product_, *left_.view()) != 0) return refused();
  return find_stream(*left_.type.api, left_.view()->device, &stream_);
}

int Reader::compact_left(bool (*is_readable)(const DLTensor&)) {
  if (is_readable(*left_.view())) return 0;
  original_ = span_of(*left_.view());
  left_.copy = call_route(state_.compact, product_, left_.object);
  if (left_.copy == nullptr) return -1;
  left_.object = left_.copy;
  left_.tensor.release();
  return state_.find_type(left_.object, &left_.type) == 0 ? read(&left_) : -1;
}

// Reads an operand by its own type: a weight is often of another than x. Where it is another framework's, the launch
// is to come after what that has enqueued.
int Reader::read_other(Operand* operand, bool is_written) {
  if (state_.find_type(operand->object, &operand->type) != 0) return -1;
  if (operand->type.api == nullptr) return read_capsule(operand, is_written);
  if (read(operand) != 0) return -1;
  if (operand->type.api == left_.type.api) return 0;
  const DLDevice device = operand->view()->device;
  if (device.device_type != left_.view()->device.device_type || device.device_id != left_.view()->device.device_id) {
    return 0;  // which is refused later, with the reason
  }
  if (find_stream(*operand->type.api, device, &operand->stream) != 0) return -1;
  return order(operand->stream, stream_);
}

// Reads the capsule of an operand without an exchange API: its framework is told the stream that is to wait for it.
int Reader::read_capsule(Operand* operand, bool is_written) {
  PyObject* stream = PyLong_FromVoidPtr(stream_);
  if (stream == nullptr) return -1;
  PyObject* is_out = is_written ? operand->object : nullptr;  // any object that is true would do
  PyObject* capsule = call_route(state_.capsule, product_, operand->object, stream, is_out);
  Py_DecRef(stream);
  if (capsule == nullptr) return -1;
  if (is_capsule(capsule)) return operand->tensor.read_capsule(capsule);
  Py_DecRef(capsule);
  refuse("OperandError", "%s: the __dlpack__ of an operand gave no DLPack capsule; expected a tensor of a framework "
         "that speaks DLPack", product_name(product_));
  return refused();
}

int Reader::order(void* first, void* second) {
  if (first == second) return 0;
  const DeviceScope scope(left_.view()->device.device_id);
  aot_gemm_status_t status = scope.status();
  if (status == AOT_GEMM_OK) status = aot::order(first, second, scope.device());
  if (status != AOT_GEMM_OK) raise_status(state_, status);
  return status == AOT_GEMM_OK ? 0 : -1;
}

// Has the framework of an operand that is not the left one's wait for the launch, before it reads or frees the
// operand.
int Reader::release(const Operand& operand) {
  if (operand.type.api == left_.type.api) return 0;
  if (operand.type.api != nullptr) return order(stream_, operand.stream);
  PyObject* stream = PyLong_FromVoidPtr(stream_);
  if (stream == nullptr) return -1;
  const int status = tell_route(state_.release, product_, operand.object, stream);
  Py_DecRef(stream);
  return status;
}

void* Reader::allocate_workspace(void* context, size_t num_bytes) { return static_cast<Reader*>(context)->allocate(num_bytes); }

void* Reader::allocate(size_t num_bytes) {
  return without_gil_->with_gil([this, num_bytes]() -> void* {
    workspace_.release();  // of the launch before, if there are several: it is done by the time that this one begins
    const auto extent = static_cast<int64_t>(num_bytes);
    const DLDataType bytes = {kDLUInt, 8, 1};
    has_failed_ = workspace_.allocate(*left_.type.api, left_.view()->device, bytes, &extent, 1, exhausted()) != 0;
    return has_failed_ ? nullptr : workspace_.data();
  });
}

int Reader::launch(const Problems& problems) {
  aot_gemm_status_t status = AOT_GEMM_OK;
  {
    WithoutGil scope;
    without_gil_ = &scope;
    status = aot_gemm_launch_allocating(&problems.first, &allocate_workspace, this, stream_);
    for (int64_t i = 1; i < problems.count && status == AOT_GEMM_OK; ++i) {
      const aot_gemm_problem_t problem = problems.at(i);
      status = aot_gemm_launch_allocating(&problem, &allocate_workspace, this, stream_);
    }
  }
  // The framework's own error says more than that there is no workspace.
  if (status != AOT_GEMM_OK && !has_failed_) raise_status(state_, status);
  return status == AOT_GEMM_OK ? 0 : -1;
}

int Reader::read_weight(Operand* weight, bool* is_constant) {
  *is_constant = false;
  PyObject* type = PyObject_Type(weight->object);
  const bool is_promised = type == state_.constant.get();
  Py_DecRef(type);
  if (!is_promised) return read_other(weight);
  PyObject* address = PyObject_GetAttr(weight->object, state_.address_name.get());
  if (address == nullptr) return -1;
  const void* promised = PyLong_AsVoidPtr(address);
  Py_DecRef(address);
  PyObject* handle = weight->object;
  weight->copy = PyObject_GetAttr(handle, state_.tensor_name.get());
  if (weight->copy == nullptr) return -1;
  weight->object = weight->copy;
  if (read_other(weight) != 0) return -1;
  if (weight->tensor.data() != promised) return 0;
  const int is_written = has_new_version(handle, weight->object);
  *is_constant = is_written == 0;
  return is_written < 0 ? -1 : 0;
}

int Reader::has_new_version(PyObject* handle, PyObject* tensor) {
  PyObject* before = PyObject_GetAttr(handle, state_.version_name.get());
  if (before == nullptr) return -1;
  if (is_none(before)) {
    Py_DecRef(before);
    return 0;
  }
  PyObject* now = PyObject_GetAttr(tensor, state_.version_name.get());
  const int is_equal = now == nullptr ? -1 : PyObject_RichCompareBool(now, before, Py_EQ);
  if (now != nullptr) Py_DecRef(now);
  Py_DecRef(before);
  return is_equal < 0 ? -1 : 1 - is_equal;
}

int Reader::read_written(Operand* operand, const char* name) {
  if (read_other(operand, true) != 0) return -1;
  if (!operand->tensor.is_read_only()) return 0;
  refuse("OperandError", "%s: %s is read-only, as its framework says; expected one that may be written; leave %s= away",
         product_name(product_), name, name);
  return refused();
}

int check_device(const State& state, const DLTensor& left) {
  if (!state.of_some_gpus) return 0;
  const Device* found = nullptr;
  const aot_gemm_status_t status = find_device(left.device.device_id, &found);
  if (status == AOT_GEMM_OK) return 0;
  raise_status(state, status);
  return -1;
}

int check_answered(const State& state, const Problems& problems) {
  if (!state.only_tuned) return 0;
  aot_gemm_selection_t found;
  Plan plan;
  if (select(problems.first, Asking::kForLaunch, &found, &plan) != AOT_GEMM_OK) return 0;  // which is refused for its reason
  return found.tier == AOT_GEMM_TIER_TUNED && found.num_launches == 1 ? 0 : refuse(kNoOperation, "%s", kNoTunedSize);
}

}  // namespace aot
