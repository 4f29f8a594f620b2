// The binding for Python: `linear` and `matmul` over tensors, by CPython's stable ABI. `aot_gemm` in Python is a thin
// cover of this file, and loads the library with ctypes.PyDLL: it is no extension module, so that one wheel serves
// every Python. It is part of the C library, so that it calls the one that it was built with, whatever others a process
// has.
//
// The functions of tensors run on the stream of the left operand's framework and take memory from its
// allocator, by DLPack's C exchange API; a left operand whose type has none is handed over to `_routes.run` in Python.
// The functions that end in `_result`, `_on` and `_workspace_bytes` are what that calls: they take DLPack capsules, and are
// told stream and workspace. The GIL is released for the launch: it waits while the device's queue of launches is full, and
// the first launch of a kernel loads it.
//
// What a function takes is one record, whose fields fields.h has: the Python cover, which is rendered with the same ones, and
// has the signatures, is the only caller. They are positional, since names and defaults would be read twice.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "aot_gemm.h"
#include "call.h"
#include "capsules.h"
#include "exchange.h"
#include "many_call.h"
#include "operands.h"
#include "plan.h"
#include "products.h"
#include "python_api.h"
#include "python_state.h"
#include "refusal.h"
#include "record.h"
#include "record_tuple.h"
#include "row_plan.h"
#include "row_problem.h"
#include "runtime.h"

namespace aot {

namespace {

// Arguments: the values of a record.
template <Product product>
PyObject* run(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  const Record record = {arguments, num_arguments};
  return is_whole(state, product, record) ? call(&state, product, record) : nullptr;
}

// Arguments: x, and tuples of weights, of biases or None, and of results.
PyObject* linear_many(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  return call_many(&state, arguments[0], arguments[1], arguments[2], arguments[3]);
}

// Argument: a weight.
PyObject* settle(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 1)) return nullptr;
  return settle_weight(&state, arguments[0]);
}

// Gives what a checked call writes, by the names of the fields: tuples of the extents, and of the number of the element type, or
// -1 where that is the left operand's.
PyObject* describe_written(Product product, const Operands& operands, const Result& result) {
  const Element left = is_on_rows(product) ? result.computed_on_rows().x : result.computed_by().a;
  PyObject* found = PyDict_New();
  for (int32_t i = kOut; found != nullptr && i < kNumOperands; ++i) {
    Written written;
    if (!find_written(product, operands, result, static_cast<Field>(i), &written)) continue;
    int64_t values[kMaxDims + 1];
    std::memcpy(values, written.extents, static_cast<size_t>(written.num_dims) * sizeof(int64_t));
    values[written.num_dims] = written.element == left ? -1 : static_cast<int64_t>(written.element);
    if (set_item(found, kOperandNames[i], make_tuple(values, written.num_dims + 1))) continue;
    Py_DecRef(found);
    found = nullptr;
  }
  return found;
}

// Argument: a record of capsules or shapes, whose tensors to be allocated are None. Returns what it writes, and the tag of its
// operation.
PyObject* describe_result(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  Capsules held;
  Result result;
  if (!has_arguments(state, num_arguments, 1) || !read_record(state, product, arguments[0], &held, &result)) return nullptr;
  PyObject* written = describe_written(product, held.views(), result);
  if (written == nullptr) return nullptr;
  PyObject* tag = PyUnicode_FromString(is_on_rows(product) ? result.computed_on_rows().tag : result.computed_by().tag);
  PyObject* found = tag == nullptr ? nullptr : PyTuple_Pack(2, written, tag);
  Py_DecRef(written);
  if (tag != nullptr) Py_DecRef(tag);
  return found;
}

// Reads the bytes of a workspace, which may be None.
bool read_workspace(const State& state, PyObject* capsule, HeldTensor* workspace, size_t* num_bytes) {
  if (is_none(capsule)) return true;
  if (!read_capsule(state, "the workspace", capsule, workspace)) return false;
  const DLTensor& tensor = *workspace->view();
  const bool is_bytes = tensor.dtype.bits == 8 && tensor.dtype.lanes == 1;
  if (tensor.ndim != 1 || !is_bytes || tensor.shape == nullptr || tensor.shape[0] < 0) {
    raise(state, "DtypeError", "the workspace is not a vector of bytes");
    return false;
  }
  *num_bytes = static_cast<size_t>(tensor.shape[0]);
  return true;
}

