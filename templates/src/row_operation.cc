#include "row_operation.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.h"

namespace aot {

namespace {

Tags list_row_operations() {
  Tags tags = {"none"};
  size_t used = 0;
  for (int32_t i = 0; i < kNumRowOperations && used < sizeof(tags.characters); ++i) {
    const int length = std::snprintf(tags.characters + used, sizeof(tags.characters) - used, "%s%s", i > 0 ? ", " : "",
                                     kRowOperations[i].tag);
    used += static_cast<size_t>(length);
  }
  return tags;
}

}  // namespace

aot_gemm_status_t find_row_operation(int32_t id, int32_t* index) {
  *index = id - kFirstRowOperationId;
  if (id >= kFirstRowOperationId && *index < kNumRowOperations) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_OPERATION,
              "row operation %" PRId32 " is unknown; expected a number that aot_rows_operation returned in this process", id);
}

int32_t find_row_operation(RowFunction function, Element x, Element y, RowScale scale) {
  for (int32_t i = 0; i < kNumRowOperations; ++i) {
    const RowOperation& found = kRowOperations[i];
    if (found.function == function && found.x == x && found.y == y && found.scale == scale) return i;
  }
  return -1;
}

}  // namespace aot

int32_t aot_rows_operation(const char* tag) {
  if (tag == nullptr) return -aot::fail(AOT_GEMM_ERROR_ARGUMENT, "`tag` is null; expected such as \"bf16_rms_norm\"");
  for (int32_t i = 0; i < aot::kNumRowOperations; ++i) {
    if (std::strcmp(aot::kRowOperations[i].tag, tag) == 0) return aot::row_id_of(i);
  }
  return -aot::fail(AOT_GEMM_ERROR_OPERATION, "there is no row operation \"%.64s\" in this library; it has %s", tag,
                    aot::list_row_operations().characters);
}
