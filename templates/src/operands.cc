#include "operands.h"

#include <cinttypes>

#include "group_operands.h"
#include "products.h"
#include "refusal.h"
#include "row_operands.h"
#include "scales.h"

namespace aot {

namespace {

const char* left_name(Product product) {
  switch (product) {
    case Product::kMatmul: return "a";
    case Product::kConstant: return "weight";
    default: return "x";
  }
}

const char* right_name(Product product) { return product == Product::kMatmul ? "b" : "weight"; }

// What operation.cc has for the codes, which is built without dlpack.h.
static_assert(kDLBfloat == 4 && kDLFloat == 2 && kDLFloat8_e4m3fn == 10 && kDLFloat8_e5m2 == 12 && kDLInt == 0);

bool find_element(const DLTensor& tensor, Element* element) {
  return tensor.dtype.lanes == 1 && find_element(tensor.dtype.code, tensor.dtype.bits, element);
}

const char* kind_name(uint8_t code) {
  switch (code) {
    case kDLInt: return "int";
    case kDLUInt: return "uint";
    case kDLFloat: return "float";
    case kDLBfloat: return "bfloat";
    case kDLComplex: return "complex";
    case kDLBool: return "bool";
    default: return "an unknown type of ";
  }
}

bool is_on_gpu(const DLTensor& tensor) {
  return tensor.device.device_type == kDLCUDA || tensor.device.device_type == kDLCUDAManaged;
}

int check_element(Product product, const char* name, Element element, Element expected) {
  if (element == expected) return 0;
  return refuse("DtypeError", "%s: %s is %s; expected %s; convert it", product_name(product), name, type_of(element).name,
                type_of(expected).name);
}

}  // namespace

DLDataType dlpack_type(Element element) {
  const ElementType& type = type_of(element);
  return {static_cast<uint8_t>(type.dlpack_code), static_cast<uint8_t>(type.bits), 1};
}

int check_tensor(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element* element) {
  if (!is_on_gpu(tensor)) {
    return refuse("DeviceError", "%s: %s is not in GPU memory (DLPack device type %d); expected a CUDA tensor; "
                  "move it there first", product_name(product), name, static_cast<int>(tensor.device.device_type));
  }
  if (tensor.device.device_id != left.device.device_id) {
    return refuse("DeviceError", "%s: %s is on GPU %d, %s on GPU %d; expected one GPU", product_name(product),
                  name, tensor.device.device_id, left_name(product), left.device.device_id);
  }
  if (!find_element(tensor, element)) {
    return refuse("DtypeError", "%s: %s is %s%d; expected bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 or int8; "
                  "convert it", product_name(product), name, kind_name(tensor.dtype.code), tensor.dtype.bits);
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    return refuse("ShapeError", "%s: %s has %d dimensions; expected 0 to %d, with extents", product_name(product), name,
                  tensor.ndim, kMaxDims);
  }
  bool is_empty = false;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) {
      return refuse("ShapeError", "%s: %s has shape %s; expected extents of 0 or more", product_name(product), name,
                    shape_text(tensor).characters);
    }
    is_empty = is_empty || tensor.shape[i] == 0;
  }
  if (tensor.data == nullptr && !is_empty) {
    return refuse("OperandError", "%s: %s of shape %s has no memory of its own (its address is null), as fake, "
                  "functional and zero tensors have none; expected a tensor in GPU memory; pass the tensor that it stands for",
                  product_name(product), name, shape_text(tensor).characters);
  }
  return 0;
}

int read_matrix(Product product, const char* name, const DLTensor& tensor, int32_t num_row_dims, Matrix* matrix) {
  if (read_matrix(tensor, num_row_dims, matrix)) return 0;
  return refuse("StrideError", "%s: %s of shape %s and strides %s is not one matrix in memory; expected leading "
                "dimensions that join into rows of one stride; leave out= away and copy the result, or make it "
                "contiguous", product_name(product), name, shape_text(tensor).characters,
                stride_text(tensor).characters);
}

