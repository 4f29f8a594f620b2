// The binding for Python: `linear` and `matmul` over tensors, by CPython's stable ABI. `aot_gemm` in Python is a thin
// cover of this file, and loads it with ctypes.PyDLL: it is no extension module, so that one wheel serves every Python.
//
// The functions of two or three tensors run on the stream of the left operand's framework and take memory from its
// allocator, by DLPack's C exchange API; a left operand whose type has none is handed over to `_routes.run` in Python.
// The functions that end in `_on` and `_workspace_bytes` are what that calls: they take DLPack capsules, and are told
// stream and workspace. The GIL is held throughout: a launch only enqueues.
//
// Arguments are positional and their number is fixed, since the Python cover, which has the signatures, is the only
// caller: names and defaults would be read twice.
#include <cstdint>
#include <cstdlib>
#include <new>

#include "aot_gemm.h"
#include "exchange.h"
#include "operands.h"
#include "python_api.h"

namespace aot {

namespace {

// What the functions share, held by the capsule that is their `self`.
struct State {
  PyObject* errors;   // the module of the error classes
  PyObject* run;      // (product, left, right, out): the route of frameworks without an exchange API
  PyObject* capsule;  // (product, tensor): the capsule of one operand beside others that have one
  ExchangeTable types;

  State(PyObject* errors_module, PyObject* run_function, PyObject* capsule_function)
      : errors(errors_module), run(run_function), capsule(capsule_function) {
    Py_IncRef(errors);
    Py_IncRef(run);
    Py_IncRef(capsule);
  }

  ~State() {
    Py_DecRef(errors);
    Py_DecRef(run);
    Py_DecRef(capsule);
  }

  static State& of(PyObject* self) { return *static_cast<State*>(PyCapsule_GetPointer(self, nullptr)); }
};

PyObject* raise(const State& state, const char* kind, const char* message) {
  PyObject* type = PyObject_GetAttrString(state.errors, kind);
  if (type != nullptr) {
    PyErr_SetString(type, message);
    Py_DecRef(type);
  }
  return nullptr;
}

PyObject* raise_refusal(const State& state) { return raise(state, last_refusal().kind, last_refusal().message); }

PyObject* raise_status(const State& state, aot_gemm_status_t status) {
  static constexpr const char* kKinds[] = {"AotGemmError", "AotGemmError", "DtypeError",
                                           "ShapeError",   "StrideError",  "NoGpuError",
                                           "ArchitectureError", "CudaError", "AotGemmError"};
  return raise(state, kKinds[status], aot_gemm_last_error());
}

bool has_arguments(const State& state, Py_ssize_t given, int expected) {
  if (given == expected) return true;
  refuse("AotGemmError", "got %zd arguments; expected %d", given, expected);
  raise_refusal(state);
  return false;
}

bool is_none(PyObject* object) { return object == &_Py_NoneStruct; }

PyObject* give_none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

const char* product_name(Product product) { return product == Product::kLinear ? "linear" : "matmul"; }

// Calls a function of `_routes` with the product's name and tensors, up to the first that is null.
PyObject* call_route(PyObject* function, Product product, PyObject* left, PyObject* right, PyObject* out) {
  PyObject* name = PyUnicode_FromString(product_name(product));
  if (name == nullptr) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(function, name, left, right, out, nullptr);
  Py_DecRef(name);
  return result;
}

// Reads an operand by its own type: a weight is often of another than x.
bool read_operand(State& state, Product product, PyObject* object, HeldTensor* tensor) {
  const DLPackExchangeAPI* api = nullptr;
  if (state.types.find(object, &api) != 0) return false;
  if (api != nullptr) return tensor->read(*api, object) == 0;
  PyObject* capsule = call_route(state.capsule, product, object, nullptr, nullptr);
  return capsule != nullptr && tensor->read_capsule(capsule) == 0;
}

// Where a launch has its workspace from.
struct WorkspaceSource {
  const DLPackExchangeAPI& api;
  DLDevice device;
  HeldTensor workspace;
  bool has_failed = false;
};

void* allocate_workspace(void* context, size_t num_bytes) {
  auto* source = static_cast<WorkspaceSource*>(context);
  const auto extent = static_cast<int64_t>(num_bytes);
  const DLDataType bytes = {kDLUInt, 8, 1};
  source->has_failed = source->workspace.allocate(source->api, source->device, bytes, &extent, 1) != 0;
  return source->has_failed ? nullptr : source->workspace.data();
}

bool launch(const State& state, const DLPackExchangeAPI& api, const aot_gemm_problem_t& problem, DLDevice device) {
  void* stream = nullptr;
  if (find_stream(api, device, &stream) != 0) return false;
  WorkspaceSource source = {api, device, {}};
  const aot_gemm_status_t status = aot_gemm_launch_allocating(&problem, &allocate_workspace, &source, stream);
  // The framework's own error says more than that there is no workspace.
  if (status != AOT_GEMM_OK && !source.has_failed) raise_status(state, status);
  return status == AOT_GEMM_OK;
}

// Arguments: left, right, out (or None).
PyObject* run(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 3)) return nullptr;
  const DLPackExchangeAPI* api = nullptr;
  if (state.types.find(arguments[0], &api) != 0) return nullptr;
  if (api == nullptr) return call_route(state.run, product, arguments[0], arguments[1], arguments[2]);
  HeldTensor left;
  HeldTensor right;
  HeldTensor out;
  const bool allocates = is_none(arguments[2]);
  if (left.read(*api, arguments[0]) != 0 || !read_operand(state, product, arguments[1], &right)) return nullptr;
  if (!allocates && !read_operand(state, product, arguments[2], &out)) return nullptr;
  Operands operands = {left.view(), right.view(), out.view()};
  Shape shape;
  if (check_operands(product, operands, &shape) != 0) return raise_refusal(state);
  const DLDevice device = operands.left->device;
  if (allocates) {
    if (out.allocate(*api, device, operands.left->dtype, shape.extents, shape.num_dims) != 0) return nullptr;
    operands.out = out.view();
  }
  aot_gemm_problem_t problem;
  if (state_problem(product, operands, shape, &problem) != 0) return raise_refusal(state);
  if (!launch(state, *api, problem, device)) return nullptr;
  if (allocates) return out.hand_on(*api);
  Py_IncRef(arguments[2]);
  return arguments[2];
}

