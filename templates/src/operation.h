// What the library computes: its operations and their element types.
#ifndef AOT_GEMM_OPERATION_H_
#define AOT_GEMM_OPERATION_H_

#include <cstdint>

#include "aot_gemm.h"

namespace aot {

enum class Element : int32_t { kBfloat16, kFloat16 };

struct ElementType {
  const char* name;  // as torch has it
  const char* tag;
  int32_t dlpack_code;  // DLDataTypeCode of dlpack.h
  int32_t bits;

  int64_t num_bytes() const { return bits / 8; }
};

// D = A @ B^T, and a bias added to each row before the one rounding, where there is one. A, B, D and bias have one element
// type.
struct Operation {
  const char* tag;  // as aot_gemm_operation takes it: that of the element type, then what is added
  Element element;
  bool has_bias;
  uint32_t layouts;  // a bit for each layout that the table has a section of
};

// Written by table.cc, an operation once.
extern const Operation kOperations[];
extern const int32_t kNumOperations;

const ElementType& type_of(Element element);

inline const ElementType& type_of(const Operation& operation) { return type_of(operation.element); }

// The C API's number of an operation: far from the small numbers that a struct may hold by mistake.
constexpr int32_t kFirstOperationId = 1 << 16;

inline int32_t id_of(int32_t index) { return kFirstOperationId + index; }

// Finds the index of a problem's operation. Fails where there is none.
aot_gemm_status_t find_operation(int32_t id, int32_t* index);

// Finds the element type that DLPack describes so; says false where no operation has it.
bool find_element(int32_t dlpack_code, int32_t bits, Element* element);

// Finds the index of the operation of an element type, with or without a bias; -1 where the library has none.
int32_t find_operation(Element element, bool has_bias);

// Lists tags, such as "bf16, fp16".
struct Tags {
  char characters[128];
};
Tags list_operations();

// Writes the tag of an operation in a layout, such as "bf16_kk_bias".
struct SectionTag {
  char characters[32];
};
SectionTag section_tag(const Operation& operation, int32_t layout);

}  // namespace aot

#endif  // AOT_GEMM_OPERATION_H_