bool have_shape(const DLTensor& tensor, const int64_t* extents, int32_t num_dims) {
  bool equal = tensor.ndim == num_dims;
  for (int32_t i = 0; equal && i < num_dims; ++i) equal = tensor.shape[i] == extents[i];
  return equal;
}

int check_tensor_of(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element expected) {
  Element element;
  if (check_tensor(product, name, tensor, left, &element) != 0) return -1;
  return check_element(product, name, element, expected);
}

int check_left(Product product, const DLTensor& left) {
  Element element;
  return check_tensor(product, left_name(product), left, left, &element);
}

int check_apart(Product product, const Span& left, const DLTensor& out) {
  const Span written = span_of(out);
  if (left.end <= written.begin || written.end <= left.begin) return 0;
  return refuse("StrideError", "%s: out overlaps the memory of %s; expected an out that shares no element with an "
                "operand; give it storage of its own", product_name(product), left_name(product));
}

namespace {

bool is_8_bit(Element element) { return type_of(element).bits == 8; }

// The element type that D has where a call says nothing of it: torch's for its scaled products, else that of x.
Element default_element(Element left, bool is_scaled) {
  if (is_scaled) return Element::kBfloat16;
  return left == Element::kInt8 ? Element::kInt32 : left;
}

}  // namespace

int find_element_of_d(Product product, const Operands& operands, Element left, Element* element) {
  const Options& options = operands.options;
  if (operands[kOut] == nullptr) {
    *element = options.gives_element ? options.element : default_element(left, operands[kScaleX] != nullptr);
    return 0;
  }
  if (check_tensor(product, "out", *operands[kOut], *operands[kLeft], element) != 0) return -1;
  if (!options.gives_element || options.element == *element) return 0;
  return refuse("DtypeError", "%s: out is %s and out_dtype %s; expected one type; leave out_dtype away",
                product_name(product), type_of(*element).name, type_of(options.element).name);
}

int check_scales(Product product, const Operands& operands, const Request& request) {
  const bool is_given = operands[kScaleX] != nullptr;
  if (is_given != (operands[kScaleW] != nullptr)) {
    return refuse("OperandError", "%s: got %s and no %s; expected both, or none", product_name(product),
                  is_given ? "scale_x" : "scale_w", is_given ? "scale_w" : "scale_x");
  }
  const bool are_8_bit = is_8_bit(request.a) && is_8_bit(request.b);
  if (is_given && !are_8_bit) {
    return refuse("OperandError", "%s: got scale_x and scale_w, which go with float8 and int8 operands; x is %s and weight "
                  "%s; leave them away", product_name(product), type_of(request.a).name, type_of(request.b).name);
  }
  if (is_given || !are_8_bit || request.d == Element::kInt32) return 0;
  return refuse("OperandError", "%s: %s operands of a %s result need factors, by which they are multiplied; expected "
                "float32 tensors in GPU memory, of one element, or of one for each row; pass them as linear(x, weight, "
                "scale_x=, scale_w=)", product_name(product), type_of(request.a).name, type_of(request.d).name);
}

int refuse_request(Product product, const Request& request) {
  return refuse(kNoOperation, "%s", write_request(product, request).characters);
}