// Arguments: a record, the promised address of right, workspace (bytes, or None), stream (an integer).
PyObject* run_on(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  StatedRecord stated;
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  if (!stated.read(state, product, arguments[0], arguments[1])) return nullptr;
  HeldTensor workspace;
  size_t num_bytes = 0;
  if (!read_workspace(state, arguments[2], &workspace, &num_bytes)) return nullptr;
  void* data = workspace.view() == nullptr ? nullptr : workspace.data();
  void* stream = PyLong_AsVoidPtr(arguments[3]);
  if (stream == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  aot_gemm_status_t status = AOT_GEMM_OK;
  {
    const WithoutGil scope;
    if (is_on_rows(product)) status = aot_rows_launch(&stated.rows, stream);
    for (int64_t i = 0; !is_on_rows(product) && i < stated.products.count && status == AOT_GEMM_OK; ++i) {
      const aot_gemm_problem_t problem = stated.products.at(i);
      status = aot_gemm_launch(&problem, data, num_bytes, stream);
    }
  }
  return status == AOT_GEMM_OK ? give_none() : raise_status(state, status);
}

// Arguments: a record, the promised address of right. An operation on rows needs no workspace.
PyObject* measure_workspace(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  StatedRecord stated;
  if (!has_arguments(state, num_arguments, 2)) return nullptr;
  if (!stated.read(state, product, arguments[0], arguments[1])) return nullptr;
  size_t num_bytes = 0;
  aot_gemm_status_t status = AOT_GEMM_OK;
  for (int64_t i = 0; !is_on_rows(product) && i < stated.products.count && status == AOT_GEMM_OK; ++i) {
    const aot_gemm_problem_t problem = stated.products.at(i);
    size_t needed = 0;
    status = aot_gemm_workspace_bytes(&problem, &needed);
    num_bytes = needed > num_bytes ? needed : num_bytes;
  }
  return status == AOT_GEMM_OK ? PyLong_FromSize_t(num_bytes) : raise_status(state, status);
}

// Arguments: those of `measure_workspace`. Gives the number of launches that the first of the products that it takes has.
PyObject* launches_of_matmul(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  StatedRecord stated;
  if (!has_arguments(state, num_arguments, 2)) return nullptr;
  if (!stated.read(state, Product::kMatmul, arguments[0], arguments[1])) return nullptr;
  return PyLong_FromLongLong(count_launches(stated.products.first));
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
  if (operation.groups_rows() && operation.scale == Scale::kAtoms) {
    steps.scale_b = operation.atoms.num_bytes(rows_of_b(problem, operation), problem.k);
  }
  return steps;
}

// Arguments: operation, layout, m, n, k, number of products or groups, CallFlags, table (integers). Returns what the dispatch
// table says of packed operands and a row-major D, by the names of aot_gemm_selection_t, `workspace_bytes`, and the edges of the
// grid's cell, or zeros; m, n and k are as they were looked up.
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
  problem.flags = ((flags & static_cast<int64_t>(CallFlag::kDeterministic)) != 0 ? AOT_GEMM_DETERMINISTIC : 0) |
                  ((flags & static_cast<int64_t>(CallFlag::kBatchInvariant)) != 0 ? AOT_GEMM_BATCH_INVARIANT : 0);
  problem.bias = packed(1, n, false);
  problem.residual = packed(m, n, false);
  problem.num_groups = num_groups;
  problem.offsets = problem.index = problem.scale_d = {nullptr, {1, 1}};
  int32_t index = 0;
  const bool is_known = find_operation(problem.operation, &index) == AOT_GEMM_OK;
  if (is_known && kOperations[index].gathers()) problem.rows_of_a = m;
  if (is_known && kOperations[index].is_interleaved()) problem.flags |= AOT_GEMM_GATE_INTERLEAVED;
  const aot_gemm_part_t whole = {problem.n, problem.b, problem.d, problem.bias};
  if (is_known && kOperations[index].has_parts()) {
    problem.parts = &whole;
    problem.num_parts = 1;
  }
  if (is_known && num_groups > 1) problem.group_strides = packed_steps(problem, kOperations[index]);
  aot_gemm_selection_t found;
  Plan planned;
  const aot_gemm_status_t status = select_in(static_cast<int32_t>(table), problem, &found, &planned);
  if (status != AOT_GEMM_OK) return raise_status(state, status);
  const Cell cell = find_cell(found);
  return make_record({{"kernel", found.kernel},
                      {"tier", found.tier},
                      {"section", found.section},
                      {"index", found.index},
                      {"m", found.m},
                      {"n", found.n},
                      {"k", found.k},
                      {"workspace_bytes", planned.workspace_bytes},
                      {"table", found.table},
                      {"num_groups", found.num_groups},
                      {"num_launches", found.num_launches},
                      {"cell_m", cell.m},
                      {"cell_n", cell.n},
                      {"cell_k", cell.k},
                      {"tile_order", found.tile_order}});
}

