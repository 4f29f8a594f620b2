// The binding for Python: `linear` and `matmul` over tensors, by CPython's stable ABI. `aot_gemm` in Python is a thin
// cover of this file, and loads the library with ctypes.PyDLL: it is no extension module, so that one wheel serves
// every Python. It is part of the C library, so that it calls the one that it was built with, whatever others a process
// has.
//
// The functions of tensors run on the stream of the left operand's framework and take memory from its
// allocator, by DLPack's C exchange API; a left operand whose type has none is handed over to `_routes.run` in Python.
// The functions that end in `_on` and `_workspace_bytes` are what that calls: they take DLPack capsules, and are told
// stream and workspace. The GIL is released for the launch: it waits while the device's queue of launches is full, and
// the first launch of a kernel loads it.
//
// Arguments are positional and their number is fixed, since the Python cover, which has the signatures, is the only
// caller: names and defaults would be read twice.
#include <cstdint>
#include <cstdlib>
#include <new>

#include "aot_gemm.h"
#include "call.h"
#include "capsules.h"
#include "exchange.h"
#include "extras.h"
#include "operands.h"
#include "plan.h"
#include "products.h"
#include "python_api.h"
#include "python_state.h"
#include "refusal.h"
#include "row_binding.h"
#include "runtime.h"
#include "weights.h"

namespace aot {

namespace {

// Arguments: left, right, bias (or None), out (or None).
template <Product product>
PyObject* run(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  return call_product(&state, product, arguments[0], arguments[1], arguments[2], arguments[3], nullptr);
}

// Arguments: those of `run`, and the extras. A plain product has an entry of its own, which they do not cost anything.
template <Product product>
PyObject* run_with(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 5)) return nullptr;
  return call_product(&state, product, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
}

// Argument: a weight.
PyObject* settle(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 1)) return nullptr;
  return settle_weight(&state, arguments[0]);
}

// The tensors of capsules that the caller keeps.
struct Capsules {
  HeldTensor left;
  HeldTensor right;
  HeldTensor bias;
  HeldTensor out;
  HeldTensor extras[kNumExtraTensors];
  Options options;
  WeightList weights;
};

// Reads the weights of groups, where each is a tensor of its own.
bool read_weights(const State& state, Product product, PyObject* extras, const DLTensor& first, WeightList* list) {
  Py_ssize_t count = 0;
  PyObject* weights = weights_of(extras, &count);
  if (weights == nullptr) return true;
  bool is_listed = list->begin(product, count, first) == 0;
  for (Py_ssize_t i = 0; i < count && is_listed; ++i) {
    HeldTensor weight;
    PyObject* capsule = PyTuple_GetItem(weights, i);
    if (capsule == nullptr || !read_capsule(state, "a weight of a group", capsule, &weight)) return false;
    is_listed = list->add(*weight.view()) == 0;
  }
  if (!is_listed) raise_refusal(state);
  return is_listed;
}

// Reads left, right, bias (or None) and extras (or None), which hold capsules that the caller keeps.
bool read_capsules(const State& state, Product product, PyObject* const* arguments, PyObject* extras, Capsules* held) {
  if (!read_capsule(state, "the left operand", arguments[0], &held->left)) return false;
  if (!read_capsule(state, "the right operand", arguments[1], &held->right)) return false;
  if (!is_none(arguments[2]) && !read_capsule(state, "the bias", arguments[2], &held->bias)) return false;
  if (is_none(extras)) return true;
  if (read_options(state, product, extras, &held->options) != 0) return false;
  for (Py_ssize_t i = 0; i < kNumExtraTensors; ++i) {
    PyObject* capsule = PyTuple_GetItem(extras, i);  // borrowed from the tuple
    if (capsule == nullptr) return false;
    if (!is_none(capsule) && !read_capsule(state, "a factor or the residual", capsule, &held->extras[i])) return false;
  }
  return read_weights(state, product, extras, *held->right.view(), &held->weights);
}