namespace {

// Finds the operation of operands that have factors. Such that each serve a whole row, as where k is up to 128, may be of
// either kind: then the one that the library has.
int resolve_scaled(Product product, const Operands& operands, Request* request, int32_t* operation) {
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  if (check_tensor_of(product, "scale_x", *operands[kScaleX], left, Element::kFloat32) != 0) return -1;
  if (check_tensor_of(product, "scale_w", *operands[kScaleW], left, Element::kFloat32) != 0) return -1;
  const ScaleShapes shapes = read_scale_shapes(*operands[kScaleX], *operands[kScaleW], left, right.shape[0]);
  if (!shapes.are_vectors && !shapes.are_blocks) {
    return refuse_scale_shapes(product, *operands[kScaleX], *operands[kScaleW], left, right);
  }
  request->scale = shapes.are_vectors ? Scale::kVector : Scale::kBlock;
  *operation = find_operation(*request);
  if (*operation >= 0) return 0;
  Request by_blocks = *request;
  by_blocks.scale = Scale::kBlock;
  if (shapes.are_blocks) *operation = find_operation(by_blocks);
  return *operation >= 0 ? 0 : refuse_request(product, *request);
}

// Finds the operation of operands whose sizes fit.
int resolve(Product product, const Operands& operands, Element a, Element b, int32_t* operation) {
  const Options& options = operands.options;
  Request request = {a,
                     b,
                     a,
                     Scale::kNone,
                     options.epilogue,
                     Grouping::kDense,
                     operands[kBias] != nullptr,
                     operands[kResidual] != nullptr,
                     options.allow_tf32,
                     options.use_fast_accum};
  if (find_element_of_d(product, operands, a, &request.d) != 0) return -1;
  if (check_scales(product, operands, request) != 0) return -1;
  if (operands[kScaleX] != nullptr) return resolve_scaled(product, operands, &request, operation);
  *operation = find_operation(request);
  return *operation >= 0 ? 0 : refuse_request(product, request);
}

int check_bias(Product product, const Operands& operands, const Result& result, int64_t num_rows) {
  const DLTensor& bias = *operands[kBias];
  const Element element = result.computed_by().bias_element;
  if (check_tensor_of(product, "bias", bias, *operands[kLeft], element) != 0) return -1;
  if (have_shape(bias, &num_rows, 1)) return 0;
  return refuse("ShapeError", "%s: bias has shape %s; expected %s, an element for each row of weight; an output is named "
                "by keyword: linear(x, weight, out=out)", product_name(product), shape_text(bias).characters,
                Text(&num_rows, 1).characters);
}

int check_residual(Product product, const Operands& operands, const Result& result) {
  const DLTensor& residual = *operands[kResidual];
  if (check_tensor_of(product, "residual", residual, *operands[kLeft], result.computed_by().d) != 0) return -1;
  if (have_shape(residual, result.extents, result.num_dims)) return 0;
  return refuse("ShapeError", "%s: residual has shape %s; expected %s, as the result", product_name(product),
                shape_text(residual).characters, Text(result.extents, result.num_dims).characters);
}

int check_scale_out(Product product, const Operands& operands, const Result& result) {
  const Operation& operation = result.computed_by();
  if (operands[kScaleD] == nullptr) {
    if (!operation.scales_d) return 0;
    return refuse("OperandError", "%s: a %s result needs scale_out, by which it is multiplied before it is rounded; expected "
                  "a float32 tensor of one element in GPU memory; pass scale_out=", product_name(product),
                  type_of(operation.d).name);
  }
  if (!operation.scales_d) {
    return refuse("OperandError", "%s: got scale_out, which goes with a float8 result; the result is %s; leave it away",
                  product_name(product), type_of(operation.d).name);
  }
  const DLTensor& scale = *operands[kScaleD];
  if (check_tensor_of(product, "scale_out", scale, *operands[kLeft], Element::kFloat32) != 0) return -1;
  for (int32_t i = 0; i < scale.ndim; ++i) {
    if (scale.shape[i] == 1) continue;
    return refuse("ShapeError", "%s: scale_out has shape %s; expected one element", product_name(product),
                  shape_text(scale).characters);
  }
  return 0;
}

int check_out(Product product, const Operands& operands, const Result& result) {
  if (operands[kOut] == nullptr || have_shape(*operands[kOut], result.extents, result.num_dims)) return 0;
  return refuse("ShapeError", "%s: out has shape %s; expected %s", product_name(product),
                shape_text(*operands[kOut]).characters, Text(result.extents, result.num_dims).characters);
}

// Checks that a left and a right operand make a product.
int check_shapes(Product product, const DLTensor& left, const DLTensor& right) {
  const bool is_matmul = product == Product::kMatmul;
  if (left.ndim < 1 || right.ndim < 1 || (!is_matmul && right.ndim != 2)) {
    return refuse("ShapeError", "%s: got %s %s and %s %s; expected %s", product_name(product), left_name(product),
                  shape_text(left).characters, right_name(product), shape_text(right).characters,
                  is_matmul ? "a (..., m, k) or (k,), and b (..., k, n) or (k,)" : "x (..., k) and weight (n, k)");
  }
  const int64_t left_k = left.shape[left.ndim - 1];
  const int64_t right_k = right.shape[is_matmul ? (right.ndim == 1 ? 0 : right.ndim - 2) : 1];
  if (left_k != right_k) {
    return refuse("ShapeError", "%s: %s %s has k %" PRId64 ", %s %s has k %" PRId64 "; expected one k",
                  product_name(product), left_name(product), shape_text(left).characters, left_k,
                  right_name(product), shape_text(right).characters, right_k);
  }
  if (product != Product::kGatedLinear || right.shape[0] % 2 == 0) return 0;
  return refuse("ShapeError", "%s: weight has shape %s; expected an even number of rows, those of the gate and as many "
                "linear ones", product_name(product), shape_text(right).characters);
}

}  // namespace

