// Which operation a call of the Python API asks for.
#ifndef AOT_GEMM_REQUEST_H_
#define AOT_GEMM_REQUEST_H_

#include <cstdint>

#include "operation.h"

namespace aot {

// What a function of the Python API computes is its Product. The products give D = A @ B^T; they differ in how the right operand
// is held: kGatedLinear's has the rows of two, kGroupedLinear's is a stack of one for each group, kPackedLinear's the
// bytes of a packed weight; kLinearMany has several, which are no record's. kConstant stands for the
// function that only looks at a weight, as the left operand. Those from kRmsNorm on are of operations on rows, in the order of
// RowFunction; kRows, the last, is of the function that Options has.

// Gives the name of the function.
inline const char* product_name(Product product) { return word_of(product); }

inline bool is_on_rows(Product product) { return product >= Product::kRmsNorm; }

// What a call says beside its tensors.
struct Options {
  Epilogue epilogue = Epilogue::kNone;  // an activation, or a gate
  bool gives_element = false;           // of D: the next field
  Element element = Element::kBfloat16;
  bool allow_tf32 = false;
  bool use_fast_accum = false;
  bool is_interleaved = false;
  bool is_deterministic = false;
  bool is_batch_invariant = false;
  bool has_blocks = false;     // of quantize: a scale for each kScaleBlock columns
  bool has_one_scale = false;  // of quantize: one for all, which is computed
  bool has_nvfp4 = false;      // of quantize: factors of 16 columns in atoms, over one of the tensor that is given
  bool has_mx = false;         // of quantize: powers of two of 32 columns, in atoms
  bool rounds_norm = false;
  bool offsets_start = false;  // of operations on rows: offsets begin with the first group's start
  WeightFormat weight_format = WeightFormat::kNone;  // of a packed weight
  int64_t columns = 0;                               // of the result, where the weight's bytes do not tell
  int64_t rotary_dim = -1;  // -1: by the shape of cos
  float eps = 0;
  float weight_offset = 0;
  RowFunction function = RowFunction::kRmsNorm;  // of kRows
};

// All that the operation of a product depends on.
struct Request {
  Element a;
  Element b;
  Element d;
  Scale scale;
  Element factor;  // of Scale::kAtoms, of which type the factors are
  Element factor_d;  // of the factors that are written with D; kFloat32 where there are none
  Epilogue epilogue;  // an activation, a gate, or kNone
  Grouping grouping;
  bool has_bias;
  bool has_residual;
  bool allow_tf32;
  bool use_fast_accum;
  WeightFormat weight = WeightFormat::kNone;  // of a packed weight, whose bytes are of the element b
};

// Finds the index of the operation that this library has for a request; -1 where it has none. What a caller allows is
// preferred, and not asked for.
int32_t find_operation(const Request& request);

// Room for a request in words.
struct RequestText {
  char characters[160];
};

// Writes a request as `_request.parse` of the Python package reads it.
RequestText write_request(Product product, const Request& request);

}  // namespace aot

#endif  // AOT_GEMM_REQUEST_H_
