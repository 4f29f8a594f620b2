#include "call.h"

#include <cstdint>
#include <initializer_list>

#include "extras.h"
#include "kernel.h"
#include "products.h"
#include "refusal.h"
#include "runtime.h"

namespace aot {

namespace {

// One operand of a product: the Python object, and its tensor.
struct Operand {
  PyObject* object = nullptr;  // borrowed
  PyObject* copy = nullptr;    // owned: what stands for an object that is not one matrix in memory
  TensorType type = {nullptr, false};
  HeldTensor tensor;
  void* stream = nullptr;  // of its framework, where that is not the left operand's

  Operand() = default;
  ~Operand() {
    tensor.release();
    if (copy != nullptr) Py_DecRef(copy);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  const DLTensor* view() const { return tensor.view(); }
};

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

// The operands that a plain product has none of.
struct Extras {
  PyObject* tuple;  // borrowed: they are the tensors of it
  Operand scale_x;
  Operand scale_w;
  Operand residual;
  Operand scale_out;
  Operand offsets;
  Operand index;
  Options options;

  Operand* operands[kNumExtraTensors] = {&scale_x, &scale_w, &residual, &scale_out, &offsets, &index};
};

// One call of a product: its operands, and the stream and allocator of the left operand's framework.
class Call {
 public:
  // `extras` may be null.
  Call(State* state, Product product, Extras* extras) : state_(*state), product_(product), extras_(extras) {}

