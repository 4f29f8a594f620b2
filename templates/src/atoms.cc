#include "atoms.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <initializer_list>

#include "matrix.h"
#include "refusal.h"

namespace aot {

namespace {

// What the bytes of factors are; kFloat32 where they are no bytes, and kE2m1, which no factor is of, where nobody says.
constexpr Element kUnsaid = Element::kE2m1;

bool is_code(const DLDataType& type) { return type.code == kDLUInt && type.bits == 8 && type.lanes == 1; }

Element factor_of(const DLTensor& factors) {
  if (is_code(factors.dtype)) return kUnsaid;
  for (const Element element : {Element::kE4m3, Element::kE8m0}) {
    const DLDataType type = dlpack_type(element);
    const DLDataType& given = factors.dtype;
    if (given.code == type.code && given.bits == type.bits && given.lanes == 1) return element;
  }
  return Element::kFloat32;
}

int check_narrow(Product product, const char* name, const DLTensor& factors, const DLTensor& left, Element* element) {
  if (check_memory(product, name, factors, left) != 0) return -1;
  *element = factor_of(factors);
  if (*element != Element::kFloat32) return 0;
  return refuse("DtypeError", "%s: %s is %s; expected float8_e4m3fn, of NVFP4, or float8_e8m0fnu, of MXFP4 and MXFP8, or the "
                "codes of these as uint8; convert it", product_name(product), name, dtype_text(factors).characters);
}

// Says whether a tensor has the leading dimensions of x, or its rows, and behind them so many blocks.
bool is_rows_of_blocks(const DLTensor& factors, const DLTensor& operand, int64_t rows, int64_t blocks) {
  if (factors.ndim < 2 || factors.shape[factors.ndim - 1] != blocks) return false;
  if (factors.ndim == 2 && factors.shape[0] == rows) return true;
  bool leads = factors.ndim == operand.ndim;
  for (int32_t i = 0; leads && i + 1 < operand.ndim; ++i) leads = factors.shape[i] == operand.shape[i];
  return leads;
}

int check_shape_of(Product product, const char* name, const DLTensor& factors, const DLTensor& operand, int64_t k,
                   const AtomFormat& format) {
  Mode leading;
  join(operand, 0, operand.ndim - 1, &leading);
  const int64_t rows = leading.extent;
  if (rows > INT32_MAX || k > INT32_MAX) {
    return refuse("ShapeError", "%s: %s is of %" PRId64 " rows and k %" PRId64 "; expected at most %d of each; split the problem",
                  product_name(product), name, rows, k, INT32_MAX);
  }
  const int64_t blocks = format.num_blocks(k);
  const int64_t num_bytes = format.num_bytes(rows, k);
  if (factors.ndim == 1 && factors.shape[0] == num_bytes) return 0;
  if (are_in_rows(factors) && is_rows_of_blocks(factors, operand, rows, blocks)) return 0;
  return refuse("ShapeError", "%s: %s has shape %s, of %" PRId64 " rows and k %" PRId64 "; expected a factor for each %d "
                "elements: (%" PRId64 ", %" PRId64 "); or (%" PRId64 ",), atoms of 128 rows by 4 blocks as one run of bytes; "
                "flatten atoms, or put factors into them by pack_factors", product_name(product), name,
                shape_text(factors).characters, rows, k, format.block_k, rows, blocks, num_bytes);
}

// Checks the factors of groups: x's in atoms, which begin anew with each group, and the weights' in atoms or in rows of blocks.
int check_shapes_of_groups(const Operands& operands, int64_t k, const AtomFormat& format) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& weight = *operands[kRight];
  const DLTensor& scale_x = *operands[kScaleX];
  const DLTensor& scale_w = *operands[kScaleW];
  const int64_t groups = weight.shape[0];
  if (x.shape[0] > INT32_MAX || k > INT32_MAX || groups > INT32_MAX || weight.shape[1] > INT32_MAX) {
    return refuse("ShapeError", "grouped_linear: got x %s and weight %s; expected at most %d rows, k and groups; split the problem",
                  shape_text(x).characters, shape_text(weight).characters, INT32_MAX);
  }
  const int64_t row_bytes = format.row_bytes(k);
  const int64_t num_atoms = num_atom_rows(x.shape[0], groups);
  const bool is_whole = row_bytes == 0 || (scale_x.ndim == 1 && scale_x.shape[0] % row_bytes == 0);
  if (scale_x.ndim != 1 || !is_whole || (row_bytes > 0 && scale_x.shape[0] / row_bytes != num_atoms)) {
    return refuse("ShapeError", "grouped_linear: scale_x has shape %s, of %" PRId64 " rows and k %" PRId64 " in %" PRId64
                  " groups; expected atoms as one run of bytes, %" PRId64 " for 128 rows, of which there are %" PRId64
                  " whatever the groups' sizes are; put factors into them by pack_factors(factors, offsets)",
                  shape_text(scale_x).characters, x.shape[0], k, groups, row_bytes, num_atoms);
  }
  const int64_t blocks = format.num_blocks(k);
  const int64_t of_group = format.num_bytes(weight.shape[1], k);
  const bool are_blocks = scale_w.ndim == 3 && scale_w.shape[0] == groups && scale_w.shape[1] == weight.shape[1] &&
                          scale_w.shape[2] == blocks;
  const bool are_atoms = scale_w.ndim == 1 && scale_w.shape[0] % groups == 0 && scale_w.shape[0] / groups == of_group;
  const bool are_rows = are_rows_of_atoms(scale_w) && scale_w.shape[0] == groups && scale_w.shape[1] == of_group;
  if (are_blocks || are_atoms || are_rows) return 0;
  return refuse("ShapeError", "grouped_linear: scale_w has shape %s, beside weight %s and k %" PRId64 "; expected a factor for each %d "
                "elements: (%" PRId64 ", %" PRId64 ", %" PRId64 "); or atoms as one run of bytes, %" PRId64 " for each of %" PRId64
                " groups, or a row for each group; put factors into them by pack_factors(factors, stacked=True)", shape_text(scale_w).characters,
                shape_text(weight).characters, k, format.block_k, groups, weight.shape[1], blocks, of_group, groups);
}

int refuse_mixed(Product product, Element of_x, Element of_w) {
  return refuse("DtypeError", "%s: scale_x is %s and scale_w %s; expected factors of one format; quantize one of the two anew",
                product_name(product), type_of(of_x).name, type_of(of_w).name);
}

}  // namespace

