#include "row_call.h"

#include <cstdint>

#include "operands.h"
#include "reading.h"
#include "refusal.h"

namespace aot {

namespace {

// Bits of the flags, which `_rows` has too.
constexpr long kInterleaved = 1;
constexpr long kBlocks = 2;
constexpr long kRoundNorm = 4;
constexpr long kOneScale = 8;
constexpr long kAllFlags = 15;
constexpr long kLastElement = static_cast<long>(Element::kInt32);

// One call, on the stream and with the allocator of x's framework.
class RowCall : private Reader {
 public:
  RowCall(State* state, Product product) : Reader(state, product) {}

  PyObject* run(PyObject* x, PyObject* tensors, PyObject* numbers) {
    left_.object = x;
    if (state_.find_type(x, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) return call_route(state_.run_rows, product_, x, tensors, numbers);
    if (read_row_options(state_, numbers, &options_) != 0) return nullptr;
    if (read_left() != 0 || compact_left(product_ == Product::kRotary ? &is_heads : &is_rows) != 0) return nullptr;
    if (read_others(tensors) != 0) return nullptr;
    RowResult result;
    aot_rows_problem_t problem;
    RowTensors views = views_of();
    if (check_row_tensors(product_, views, &result) != 0 || check_written() != 0) return refused_null();
    if (allocate_missing(result) != 0) return nullptr;
    views = views_of();
    if (state_rows(product_, views, result, &problem) != 0) return refused_null();
    if (launch(problem) != 0) return nullptr;
    for (const Operand& other : others_) {
      if (other.object != nullptr && release(other) != 0) return nullptr;
    }
    return give(result);
  }

 private:
  PyObject* refused_null() const {
    refused();
    return nullptr;
  }

  int read_others(PyObject* tensors) {
    for (Py_ssize_t i = 0; i < kNumRowTensors; ++i) {
      PyObject* object = PyTuple_GetItem(tensors, i);  // borrowed from the tuple
      if (object == nullptr) return -1;
      if (is_none(object)) continue;
      Operand& other = others_[i];
      other.object = object;
      const int status = i >= kOut ? read_written(&other, name_of(static_cast<RowTensor>(i))) : read_other(&other);
      if (status != 0) return -1;
    }
    return 0;
  }

  RowTensors views_of() const {
    RowTensors views = {left_.view(), {}, options_};
    for (int32_t i = 0; i < kNumRowTensors; ++i) views.others[i] = others_[i].view();
    return views;
  }

  // Refuses what is written where it reaches into the memory of an x that a copy stands for.
  int check_written() const {
    for (int32_t i = kOut; i < kNumRowTensors; ++i) {
      if (others_[i].object != nullptr && check_apart(product_, original_, *others_[i].view()) != 0) return -1;
    }
    return 0;
  }

  int allocate(RowTensor which, Element element, const int64_t* extents, int32_t num_dims) {
    Operand& other = others_[which];
    if (other.object != nullptr) return 0;
    return other.tensor.allocate(*left_.type.api, left_.view()->device, dlpack_type(element), extents, num_dims);
  }

  // Allocates what is written and not given.
  int allocate_missing(const RowResult& result) {
    const RowOperation& operation = result.computed_by();
    const DLTensor& x = *left_.view();
    if (allocate(kOut, operation.y, result.extents, result.num_dims) != 0) return -1;
    if (result.writes_residual && allocate(kResidualOut, operation.x, x.shape, x.ndim) != 0) return -1;
    if (!result.writes_scale) return 0;
    return allocate(kScaleOut, Element::kFloat32, result.scale_extents, result.num_dims);
  }

  int launch(const aot_rows_problem_t& problem) {
    aot_gemm_status_t status = AOT_GEMM_OK;
    {
      const WithoutGil scope;
      status = aot_rows_launch(&problem, stream_);
    }
    if (status != AOT_GEMM_OK) raise_status(state_, status);
    return status == AOT_GEMM_OK ? 0 : -1;
  }

  // Gives one thing that was written, or a scale that was given, as an object.
  PyObject* give(RowTensor which) {
    Operand& other = others_[which];
    if (other.object == nullptr) return other.tensor.hand_on(*left_.type.api);
    if (which >= kOut && other.type.is_of_torch && state_.torch.note_write(other.object) != 0) return nullptr;
    Py_IncRef(other.object);
    return other.object;
  }

  PyObject* give(const RowResult& result) {
    RowTensor given[3];
    Py_ssize_t count = 0;
    given[count++] = kOut;
    if (result.writes_residual) given[count++] = kResidualOut;
    if (result.computed_by().has_scale()) given[count++] = result.writes_scale ? kScaleOut : kScale;
    if (count == 1) return give(kOut);
    PyObject* tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
      PyObject* object = give(given[i]);
      if (object != nullptr && PyTuple_SetItem(tuple, i, object) == 0) continue;  // which takes the reference
      Py_DecRef(tuple);
      tuple = nullptr;
    }
    return tuple;
  }

  RowOptions options_;
  Operand others_[kNumRowTensors];
};

}  // namespace

int read_row_options(const State& state, PyObject* numbers, RowOptions* options) {
  long values[3];
  for (Py_ssize_t i = 0; i < 3; ++i) {
    PyObject* value = PyTuple_GetItem(numbers, i);  // borrowed from the tuple
    if (value == nullptr) return -1;
    values[i] = PyLong_AsLong(value);
    if (values[i] == -1 && PyErr_Occurred() != nullptr) return -1;
  }
  double reals[2];
  for (Py_ssize_t i = 0; i < 2; ++i) {
    PyObject* value = PyTuple_GetItem(numbers, 3 + i);
    if (value == nullptr) return -1;
    reals[i] = PyFloat_AsDouble(value);
    if (reals[i] == -1.0 && PyErr_Occurred() != nullptr) return -1;
  }
  const auto [element, flags, rotary_dim] = values;
  if (element < -1 || element > kLastElement || flags < 0 || flags > kAllFlags || rotary_dim < -1) {
    refuse("AotGemmError", "got element type %ld, flags %ld and rotary_dim %ld; expected numbers of the Python package's own",
           element, flags, rotary_dim);
    raise_refusal(state);
    return -1;
  }
  options->gives_element = element >= 0;
  options->element = static_cast<Element>(element >= 0 ? element : 0);
  options->is_interleaved = (flags & kInterleaved) != 0;
  options->has_blocks = (flags & kBlocks) != 0;
  options->has_one_scale = (flags & kOneScale) != 0;
  options->rounds_norm = (flags & kRoundNorm) != 0;
  options->rotary_dim = rotary_dim;
  options->eps = static_cast<float>(reals[0]);
  options->weight_offset = static_cast<float>(reals[1]);
  return 0;
}

PyObject* call_rows(State* state, Product product, PyObject* x, PyObject* tensors, PyObject* numbers) {
  return RowCall(state, product).run(x, tensors, numbers);
}

}  // namespace aot