Operands operands_of(const Capsules& held) {
  const DLTensor* stack = held.weights.view();
  const DLTensor* right = stack != nullptr ? stack : held.right.view();
  return {held.left.view(),      right,                 held.bias.view(),      held.out.view(),   held.extras[0].view(),
          held.extras[1].view(), held.extras[2].view(), held.extras[3].view(),
          held.extras[4].view(), held.extras[5].view(), held.options,          held.weights.addresses()};
}

// States the product of left, right, bias (or None) and out, which are capsules that the caller keeps; the fifth argument
// is the address that the right one is promised to be constant at, or 0, the sixth the extras, or None. What is stated may
// point into `capsules`.
bool state_capsules(const State& state, Product product, PyObject* const* arguments, Capsules* capsules,
                    Problems* problems) {
  const void* promised = PyLong_AsVoidPtr(arguments[4]);
  if (promised == nullptr && PyErr_Occurred() != nullptr) return false;
  Capsules& held = *capsules;
  if (!read_capsules(state, product, arguments, arguments[5], &held)) return false;
  if (!read_capsule(state, "out", arguments[3], &held.out)) return false;
  if (held.out.is_read_only()) {
    raise(state, "OperandError", "out is read-only, as its framework says; leave out= away");
    return false;
  }
  const Operands operands = operands_of(held);
  Result result;
  if (check_operands(product, operands, &result) != 0 ||
      state_problems(product, operands, result, promised != nullptr && held.right.data() == promised, problems) != 0) {
    raise_refusal(state);
    return false;
  }
  return true;
}

// Arguments: left, right, bias (or None), extras (or None). Returns what `out` is, as a tuple: its extents, and the number
// of its element type, or -1 where that is left's.
template <Product product>
PyObject* describe_result(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  Capsules held;
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  if (!read_capsules(state, product, arguments, arguments[3], &held)) return nullptr;
  Result result;
  if (check_operands(product, operands_of(held), &result) != 0) return raise_refusal(state);
  int64_t values[kMaxDims + 1];
  for (int32_t i = 0; i < result.num_dims; ++i) values[i] = result.extents[i];
  const Operation& operation = result.computed_by();
  values[result.num_dims] = operation.d == operation.a ? -1 : static_cast<int64_t>(operation.d);
  return make_tuple(values, result.num_dims + 1);
}

// Arguments: left, right, bias, out, the promised address of right, extras (or None), workspace (bytes, or None), stream
// (an integer).
template <Product product>
PyObject* run_on(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  Capsules held;
  Problems problems;
  if (!has_arguments(state, num_arguments, 8)) return nullptr;
  if (!state_capsules(state, product, arguments, &held, &problems)) return nullptr;
  HeldTensor workspace;
  void* data = nullptr;
  size_t num_bytes = 0;
  if (!is_none(arguments[6])) {
    if (!read_capsule(state, "the workspace", arguments[6], &workspace)) return nullptr;
    const DLTensor& tensor = *workspace.view();
    const bool is_bytes = tensor.dtype.bits == 8 && tensor.dtype.lanes == 1;
    if (tensor.ndim != 1 || !is_bytes || tensor.shape == nullptr || tensor.shape[0] < 0) {
      return raise(state, "DtypeError", "the workspace is not a vector of bytes");
    }
    data = workspace.data();
    num_bytes = static_cast<size_t>(tensor.shape[0]);
  }
  void* stream = PyLong_AsVoidPtr(arguments[7]);
  if (stream == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  aot_gemm_status_t status = AOT_GEMM_OK;
  {
    const WithoutGil scope;
    for (int64_t i = 0; i < problems.count && status == AOT_GEMM_OK; ++i) {
      const aot_gemm_problem_t problem = problems.at(i);
      status = aot_gemm_launch(&problem, data, num_bytes, stream);
    }
  }
  return status == AOT_GEMM_OK ? give_none() : raise_status(state, status);
}

// Arguments: left, right, bias, out, the promised address of right, extras (or None).
template <Product product>
PyObject* measure_workspace(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  Capsules held;
  Problems problems;
  if (!has_arguments(state, num_arguments, 6)) return nullptr;
  if (!state_capsules(state, product, arguments, &held, &problems)) return nullptr;
  size_t num_bytes = 0;
  aot_gemm_status_t status = AOT_GEMM_OK;
  for (int64_t i = 0; i < problems.count && status == AOT_GEMM_OK; ++i) {
    const aot_gemm_problem_t problem = problems.at(i);
    size_t needed = 0;
    status = aot_gemm_workspace_bytes(&problem, &needed);
    num_bytes = needed > num_bytes ? needed : num_bytes;
  }
  return status == AOT_GEMM_OK ? PyLong_FromSize_t(num_bytes) : raise_status(state, status);
}

// Arguments: those of `measure_workspace`. Gives the number of launches that the first of the products that it takes has.
template <Product product>
PyObject* launches_of(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  Capsules held;
  Problems problems;
  if (!has_arguments(state, num_arguments, 6)) return nullptr;
  if (!state_capsules(state, product, arguments, &held, &problems)) return nullptr;
  return PyLong_FromLongLong(count_launches(problems.first));
}

// Argument: a capsule, which the caller keeps. Gives the address of its tensor.
PyObject* address_of(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  HeldTensor tensor;
  if (!has_arguments(state, num_arguments, 1)) return nullptr;
  if (!read_capsule(state, "the weight", arguments[0], &tensor)) return nullptr;
  return PyLong_FromVoidPtr(tensor.data());
}

// Arguments: device (an ordinal), first and second stream (integers): later work of the second waits for the first's.
PyObject* order_streams(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 3)) return nullptr;
  const long device = PyLong_AsLong(arguments[0]);
  void* first = PyLong_AsVoidPtr(arguments[1]);
  void* second = PyLong_AsVoidPtr(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const DeviceScope scope(static_cast<int32_t>(device));
  aot_gemm_status_t status = scope.status();
  if (status == AOT_GEMM_OK) status = order(first, second, scope.device());
  return status == AOT_GEMM_OK ? give_none() : raise_status(state, status);
}

