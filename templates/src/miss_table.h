// What the miss log counts, in memory and bounded, and its text, which aot/core/miss_log.py reads too.
#ifndef AOT_GEMM_MISS_TABLE_H_
#define AOT_GEMM_MISS_TABLE_H_

#include <cstdint>
#include <cstdio>

namespace aot {

// Why no tuned (n, k) answered: the grid did; an address or a stride is no multiple of 16 bytes; or an operand has no
// contiguous mode, and is written as k-major.
enum class Miss : int32_t { kGrid, kUnaligned, kStrided };

struct MissKey {
  int32_t kind;  // why, and which operation
  int64_t n;
  int64_t k;

  static MissKey of(Miss miss, int32_t operation, int32_t layout, int64_t n, int64_t k);
};

// Launches of one m. `written` are those that the file had when it was last read, `pending` those since.
struct MissRow {
  int64_t m;
  int64_t written;
  int64_t pending;
};

// Counts launches by (n, k) and m. When one (n, k) has had more than kMaxExact m, its m are rounded up to three binary
// digits (8, 10, 12, 14, 16, 20, 24, ...), as a ladder of buckets would. Past kMaxWeights, launches count as dropped.
//
// Plain data that starts at zero, so that a library that logs nothing never touches its memory.
class MissTable {
 public:
  static constexpr int32_t kMaxWeights = 512;
  static constexpr int32_t kMaxExact = 64;
  static constexpr int32_t kMaxRows = 128;  // 31 bits have 120 numbers of at most three binary digits
  // More than `write` ever writes: of each weight, kMaxRows numbers of up to 10 and of up to 19 digits, and some text.
  static constexpr int64_t kMaxBytes = int64_t{kMaxWeights} * (kMaxRows * (10 + 2 + 19 + 2) + 1024);

  void count(const MissKey& key, int64_t m) { add(key, m, 0, 1); }
  int32_t num_rows() const { return num_rows_; }
  bool has_pending() const;

  // Takes on what the file says in place of what it said before. Gives 0, or the number of the first line that is not
  // as `write` writes it.
  int32_t read(FILE* file);
  void write(FILE* file) const;

  // Says that all that was pending is in the file.
  void settle();
  // Forgets what the file said: it is not there any more.
  void forget_written();
  // Forgets all: in a forked child, whose parent will write it.
  void clear();

 private:
  struct Weight {
    MissKey key;
    int32_t num_rows;
    bool is_rounded;
    MissRow rows[kMaxRows];
  };
  static constexpr int32_t kNumSlots = 2 * kMaxWeights;

  Weight* find(const MissKey& key);
  void add(const MissKey& key, int64_t m, int64_t written, int64_t pending);
  void round_rows(Weight* weight);

  int32_t num_weights_;
  int32_t num_rows_;
  int64_t dropped_written_;
  int64_t dropped_pending_;
  int16_t slots_[kNumSlots];  // 1 + the index of a weight; 0: free
  Weight weights_[kMaxWeights];
};

}  // namespace aot

#endif  // AOT_GEMM_MISS_TABLE_H_
