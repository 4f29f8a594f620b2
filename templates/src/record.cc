#include "record.h"

#include "capsules.h"
#include "refusal.h"

namespace aot {

namespace {

// The numbers of a record, by Field from kNumOperands on; of those that it does not have, what says nothing.
struct Numbers {
  long epilogue = 0;
  long element = -1;
  long flags = 0;
  long rotary_dim = -1;
  long weight_format = 0;
  long columns = 0;
  long function = 0;
  double eps = 0;
  double weight_offset = 0;

  long* integer(Field field) {
    switch (field) {
      case kEpilogue: return &epilogue;
      case kElement: return &element;
      case kFlags: return &flags;
      case kRotaryDim: return &rotary_dim;
      case kWeightFormat: return &weight_format;
      case kColumns: return &columns;
      case kFunction: return &function;
      default: return nullptr;
    }
  }
};

int read_number(Field field, PyObject* value, Numbers* numbers) {
  long* const integer = numbers->integer(field);
  if (integer != nullptr) {
    *integer = PyLong_AsLong(value);
    return *integer == -1 && PyErr_Occurred() != nullptr ? -1 : 0;
  }
  double* const real = field == kEps ? &numbers->eps : &numbers->weight_offset;
  *real = PyFloat_AsDouble(value);
  return *real == -1.0 && PyErr_Occurred() != nullptr ? -1 : 0;
}

// Says whether a product may have an epilogue: a gate where it is gated, and at will where it is grouped or its weight packed.
bool has_epilogue(Product product, long number) {
  if (number < 0 || number >= kNumEpilogues) return false;
  const auto epilogue = static_cast<Epilogue>(number);
  const bool is_gate = epilogue == Epilogue::kSwiglu || epilogue == Epilogue::kGeglu;
  const bool at_will = product == Product::kGroupedLinear || product == Product::kPackedLinear;
  return at_will ? is_gate || number == 0 : is_gate == (product == Product::kGatedLinear);
}

}  // namespace

bool is_whole(const State& state, Product product, const Record& record) {
  const FieldList& list = kFieldsOf[static_cast<int32_t>(product)];
  return record.count == list.num_plain || has_arguments(state, record.count, list.num_fields);
}

PyObject* as_tuple(const Record& record) {
  PyObject* tuple = PyTuple_New(record.count);
  for (Py_ssize_t i = 0; tuple != nullptr && i < record.count; ++i) {
    Py_IncRef(record.values[i]);
    if (PyTuple_SetItem(tuple, i, record.values[i]) == 0) continue;  // which takes the reference
    Py_DecRef(tuple);
    tuple = nullptr;
  }
  return tuple;
}

PyObject* list_of(Product product, const Record& record, Field list, Py_ssize_t* count) {
  const bool may_have_lists =
      product == Product::kGatedLinear || product == Product::kGroupedLinear || product == Product::kPackedLinear;
  if (!may_have_lists) return nullptr;
  const Field* fields = record.fields(product);
  for (Py_ssize_t i = 0; i < record.count; ++i) {
    if (fields[i] != list || is_none(record.values[i])) continue;
    *count = PyTuple_Size(record.values[i]);
    return record.values[i];
  }
  return nullptr;
}

int read_options(const State& state, Product product, const Record& record, Options* options) {
  const FieldList& list = kFieldsOf[static_cast<int32_t>(product)];
  if (record.count != list.num_fields) return 0;  // a plain call
  Numbers numbers;
  for (Py_ssize_t i = 0; i < record.count; ++i) {
    const Field field = list.fields[i];
    if (field < kNumOperands || field == kWeights || field == kFactors) continue;
    if (read_number(field, record.values[i], &numbers) != 0) return -1;
  }
  const auto [epilogue, element, flags, rotary_dim, weight_format, columns, function, eps, weight_offset] = numbers;
  const bool is_epilogue = is_on_rows(product) || product == Product::kMatmul || has_epilogue(product, epilogue);
  if (!is_epilogue || element < -1 || element >= kNumElements || flags < 0 || flags > kAllCallFlags || rotary_dim < -1) {
    refuse("AotGemmError", "got epilogue %ld, element type %ld, flags %ld and rotary_dim %ld; expected numbers of the Python "
           "package's own", epilogue, element, flags, rotary_dim);
    raise_refusal(state);
    return -1;
  }
  if (weight_format < 0 || weight_format >= kNumWeightFormats || columns < 0) {
    refuse("AotGemmError", "got weight_format %ld and columns %ld; expected numbers of the Python package's own", weight_format,
           columns);
    raise_refusal(state);
    return -1;
  }
  if (function < 0 || function >= kNumRowFunctions) {
    refuse("AotGemmError", "got the function of rows %ld; expected a number of the Python package's own", function);
    raise_refusal(state);
    return -1;
  }
  const auto has = [flags](CallFlag flag) { return (flags & static_cast<long>(flag)) != 0; };
  options->epilogue = static_cast<Epilogue>(epilogue);
  options->gives_element = element >= 0;
  options->element = static_cast<Element>(element >= 0 ? element : 0);
  options->allow_tf32 = has(CallFlag::kAllowTf32);
  options->use_fast_accum = has(CallFlag::kUseFastAccum);
  options->is_interleaved = has(CallFlag::kInterleaved);
  options->is_deterministic = has(CallFlag::kDeterministic);
  options->is_batch_invariant = has(CallFlag::kBatchInvariant);
  options->has_blocks = has(CallFlag::kBlocks);
  options->has_one_scale = has(CallFlag::kOneScale);
  options->has_nvfp4 = has(CallFlag::kNvfp4);
  options->has_mx = has(CallFlag::kMx);
  options->rounds_norm = has(CallFlag::kRoundsNorm);
  options->offsets_start = has(CallFlag::kOffsetsStart);
  options->rotary_dim = rotary_dim;
  options->weight_format = static_cast<WeightFormat>(weight_format);
  options->columns = columns;
  options->function = static_cast<RowFunction>(function);
  options->eps = static_cast<float>(eps);
  options->weight_offset = static_cast<float>(weight_offset);
  return 0;
}

}  // namespace aot