bool are_of_atoms(const Operands& operands, Element a, Element b) {
  if (is_packed(a) || is_packed(b)) return true;
  return factor_of(*operands[kScaleX]) != Element::kFloat32 || factor_of(*operands[kScaleW]) != Element::kFloat32;
}

int resolve_atoms(Product product, const Operands& operands, Request* request, int32_t* operation) {
  const DLTensor& left = *operands[kLeft];
  const DLTensor& right = *operands[kRight];
  Element of_x;
  Element of_w;
  if (check_narrow(product, "scale_x", *operands[kScaleX], left, &of_x) != 0) return -1;
  if (check_narrow(product, "scale_w", *operands[kScaleW], left, &of_w) != 0) return -1;
  if (of_x == kUnsaid) of_x = of_w;
  if (of_w == kUnsaid) of_w = of_x;
  if (of_x != of_w) return refuse_mixed(product, of_x, of_w);
  // Of codes alone it is the tensors' own factor that tells the formats of 4 bits apart.
  const bool is_nvfp4 = is_packed(request->a) && operands[kScaleD] != nullptr;
  request->scale = Scale::kAtoms;
  request->factor = of_x != kUnsaid ? of_x : is_nvfp4 ? Element::kE4m3 : Element::kE8m0;
  *operation = find_operation(*request);
  if (*operation < 0) return refuse(kNoOperation, "%s", write_request(product, *request).characters);
  const bool are_two = product == Product::kGatedLinear && operands.weights != nullptr;
  if (kOperations[*operation].is_interleaved() && (are_two || !operands.options.is_interleaved)) {
    return refuse("OperandError", "%s: got %s of a gate; expected one weight of both, whose rows and factors are in turns, the gate's "
                  "first: factors lie in atoms of 128 rows; interleave them once, where the model is loaded, and pass "
                  "interleaved=True", product_name(product), are_two ? "two weights" : "halves");
  }
  const int64_t held = std::min<int64_t>(left.shape[left.ndim - 1], INT32_MAX);  // more is refused below, whatever it holds
  const int64_t k = held * (is_packed(request->a) ? kElementsInByte : 1) + (left.shape[left.ndim - 1] > held ? 1 : 0);
  const AtomFormat& format = kOperations[*operation].atoms;
  if (product == Product::kGroupedLinear) return check_shapes_of_groups(operands, k, format);
  if (check_shape_of(product, "scale_x", *operands[kScaleX], left, k, format) != 0) return -1;
  return check_shape_of(product, "scale_w", *operands[kScaleW], right, k, format);
}

int state_atoms(Product product, const char* name, const DLTensor& factors, aot_gemm_tensor_t* stated) {
  const bool is_run = !are_in_rows(factors) && (factors.shape[0] <= 1 || stride_of(factors, 0) == 1);
  *stated = {data_of(factors), {0, 0}};
  if (is_run) return 0;
  return refuse("StrideError", "%s: %s of shape %s has the strides %s; expected atoms as one run of bytes; put factors into them "
                "by pack_factors, or make them contiguous", product_name(product), name, shape_text(factors).characters,
                stride_text(factors).characters);
}

}  // namespace aot