bool read_capsule(const State& state, const char* name, PyObject* object, HeldTensor* tensor) {
  if (!is_capsule(object)) {
    refuse("DtypeError", "%s is not a DLPack capsule, or one that was consumed", name);
    raise_refusal(state);
    return false;
  }
  Py_IncRef(object);
  return tensor->read_capsule(object) == 0;
}

// States the product of the first three arguments, which are capsules that the caller keeps.
bool state_capsules(const State& state, Product product, PyObject* const* arguments, aot_gemm_problem_t* problem) {
  HeldTensor left;
  HeldTensor right;
  HeldTensor out;
  if (!read_capsule(state, "the left operand", arguments[0], &left)) return false;
  if (!read_capsule(state, "the right operand", arguments[1], &right)) return false;
  if (!read_capsule(state, "out", arguments[2], &out)) return false;
  const Operands operands = {left.view(), right.view(), out.view()};
  Shape shape;
  if (check_operands(product, operands, &shape) != 0 || state_problem(product, operands, shape, problem) != 0) {
    raise_refusal(state);
    return false;
  }
  return true;
}

// Arguments: left, right, out, workspace (bytes, or None), stream (an integer).
PyObject* run_on(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  aot_gemm_problem_t problem;
  if (!has_arguments(state, num_arguments, 5) || !state_capsules(state, product, arguments, &problem)) return nullptr;
  HeldTensor workspace;
  void* data = nullptr;
  size_t num_bytes = 0;
  if (!is_none(arguments[3])) {
    if (!read_capsule(state, "the workspace", arguments[3], &workspace)) return nullptr;
    const DLTensor& tensor = *workspace.view();
    const bool is_bytes = tensor.dtype.bits == 8 && tensor.dtype.lanes == 1;
    if (tensor.ndim != 1 || !is_bytes || tensor.shape == nullptr || tensor.shape[0] < 0) {
      return raise(state, "DtypeError", "the workspace is not a vector of bytes");
    }
    data = workspace.data();
    num_bytes = static_cast<size_t>(tensor.shape[0]);
  }
  void* stream = PyLong_AsVoidPtr(arguments[4]);
  if (stream == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  const aot_gemm_status_t status = aot_gemm_launch(&problem, data, num_bytes, stream);
  return status == AOT_GEMM_OK ? give_none() : raise_status(state, status);
}

// Arguments: left, right, out.
PyObject* measure_workspace(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  aot_gemm_problem_t problem;
  if (!has_arguments(state, num_arguments, 3) || !state_capsules(state, product, arguments, &problem)) return nullptr;
  size_t num_bytes = 0;
  const aot_gemm_status_t status = aot_gemm_workspace_bytes(&problem, &num_bytes);
  return status == AOT_GEMM_OK ? PyLong_FromSize_t(num_bytes) : raise_status(state, status);
}

PyObject* linear(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return run(Product::kLinear, self, arguments, num_arguments);
}

PyObject* matmul(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return run(Product::kMatmul, self, arguments, num_arguments);
}

PyObject* linear_on(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return run_on(Product::kLinear, self, arguments, num_arguments);
}

PyObject* matmul_on(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return run_on(Product::kMatmul, self, arguments, num_arguments);
}

PyObject* linear_workspace_bytes(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return measure_workspace(Product::kLinear, self, arguments, num_arguments);
}

PyObject* matmul_workspace_bytes(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return measure_workspace(Product::kMatmul, self, arguments, num_arguments);
}

// Argument: whether `linear` may read the weight before the kernel in front has ended. Gives what held before.
PyObject* exchange_early(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  if (!has_arguments(State::of(self), num_arguments, 1)) return nullptr;
  const int enabled = PyObject_IsTrue(arguments[0]);
  return enabled < 0 ? nullptr : PyBool_FromLong(exchange_early_weights(enabled != 0) ? 1 : 0);
}

using FastFunction = PyObject*(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments);

// CPython holds functions of every convention as one type, and casts back by the flags.
PyMethodDef define(const char* name, FastFunction* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef functions[] = {
    define("linear", &linear),
    define("matmul", &matmul),
    define("linear_on", &linear_on),
    define("matmul_on", &matmul_on),
    define("linear_workspace_bytes", &linear_workspace_bytes),
    define("matmul_workspace_bytes", &matmul_workspace_bytes),
    define("exchange_early_weights", &exchange_early),
};

void destroy(State* state) {
  state->~State();
  std::free(state);
}

void destroy_state(PyObject* capsule) { destroy(static_cast<State*>(PyCapsule_GetPointer(capsule, nullptr))); }

bool add_functions(PyObject* dictionary, PyObject* self) {
  for (PyMethodDef& definition : functions) {
    PyObject* function = PyCMethod_New(&definition, self, nullptr, nullptr);
    if (function == nullptr) return false;
    const int status = PyDict_SetItemString(dictionary, definition.ml_name, function);
    Py_DecRef(function);
    if (status != 0) return false;
  }
  return true;
}

}  // namespace

}  // namespace aot

extern "C" {

// Gives a dictionary of the functions by name. Called by ctypes with the GIL held; null without an error set where the
// process has no CPython.
__attribute__((visibility("default"))) PyObject* aot_gemm_python_bind(PyObject* errors, PyObject* run,
                                                                      PyObject* capsule) {
  if (&PyCMethod_New == nullptr) return nullptr;
  void* memory = std::malloc(sizeof(aot::State));  // operator new would bring the C++ library along
  if (memory == nullptr) {
    PyErr_SetString(PyExc_MemoryError, "no memory for the binding");
    return nullptr;
  }
  auto* state = new (memory) aot::State(errors, run, capsule);
  PyObject* self = PyCapsule_New(state, nullptr, &aot::destroy_state);
  if (self == nullptr) {
    aot::destroy(state);
    return nullptr;
  }
  PyObject* dictionary = PyDict_New();
  const bool is_whole = dictionary != nullptr && aot::add_functions(dictionary, self);
  Py_DecRef(self);
  if (is_whole) return dictionary;
  if (dictionary != nullptr) Py_DecRef(dictionary);
  return nullptr;
}

}  // extern "C"
