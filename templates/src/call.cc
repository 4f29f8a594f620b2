#include "call.h"

#include <cstdint>

#include "extras.h"
#include "kernel.h"
#include "plan.h"
#include "products.h"
#include "reading.h"
#include "refusal.h"
#include "runtime.h"
#include "weights.h"

namespace aot {

namespace {

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
  WeightList weights;

  Operand* operands[kNumExtraTensors] = {&scale_x, &scale_w, &residual, &scale_out, &offsets, &index};
};

// One call of a product, on the stream and with the allocator of the left operand's framework.
class Call : private Reader {
 public:
  // `extras` may be null.
  Call(State* state, Product product, Extras* extras) : Reader(state, product), extras_(extras) {}

  // Runs it. `bias` and `out` may be None. Gives a new reference, or null with a Python error set.
  PyObject* run(PyObject* left, PyObject* right, PyObject* bias, PyObject* out) {
    left_.object = left;
    right_.object = right;
    if (state_.find_type(left, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) {
      return call_route(state_.run, product_, left, right, bias, out, extras_ == nullptr ? nullptr : extras_->tuple);
    }
    if (read_left() != 0 || read_right() != 0 || read_weights() != 0 || compact_product() != 0) return nullptr;
    if (!is_none(bias)) {
      bias_.object = bias;
      if (read_other(&bias_) != 0) return nullptr;
    }
    if (extras_ != nullptr && read_extras() != 0) return nullptr;
    const bool allocates = is_none(out);
    if (!allocates) {
      out_.object = out;
      if (read_written(&out_, "out") != 0) return nullptr;
    }
    Problems problems;
    if (state_problems_of(&problems) != 0) return nullptr;
    if (is_left_to_torch(problems)) return multiply_by_torch(out);
    if (launch(problems) != 0 || release(right_) != 0) return nullptr;
    if (release_weights() != 0) return nullptr;
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
  // Says whether torch is to multiply: each product of a batch that the library has no kernels for would be a launch of its
  // own, where torch makes one. It is asked for what it takes alone: operands of its own, of floating point.
  bool is_left_to_torch(const Problems& problems) const {
    if (extras_ != nullptr || !is_batched(product_, *right_.view())) return false;
    if (!left_.type.is_of_torch || !right_.type.is_of_torch) return false;
    if (out_.object != nullptr && !out_.type.is_of_torch) return false;
    const uint8_t code = left_.view()->dtype.code;
    return (code == kDLFloat || code == kDLBfloat) && count_launches(problems.first) > 1;
  }

  // Has torch write `out`, or what was allocated for it. Gives a new reference, or null with a Python error set.
  PyObject* multiply_by_torch(PyObject* out) {
    PyObject* result = out;
    if (is_none(out)) {
      result = out_.tensor.hand_on(*left_.type.api);
      if (result == nullptr) return nullptr;
    } else {
      Py_IncRef(result);
    }
    PyObject* done = call_route(state_.multiply_by_torch, product_, left_.object, right_.object, result);
    Py_DecRef(result);
    return done;
  }

  // Has a copy stand for a left operand that is not one matrix in memory. Of a batch each product has its own.
  int compact_product() { return is_batched(product_, *right_.view()) ? 0 : compact_left(); }

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

  // Reads the weights of groups, where each is a tensor of its own: the right operand is the first.
  int read_weights() {
    Py_ssize_t count = 0;
    PyObject* weights = extras_ == nullptr ? nullptr : weights_of(extras_->tuple, &count);
    if (weights == nullptr) return 0;
    WeightList& list = extras_->weights;
    if (list.begin(product_, count, *right_.view()) != 0 || list.add(*right_.view()) != 0) return refused();
    for (Py_ssize_t i = 1; i < count; ++i) {
      Operand weight;
      weight.object = PyTuple_GetItem(weights, i);
      if (weight.object == nullptr || read_other(&weight) != 0) return -1;
      if (weight.type.api != right_.type.api) {
        refuse("OperandError", "%s: the weights are tensors of several frameworks; expected those of one",
               product_name(product_));
        return refused();
      }
      if (list.add(*weight.view()) != 0) return refused();
    }
    return 0;
  }

  // Has the framework of weights without an exchange API hear of each: others know streams, which the first one's was told.
  int release_weights() {
    Py_ssize_t count = 0;
    PyObject* weights = extras_ == nullptr ? nullptr : weights_of(extras_->tuple, &count);
    if (weights == nullptr || right_.type.api != nullptr) return 0;
    for (Py_ssize_t i = 1; i < count; ++i) {
      Operand weight;
      weight.object = PyTuple_GetItem(weights, i);
      if (weight.object == nullptr || release(weight) != 0) return -1;
    }
    return 0;
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
      if (extras_->weights.view() != nullptr) operands.right = extras_->weights.view();
      operands.weights = extras_->weights.addresses();
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

  Extras* extras_;
  Operand right_;
  Operand bias_;
  Operand out_;
  HeldTensor workspace_;
  WithoutGil* without_gil_ = nullptr;
  bool right_is_constant_ = false;
  bool has_failed_ = false;
};

}  // namespace

PyObject* call_product(State* state, Product product, PyObject* left, PyObject* right, PyObject* bias, PyObject* out,
                       PyObject* extras) {
  if (extras == nullptr) return Call(state, product, nullptr).run(left, right, bias, out);
  Extras held = {extras, {}, {}, {}, {}, {}, {}, {}, {}};
  return Call(state, product, &held).run(left, right, bias, out);
}

PyObject* settle_weight(State* state, PyObject* weight) {
  return Call(state, Product::kConstant, nullptr).settle(weight);
}

}  // namespace aot