bool find_written(Product product, const Operands& operands, const Result& result, Field field, Written* written) {
  if (!is_on_rows(product)) {
    *written = {result.computed_by().d, result.extents, result.num_dims};
    return field == kOut;
  }
  const RowOperation& operation = result.computed_on_rows();
  const DLTensor& x = *operands[kLeft];
  if (field == kOut) *written = {operation.y, result.extents, result.num_dims};
  if (field == kResidualOut) *written = {operation.x, x.shape, x.ndim};
  if (field == kScaleOut) *written = {Element::kFloat32, result.scale_extents, result.num_dims};
  return field == kOut || (field == kResidualOut ? result.writes_residual : field == kScaleOut && result.writes_scale);
}

int check_operands(Product product, const Operands& operands, Result* result) {
  if (is_on_rows(product)) return check_row_operands(product, operands, result);
  if (product == Product::kGroupedLinear) return check_grouped(operands, result);
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  Element a;
  Element b;
  if (check_tensor(product, left_name(product), left, left, &a) != 0) return -1;
  if (check_tensor(product, right_name(product), right, left, &b) != 0) return -1;
  if (check_shapes(product, left, right) != 0) return -1;
  if (resolve(product, operands, a, b, &result->operation) != 0) return -1;
  if (is_batched(product, right)) {
    if (find_batch_extents(left, right, result) != 0) return -1;
    return check_out(product, operands, *result);
  }
  result->num_dims = left.ndim - 1;
  for (int32_t i = 0; i < result->num_dims; ++i) result->extents[i] = left.shape[i];
  const int64_t num_rows = right.ndim == 2 ? right.shape[product == Product::kMatmul ? 1 : 0] : 1;
  const int64_t n = product == Product::kGatedLinear ? num_rows / 2 : num_rows;
  if (right.ndim == 2) result->extents[result->num_dims++] = n;
  if (operands[kBias] != nullptr && check_bias(product, operands, *result, num_rows) != 0) return -1;
  if (operands[kResidual] != nullptr && check_residual(product, operands, *result) != 0) return -1;
  if (check_scale_out(product, operands, *result) != 0) return -1;
  return check_out(product, operands, *result);
}

