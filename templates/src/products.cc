#include "products.h"

#include <algorithm>
#include <utility>

#include "refusal.h"

namespace aot {

namespace {

// The step of a tensor along a dimension of the batch, counted from its matrices outwards from 0.
int64_t step_of(const DLTensor& tensor, int32_t place) {
  const int32_t dim = tensor.ndim - 3 - place;
  return dim < 0 || tensor.shape[dim] == 1 ? 0 : stride_of(tensor, dim);
}

bool continues(const BatchDim& inner, const BatchDim& outer) {
  const auto joins = [&inner](int64_t step, int64_t next) {
    int64_t whole = 0;
    return !__builtin_mul_overflow(step, inner.extent, &whole) && whole == next;
  };
  return joins(inner.a, outer.a) && joins(inner.b, outer.b) && joins(inner.d, outer.d);
}

// Joins the dimensions of a batch that lie as one in all operands, from the inside outwards.
int32_t join_dims(const Operands& operands, const Result& result, BatchDim* dims) {
  int32_t count = 0;
  const int32_t matrix_dims = operands[kLeft]->ndim == 1 ? 1 : 2;
  for (int32_t place = 0; place < result.num_dims - matrix_dims; ++place) {
    const int64_t extent = result.extents[result.num_dims - matrix_dims - 1 - place];
    if (extent == 1) continue;
    // `out` lacks the rows of a left vector, so that its batch begins a dimension earlier.
    const int32_t of_d = operands[kOut]->ndim - matrix_dims - 1 - place;
    const BatchDim dim = {extent, operands[kLeft]->ndim == 1 ? 0 : step_of(*operands[kLeft], place),
                          step_of(*operands[kRight], place), stride_of(*operands[kOut], of_d)};
    if (count > 0 && continues(dims[count - 1], dim)) {
      dims[count - 1].extent *= extent;
    } else {
      dims[count++] = dim;
    }
  }
  return count;
}

// Reads the last two dimensions of a tensor, or of a vector its one as `row`.
Matrix last_matrix(const DLTensor& tensor, bool is_vector) {
  const int32_t columns = tensor.ndim - 1;
  const auto stride = [&tensor](int32_t dim) { return tensor.shape[dim] == 1 ? 0 : stride_of(tensor, dim); };
  if (is_vector) return {data_of(tensor), {1, tensor.shape[columns]}, {0, stride(columns)}};
  return {data_of(tensor), {tensor.shape[columns - 1], tensor.shape[columns]}, {stride(columns - 1), stride(columns)}};
}

bool has_no_elements(const Result& result) {
  return std::any_of(result.extents, result.extents + result.num_dims, [](int64_t extent) { return extent == 0; });
}

// Checks that an `out` which several launches write has elements of its own: dimensions that lie one inside the other.
int check_distinct(const DLTensor& out) {
  Mode modes[kMaxDims];
  int32_t count = 0;
  for (int32_t i = 0; i < out.ndim; ++i) {
    if (out.shape[i] > 1) modes[count++] = {out.shape[i], stride_of(out, i)};
  }
  std::sort(modes, modes + count, [](const Mode& a, const Mode& b) { return a.stride < b.stride; });
  int64_t reach = 1;
  for (int32_t i = 0; i < count; ++i) {
    int64_t more = 0;
    const bool fits = modes[i].stride >= reach && !__builtin_mul_overflow(modes[i].extent - 1, modes[i].stride, &more) &&
                      !__builtin_add_overflow(reach, more, &reach);
    if (!fits) {
      return refuse("StrideError", "matmul: out of shape %s and strides %s may overlap itself; expected dimensions that lie "
                    "one inside the other; leave out= away and copy the result", shape_text(out).characters,
                    stride_text(out).characters);
    }
  }
  return 0;
}

int check_apart_from(const DLTensor& out, const char* name, const DLTensor& operand) {
  const Span written = span_of(out);
  const Span read = span_of(operand);
  if (read.end <= written.begin || written.end <= read.begin) return 0;
  return refuse("StrideError", "matmul: out lies within the memory of %s, and leading dimensions that do not join need several "
                "launches; expected an out apart from it; give it storage of its own", name);
}

}  // namespace

aot_gemm_problem_t Problems::at(int64_t number) const {
  aot_gemm_problem_t problem = first;
  int64_t rest = number;
  // Strides that are not to be believed may wrap here: the C API checks what comes of them.
  const auto move = [](aot_gemm_tensor_t* tensor, int64_t count, int64_t stride, int64_t bytes) {
    const uintptr_t elements = static_cast<uintptr_t>(count) * static_cast<uintptr_t>(stride);
    const uintptr_t moved = reinterpret_cast<uintptr_t>(tensor->data) + elements * static_cast<uintptr_t>(bytes);
    tensor->data = reinterpret_cast<void*>(moved);
  };
  for (int32_t i = 0; i < num_dims; ++i) {
    const BatchDim& dim = dims[i];
    const int64_t step = rest % dim.extent;
    rest /= dim.extent;
    move(&problem.a, step, dim.a, element_bytes[0]);
    move(&problem.b, step, dim.b, element_bytes[1]);
    move(&problem.d, step, dim.d, element_bytes[2]);
  }
  return problem;
}

int find_batch_extents(const DLTensor& left, const DLTensor& right, Result* result) {
  const int32_t of_left = std::max(left.ndim - 2, 0);
  const int32_t of_right = right.ndim - 2;
  const int32_t count = std::max(of_left, of_right);
  for (int32_t place = 0; place < count; ++place) {
    const int64_t a = place < of_left ? left.shape[of_left - 1 - place] : 1;
    const int64_t b = place < of_right ? right.shape[of_right - 1 - place] : 1;
    if (a != b && a != 1 && b != 1) {
      return refuse("ShapeError", "matmul: got a %s and b %s; expected leading dimensions that are equal or 1, counted from the "
                    "last two on; expand or permute one", shape_text(left).characters, shape_text(right).characters);
    }
    result->extents[count - 1 - place] = a == 1 ? b : a;
  }
  result->num_dims = count;
  if (left.ndim > 1) result->extents[result->num_dims++] = left.shape[left.ndim - 2];
  result->extents[result->num_dims++] = right.shape[right.ndim - 1];
  return 0;
}

int state_batch(const Operands& operands, const Result& result, Problems* problems) {
  const bool is_vector = operands[kLeft]->ndim == 1;
  const Matrix a = last_matrix(*operands[kLeft], is_vector);
  const Matrix b = last_matrix(*operands[kRight], false);
  const Matrix d = last_matrix(*operands[kOut], is_vector);
  aot_gemm_problem_t& problem = problems->first;
  problem.m = has_no_elements(result) ? 0 : a.extents[0];
  problem.n = b.extents[1];
  problem.k = a.extents[1];
  problem.a = {a.data, {a.strides[0], a.strides[1]}};
  problem.b = {b.data, {b.strides[1], b.strides[0]}};
  problem.d = {d.data, {d.strides[0], d.strides[1]}};
  if (problem.m == 0) return 0;
  problems->num_dims = join_dims(operands, result, problems->dims);
  if (problems->num_dims == 0) return 0;
  // The longest becomes the batch of a launch.
  BatchDim* dims = problems->dims;
  BatchDim* const end = dims + problems->num_dims;
  BatchDim* longest = std::max_element(dims, end, [](const BatchDim& x, const BatchDim& y) { return x.extent < y.extent; });
  problem.num_groups = longest->extent;
  problem.group_strides.a = longest->a;
  problem.group_strides.b = longest->b;
  problem.group_strides.d = longest->d;
  std::swap(*longest, dims[--problems->num_dims]);
  const Operation& operation = result.computed_by();
  problems->element_bytes[0] = bytes_of(operation.a);
  problems->element_bytes[1] = bytes_of(operation.b);
  problems->element_bytes[2] = bytes_of(operation.d);
  for (int32_t i = 0; i < problems->num_dims; ++i) problems->count *= dims[i].extent;
  if (problems->count == 1) return 0;
  if (check_distinct(*operands[kOut]) != 0) return -1;
  if (check_apart_from(*operands[kOut], "a", *operands[kLeft]) != 0) return -1;
  return check_apart_from(*operands[kOut], "b", *operands[kRight]);
}

}  // namespace aot
