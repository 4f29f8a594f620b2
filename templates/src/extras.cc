#include "extras.h"

#include "refusal.h"

namespace aot {

namespace {

// Bits of the flags, which `_extras` has too.
constexpr long kAllowTf32 = 1;
constexpr long kUseFastAccum = 2;
constexpr long kInterleaved = 4;
constexpr long kDeterministic = 8;
constexpr long kBatchInvariant = 16;
constexpr long kAllFlags = 31;

constexpr long kFirstGate = static_cast<long>(Epilogue::kSwiglu);
constexpr long kLastEpilogue = static_cast<long>(Epilogue::kGeglu);
constexpr long kLastElement = static_cast<long>(Element::kInt32);

}  // namespace

PyObject* weights_of(PyObject* extras, Py_ssize_t* count) {
  constexpr Py_ssize_t kPlace = kNumExtraTensors + 3;
  if (PyTuple_Size(extras) <= kPlace) return nullptr;
  PyObject* weights = PyTuple_GetItem(extras, kPlace);
  *count = PyTuple_Size(weights);
  return weights;
}

int read_options(const State& state, Product product, PyObject* extras, Options* options) {
  long values[3];
  for (Py_ssize_t i = 0; i < 3; ++i) {
    PyObject* value = PyTuple_GetItem(extras, kNumExtraTensors + i);  // borrowed from the tuple
    if (value == nullptr) return -1;
    values[i] = PyLong_AsLong(value);
    if (values[i] == -1 && PyErr_Occurred() != nullptr) return -1;
  }
  const auto [epilogue, element, flags] = values;
  const bool is_gate = epilogue == kFirstGate || epilogue == kLastEpilogue;
  const bool fits = product == Product::kGroupedLinear ? is_gate || epilogue == 0 : is_gate == (product == Product::kGatedLinear);
  const bool is_epilogue = epilogue >= 0 && epilogue <= kLastEpilogue && fits;
  if (!is_epilogue || element < -1 || element > kLastElement || flags < 0 || flags > kAllFlags) {
    refuse("AotGemmError", "got epilogue %ld, element type %ld and flags %ld; expected numbers of the Python package's own",
           epilogue, element, flags);
    raise_refusal(state);
    return -1;
  }
  options->epilogue = static_cast<Epilogue>(epilogue);
  options->gives_element = element >= 0;
  options->element = static_cast<Element>(element >= 0 ? element : 0);
  options->allow_tf32 = (flags & kAllowTf32) != 0;
  options->use_fast_accum = (flags & kUseFastAccum) != 0;
  options->is_interleaved = (flags & kInterleaved) != 0;
  options->is_deterministic = (flags & kDeterministic) != 0;
  options->is_batch_invariant = (flags & kBatchInvariant) != 0;
  return 0;
}

}  // namespace aot
