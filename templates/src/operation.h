// What the library computes: its operations and their element types.
#ifndef AOT_GEMM_OPERATION_H_
#define AOT_GEMM_OPERATION_H_

#include <cstdint>

#include "aot_gemm.h"
#include "enumerations.h"

namespace aot {

struct ElementType {
  const char* name;  // as torch has it
  const char* tag;
  int32_t dlpack_code;  // DLDataTypeCode of dlpack.h
  int32_t bits;

  constexpr int64_t num_bytes() const { return bits / 8; }
};

// Counts the blocks of an extent, of any size, that have a factor each.
inline int64_t num_blocks(int64_t extent) { return extent / kScaleBlock + (extent % kScaleBlock != 0); }

// Multiplies two counts. Of a product that no memory holds it gives the lowest 64 bits.
constexpr int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// What atoms of factors, and packed weights, begin at multiples of.
constexpr int64_t kPackedRunBytes = 16;

// Elements of 4 bits in a byte: what a tensor of Python, whose elements are bytes, holds in each.
constexpr int64_t kElementsInByte = 2;

// Rows whose factors share atoms.
constexpr int64_t kAtomRows = 128;
constexpr int64_t num_atom_rows(int64_t rows) { return (rows + kAtomRows - 1) / kAtomRows; }
// The same of A's rows in groups, each of which begins with an atom: num_atoms_of_groups of aot.core.factor_atoms.
constexpr int64_t num_atom_rows(int64_t rows, int64_t num_groups) { return num_atom_rows(rows) + num_groups - 1; }

// The scale factors of operands in atoms (Scale::kAtoms): what one serves, and of which type it is.
struct AtomFormat {
  Element element;
  int32_t block_k;

  constexpr int64_t num_blocks(int64_t k) const { return k / block_k + (k % block_k != 0); }
  // The bytes that the factors of up to 128 rows take, in whole atoms of 128 rows by 4 blocks along k.
  constexpr int64_t row_bytes(int64_t k) const { return (num_blocks(k) + 3) / 4 * 512; }
  // The same of any rows.
  constexpr int64_t num_bytes(int64_t rows, int64_t k) const { return num_atom_rows(rows) * row_bytes(k); }
};

// What the bytes of a packed weight are: rows for 16 rows of the weight each, of blocks for 128 elements along k; or rows
// of the weight, of runs as long as an atom's, and behind whole 16 or 32 of them the atoms of each 128 rows.
struct PackedFormat {
  WeightFormat format;  // kNone where B is a matrix of elements

  constexpr bool is_packed() const { return format != WeightFormat::kNone; }
  // Elements along k that k is a multiple of.
  constexpr int64_t quantum() const { return kWeightQuanta[static_cast<int32_t>(format)]; }
  constexpr int64_t num_rows(int64_t n) const {
    const int64_t rows = kWeightTileRows[static_cast<int32_t>(format)];
    const int64_t tiles = n / rows + (n % rows != 0);
    const int64_t of_atoms = kWeightRowsOfAtoms[static_cast<int32_t>(format)];
    if (of_atoms == 0) return tiles;
    return times(tiles, rows) + times(n / kAtomRows + (n % kAtomRows != 0), of_atoms);
  }
  constexpr int64_t row_bytes(int64_t k) const {
    const int64_t run = kWeightRuns[static_cast<int32_t>(format)];
    return times(k / run + (k % run != 0), kWeightRunBytes[static_cast<int32_t>(format)]);
  }
  constexpr int64_t num_bytes(int64_t n, int64_t k) const { return times(num_rows(n), row_bytes(k)); }
};

constexpr uint64_t bit_of(Argument argument) { return uint64_t{1} << static_cast<int32_t>(argument); }

// Whether a call has an operand.
enum class Presence : int32_t { kNone, kOptional, kRequired };

// D = epilogue(A @ B^T): a line of the catalogue, aot.core.operation.Operation, whatever its layout.
struct Operation {
  const char* tag;    // as aot_gemm_operation takes it: that of the types, then that of the epilogue
  const char* types;  // the tag's part of the types, behind which the tag of a section has the layout
  Element a;  // TF32 products are of kFloat32: it is what lies in memory
  Element b;  // of a packed weight a byte
  Element d;  // and of a residual
  Element bias_element;
  // Float32: none; one for each row of A and of B (n, k), or one for all; or one for each 128 elements along k of a row of
  // A, and for each 128 by 128 elements of B. Or narrow ones in atoms.
  Scale scale;
  AtomFormat atoms;   // of Scale::kAtoms
  AtomFormat blocks_d;  // the factors of D's blocks along n, which are written; of no block where D is elements alone
  PackedFormat weight;  // what B is, where that is no matrix of elements; then factors, if any, are those of B alone
  Epilogue epilogue;  // all but kNone and kBias add the bias first, where there is one
  Presence bias;
  bool is_fast;       // FP8 sums stay in the tensor core's accumulator for all of k
  bool is_tf32;       // float32 in memory, of which the tensor cores read 19 bits
  // What kernels other than the fallback take, as aot.core.formats.Operand has it: bytes of which the address and the
  // leading stride of A and of B are multiples, and what k is a multiple of; powers of two.
  int32_t a_alignment;
  int32_t b_alignment;
  int32_t k_step;
  bool can_exchange;  // the problem with A and B exchanged, which computes D's transpose, is of the operation too
  uint32_t layouts;   // a bit for each layout that the table has a section of
  Grouping grouping;
  int32_t batched;  // index of the operation that computes a batch of this one's products; -1 where there is none
  uint64_t arguments;  // bits of those that every kernel of it takes