// Describes a matrix that is asked about only: its rows lie one after the other, or its columns do.
aot_gemm_tensor_t packed(int64_t rows, int64_t columns, bool by_columns) {
  if (by_columns) return {nullptr, {1, rows}};
  return {nullptr, {columns, 1}};
}

// Gives the steps from product to product, or from group to group, of operands without gaps; 0 of those that have none, as
// a call states them.
aot_gemm_group_strides_t packed_steps(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_group_strides_t steps = {};
  const bool is_batch = !operation.has_offsets();
  if (is_batch) steps.a = problem.m * problem.k;
  if (is_batch || operation.groups_rows()) steps.b = rows_of_b(problem, operation) * problem.k;
  if (is_batch || operation.grouping == Grouping::kKgrouped) steps.d = problem.m * problem.n;
  return steps;
}

// Arguments: operation, layout, m, n, k, number of products or groups, flags, table (integers). Returns what the dispatch
// table says of packed operands and a row-major D, as a tuple: kernel, tier, section, index, m, n, k (as they were looked
// up), bytes of workspace, the table that answered, products of a launch, and launches.
PyObject* plan(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 8)) return nullptr;
  int64_t asked[8];
  for (int i = 0; i < 8; ++i) asked[i] = PyLong_AsLong(arguments[i]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const auto [operation, layout, m, n, k, num_groups, flags, table] = asked;
  aot_gemm_problem_t problem = {};
  problem.struct_bytes = sizeof(problem);
  problem.operation = static_cast<int32_t>(operation);
  problem.device = -1;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = packed(m, k, (layout & 2) != 0);
  problem.b = packed(n, k, (layout & 1) != 0);
  problem.d = packed(m, n, false);
  problem.flags = static_cast<uint64_t>(flags);
  problem.bias = packed(1, n, false);
  problem.residual = packed(m, n, false);
  problem.num_groups = num_groups;
  problem.offsets = problem.index = {nullptr, {1, 1}};
  int32_t index = 0;
  const bool is_known = find_operation(problem.operation, &index) == AOT_GEMM_OK;
  if (is_known && kOperations[index].gathers()) problem.rows_of_a = m;
  if (is_known && num_groups > 1) problem.group_strides = packed_steps(problem, kOperations[index]);
  aot_gemm_selection_t found;
  Plan planned;
  const aot_gemm_status_t status = select_in(static_cast<int32_t>(table), problem, &found, &planned);
  if (status != AOT_GEMM_OK) return raise_status(state, status);
  const int64_t values[] = {found.kernel, found.tier, found.section, found.index, found.m, found.n, found.k,
                            planned.workspace_bytes, found.table, found.num_groups, found.num_launches,
                            found.tile_order};
  return make_tuple(values, 12);
}

