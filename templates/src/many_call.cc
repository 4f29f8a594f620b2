#include "many_call.h"

#include <cinttypes>

#include "kernel.h"
#include "reading.h"
#include "refusal.h"
#include "request.h"

namespace aot {

namespace {

constexpr Product kMany = Product::kLinearMany;

// One weight, and what goes with it.
struct PartOperands {
  Operand weight;
  Operand bias;
  Operand out;
};

class ManyCall : private Reader {
 public:
  ManyCall(State* state, PyObject* x) : Reader(state, kMany) { left_.object = x; }

  PyObject* run(PyObject* weights, PyObject* biases, PyObject* outs) {
    count_ = PyTuple_Size(weights);
    if (count_ < 1 || count_ > AOT_GEMM_MAX_PARTS || PyTuple_Size(biases) != count_ || PyTuple_Size(outs) != count_) {
      refuse("ShapeError", "linear_many: got %" PRId64 " weights; expected 1 to %d, with as many biases and results; call it for "
             "some of them at a time", static_cast<int64_t>(count_), AOT_GEMM_MAX_PARTS);
      return refused_null();
    }
    if (state_.find_type(left_.object, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) {
      refuse("OperandError", "linear_many: x is no tensor whose framework has a C exchange API of DLPack; expected a torch.Tensor "
             "of a newer torch, or call linear for each weight");
      return refused_null();
    }
    if (read_left() != 0 || check_device(state_, *left_.view()) != 0) return nullptr;
    if (compact_left() != 0 || read_parts(weights, biases, outs) != 0) return nullptr;
    if (state_problem() != 0 || check_answered(state_, problems_) != 0) return refused_null();
    return ask_for_repeatability() == 0 && launch(problems_) == 0 && release_all() == 0 ? give_none() : nullptr;
  }

 private:
  PyObject* refused_null() const {
    refused();
    return nullptr;
  }

  int read_parts(PyObject* weights, PyObject* biases, PyObject* outs) {
    are_constant_ = true;
    for (Py_ssize_t i = 0; i < count_; ++i) {
      PartOperands& part = parts_[i];
      bool is_constant = false;
      part.weight.object = PyTuple_GetItem(weights, i);
      part.bias.object = PyTuple_GetItem(biases, i);
      part.out.object = PyTuple_GetItem(outs, i);
      if (read_weight(&part.weight, &is_constant) != 0) return -1;
      if (!is_none(part.bias.object) && read_other(&part.bias) != 0) return -1;
      if (read_written(&part.out, "out") != 0) return -1;
      are_constant_ = are_constant_ && is_constant;
    }
    return 0;
  }

  // Finds the operation of x's element type, which that of all else has to be.
  int find_element_and_operation() {
    if (check_tensor(kMany, "x", *left_.view(), *left_.view(), &element_) != 0) return -1;
    if (left_.view()->ndim < 1) {
      return refuse("ShapeError", "linear_many: x has no dimension; expected (..., k)");
    }
    const Request request = {element_, element_, element_, Scale::kNone, Element::kFloat32, Element::kFloat32, Epilogue::kMany,
                             Grouping::kDense, false, false, false, false};
    operation_ = find_operation(request);
    return operation_ >= 0 ? 0 : refuse(kNoOperation, "%s", write_request(kMany, request).characters);
  }

  int state_part(const PartOperands& operands, aot_gemm_part_t* part) {
    const DLTensor& x = *left_.view();
    const DLTensor& weight = *operands.weight.view();
    if (check_tensor_of(kMany, "weight", weight, x, element_) != 0) return -1;
    if (weight.ndim != 2 || weight.shape[1] != x.shape[x.ndim - 1]) {
      return refuse("ShapeError", "linear_many: got x %s and a weight %s; expected x (..., k) and weights (n, k)",
                    shape_text(x).characters, shape_text(weight).characters);
    }
    *part = {weight.shape[0], {data_of(weight), {stride_of(weight, 0), stride_of(weight, 1)}}, {}, {}};
    if (operands.bias.view() != nullptr) {
      const DLTensor& bias = *operands.bias.view();
      if (check_tensor_of(kMany, "bias", bias, x, element_) != 0) return -1;
      if (!have_shape(bias, &part->n, 1)) {
        return refuse("ShapeError", "linear_many: a bias has shape %s; expected (%" PRId64 ",), an element for each row of its "
                      "weight", shape_text(bias).characters, part->n);
      }
      part->bias = {data_of(bias), {0, stride_of(bias, 0)}};
    }
    Matrix d;
    const DLTensor& out = *operands.out.view();
    if (check_tensor_of(kMany, "out", out, x, element_) != 0) return -1;
    if (out.ndim < 1) return refuse("ShapeError", "linear_many: a result has no dimension; expected (..., %" PRId64 ")", part->n);
    if (read_matrix(kMany, "out", out, out.ndim - 1, &d) != 0) return -1;
    if (d.extents[0] != problems_.first.m || d.extents[1] != part->n) {
      return refuse("ShapeError", "linear_many: a result has shape %s; expected x's leading dimensions and %" PRId64
                    " columns", shape_text(out).characters, part->n);
    }
    part->d = {d.data, {d.strides[0], d.strides[1]}};
    return 0;
  }

  int state_problem() {
    if (find_element_and_operation() != 0) return -1;
    Matrix a;
    const DLTensor& x = *left_.view();
    if (read_matrix(kMany, "x", x, x.ndim - 1, &a) != 0) return -1;
    aot_gemm_problem_t& problem = problems_.first;
    problem = {};
    problem.struct_bytes = sizeof(problem);
    problem.operation = id_of(operation_);
    problem.device = x.device.device_id;
    problem.flags = are_constant_ ? AOT_GEMM_B_CONSTANT : 0;
    problem.m = a.extents[0];
    problem.k = a.extents[1];
    problem.a = {a.data, {a.strides[0], a.strides[1]}};
    problem.parts = stated_;
    problem.num_parts = count_;
    for (Py_ssize_t i = 0; i < count_; ++i) {
      if (state_part(parts_[i], &stated_[i]) != 0) return -1;
      problem.n += stated_[i].n;
    }
    return 0;
  }

  // Sees to it that the same operands give the same bits where torch is to have them do so.
  int ask_for_repeatability() {
    bool is_asked = false;
    if (kHasVaryingKernels && left_.type.is_of_torch && state_.torch.find_deterministic(&is_asked) != 0) return -1;
    if (is_asked) problems_.first.flags |= AOT_GEMM_DETERMINISTIC;
    return 0;
  }

  int release_all() {
    for (Py_ssize_t i = 0; i < count_; ++i) {
      const PartOperands& part = parts_[i];
      if (release(part.weight) != 0 || release(part.out) != 0) return -1;
      if (part.bias.view() != nullptr && release(part.bias) != 0) return -1;
      if (part.out.type.is_of_torch && state_.torch.note_write(part.out.object) != 0) return -1;
    }
    return 0;
  }

  PartOperands parts_[AOT_GEMM_MAX_PARTS];
  aot_gemm_part_t stated_[AOT_GEMM_MAX_PARTS];
  Py_ssize_t count_ = 0;
  Problems problems_;
  Element element_ = Element::kBfloat16;
  int32_t operation_ = -1;
  bool are_constant_ = false;
};

}  // namespace

PyObject* call_many(State* state, PyObject* x, PyObject* weights, PyObject* biases, PyObject* outs) {
  return ManyCall(state, x).run(weights, biases, outs);
}

}  // namespace aot