// Arguments: row operation, rows, cols, table (integers). Gives what the dispatch table says of packed operands, by the names of
// aot_rows_selection_t.
PyObject* plan_rows(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  int64_t asked[4];
  for (int i = 0; i < 4; ++i) asked[i] = PyLong_AsLong(arguments[i]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const auto [operation, rows, cols, table] = asked;
  aot_rows_selection_t found;
  const aot_rows_problem_t problem = packed_rows(static_cast<int32_t>(operation), rows, cols);
  const aot_gemm_status_t status = select_rows_in(static_cast<int32_t>(table), problem, &found);
  if (status != AOT_GEMM_OK) return raise_status(state, status);
  return make_record({{"kernel", found.kernel},
                      {"tier", found.tier},
                      {"section", found.section},
                      {"index", found.index},
                      {"table", found.table}});
}

// CPython holds functions of every convention as one type, and casts back by the flags.
PyMethodDef define(const char* name, FastFunction* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef others[] = {
    define("matmul_launches", &launches_of_matmul),
    define("rows_plan", &plan_rows),
    define("settle", &settle),
    define("linear_many", &linear_many),
    define("order_streams", &order_streams),
    define("address", &address_of),
    define("plan", &plan),
};

void destroy(State* state) {
  state->~State();
  std::free(state);
}

void destroy_state(PyObject* capsule) { destroy(static_cast<State*>(PyCapsule_GetPointer(capsule, nullptr))); }

// CPython keeps the definition.
bool add_function(PyObject* dictionary, PyObject* self, PyMethodDef* definition) {
  PyObject* function = PyCMethod_New(definition, self, nullptr, nullptr);
  return set_item(dictionary, definition->ml_name, function);
}

// A function above, of one product.
using OfProduct = PyObject*(Product product, PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments);
template <Product product, OfProduct* function>
PyObject* of(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  return function(product, self, arguments, num_arguments);
}

// Adds what runs a product, and what routes take.
template <Product product>
bool add_functions_of(PyObject* dictionary, PyObject* self) {
  constexpr int kNum = 4;
  constexpr const char* kSuffixes[kNum] = {"", "_result", "_on", "_workspace_bytes"};
  constexpr FastFunction* kFunctions[kNum] = {&run<product>, &of<product, &describe_result>, &of<product, &run_on>,
                                              &of<product, &measure_workspace>};
  static char names[kNum][40];
  static PyMethodDef definitions[kNum];
  for (int i = 0; i < kNum; ++i) {
    std::snprintf(names[i], sizeof(names[i]), "%s%s", product_name(product), kSuffixes[i]);
    definitions[i] = define(names[i], kFunctions[i]);
    if (!add_function(dictionary, self, &definitions[i])) return false;
  }
  return true;
}

template <size_t... numbers>
bool add_functions_of_all(PyObject* dictionary, PyObject* self, std::index_sequence<numbers...>) {
  return (add_functions_of<static_cast<Product>(numbers)>(dictionary, self) && ...);
}

bool add_functions(PyObject* dictionary, PyObject* self) {
  if (!add_functions_of_all(dictionary, self, std::make_index_sequence<kNumProducts>())) return false;
  for (PyMethodDef& definition : others) {
    if (!add_function(dictionary, self, &definition)) return false;
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