  // Runs it. `bias` and `out` may be None. Gives a new reference, or null with a Python error set.
  PyObject* run(PyObject* left, PyObject* right, PyObject* bias, PyObject* out) {
    left_.object = left;
    right_.object = right;
    if (state_.find_type(left, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) {
      return call_route(state_.run, product_, left, right, bias, out, extras_ == nullptr ? nullptr : extras_->tuple);
    }
    if (read_left() != 0 || read_right() != 0 || compact_left() != 0) return nullptr;
    if (!is_none(bias)) {
      bias_.object = bias;
      if (read_other(&bias_) != 0) return nullptr;
    }
    if (extras_ != nullptr && read_extras() != 0) return nullptr;
    const bool allocates = is_none(out);
    if (!allocates) {
      out_.object = out;
      if (read_other(&out_) != 0 || check_out() != 0) return nullptr;
    }
    Problems problems;
    if (state_problems_of(&problems) != 0 || launch(problems) != 0 || release(right_) != 0) return nullptr;
    if (bias_.object != nullptr && release(bias_) != 0) return nullptr;
    if (extras_ != nullptr && release_extras() != 0) return nullptr;
    if (allocates) return out_.tensor.hand_on(*left_.type.api);
    if (release(out_) != 0 || (out_.type.is_of_torch && state_.torch.note_write(out) != 0)) return nullptr;
    Py_IncRef(out);
    return out;
  }

  // Reads a weight and waits until what its framework has enqueued so far is done. Gives None, or null with an error
  // set.
  PyObject* settle(PyObject* weight) {
    left_.object = weight;
    if (state_.find_type(weight, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) return call_route(state_.settle, product_, weight);
    if (read_left() != 0 || compact_left() != 0) return nullptr;
    aot_gemm_status_t status = AOT_GEMM_OK;
    {
      const WithoutGil scope;
      status = aot_gemm_synchronize(left_.view()->device.device_id, stream_);
    }
    return status == AOT_GEMM_OK ? PyLong_FromVoidPtr(left_.tensor.data()) : raise_status(state_, status);
  }

 private:
  int refused() const {
    raise_refusal(state_);
    return -1;
  }

  // Reads a tensor through the exchange API of its type.
  int read(Operand* operand) {
    if (operand->tensor.read(*operand->type.api, operand->object) != 0) {
      return raise_unreadable(state_, product_, operand->object);
    }
    if (!operand->type.is_of_torch) return 0;
    return check_gradient(*operand) == 0 ? check_torch(state_, product_, *operand) : -1;
  }

  // Refuses an operand whose gradient torch would record. Whether it records is asked once a call.
  int check_gradient(const Operand& operand) {
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

  int read_left() {
    if (read(&left_) != 0) return -1;
    if (check_left(product_, *left_.view()) != 0) return refused();
    return find_stream(*left_.type.api, left_.view()->device, &stream_);
  }

  // Has a copy stand for a left operand that is not one matrix in memory. Of a batch each product has its own.
  int compact_left() {
    if (is_matrix(*left_.view()) || (right_.view() != nullptr && is_batched(product_, *right_.view()))) return 0;
    original_ = span_of(*left_.view());
    left_.copy = call_route(state_.compact, product_, left_.object);
    if (left_.copy == nullptr) return -1;
    left_.object = left_.copy;
    left_.tensor.release();
    return state_.find_type(left_.object, &left_.type) == 0 ? read(&left_) : -1;
  }

  // Reads the right operand, which may be one that is promised to be constant. The promise is of the memory that the tensor
  // had when it was made.
  int read_right() {
    PyObject* type = PyObject_Type(right_.object);
    const bool is_promised = type == state_.constant.get();
    Py_DecRef(type);
    if (!is_promised) return read_other(&right_);
    PyObject* address = PyObject_GetAttr(right_.object, state_.address_name.get());
    if (address == nullptr) return -1;
    const void* promised = PyLong_AsVoidPtr(address);
    Py_DecRef(address);
    PyObject* handle = right_.object;
    right_.copy = PyObject_GetAttr(handle, state_.tensor_name.get());
    if (right_.copy == nullptr) return -1;
    right_.object = right_.copy;
    if (read_other(&right_) != 0) return -1;
    if (right_.tensor.data() != promised) return 0;
    const int is_written = has_new_version(handle);
    right_is_constant_ = is_written == 0;
    return is_written < 0 ? -1 : 0;
  }

  // Says whether torch has counted a write of a promised tensor: 1 or 0, or -1 with a Python error set.
  int has_new_version(PyObject* handle) {
    PyObject* before = PyObject_GetAttr(handle, state_.version_name.get());
    if (before == nullptr) return -1;
    if (is_none(before)) {
      Py_DecRef(before);
      return 0;
    }
    PyObject* now = PyObject_GetAttr(right_.object, state_.version_name.get());
    const int is_equal = now == nullptr ? -1 : PyObject_RichCompareBool(now, before, Py_EQ);
    if (now != nullptr) Py_DecRef(now);
    Py_DecRef(before);
    return is_equal < 0 ? -1 : 1 - is_equal;
  }

  // Reads an operand by its own type: a weight is often of another than x. Where it is another framework's, the launch
  // is to come after what that has enqueued.
  int read_other(Operand* operand) {
    if (state_.find_type(operand->object, &operand->type) != 0) return -1;
    if (operand->type.api == nullptr) return read_capsule(operand);
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
  int read_capsule(Operand* operand) {
    PyObject* stream = PyLong_FromVoidPtr(stream_);
    if (stream == nullptr) return -1;
    PyObject* is_out = operand == &out_ ? operand->object : nullptr;  // any object that is true would do
    PyObject* capsule = call_route(state_.capsule, product_, operand->object, stream, is_out);
    Py_DecRef(stream);
    if (capsule == nullptr) return -1;
    if (is_capsule(capsule)) return operand->tensor.read_capsule(capsule);
    Py_DecRef(capsule);
    refuse("OperandError", "%s: the __dlpack__ of an operand gave no DLPack capsule; expected a tensor of a framework "
           "that speaks DLPack", product_name(product_));
    return refused();
  }

  int read_extras() {
    if (read_options(state_, product_, extras_->tuple, &extras_->options) != 0) return -1;
    for (Py_ssize_t i = 0; i < kNumExtraTensors; ++i) {
      Operand& operand = *extras_->operands[i];
      PyObject* object = PyTuple_GetItem(extras_->tuple, i);
      if (object == nullptr) return -1;
      if (is_none(object)) continue;
      operand.object = object;
      if (read_other(&operand) != 0) return -1;
    }
    return 0;
  }

  int release_extras() {
    for (const Operand* operand : extras_->operands) {
      if (operand->object != nullptr && release(*operand) != 0) return -1;
    }
    return 0;
  }

  int order(void* first, void* second) {
    if (first == second) return 0;
    const DeviceScope scope(left_.view()->device.device_id);
    aot_gemm_status_t status = scope.status();
    if (status == AOT_GEMM_OK) status = aot::order(first, second, scope.device());
    if (status != AOT_GEMM_OK) raise_status(state_, status);
    return status == AOT_GEMM_OK ? 0 : -1;
  }

  // Has the framework of an operand that is not the left one's wait for the launch, before it reads or frees the
  // operand.
  int release(const Operand& operand) {
    if (operand.type.api == left_.type.api) return 0;
    if (operand.type.api != nullptr) return order(stream_, operand.stream);
    PyObject* stream = PyLong_FromVoidPtr(stream_);
    if (stream == nullptr) return -1;
    const int status = tell_route(state_.release, product_, operand.object, stream);
    Py_DecRef(stream);
    return status;
  }

  int check_out() const {
    if (!out_.tensor.is_read_only()) return 0;
    refuse("OperandError", "%s: out is read-only, as its framework says; expected one that may be written; leave out= "
           "away", product_name(product_));
    return refused();
  }

  // Checks the operands, allocates `out` where it is not there, and states the product.
  int state_problems_of(Problems* problems) {
    Operands operands = {left_.view(), right_.view(), bias_.view(), out_.view()};
    if (extras_ != nullptr) {
      operands.scale_x = extras_->scale_x.view();
      operands.scale_w = extras_->scale_w.view();
      operands.residual = extras_->residual.view();
      operands.scale_out = extras_->scale_out.view();
      operands.offsets = extras_->offsets.view();
      operands.index = extras_->index.view();
      operands.options = extras_->options;
    }
    if (left_.type.is_of_torch && kHasVaryingKernels && !operands.options.is_deterministic &&
        state_.torch.find_deterministic(&operands.options.is_deterministic) != 0) {
      return -1;
    }
    Result result;
    if (check_operands(product_, operands, &result) != 0) return refused();
    if (operands.out != nullptr && check_apart(product_, original_, *operands.out) != 0) return refused();
    if (operands.out == nullptr) {
      const DLTensor& left = *operands.left;
      const DLDataType type = dlpack_type(result.computed_by().d);
      if (out_.tensor.allocate(*left_.type.api, left.device, type, result.extents, result.num_dims) != 0) return -1;
      operands.out = out_.view();
    }
    return state_problems(product_, operands, result, right_is_constant_, problems) == 0 ? 0 : refused();
  }

  static void* allocate_workspace(void* context, size_t num_bytes) {
    return static_cast<Call*>(context)->allocate(num_bytes);
  }

  // Called without the GIL, in the midst of a launch.
  void* allocate(size_t num_bytes) {
    return without_gil_->with_gil([this, num_bytes]() -> void* {
      workspace_.release();  // of the launch before, if there are several: it is done by the time that this one begins
      const auto extent = static_cast<int64_t>(num_bytes);
      const DLDataType bytes = {kDLUInt, 8, 1};
      has_failed_ = workspace_.allocate(*left_.type.api, left_.view()->device, bytes, &extent, 1) != 0;
      return has_failed_ ? nullptr : workspace_.data();
    });
  }

  int launch(const Problems& problems) {
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

  State& state_;
  Product product_;
  Extras* extras_;
  Operand left_;
  Operand right_;
  Operand bias_;
  Operand out_;
  Span original_ = {0, 0};  // of a left operand that a copy stands for
  HeldTensor workspace_;
  void* stream_ = nullptr;
  WithoutGil* without_gil_ = nullptr;
  bool right_is_constant_ = false;
  bool has_failed_ = false;
  bool has_asked_ = false;  // what follows is known
  TorchGuard::Recording recording_ = {false, false};
};

}  // namespace

PyObject* call_product(State* state, Product product, PyObject* left, PyObject* right, PyObject* bias, PyObject* out,
                       PyObject* extras) {
  if (extras == nullptr) return Call(state, product, nullptr).run(left, right, bias, out);
  Extras held = {extras, {}, {}, {}, {}, {}, {}, {}};
  return Call(state, product, &held).run(left, right, bias, out);
}

PyObject* settle_weight(State* state, PyObject* weight) {
  return Call(state, Product::kConstant, nullptr).settle(weight);
}

}  // namespace aot
