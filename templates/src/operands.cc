#include "operands.h"

#include <cinttypes>

#include "operation.h"
#include "refusal.h"

namespace aot {

namespace {

const char* left_name(Product product) {
  switch (product) {
    case Product::kLinear: return "x";
    case Product::kMatmul: return "a";
    default: return "weight";
  }
}

const char* right_name(Product product) { return product == Product::kLinear ? "weight" : "b"; }

// What operation.cc has for the codes, which is built without dlpack.h.
static_assert(kDLBfloat == 4 && kDLFloat == 2 && kDLFloat8_e4m3fn == 10 && kDLFloat8_e5m2 == 12 && kDLInt == 0);

bool find_element(const DLTensor& tensor, Element* element) {
  const bool is_found = tensor.dtype.lanes == 1 && find_element(tensor.dtype.code, tensor.dtype.bits, element);
  return is_found && (*element == Element::kBfloat16 || *element == Element::kFloat16);
}

// The element type of an operand that was checked.
Element element_of(const DLTensor& tensor) {
  Element element = Element::kBfloat16;
  find_element(tensor, &element);
  return element;
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

int check_tensor(Product product, const char* name, const DLTensor& tensor, const DLTensor& left) {
  if (!is_on_gpu(tensor)) {
    return refuse("DeviceError", "%s: %s is not in GPU memory (DLPack device type %d); expected a CUDA tensor; "
                  "move it there first", product_name(product), name, static_cast<int>(tensor.device.device_type));
  }
  if (tensor.device.device_id != left.device.device_id) {
    return refuse("DeviceError", "%s: %s is on GPU %d, %s on GPU %d; expected one GPU", product_name(product),
                  name, tensor.device.device_id, left_name(product), left.device.device_id);
  }
  Element element;
  if (!find_element(tensor, &element)) {
    return refuse("DtypeError", "%s: %s is %s%d; expected bfloat16 or float16; convert it",
                  product_name(product), name, kind_name(tensor.dtype.code), tensor.dtype.bits);
  }
  if (element != element_of(left)) {
    return refuse("DtypeError", "%s: %s and %s differ in element type; expected one type; convert one of them",
                  product_name(product), name, left_name(product));
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

// Reads a tensor as a matrix whose rows are its first `num_row_dims` dimensions.
int read_matrix(Product product, const char* name, const DLTensor& tensor, int32_t num_row_dims, Matrix* matrix) {
  if (read_matrix(tensor, num_row_dims, matrix)) return 0;
  return refuse("StrideError", "%s: %s of shape %s and strides %s is not one matrix in memory; expected leading "
                "dimensions that join into rows of one stride; leave out= away and copy the result, or make it "
                "contiguous", product_name(product), name, shape_text(tensor).characters,
                stride_text(tensor).characters);
}

}  // namespace

const char* product_name(Product product) {
  switch (product) {
    case Product::kLinear: return "linear";
    case Product::kMatmul: return "matmul";
    default: return "constant";
  }
}

int check_left(Product product, const DLTensor& left) { return check_tensor(product, left_name(product), left, left); }

int check_apart(Product product, const Span& left, const DLTensor& out) {
  const Span written = span_of(out);
  if (left.end <= written.begin || written.end <= left.begin) return 0;
  return refuse("StrideError", "%s: out overlaps the memory of %s; expected an out that shares no element with an "
                "operand; give it storage of its own", product_name(product), left_name(product));
}

namespace {

// Checks that the library has the operation, and a bias.
int check_operation(Product product, const Operands& operands, int64_t n) {
  const ElementType& type = type_of(element_of(*operands.left));
  if (find_operation(element_of(*operands.left), operands.bias != nullptr) < 0) {
    if (operands.bias == nullptr) {
      return refuse("DtypeError", "%s: this wheel has no kernels for %s; it has those of %s; convert the operands",
                    product_name(product), type.name, list_operations().characters);
    }
    return refuse("UnsupportedError", "%s: got a bias, which this wheel has no kernels for: it has the operations %s, and "
                  "not %s_bias; expected None; add the bias to the result, or build a wheel with %s_bias; an output is "
                  "named by keyword: linear(x, weight, out=out)", product_name(product), list_operations().characters,
                  type.tag, type.tag);
  }
  if (operands.bias == nullptr) return 0;
  const DLTensor& bias = *operands.bias;
  if (check_tensor(product, "bias", bias, *operands.left) != 0) return -1;
  if (bias.ndim == 1 && bias.shape[0] == n) return 0;
  const int64_t expected[] = {n};
  return refuse("ShapeError", "%s: bias has shape %s; expected %s, an element for each row of weight; an output is named "
                "by keyword: linear(x, weight, out=out)", product_name(product), shape_text(bias).characters,
                Text(expected, 1).characters);
}

}  // namespace

int check_operands(Product product, const Operands& operands, Shape* shape) {
  const DLTensor& left = *operands.left;
  const DLTensor& right = *operands.right;
  if (check_tensor(product, left_name(product), left, left) != 0) return -1;
  if (check_tensor(product, right_name(product), right, left) != 0) return -1;
  const bool linear = product == Product::kLinear;
  const bool right_fits = right.ndim == 2 || (!linear && right.ndim == 1);
  if (left.ndim < 1 || !right_fits) {
    return refuse("ShapeError", "%s: got %s %s and %s %s; expected %s", product_name(product), left_name(product),
                  shape_text(left).characters, right_name(product),
                  shape_text(right).characters,
                  linear ? "x (..., k) and weight (n, k)"
                         : "a (..., m, k) or (k,), and b (k, n) or (k,); for a batched b call this once for each "
                           "of its matrices, or the framework's own matmul");
  }
  const int64_t left_k = left.shape[left.ndim - 1];
  const int64_t right_k = right.shape[linear ? 1 : 0];
  if (left_k != right_k) {
    return refuse("ShapeError", "%s: %s %s has k %" PRId64 ", %s %s has k %" PRId64 "; expected one k",
                  product_name(product), left_name(product), shape_text(left).characters, left_k,
                  right_name(product), shape_text(right).characters, right_k);
  }
  shape->num_dims = left.ndim - 1;
  for (int32_t i = 0; i < shape->num_dims; ++i) shape->extents[i] = left.shape[i];
  const int64_t n = right.ndim == 2 ? right.shape[linear ? 0 : 1] : 1;
  if (right.ndim == 2) shape->extents[shape->num_dims++] = n;
  if (check_operation(product, operands, n) != 0) return -1;
  if (operands.out == nullptr) return 0;
  const DLTensor& out = *operands.out;
  if (check_tensor(product, "out", out, left) != 0) return -1;
  bool equal = out.ndim == shape->num_dims;
  for (int32_t i = 0; equal && i < out.ndim; ++i) equal = out.shape[i] == shape->extents[i];
  if (equal) return 0;
  return refuse("ShapeError", "%s: out has shape %s; expected %s", product_name(product),
                shape_text(out).characters, Text(shape->extents, shape->num_dims).characters);
}

int state_problem(Product product, const Operands& operands, const Shape& shape, bool right_is_constant,
                  aot_gemm_problem_t* problem) {
  Matrix a;
  Matrix b;
  Matrix d;
  const DLTensor& left = *operands.left;
  const DLTensor& right = *operands.right;
  if (read_matrix(product, left_name(product), left, left.ndim - 1, &a) != 0) return -1;
  if (read_matrix(product, right_name(product), right, 1, &b) != 0) return -1;
  // Where b is a vector, D has one column and all dimensions of `out` are rows.
  if (read_matrix(product, "out", *operands.out, shape.num_dims - (right.ndim - 1), &d) != 0) return -1;
  const int rows = product == Product::kLinear ? 0 : 1;  // which mode of the right operand is n
  aot_gemm_tensor_t bias = {};
  if (operands.bias != nullptr) bias = {data_of(*operands.bias), {0, stride_of(*operands.bias, 0)}};
  *problem = {sizeof(*problem),
              id_of(find_operation(element_of(left), operands.bias != nullptr)),
              left.device.device_id,
              a.extents[0],
              b.extents[rows],
              a.extents[1],
              {a.data, {a.strides[0], a.strides[1]}},
              {b.data, {b.strides[rows], b.strides[1 - rows]}},
              {d.data, {d.strides[0], d.strides[1]}},
              right_is_constant ? AOT_GEMM_B_CONSTANT : 0,
              bias,
              {},
              {},
              {},
              {}};
  return 0;
}

}  // namespace aot