namespace {

aot_gemm_tensor_t as_tensor(const Matrix& matrix) { return {matrix.data, {matrix.strides[0], matrix.strides[1]}}; }

// States the operands that a plain product has none of.
int state_others(Product product, const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  if (operands[kScaleX] != nullptr) {
    const Scale kind = result.computed_by().scale;
    if (state_scale(product, "scale_x", *operands[kScaleX], kind, &problem->scale_a) != 0) return -1;
    if (state_scale(product, "scale_w", *operands[kScaleW], kind, &problem->scale_b) != 0) return -1;
  }
  if (operands[kResidual] != nullptr) {
    Matrix residual;
    const DLTensor& tensor = *operands[kResidual];
    if (read_matrix(product, "residual", tensor, result.num_dims - 1, &residual) != 0) return -1;
    problem->residual = as_tensor(residual);
  }
  if (operands[kScaleD] != nullptr) problem->scale_d = {data_of(*operands[kScaleD]), {0, 0}};
  return 0;
}

// States a problem's flags and what is the same of every product.
void begin_problem(const Operands& operands, const Result& result, bool right_is_constant, aot_gemm_problem_t* problem) {
  *problem = {};
  problem->struct_bytes = sizeof(*problem);
  problem->operation = id_of(result.operation);
  problem->device = operands[kLeft]->device.device_id;
  const Options& options = operands.options;
  problem->flags = (right_is_constant ? AOT_GEMM_B_CONSTANT : 0) |
                   (options.is_interleaved ? AOT_GEMM_GATE_INTERLEAVED : 0) |
                   (options.is_deterministic ? AOT_GEMM_DETERMINISTIC : 0) |
                   (options.is_batch_invariant ? AOT_GEMM_BATCH_INVARIANT : 0);
}

// States the two weights of a gate, which are tensors of their own: the second lies behind the first.
int state_parts(const Operands& operands, aot_gemm_problem_t* problem) {
  const auto gate = reinterpret_cast<uintptr_t>(operands.weights[0]);
  const auto linear = reinterpret_cast<uintptr_t>(operands.weights[1]);
  const auto element_bytes = static_cast<uintptr_t>(operands[kRight]->dtype.bits / 8);
  if (linear < gate || (linear - gate) % element_bytes != 0) {
    return refuse("StrideError", "gated_linear: the gate's weight is at address %p, the linear one at %p; expected the linear one "
                  "behind it, by a number of elements; compute the two products by linear", operands.weights[0],
                  operands.weights[1]);
  }
  problem->flags |= AOT_GEMM_GATE_PARTS;
  problem->group_strides.b = static_cast<int64_t>((linear - gate) / element_bytes);
  return 0;
}

int state_matrices(Product product, const Operands& operands, const Result& result, aot_gemm_problem_t* problem) {
  Matrix a;
  Matrix b;
  Matrix d;
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  if (read_matrix(product, left_name(product), left, left.ndim - 1, &a) != 0) return -1;
  if (read_matrix(product, right_name(product), right, 1, &b) != 0) return -1;
  // Where b is a vector, D has one column and all dimensions of `out` are rows.
  if (read_matrix(product, "out", *operands[kOut], result.num_dims - (right.ndim - 1), &d) != 0) return -1;
  const int rows = product == Product::kMatmul ? 1 : 0;  // which mode of the right operand is n
  if (operands[kBias] != nullptr) problem->bias = {data_of(*operands[kBias]), {0, stride_of(*operands[kBias], 0)}};
  problem->m = a.extents[0];
  problem->n = product == Product::kGatedLinear ? b.extents[rows] / 2 : b.extents[rows];
  problem->k = a.extents[1];
  problem->a = as_tensor(a);
  problem->b = {b.data, {b.strides[rows], b.strides[1 - rows]}};
  problem->d = as_tensor(d);
  if (operands.weights != nullptr && state_parts(operands, problem) != 0) return -1;
  return state_others(product, operands, result, problem);
}

}  // namespace

int state_problems(Product product, const Operands& operands, const Result& result, bool right_is_constant,
                   Problems* problems) {
  begin_problem(operands, result, right_is_constant, &problems->first);
  if (is_batched(product, *operands[kRight])) return state_batch(operands, result, problems);
  if (product == Product::kGroupedLinear) return state_grouped(operands, result, &problems->first);
  return state_matrices(product, operands, result, &problems->first);
}

}  // namespace aot
