#include "row_binding.h"

#include <cstring>

#include "refusal.h"
#include "row_plan.h"
#include "row_problem.h"

namespace aot {

namespace {

// The tensors of capsules that the caller keeps.
struct Capsules {
  HeldTensor x;
  HeldTensor others[kNumRowTensors];
  RowOptions options;

  RowTensors views() const {
    RowTensors views = {x.view(), {}, options};
    for (int32_t i = 0; i < kNumRowTensors; ++i) views.others[i] = others[i].view();
    return views;
  }
};

bool read(const State& state, PyObject* x, PyObject* tensors, PyObject* numbers, Capsules* held) {
  if (read_row_options(state, numbers, &held->options) != 0 || !read_capsule(state, "x", x, &held->x)) return false;
  for (Py_ssize_t i = 0; i < kNumRowTensors; ++i) {
    PyObject* capsule = PyTuple_GetItem(tensors, i);  // borrowed from the tuple
    if (capsule == nullptr) return false;
    if (is_none(capsule)) continue;
    const char* name = name_of(static_cast<RowTensor>(i));
    if (!read_capsule(state, name, capsule, &held->others[i])) return false;
    if (i < kOut || !held->others[i].is_read_only()) continue;
    refuse("OperandError", "%s is read-only, as its framework says; leave %s= away", name, name);
    raise_refusal(state);
    return false;
  }
  return true;
}

}  // namespace

PyObject* describe_rows(const State& state, Product product, PyObject* x, PyObject* tensors, PyObject* numbers) {
  Capsules held;
  if (!read(state, x, tensors, numbers, &held)) return nullptr;
  RowResult result;
  if (check_row_tensors(product, held.views(), &result) != 0) return raise_refusal(state);
  const RowOperation& operation = result.computed_by();
  int64_t values[4 + 2 * kMaxDims] = {operation.y == operation.x ? -1 : static_cast<int64_t>(operation.y),
                                      result.writes_residual, operation.has_scale(), result.writes_scale};
  const auto num_bytes = static_cast<size_t>(result.num_dims) * sizeof(int64_t);
  std::memcpy(values + 4, result.extents, num_bytes);
  std::memcpy(values + 4 + result.num_dims, result.scale_extents, num_bytes);
  return make_tuple(values, 4 + 2 * result.num_dims);
}

PyObject* run_rows_on(const State& state, Product product, PyObject* const* arguments) {
  Capsules held;
  if (!read(state, arguments[0], arguments[1], arguments[2], &held)) return nullptr;
  void* stream = PyLong_AsVoidPtr(arguments[3]);
  if (stream == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  RowResult result;
  aot_rows_problem_t problem;
  const RowTensors views = held.views();
  if (check_row_tensors(product, views, &result) != 0 || state_rows(product, views, result, &problem) != 0) {
    return raise_refusal(state);
  }
  aot_gemm_status_t status = AOT_GEMM_OK;
  {
    const WithoutGil scope;
    status = aot_rows_launch(&problem, stream);
  }
  return status == AOT_GEMM_OK ? give_none() : raise_status(state, status);
}

PyObject* plan_rows(PyObject* self, PyObject* const* arguments, Py_ssize_t num_arguments) {
  const State& state = State::of(self);
  if (!has_arguments(state, num_arguments, 4)) return nullptr;
  int64_t asked[4];
  for (int i = 0; i < 4; ++i) asked[i] = PyLong_AsLong(arguments[i]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const auto [operation, rows, cols, table] = asked;
  aot_rows_problem_t problem = {};
  problem.struct_bytes = sizeof(problem);
  problem.operation = static_cast<int32_t>(operation);
  problem.device = -1;
  problem.rows = rows;
  problem.cols = cols;
  int32_t index = 0;
  const bool is_known = find_row_operation(problem.operation, &index) == AOT_GEMM_OK;
  const bool is_rotary = is_known && kRowOperations[index].is_rotary();
  problem.heads = problem.positions = is_rotary ? 1 : 0;
  problem.rotary_dim = is_rotary ? cols / 2 * 2 : 0;
  const int64_t columns = is_known ? columns_of_x(problem, kRowOperations[index]) : cols;
  problem.x = is_rotary ? aot_rows_tensor_t{nullptr, {cols, cols, 1}} : aot_rows_tensor_t{nullptr, {columns, 1, 0}};
  problem.y = is_rotary ? problem.x : aot_rows_tensor_t{nullptr, {cols, 1, 0}};
  problem.cos = problem.sin = {nullptr, {problem.rotary_dim / 2, 1, 0}};
  problem.scale = {nullptr, {is_known ? scales_of_row(problem, kRowOperations[index]) : 1, 1, 0}};
  aot_rows_selection_t found;
  const aot_gemm_status_t status = select_rows_in(static_cast<int32_t>(table), problem, &found);
  if (status != AOT_GEMM_OK) return raise_status(state, status);
  const int64_t values[] = {found.kernel, found.tier, found.section, found.index, found.table};
  return make_tuple(values, 5);
}

}  // namespace aot
