// SHA-256 of a short text. Source: FIPS 180-4, section 6.2.
#ifndef AOT_GEMM_SHA256_H_
#define AOT_GEMM_SHA256_H_

#include <cstddef>

namespace aot {

constexpr size_t kSha256Text = 65;  // 64 hexadecimal digits and the end

// Writes the SHA-256 of `num_bytes` bytes as hexadecimal digits.
void write_sha256(const char* bytes, size_t num_bytes, char (&text)[kSha256Text]);

}  // namespace aot

#endif  // AOT_GEMM_SHA256_H_
