#include "miss_table.h"

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>

namespace aot {

namespace {

constexpr char kFirstLine[] = "# Launches that no tuned (n, k) answered, counted for AOT_GEMM_MISSES.\n";
constexpr char kSecondLine[] =
    "# aot tune --shapes THIS_FILE tunes them. Counts add up over processes and runs; delete the file to start anew.\n";

constexpr int32_t kNumMisses = 3;
constexpr const char* kNames[kNumMisses] = {"grid", "unaligned", "strided"};
constexpr const char* kDescriptions[kNumMisses] = {
    "answered by the grid: this (n, k) has no ladder of m",
    "computed by the fallback: an address or a leading stride is no multiple of 16 bytes",
    "computed by the fallback: an operand has no contiguous mode",
};
constexpr const char* kDtypes[] = {"bfloat16", "float16"};
constexpr const char* kTags[] = {"bf16", "fp16"};
constexpr const char* kLayouts[] = {"kk", "kn", "mk", "mn"};

// The longest line is that of 128 counts of up to 19 digits.
constexpr int32_t kMaxLine = 4096;

int64_t add_saturated(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

// Rounds up to three binary digits, but not past the largest extent.
int64_t round_up(int64_t m) {
  int64_t step = 1;
  while (m > 8 * step) step *= 2;
  return std::min<int64_t>((m + step - 1) / step * step, INT32_MAX);
}

bool equal(const MissKey& a, const MissKey& b) {
  return a.miss == b.miss && a.dtype == b.dtype && a.layout == b.layout && a.n == b.n && a.k == b.k;
}

bool precedes(const MissKey& a, const MissKey& b) {
  if (a.miss != b.miss) return a.miss < b.miss;
  if (a.dtype != b.dtype) return a.dtype < b.dtype;
  if (a.layout != b.layout) return a.layout < b.layout;
  return a.n != b.n ? a.n < b.n : a.k < b.k;
}

uint64_t hash(const MissKey& key) {
  uint64_t value = static_cast<uint64_t>(key.miss) * 8 + static_cast<uint64_t>(key.dtype) * 4;
  value += static_cast<uint64_t>(key.layout);
  // Odd constants with well mixed bits, of the splitmix64 generator.
  value = (value ^ static_cast<uint64_t>(key.n)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 31 ^ static_cast<uint64_t>(key.k)) * 0x94d049bb133111ebu;
  return value ^ value >> 29;
}

// Reads the lines that `MissTable::write` writes, and counts them.
class Reader {
 public:
  explicit Reader(FILE* file) : file_(file) {}

  int32_t line() const { return line_; }

  // Goes to the next line that is neither empty nor, after the first, a comment; says false at the end, or where a file
  // that grows while it is read has had more lines than a log has bytes.
  bool next() {
    do {
      if (line_ == MissTable::kMaxBytes || std::fgets(text_, kMaxLine, file_) == nullptr) return false;
      ++line_;
    } while (line_ > 1 && (text_[0] == '#' || text_[0] == '\n'));
    return true;
  }

  bool is(const char* line) const { return std::strcmp(text_, line) == 0; }

  // Reads `key = ["name"]` or `key = "name"`; gives the name's index, or -1.
  int32_t one_of(const char* before, const char* const* names, int32_t num_names, const char* after) const {
    for (int32_t i = 0; i < num_names; ++i) {
      char line[256];
      std::snprintf(line, sizeof(line), "%s%s%s", before, names[i], after);
      if (is(line)) return i;
    }
    return -1;
  }

  // Reads `before`, then up to `limit` numbers separated by ", ", then "after"; gives how many, or -1.
  int32_t numbers(const char* before, const char* after, int32_t limit, int64_t* values) const {
    const size_t length = std::strlen(before);
    if (std::strncmp(text_, before, length) != 0) return -1;
    const char* at = text_ + length;
    int32_t count = 0;
    while (count < limit) {
      char* end = nullptr;
      if (*at < '0' || *at > '9') return -1;
      values[count++] = std::strtoll(at, &end, 10);
      if (std::strcmp(end, after) == 0) return count;
      if (std::strncmp(end, ", ", 2) != 0) return -1;
      at = end + 2;
    }
    return -1;
  }

  bool read_weight(MissKey* key) const {
    int64_t n = 0;
    int64_t k = 0;
    int end = 0;
    constexpr char kFormat[] = "weights = [{ name = \"n%*[0-9]_k%*[0-9]\", n = %10" SCNd64 ", k = %10" SCNd64 " }]%n";
    if (std::sscanf(text_, kFormat, &n, &k, &end) != 2 || end == 0 || std::strcmp(text_ + end, "\n") != 0) return false;
    key->n = n;
    key->k = k;
    return n >= 1 && n <= INT32_MAX && k >= 1 && k <= INT32_MAX;
  }

 private:
  FILE* file_;
  int32_t line_ = 0;
  char text_[kMaxLine];
};

// Reads one [[model]] after its first line. `m` and `counts` have room for kMaxRows; gives how many, or -1.
int32_t read_model(Reader* reader, MissKey* key, int64_t* m, int64_t* counts) {
  if (!reader->next()) return -1;  // the name follows from the rest
  if (!reader->next()) return -1;
  const int32_t miss = reader->one_of("description = \"", kDescriptions, kNumMisses, "\"\n");
  if (miss < 0 || !reader->next()) return -1;
  key->miss = static_cast<Miss>(miss);
  key->dtype = reader->one_of("dtypes = [\"", kDtypes, 2, "\"]\n");
  if (key->dtype < 0 || !reader->next()) return -1;
  key->layout = reader->one_of("layouts = [\"", kLayouts, 4, "\"]\n");
  if (key->layout < 0 || !reader->next()) return -1;
  if (!reader->read_weight(key) || !reader->next()) return -1;
  const int32_t num_rows = reader->numbers("m = [", "]\n", MissTable::kMaxRows, m);
  if (num_rows < 0 || !reader->next()) return -1;
  for (int32_t i = 0; i < num_rows; ++i) {
    if (m[i] < 1 || m[i] > INT32_MAX) return -1;
  }
  return reader->numbers("counts = [", "]\n", MissTable::kMaxRows, counts) == num_rows ? num_rows : -1;
}

template <typename Value>
void write_list(FILE* file, const char* name, const MissRow* rows, int32_t num_rows, Value value) {
  std::fprintf(file, "%s = [", name);
  for (int32_t i = 0; i < num_rows; ++i) std::fprintf(file, "%s%" PRId64, i == 0 ? "" : ", ", value(rows[i]));
  std::fprintf(file, "]\n");
}

}  // namespace

MissTable::Weight* MissTable::find(const MissKey& key) {
  auto slot = static_cast<uint32_t>(hash(key)) % kNumSlots;
  for (; slots_[slot] != 0; slot = (slot + 1) % kNumSlots) {
    Weight* weight = &weights_[slots_[slot] - 1];
    if (equal(weight->key, key)) return weight;
  }
  if (num_weights_ == kMaxWeights) return nullptr;
  Weight* weight = &weights_[num_weights_];
  weight->key = key;
  slots_[slot] = static_cast<int16_t>(++num_weights_);
  return weight;
}

void MissTable::add(const MissKey& key, int64_t m, int64_t written, int64_t pending) {
  Weight* weight = find(key);
  if (weight == nullptr) {
    dropped_written_ = add_saturated(dropped_written_, written);
    dropped_pending_ = add_saturated(dropped_pending_, pending);
    return;
  }
  if (weight->is_rounded) m = round_up(m);
  MissRow* end = weight->rows + weight->num_rows;
  MissRow* row = std::lower_bound(weight->rows, end, m, [](const MissRow& x, int64_t value) { return x.m < value; });
  if (row == end || row->m != m) {
    std::move_backward(row, end, end + 1);
    *row = {m, 0, 0};
    ++weight->num_rows;
    ++num_rows_;
  }
  row->written = add_saturated(row->written, written);
  row->pending = add_saturated(row->pending, pending);
  if (weight->num_rows > kMaxExact && !weight->is_rounded) round_rows(weight);
}

void MissTable::round_rows(Weight* weight) {
  weight->is_rounded = true;
  num_rows_ -= weight->num_rows;
  MissRow* last = weight->rows;
  last->m = round_up(last->m);
  for (const MissRow* row = weight->rows + 1; row != weight->rows + weight->num_rows; ++row) {
    const MissRow rounded = {round_up(row->m), row->written, row->pending};
    if (rounded.m == last->m) {
      *last = {last->m, add_saturated(last->written, rounded.written), add_saturated(last->pending, rounded.pending)};
    } else {
      *++last = rounded;
    }
  }
  weight->num_rows = static_cast<int32_t>(last + 1 - weight->rows);
  num_rows_ += weight->num_rows;
}

bool MissTable::has_pending() const {
  if (dropped_pending_ > 0) return true;
  for (int32_t i = 0; i < num_weights_; ++i) {
    const Weight& weight = weights_[i];
    for (int32_t j = 0; j < weight.num_rows; ++j) {
      if (weight.rows[j].pending > 0) return true;
    }
  }
  return false;
}

void MissTable::forget_written() {
  dropped_written_ = 0;
  num_rows_ = 0;
  for (int32_t i = 0; i < num_weights_; ++i) {
    Weight& weight = weights_[i];
    int32_t kept = 0;
    for (int32_t j = 0; j < weight.num_rows; ++j) {
      if (weight.rows[j].pending > 0) weight.rows[kept++] = {weight.rows[j].m, 0, weight.rows[j].pending};
    }
    weight.num_rows = kept;
    weight.is_rounded = weight.is_rounded && kept > 0;
    num_rows_ += kept;
  }
}

int32_t MissTable::read(FILE* file) {
  forget_written();
  Reader reader(file);
  if (!reader.next()) return 0;  // an empty file
  if (!reader.is(kFirstLine) || !reader.next() || !reader.is("version = 1\n")) return std::max(reader.line(), 1);
  if (!reader.next() || reader.numbers("dropped = ", "\n", 1, &dropped_written_) != 1) return reader.line();
  while (reader.next()) {
    MissKey key;
    int64_t m[kMaxRows];
    int64_t counts[kMaxRows];
    if (!reader.is("[[model]]\n")) return reader.line();
    const int32_t num_rows = read_model(&reader, &key, m, counts);
    if (num_rows < 0) return reader.line();
    for (int32_t i = 0; i < num_rows; ++i) add(key, m[i], counts[i], 0);
  }
  return 0;
}

void MissTable::write(FILE* file) const {
  std::fprintf(file, "%s%sversion = 1\ndropped = %" PRId64 "\n", kFirstLine, kSecondLine,
               add_saturated(dropped_written_, dropped_pending_));
  int16_t order[kMaxWeights];
  for (int32_t i = 0; i < num_weights_; ++i) order[i] = static_cast<int16_t>(i);
  std::sort(order, order + num_weights_,
            [this](int16_t i, int16_t j) { return precedes(weights_[i].key, weights_[j].key); });
  for (int32_t i = 0; i < num_weights_; ++i) {
    const Weight& weight = weights_[order[i]];
    const MissKey& key = weight.key;
    if (weight.num_rows == 0) continue;
    const auto miss = static_cast<int32_t>(key.miss);
    std::fprintf(file, "\n[[model]]\nname = \"%s %s_%s n%" PRId64 " k%" PRId64 "\"\ndescription = \"%s\"\n", kNames[miss],
                 kTags[key.dtype], kLayouts[key.layout], key.n, key.k, kDescriptions[miss]);
    std::fprintf(file, "dtypes = [\"%s\"]\nlayouts = [\"%s\"]\n", kDtypes[key.dtype], kLayouts[key.layout]);
    std::fprintf(file, "weights = [{ name = \"n%" PRId64 "_k%" PRId64 "\", n = %" PRId64 ", k = %" PRId64 " }]\n", key.n,
                 key.k, key.n, key.k);
    write_list(file, "m", weight.rows, weight.num_rows, [](const MissRow& row) { return row.m; });
    write_list(file, "counts", weight.rows, weight.num_rows,
               [](const MissRow& row) { return add_saturated(row.written, row.pending); });
  }
}

void MissTable::settle() {
  dropped_written_ = add_saturated(dropped_written_, dropped_pending_);
  dropped_pending_ = 0;
  for (int32_t i = 0; i < num_weights_; ++i) {
    Weight& weight = weights_[i];
    for (int32_t j = 0; j < weight.num_rows; ++j) {
      MissRow& row = weight.rows[j];
      row = {row.m, add_saturated(row.written, row.pending), 0};
    }
  }
}

void MissTable::clear() {
  for (int32_t i = 0; i < num_weights_; ++i) {
    weights_[i].num_rows = 0;
    weights_[i].is_rounded = false;
  }
  num_rows_ = 0;
  dropped_written_ = 0;
  dropped_pending_ = 0;
}

}  // namespace aot
