#include "record_tuple.h"

#include <cstring>

#include "capsules.h"
#include "reading.h"
#include "refusal.h"
#include "row_operands.h"

namespace aot {

namespace {

// Reads the weights of groups, or their factors, where each is a tensor of its own; `first` is one of the operands.
bool read_list(const State& state, Product product, const Record& record, Field field, const HeldTensor& first,
               WeightList* list) {
  Py_ssize_t count = 0;
  PyObject* tensors = list_of(product, record, field, &count);
  if (tensors == nullptr) return true;
  bool is_listed = list->begin(product, field, count, *first.view()) == 0;
  for (Py_ssize_t i = 0; i < count && is_listed; ++i) {
    Shape each;
    PyObject* object = PyTuple_GetItem(tensors, i);
    if (object == nullptr || !each.read(state, "a weight of a group", object)) return false;
    is_listed = list->add(*each.tensor.view()) == 0;
  }
  if (!is_listed) raise_refusal(state);
  return is_listed;
}

const char* name_of(Field field) {
  if (field == kLeft) return "the left operand";
  return field == kRight ? "the right operand" : kOperandNames[field];
}

}  // namespace

bool Shape::read(const State& state, const char* name, PyObject* object) {
  Py_ssize_t count = -1;
  if (!is_capsule(object)) {
    count = PyTuple_Size(object);
    if (count < 2 || count > kMaxDims + 2) PyErr_Clear();
  }
  if (count < 2 || count > kMaxDims + 2) return read_capsule(state, name, object, &tensor);
  int64_t values[kMaxDims + 2];
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = PyLong_AsLong(PyTuple_GetItem(object, i));
  if (PyErr_Occurred() != nullptr) return false;
  std::memcpy(extents, values + 2, static_cast<size_t>(count - 2) * sizeof(int64_t));
  const DLDataType type = {static_cast<uint8_t>(values[0]), static_cast<uint8_t>(values[1]), 1};
  void* const address = this;
  tensor.describe({address, {kDLCUDA, 0}, static_cast<int32_t>(count - 2), type, extents, nullptr, 0});
  return true;
}

Operands Capsules::views() const {
  Operands found = {{}, options, weights.addresses(), factors.addresses(), factors.size()};
  for (int32_t field = 0; field < kNumOperands; ++field) found.tensors[field] = shapes[field].tensor.view();
  if (weights.view() != nullptr) found.tensors[kRight] = weights.view();
  if (factors.view() != nullptr) found.tensors[kScaleW] = factors.view();
  return found;
}

bool read_record(const State& state, Product product, PyObject* tuple, Capsules* held, Result* result) {
  PyObject* values[kMostFields];
  const Record record = {values, PyTuple_Size(tuple)};
  if (record.count < 0 || !is_whole(state, product, record)) return false;
  for (Py_ssize_t i = 0; i < record.count; ++i) values[i] = PyTuple_GetItem(tuple, i);  // borrowed from the tuple
  if (read_options(state, product, record, &held->options) != 0) return false;
  for (Py_ssize_t i = 0; i < record.count; ++i) {
    const Field field = record.fields(product)[i];
    const bool is_needed = field == kLeft || (field == kRight && !is_on_rows(product));
    if (field >= kNumOperands || (!is_needed && is_none(values[i]))) continue;
    if (!held->shapes[field].read(state, name_of(field), values[i])) return false;
    if (field < kOut || !held->shapes[field].tensor.is_read_only()) continue;
    refuse("OperandError", "%s is read-only, as its framework says; leave %s= away", kOperandNames[field],
           kOperandNames[field]);
    raise_refusal(state);
    return false;
  }
  const auto read = [&](Field list, Field first, WeightList* found) {
    return read_list(state, product, record, list, held->shapes[first].tensor, found);
  };
  if (!read(kWeights, kRight, &held->weights) || !read(kFactors, kScaleW, &held->factors)) return false;
  const Operands operands = held->views();
  if (operands[kLeft] != nullptr && check_device(state, *operands[kLeft]) != 0) return false;
  if (check_operands(product, operands, result) == 0) return true;
  raise_refusal(state);
  return false;
}

bool StatedRecord::read(const State& state, Product product, PyObject* tuple, PyObject* promised) {
  const void* address = PyLong_AsVoidPtr(promised);
  if (address == nullptr && PyErr_Occurred() != nullptr) return false;
  Result result;
  if (!read_record(state, product, tuple, &held, &result)) return false;
  const Operands operands = held.views();
  if (operands[kOut] == nullptr) {
    raise(state, "DtypeError", "out is not a DLPack capsule, or one that was consumed");
    return false;
  }
  const bool is_constant = address != nullptr && held.shapes[kRight].tensor.data() == address;
  int status = is_on_rows(product) ? state_rows(product, operands, result, &rows)
                                   : state_problems(product, operands, result, is_constant, &products);
  if (status == 0 && !is_on_rows(product)) status = check_answered(state, products);
  if (status != 0) raise_refusal(state);
  return status == 0;
}

}  // namespace aot
