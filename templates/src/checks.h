// Checks of operands as a caller states them, which products, groups and operations on rows share.
#ifndef AOT_GEMM_CHECKS_H_
#define AOT_GEMM_CHECKS_H_

#include <cstdint>

#include "aot_gemm.h"
#include "operation.h"

namespace aot {

// Most rows, columns or products that a call takes.
constexpr int64_t kMaxExtent = INT32_MAX;

// Gives the bit of an argument that a caller has stated; 0 of one that is null.
inline uint64_t bit_if_given(Argument argument, const void* data) { return data != nullptr ? bit_of(argument) : 0; }

// Refuses operands, by their bits, that an operation does not take: they would be left out.
aot_gemm_status_t fail_absent(uint64_t operands, const char* tag);
inline aot_gemm_status_t check_absent(uint64_t given, uint64_t arguments, const char* tag) {
  return (given & ~arguments) == 0 ? AOT_GEMM_OK : fail_absent(given & ~arguments, tag);
}

// Checks that an extent is 0 to `most`.
aot_gemm_status_t check_extent(const char* name, int64_t extent, int64_t most = kMaxExtent);

// Checks that no stride that is looked at is below 0.
aot_gemm_status_t check_strides(const char* name, const int64_t* strides, int64_t rows, int64_t columns);

// Checks that an address is a multiple of the bytes of its elements.
aot_gemm_status_t check_address(const char* name, const void* data, int64_t element_bytes);

// Checks the factors of A or B: a vector of one for each of `rows`, or one for all, or a matrix of blocks.
aot_gemm_status_t check_factors(const char* name, const aot_gemm_tensor_t& tensor, int64_t rows, int64_t columns,
                                Scale scale);

// Checks that packed weights have such a k, and that one begins at a multiple of 16 bytes.
aot_gemm_status_t check_packed_run(const char* name, const void* data, int64_t k, const PackedFormat& weight);

}  // namespace aot

#endif  // AOT_GEMM_CHECKS_H_
