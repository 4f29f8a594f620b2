#include "call.h"

#include <cstdint>
#include <initializer_list>
#include <new>

#include "atoms.h"
#include "kernel.h"
#include "plan.h"
#include "products.h"
#include "reading.h"
#include "refusal.h"
#include "row_operands.h"
#include "runtime.h"
#include "weights.h"

namespace aot {

namespace {

// One call, on the stream and with the allocator of the left operand's framework.
class Call : private Reader {
 public:
  Call(State* state, Product product, const Record& record) : Reader(state, product), record_(record) {}

  ~Call() {
    for (WeightList* list : {weights_, factors_}) {
      if (list != nullptr) list->~WeightList();
    }
    for (int32_t i = 0; i < num_others_; ++i) at(others_[i]).~Operand();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Runs it. Gives a new reference, or null with a Python error set.
  PyObject* run() {
    left_.object = record_.values[0];
    if (state_.find_type(left_.object, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) return run_by_route();
    if (read_options(state_, product_, record_, &given_.options) != 0 || read_left() != 0 || read_operands() != 0) return nullptr;
    if (check_device(state_, *left_.view()) != 0 || compact_left_of_call() != 0) return nullptr;
    Result result;
    if (check(&result) != 0 || pack_factors(result) != 0) return nullptr;
    if (is_on_rows(product_)) {
      aot_rows_problem_t rows;
      if (state_rows(product_, given_, result, &rows) != 0) return refused_null();
      return launch(rows) == 0 && release_all() == 0 ? give(result) : nullptr;
    }
    Problems products;
    if (state_problems(product_, given_, result, right_is_constant_, &products) != 0) return refused_null();
    if (check_answered(state_, products) != 0) return refused_null();
    if (is_left_to_torch(products)) return multiply_by_torch();
    return launch(products) == 0 && release_all() == 0 ? give(result) : nullptr;
  }

  // Reads a weight and waits until what its framework has enqueued so far is done. Gives None, or null with an error
  // set.
  PyObject* settle() {
    left_.object = record_.values[0];
    if (state_.find_type(left_.object, &left_.type) != 0) return nullptr;
    if (left_.type.api == nullptr) return call_route(state_.settle, product_, left_.object);
    if (read_left() != 0 || compact_left() != 0) return nullptr;
    aot_gemm_status_t status = AOT_GEMM_OK;
    {
      const WithoutGil scope;
      status = aot_gemm_synchronize(left_.view()->device.device_id, stream_);
    }
    return status == AOT_GEMM_OK ? PyLong_FromVoidPtr(left_.tensor.data()) : raise_status(state_, status);
  }

 private:
  PyObject* refused_null() const {
    refused();
    return nullptr;
  }

  PyObject* run_by_route() {
    PyObject* tuple = as_tuple(record_);
    if (tuple == nullptr) return nullptr;
    PyObject* result = call_route(state_.run, product_, tuple);
    Py_DecRef(tuple);
    return result;
  }

  // Makes room for an operand, whose object may come later, or never.
  Operand* add(Field field, PyObject* object) {
    Operand* operand = new (storage_[num_others_]) Operand;  // with (), all of it would be cleared first
    operand->object = object;
    operands_[field] = operand;
    others_[num_others_++] = field;
    return operand;
  }

  // Gives an operand that there is, and that is not the left one.
  Operand& at(Field field) { return *operands_[field]; }

  // Reads the operands behind the left one, in the record's order.
  int read_operands() {
    const Field* fields = record_.fields(product_);
    for (Py_ssize_t i = 1; i < record_.count; ++i) {
      const Field field = fields[i];
      const bool is_right = field == kRight && !is_on_rows(product_);  // which a product cannot be without
      if (field >= kNumOperands || (is_none(record_.values[i]) && !is_right)) continue;
      Operand* operand = add(field, record_.values[i]);
      const int status = field >= kOut ? read_written(operand, kOperandNames[field])
                         : is_right ? read_weight(operand, &right_is_constant_) : read_other(operand);
      if (status != 0) return -1;
    }
    return read_list(kWeights, kRight, storage_of_weights_, &weights_) != 0
               ? -1
               : read_list(kFactors, kScaleW, storage_of_factors_, &factors_);
  }

  // Has a copy stand for a left operand that is not readable where it lies. Of a batch each product has its own.
  int compact_left_of_call() {
    if (product_ == Product::kRotary) return compact_left(&is_heads);
    return product_ == Product::kMatmul && is_batched(product_, *at(kRight).view()) ? 0 : compact_left();
  }

  // Checks the operands, and allocates what is written and not given.
  int check(Result* result) {
    bool* const is_deterministic = &given_.options.is_deterministic;
    if (left_.type.is_of_torch && kHasVaryingKernels && !*is_deterministic && !is_on_rows(product_) &&
        state_.torch.find_deterministic(is_deterministic) != 0) {
      return -1;
    }
    given_.tensors[kLeft] = left_.view();
    for (int32_t i = 0; i < num_others_; ++i) given_.tensors[others_[i]] = at(others_[i]).view();
    if (weights_ != nullptr) {
      given_.tensors[kRight] = weights_->view();
      given_.weights = weights_->addresses();
    }
    if (factors_ != nullptr) {
      given_.tensors[kScaleW] = factors_->view();
      given_.factors = factors_->addresses();
      given_.num_factors = factors_->size();
    }
    if (check_operands(product_, given_, result) != 0 || spread_factors(*result) != 0) return refused();
    const bool writes_more = is_on_rows(product_) || result->computed_by().writes_factors();
    for (int32_t i = kOut; i < (writes_more ? kNumOperands : kOut + 1); ++i) {
      const auto field = static_cast<Field>(i);
      Written written;
      if (given_[field] != nullptr) {
        if (check_apart(product_, original_, *given_[field]) != 0) return refused();
      } else if (find_written(product_, given_, *result, field, &written)) {
        const DLDataType type = dlpack_type(written.element);
        const DLDevice device = given_[kLeft]->device;
        HeldTensor& tensor = add(field, nullptr)->tensor;
        const DLPackExchangeAPI& api = *left_.type.api;
        if (tensor.allocate(api, device, type, written.extents, written.num_dims, exhausted()) != 0) return -1;
        given_.tensors[field] = tensor.view();
      }
    }
    return 0;
  }

  // Has a list stand for a matrix with the atoms of each group in a row, which may lie apart.
  int spread_factors(const Result& result) {
    if (product_ != Product::kGroupedLinear || result.computed_by().scale != Scale::kAtoms) return 0;
    if (!are_rows_of_atoms(*given_.tensors[kScaleW])) return 0;
    factors_ = new (storage_of_factors_) WeightList();
    if (factors_->spread(*given_.tensors[kScaleW]) != 0) return -1;
    given_.tensors[kScaleW] = factors_->view();
    given_.factors = factors_->addresses();
    given_.num_factors = factors_->size();
    return 0;
  }

  // Has atoms stand for factors that lie in rows of blocks, where the operation takes atoms.
  int pack_factors(const Result& result) {
    if (is_on_rows(product_) || result.computed_by().scale != Scale::kAtoms) return 0;
    for (const Field field : {kScaleX, kScaleW}) {
      Operand& factors = at(field);
      if (!are_in_rows(*factors.view()) || (field == kScaleW && factors_ != nullptr)) continue;
      factors.copy = call_route(state_.pack_factors, product_, factors.object);
      if (factors.copy == nullptr) return -1;
      factors.object = factors.copy;
      factors.tensor.release();
      if (read_other(&factors) != 0) return -1;
      given_.tensors[field] = factors.view();
    }
    return 0;
  }

  // Says whether torch is to multiply: each product of a batch that the library has no kernels for would be a launch of its
  // own, where torch makes one. It is asked for what it takes alone: operands of its own, of floating point.
  bool is_left_to_torch(const Problems& problems) {
    if (!is_batched(product_, *at(kRight).view())) return false;
    const bool is_plain = record_.count == kFieldsOf[static_cast<int32_t>(product_)].num_plain;
    if (!is_plain || !left_.type.is_of_torch || !at(kRight).type.is_of_torch) return false;
    if (at(kOut).object != nullptr && !at(kOut).type.is_of_torch) return false;
    const uint8_t code = left_.view()->dtype.code;
    return (code == kDLFloat || code == kDLBfloat) && count_launches(problems.first) > 1;
  }

  // Has torch write `out`, or what was allocated for it. Gives a new reference, or null with a Python error set.
  PyObject* multiply_by_torch() {
    Operand& out = at(kOut);
    PyObject* result = out.object == nullptr ? out.tensor.hand_on(*left_.type.api) : out.object;
    if (result == nullptr) return nullptr;
    if (result == out.object) Py_IncRef(result);
    PyObject* done = call_route(state_.multiply_by_torch, product_, left_.object, at(kRight).object, result);
    Py_DecRef(result);
    return done;
  }

  // Reads the weights of groups or of a gate, or factors, where each is a tensor of its own: an operand is the first.
  int read_list(Field field, Field of_first, unsigned char* storage, WeightList** list) {
    Py_ssize_t count = 0;
    PyObject* tensors = list_of(product_, record_, field, &count);
    if (tensors == nullptr) return 0;
    const Operand& first = at(of_first);
    *list = new (storage) WeightList();
    if ((*list)->begin(product_, field, count, *first.view()) != 0 || (*list)->add(*first.view()) != 0) return refused();
    for (Py_ssize_t i = 1; i < count; ++i) {
      Operand each;
      each.object = PyTuple_GetItem(tensors, i);
      if (each.object == nullptr || read_other(&each) != 0) return -1;
      if (each.type.api != first.type.api) {
        refuse("OperandError", "%s: the weights are tensors of several frameworks; expected those of one",
               product_name(product_));
        return refused();
      }
      if ((*list)->add(*each.view()) != 0) return refused();
    }
    return 0;
  }

  // Has the frameworks of all operands hear of the launch, and of weights without an exchange API hear of each: others know
  // streams, which the first one's was told.
  int release_all() {
    for (int32_t i = 0; i < num_others_; ++i) {
      const Operand& operand = at(others_[i]);
      if (operand.object != nullptr && release(operand) != 0) return -1;
    }
    const bool are_weights_told = weights_ == nullptr || release_list(kWeights, at(kRight)) == 0;
    return are_weights_told && (factors_ == nullptr || release_list(kFactors, at(kScaleW)) == 0) ? 0 : -1;
  }

  int release_list(Field field, const Operand& first) {
    Py_ssize_t count = 0;
    PyObject* tensors = list_of(product_, record_, field, &count);
    if (first.type.api != nullptr) return 0;
    for (Py_ssize_t i = 1; i < count; ++i) {
      Operand each;
      each.object = PyTuple_GetItem(tensors, i);
      if (each.object == nullptr || release(each) != 0) return -1;
    }
    return 0;
  }

  using Reader::launch;

  int launch(const aot_rows_problem_t& problem) {
    aot_gemm_status_t status = AOT_GEMM_OK;
    {
      const WithoutGil scope;
      status = aot_rows_launch(&problem, stream_);
    }
    if (status != AOT_GEMM_OK) raise_status(state_, status);
    return status == AOT_GEMM_OK ? 0 : -1;
  }

  int note_write(const Operand& operand) { return operand.type.is_of_torch ? state_.torch.note_write(operand.object) : 0; }

  // Gives one thing that was written, or a scale that was given, as an object.
  PyObject* give(Field field) {
    Operand& operand = at(field);
    if (operand.object == nullptr) return operand.tensor.hand_on(*left_.type.api);
    if (field >= kOut && note_write(operand) != 0) return nullptr;
    Py_IncRef(operand.object);
    return operand.object;
  }

  PyObject* give(const Result& result) {
    if (!is_on_rows(product_)) {
      constexpr Field kBoth[] = {kOut, kFactorsD};
      return result.computed_by().writes_factors() ? give(kBoth, 2) : give(kOut);
    }
    for (const Field field : {kKeyCache, kValueCache}) {
      if (given_[field] != nullptr && note_write(at(field)) != 0) return nullptr;
    }
    const bool has_scale = result.computed_on_rows().has_scale();
    if (!result.writes_residual && !has_scale) return give(kOut);
    Field given[3];
    Py_ssize_t count = 0;
    given[count++] = kOut;
    if (result.writes_residual) given[count++] = kResidualOut;
    if (has_scale) given[count++] = result.writes_scale ? kScaleOut : kScale;
    return give(given, count);
  }

  PyObject* give(const Field* given, Py_ssize_t count) {
    PyObject* tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
      PyObject* object = give(given[i]);
      if (object != nullptr && PyTuple_SetItem(tuple, i, object) == 0) continue;  // which takes the reference
      Py_DecRef(tuple);
      tuple = nullptr;
    }
    return tuple;
  }

  const Record& record_;
  Operands given_ = {};
  WeightList* weights_ = nullptr;  // null: there is none
  WeightList* factors_ = nullptr;
  alignas(WeightList) unsigned char storage_of_weights_[sizeof(WeightList)];
  alignas(WeightList) unsigned char storage_of_factors_[sizeof(WeightList)];
  int32_t num_others_ = 0;
  Field others_[kNumOperands];  // the operands that there are beside the left one
  Operand* operands_[kNumOperands];  // by Field; written for those alone
  alignas(Operand) unsigned char storage_[kNumOperands][sizeof(Operand)];  // where they are, in their own order
  bool right_is_constant_ = false;
};

}  // namespace

PyObject* call(State* state, Product product, const Record& record) { return Call(state, product, record).run(); }

PyObject* settle_weight(State* state, PyObject* weight) {
  return Call(state, Product::kConstant, {&weight, 1}).settle();
}

}  // namespace aot
