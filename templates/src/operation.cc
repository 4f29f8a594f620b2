#include "operation.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.h"

namespace aot {

namespace {

// By Element: kDLBfloat, kDLFloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2, kDLFloat4_e2m1fn, kDLFloat8_e8m0fnu, kDLInt and kDLUInt, of
// which the binding compares with dlpack.h those that are there.
constexpr int32_t kDlpackCodes[] = {4, 2, 2, 10, 12, 17, 14, 0, 0, 1};
static_assert(sizeof(kDlpackCodes) / sizeof(kDlpackCodes[0]) == kNumElements);

constexpr bool has_sizes_of_elements() {
  for (int32_t i = 0; i < kNumElements; ++i) {
    if (kElementBits[i] != bits_in(static_cast<Element>(i))) return false;
  }
  return true;
}
static_assert(has_sizes_of_elements());

}  // namespace

ElementType type_of(Element element) {
  const auto number = static_cast<int32_t>(element);
  return {kElementWords[number], kElementTags[number], kDlpackCodes[number], kElementBits[number]};
}

Tags list_operations() {
  Tags tags = {};
  size_t used = 0;
  for (int32_t i = 0; i < kNumOperations && used < sizeof(tags.characters); ++i) {
    const int length = std::snprintf(tags.characters + used, sizeof(tags.characters) - used, "%s%s", i > 0 ? ", " : "",
                                     kOperations[i].tag);
    used += static_cast<size_t>(length);
  }
  return tags;
}

aot_gemm_status_t find_operation(int32_t id, int32_t* index) {
  *index = id - kFirstOperationId;
  if (id >= kFirstOperationId && *index < kNumOperations) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_OPERATION,
              "operation %" PRId32 " is unknown; expected a number that aot_gemm_operation returned in this process", id);
}

bool find_element(int32_t dlpack_code, int32_t bits, Element* element) {
  for (int32_t i = 0; i < kNumElements; ++i) {
    *element = static_cast<Element>(i);
    if (kDlpackCodes[i] == dlpack_code && kElementBits[i] == bits) return true;
  }
  return false;
}

SectionTag section_tag(const Operation& operation, int32_t layout) {
  SectionTag tag;
  std::snprintf(tag.characters, sizeof(tag.characters), "%s_%s%s", operation.types, kLayoutWords[layout],
                operation.tag + std::strlen(operation.types));
  return tag;
}

}  // namespace aot

int32_t aot_gemm_operation(const char* tag) {
  if (tag == nullptr) return -aot::fail(AOT_GEMM_ERROR_ARGUMENT, "`tag` is null; expected such as \"bf16\"");
  for (int32_t i = 0; i < aot::kNumOperations; ++i) {
    if (std::strcmp(aot::kOperations[i].tag, tag) == 0) return aot::id_of(i);
  }
  return -aot::fail(AOT_GEMM_ERROR_OPERATION, "there is no operation \"%.64s\" in this library; it has %s", tag,
                    aot::list_operations().characters);
}
