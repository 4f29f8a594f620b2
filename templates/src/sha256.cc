#include "sha256.h"

#include <cstdint>
#include <cstring>

namespace aot {

namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kLengthBytes = 8;  // of the message's bits, at the end of the last block

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes: FIPS 180-4, section 4.2.2.
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

struct State {
  // Likewise of the square roots of the first 8 primes: section 5.3.3.
  uint32_t words[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

uint32_t rotate(uint32_t word, int count) { return word >> count | word << (32 - count); }

uint32_t read_word(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void add_block(const unsigned char* block, State* state) {
  uint32_t schedule[64];
  for (int i = 0; i < 16; ++i) schedule[i] = read_word(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t old = schedule[i - 15], last = schedule[i - 2];
    const uint32_t of_old = rotate(old, 7) ^ rotate(old, 18) ^ old >> 3;
    const uint32_t of_last = rotate(last, 17) ^ rotate(last, 19) ^ last >> 10;
    schedule[i] = schedule[i - 16] + of_old + schedule[i - 7] + of_last;
  }
  uint32_t w[8];
  std::memcpy(w, state->words, sizeof(w));
  for (int i = 0; i < 64; ++i) {
    const uint32_t choice = (w[4] & w[5]) ^ (~w[4] & w[6]);
    const uint32_t majority = (w[0] & w[1]) ^ (w[0] & w[2]) ^ (w[1] & w[2]);
    const uint32_t first =
        w[7] + (rotate(w[4], 6) ^ rotate(w[4], 11) ^ rotate(w[4], 25)) + choice + kRounds[i] + schedule[i];
    const uint32_t second = (rotate(w[0], 2) ^ rotate(w[0], 13) ^ rotate(w[0], 22)) + majority;
    std::memmove(w + 1, w, 7 * sizeof(*w));
    w[4] += first;
    w[0] = first + second;
  }
  for (int i = 0; i < 8; ++i) state->words[i] += w[i];
}

}  // namespace

void write_sha256(const char* bytes, size_t num_bytes, char (&text)[kSha256Text]) {
  State state;
  const auto* next = reinterpret_cast<const unsigned char*>(bytes);
  size_t left = num_bytes;
  for (; left >= kBlockBytes; left -= kBlockBytes, next += kBlockBytes) add_block(next, &state);
  unsigned char tail[2 * kBlockBytes] = {};
  if (left > 0) std::memcpy(tail, next, left);
  tail[left] = 0x80;
  const size_t num_tail = left + 1 + kLengthBytes <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    tail[num_tail - 1 - i] = static_cast<unsigned char>(uint64_t{num_bytes} * 8 >> 8 * i);
  }
  for (size_t i = 0; i < num_tail; i += kBlockBytes) add_block(tail + i, &state);
  for (size_t i = 0; i < kSha256Text - 1; ++i) {
    text[i] = "0123456789abcdef"[state.words[i / 8] >> (28 - 4 * (i % 8)) & 15];
  }
  text[kSha256Text - 1] = '\0';
}

}  // namespace aot