// CPython holds functions of every convention as one type, and casts back by the flags.
PyMethodDef define(const char* name, FastFunction* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef functions[] = {
    define("linear", &run<Product::kLinear>),
    define("linear_with", &run_with<Product::kLinear>),
    define("linear_result", &describe_result<Product::kLinear>),
    define("linear_on", &run_on<Product::kLinear>),
    define("linear_workspace_bytes", &measure_workspace<Product::kLinear>),
    define("matmul", &run<Product::kMatmul>),
    define("matmul_with", &run_with<Product::kMatmul>),
    define("matmul_result", &describe_result<Product::kMatmul>),
    define("matmul_on", &run_on<Product::kMatmul>),
    define("matmul_workspace_bytes", &measure_workspace<Product::kMatmul>),
    define("matmul_launches", &launches_of<Product::kMatmul>),
    define("gated_linear_with", &run_with<Product::kGatedLinear>),
    define("gated_linear_result", &describe_result<Product::kGatedLinear>),
    define("gated_linear_on", &run_on<Product::kGatedLinear>),
    define("gated_linear_workspace_bytes", &measure_workspace<Product::kGatedLinear>),
    define("grouped_linear_with", &run_with<Product::kGroupedLinear>),
    define("grouped_linear_result", &describe_result<Product::kGroupedLinear>),
    define("grouped_linear_on", &run_on<Product::kGroupedLinear>),
    define("grouped_linear_workspace_bytes", &measure_workspace<Product::kGroupedLinear>),
    define("rms_norm", &run_rows<Product::kRmsNorm>),
    define("rms_norm_result", &describe_rows<Product::kRmsNorm>),
    define("rms_norm_on", &run_rows_on<Product::kRmsNorm>),
    define("layer_norm", &run_rows<Product::kLayerNorm>),
    define("layer_norm_result", &describe_rows<Product::kLayerNorm>),
    define("layer_norm_on", &run_rows_on<Product::kLayerNorm>),
    define("silu_mul", &run_rows<Product::kSiluMul>),
    define("silu_mul_result", &describe_rows<Product::kSiluMul>),
    define("silu_mul_on", &run_rows_on<Product::kSiluMul>),
    define("gelu_tanh_mul", &run_rows<Product::kGeluTanhMul>),
    define("gelu_tanh_mul_result", &describe_rows<Product::kGeluTanhMul>),
    define("gelu_tanh_mul_on", &run_rows_on<Product::kGeluTanhMul>),
    define("rotary", &run_rows<Product::kRotary>),
    define("rotary_result", &describe_rows<Product::kRotary>),
    define("rotary_on", &run_rows_on<Product::kRotary>),
    define("quantize", &run_rows<Product::kQuantize>),
    define("quantize_result", &describe_rows<Product::kQuantize>),
    define("quantize_on", &run_rows_on<Product::kQuantize>),
    define("rows_plan", &plan_rows),
    define("settle", &settle),
    define("order_streams", &order_streams),
    define("address", &address_of),
    define("plan", &plan),
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
__attribute__((visibility("default"))) PyObject* aot_gemm_python_bind(PyObject* errors, PyObject* routes) {
  if (&PyCMethod_New == nullptr) return nullptr;
  void* memory = std::malloc(sizeof(aot::State));  // operator new would bring the C++ library along
  if (memory == nullptr) {
    PyErr_SetString(PyExc_MemoryError, "no memory for the binding");
    return nullptr;
  }
  auto* state = new (memory) aot::State(errors, routes);
  PyObject* self = PyErr_Occurred() == nullptr ? PyCapsule_New(state, nullptr, &aot::destroy_state) : nullptr;
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