  bool takes(Argument argument) const { return (arguments & bit_of(argument)) != 0; }
  // Says whether there is one factor more: of a D of 8 bits before it is rounded, or of all of A and B for the sum.
  bool scales_d() const { return takes(Argument::kScaleD); }
  // Says whether factors are written beside D.
  bool writes_factors() const { return blocks_d.block_k > 0; }
  bool has_residual() const { return epilogue == Epilogue::kResidual; }
  // With a gate B has 2 n rows: the gate's and the linear ones.
  bool has_gate() const { return epilogue == Epilogue::kSwiglu || epilogue == Epilogue::kGeglu; }
  // Says whether a gate's rows of B alternate with the linear ones in any case: factors in atoms lie as the rows do.
  bool is_interleaved() const { return has_gate() && scale == Scale::kAtoms; }
  // Says whether B, D and the bias are those of several weights.
  bool has_parts() const { return epilogue == Epilogue::kMany; }
  // Says whether groups are found by offsets, and may be of any size.
  bool has_offsets() const { return groups_rows() || grouping == Grouping::kKgrouped; }
  // Says whether groups are runs of rows of D.
  bool groups_rows() const { return grouping == Grouping::kGrouped || gathers(); }
  // Says whether an index names the rows of A.
  bool gathers() const { return grouping == Grouping::kGathered; }
  // Says whether each group of rows has atoms of factors of its own.
  bool has_atoms_of_groups() const { return groups_rows() && scale == Scale::kAtoms; }
  // Says whether there are operands beside A, B, D and a bias.
  bool takes_further() const { return scale != Scale::kNone || has_residual() || writes_factors(); }
};

// Written by table.cc, an operation once.
extern const Operation kOperations[];
extern const int32_t kNumOperations;

ElementType type_of(Element element);

// Gives the bits of an element: what type_of says, without a look into memory.
constexpr int64_t bits_in(Element element) {
  switch (element) {
    case Element::kE2m1:
      return 4;
    case Element::kE4m3:
    case Element::kE5m2:
    case Element::kE8m0:
    case Element::kInt8:
    case Element::kUint8:
      return 8;
    case Element::kBfloat16:
    case Element::kFloat16:
      return 16;
    default:
      return 32;
  }
}

// Gives the bytes of an element that shares none with another.
constexpr int64_t bytes_of(Element element) { return bits_in(element) / 8; }

// Says whether elements share bytes.
constexpr bool is_packed(Element element) { return bits_in(element) < 8; }

// Gives the bytes of elements that fill whole ones, as `times` does.
constexpr int64_t size_of(Element element, int64_t count) {
  if (is_packed(element)) return count / (8 / bits_in(element));
  return times(count, bytes_of(element));
}

// The C API's number of an operation: far from the small numbers that a struct may hold by mistake.
constexpr int32_t kFirstOperationId = 1 << 16;

inline int32_t id_of(int32_t index) { return kFirstOperationId + index; }

// Finds the index of a problem's operation. Fails where there is none.
aot_gemm_status_t find_operation(int32_t id, int32_t* index);

// Finds the element type that DLPack describes so; says false where no operation of the catalogue has it.
bool find_element(int32_t dlpack_code, int32_t bits, Element* element);

// Lists tags, such as "bf16, fp16".
struct Tags {
  char characters[512];
};
Tags list_operations();

// Writes the tag of an operation in a layout, such as "bf16_kk_bias".
struct SectionTag {
  char characters[48];
};
SectionTag section_tag(const Operation& operation, int32_t layout);

}  // namespace aot

#endif  // AOT_GEMM_OPERATION_H_
