#include "operands.h"

#include <cstdio>

#include "group_operands.h"
#include "packed_operands.h"
#include "product_operands.h"
#include "products.h"
#include "refusal.h"
#include "row_operands.h"

namespace aot {

namespace {

// What operation.cc has for the codes, which is built without dlpack.h.
static_assert(kDLBfloat == 4 && kDLFloat == 2 && kDLFloat8_e4m3fn == 10 && kDLFloat8_e5m2 == 12 && kDLInt == 0 &&
              kDLUInt == 1 && kDLFloat8_e8m0fnu == 14 && kDLFloat4_e2m1fn == 17);

bool find_element(const DLTensor& tensor, Element* element) {
  const DLDataType& type = tensor.dtype;
  return type.lanes == 1 && type.bits % 8 == 0 && find_element(type.code, type.bits, element);
}

// Says whether an element of a tensor is a byte that holds two of 4 bits: of uint8, or torch's float4_e2m1fn_x2.
bool holds_pairs(const DLTensor& tensor) {
  const DLDataType& type = tensor.dtype;
  return (type.code == kDLUInt && type.bits == 8 && type.lanes == 1) ||
         (type.code == kDLFloat4_e2m1fn && type.bits == 4 && type.lanes == kElementsInByte);
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

const char* left_name(Product product) {
  switch (product) {
    case Product::kMatmul: return "a";
    case Product::kConstant: return "weight";
    default: return "x";
  }
}

DLDataType dlpack_type(Element element) {
  const ElementType& type = type_of(element);
  return {static_cast<uint8_t>(type.dlpack_code), static_cast<uint8_t>(type.bits), 1};
}

TypeText dtype_text(const DLTensor& tensor) {
  TypeText text;
  Element element;
  if (find_element(tensor, &element)) {
    std::snprintf(text.characters, sizeof(text.characters), "%s", type_of(element).name);
  } else if (tensor.dtype.code == kDLFloat4_e2m1fn) {
    std::snprintf(text.characters, sizeof(text.characters), "float4_e2m1fn%s", holds_pairs(tensor) ? "_x2" : "");
  } else {
    std::snprintf(text.characters, sizeof(text.characters), "%s%d", kind_name(tensor.dtype.code), tensor.dtype.bits);
  }
  return text;
}

int check_memory(Product product, const char* name, const DLTensor& tensor, const DLTensor& left) {
  if (!is_on_gpu(tensor)) {
    return refuse("DeviceError", "%s: %s is not in GPU memory (DLPack device type %d); expected a CUDA tensor; "
                  "move it there first", product_name(product), name, static_cast<int>(tensor.device.device_type));
  }
  if (tensor.device.device_id != left.device.device_id) {
    return refuse("DeviceError", "%s: %s is on GPU %d, %s on GPU %d; expected one GPU", product_name(product),
                  name, tensor.device.device_id, left_name(product), left.device.device_id);
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

namespace {

// Says whether a tensor has elements that products are computed of. Bytes, which packed weights have, are none of them.
bool find_number(const DLTensor& tensor, Element* element) {
  return find_element(tensor, element) && *element != Element::kUint8;
}

}  // namespace

int check_tensor(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element* element) {
  if (is_on_gpu(tensor) && tensor.device.device_id == left.device.device_id && !find_number(tensor, element)) {
    return refuse("DtypeError", "%s: %s is %s; expected bfloat16, float16, float32, float8_e4m3fn, float8_e5m2 or int8; "
                  "convert it", product_name(product), name, dtype_text(tensor).characters);
  }
  return check_memory(product, name, tensor, left);
}

int check_packable(Product product, const char* name, const DLTensor& tensor, const DLTensor& left, Element* element) {
  if (!holds_pairs(tensor)) return check_tensor(product, name, tensor, left, element);
  *element = Element::kE2m1;
  return check_memory(product, name, tensor, left);
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
  const bool has_bytes = expected == Element::kUint8 && find_element(tensor, &element);
  if ((has_bytes ? check_memory(product, name, tensor, left) : check_tensor(product, name, tensor, left, &element)) != 0) {
    return -1;
  }
  return check_element(product, name, element, expected);
}

int check_integers(Product product, const char* name, const DLTensor& tensor, const DLTensor& x) {
  if (check_tensor_of(product, name, tensor, x, Element::kInt32) != 0) return -1;
  if (tensor.ndim != 1) {
    return refuse("ShapeError", "%s: %s has shape %s; expected a vector", product_name(product), name,
                  shape_text(tensor).characters);
  }
  if (tensor.shape[0] <= 1 || stride_of(tensor, 0) == 1) return 0;
  return refuse("StrideError", "%s: %s has the stride %lld; expected adjacent elements; make it contiguous",
                product_name(product), name, static_cast<long long>(stride_of(tensor, 0)));
}

int check_shape(Product product, Field which, const DLTensor& tensor, const int64_t* extents, int32_t num_dims,
                const char* reason) {
  if (have_shape(tensor, extents, num_dims)) return 0;
  return refuse("ShapeError", "%s: %s has shape %s; expected %s%s", product_name(product), kOperandNames[which],
                shape_text(tensor).characters, Text(extents, num_dims).characters, reason);
}

int check_given(Product product, const Operands& operands, Field which, Element element, const int64_t* extents,
                int32_t num_dims, const char* reason) {
  if (check_tensor_of(product, kOperandNames[which], *operands[which], *operands[kLeft], element) != 0) return -1;
  return check_shape(product, which, *operands[which], extents, num_dims, reason);
}

int check_out(Product product, const Operands& operands, const Result& result) {
  if (operands[kOut] == nullptr) return 0;
  return check_shape(product, kOut, *operands[kOut], result.extents, result.num_dims);
}

int find_element_of_out(Product product, const Operands& operands, Element otherwise, Element* element) {
  const Options& options = operands.options;
  if (operands[kOut] == nullptr) {
    *element = options.gives_element ? options.element : otherwise;
    return 0;
  }
  const auto check = options.gives_element && is_packed(options.element) ? &check_packable : &check_tensor;
  if (check(product, "out", *operands[kOut], *operands[kLeft], element) != 0) return -1;
  if (!options.gives_element || options.element == *element) return 0;
  const char* asked = product == Product::kQuantize ? "dtype" : "out_dtype";
  return refuse("DtypeError", "%s: out is %s and %s %s; expected one type; leave %s away", product_name(product),
                type_of(*element).name, asked, type_of(options.element).name, asked);
}

int check_left(Product product, const DLTensor& left) {
  Element element;
  const bool may_be_packed = takes_packed(product) || product == Product::kConstant;
  const auto check = may_be_packed ? &check_packable : &check_tensor;
  return check(product, left_name(product), left, left, &element);
}

int check_apart(Product product, const Span& left, const DLTensor& out) {
  const Span written = span_of(out);
  if (left.end <= written.begin || written.end <= left.begin) return 0;
  return refuse("StrideError", "%s: out overlaps the memory of %s; expected an out that shares no element with an "
                "operand; give it storage of its own", product_name(product), left_name(product));
}

bool find_written(Product product, const Operands& operands, const Result& result, Field field, Written* written) {
  if (!is_on_rows(product)) {
    const Operation& operation = result.computed_by();
    *written = {is_packed(operation.d) ? Element::kUint8 : operation.d, result.extents, result.num_dims};
    if (field != kFactorsD || !operation.writes_factors()) return field == kOut;
    *written = {operation.blocks_d.element, result.scale_extents, result.num_scale_dims};
    return true;
  }
  const RowOperation& operation = result.computed_on_rows();
  const DLTensor& x = *operands[kLeft];
  if (field == kOut) *written = {is_packed(operation.y) ? Element::kUint8 : operation.y, result.extents, result.num_dims};
  if (field == kResidualOut) *written = {operation.x, x.shape, x.ndim};
  if (field == kScaleOut) *written = {element_of_scales(operation), result.scale_extents, result.num_scale_dims};
  return field == kOut || (field == kResidualOut ? result.writes_residual : field == kScaleOut && result.writes_scale);
}

int check_operands(Product product, const Operands& operands, Result* result) {
  if (is_on_rows(product)) return check_row_operands(product, operands, result);
  if (product == Product::kGroupedLinear) return check_grouped(operands, result);
  if (product == Product::kPackedLinear) return check_packed_linear(operands, result);
  return check_product(product, operands, result);
}

namespace {

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

}  // namespace

int state_problems(Product product, const Operands& operands, const Result& result, bool right_is_constant,
                   Problems* problems) {
  begin_problem(operands, result, right_is_constant, &problems->first);
  if (is_batched(product, *operands[kRight])) return state_batch(operands, result, problems);
  if (product == Product::kGroupedLinear) return state_grouped(operands, result, &problems->first);
  if (product == Product::kPackedLinear) return state_packed_linear(operands, result, &problems->first);
  return state_product(product, operands, result, &problems->first);
}

}  // namespace aot
