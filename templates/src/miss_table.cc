#include "miss_table.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "dispatch.h"
#include "operation.h"

namespace aot {

namespace {

constexpr char kFirstLine[] = "# aot_gemm misses 1\n";
constexpr char kComment[] =
    "# Launches that no tuned (n, k) answered: why, operation, n, k, then each m x its launches. Counts add up over\n"
    "# processes and runs; delete the file to start anew. `aot shapes from-misses THIS_FILE -o shapes.toml` makes a set\n"
    "# of shapes of it.\n";

constexpr char kDropped[] = "dropped ";

constexpr int32_t kNumMisses = 3;
constexpr const char* kMisses[kNumMisses] = {"grid", "unaligned", "strided"};

// More than the longest line has: why, operation, n and k, and kMaxRows times an m and its launches of up to 19 digits.
constexpr int32_t kMaxLine = 96 + MissTable::kMaxRows * (10 + 1 + 19 + 1);

int64_t add_saturated(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

// Rounds up to three binary digits, but not past the largest extent.
int64_t round_up(int64_t m) {
  int64_t step = 1;
  while (m > 8 * step) step *= 2;
  return std::min<int64_t>((m + step - 1) / step * step, INT32_MAX);
}

bool equal(const MissKey& a, const MissKey& b) { return a.kind == b.kind && a.n == b.n && a.k == b.k; }

bool precedes(const MissKey& a, const MissKey& b) {
  if (a.kind != b.kind) return a.kind < b.kind;
  return a.n != b.n ? a.n < b.n : a.k < b.k;
}

uint64_t hash(const MissKey& key) {
  // Odd constants with well mixed bits, of the splitmix64 generator.
  uint64_t value = (static_cast<uint64_t>(key.kind) ^ static_cast<uint64_t>(key.n)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 31 ^ static_cast<uint64_t>(key.k)) * 0x94d049bb133111ebu;
  return value ^ value >> 29;
}

// Moves past a text. Says false, and stays, where it is not there.
bool skip(const char** at, const char* text) {
  const size_t length = std::strlen(text);
  if (std::strncmp(*at, text, length) != 0) return false;
  *at += length;
  return true;
}

// Reads a number from 1 to `most` and moves past it and the character behind it, which it returns; NUL where there is no
// such number.
char read_number(const char** at, int64_t most, int64_t* value) {
  int64_t number = 0;
  for (; **at >= '0' && **at <= '9'; ++*at) {
    const int64_t digit = **at - '0';
    if (number > (most - digit) / 10) return '\0';
    number = number * 10 + digit;
  }
  *value = number;
  return number == 0 ? '\0' : *(*at)++;
}

struct Text {
  char characters[64];
};

// Writes how a line begins: why, and which operation.
Text start_of(int32_t kind) {
  Text text;
  const Operation& operation = kOperations[kind / kNumLayouts % kNumOperations];
  std::snprintf(text.characters, sizeof(text.characters), "%s %s ", kMisses[kind / kNumLayouts / kNumOperations],
                section_tag(operation, kind % kNumLayouts).characters);
  return text;
}

// Reads why, operation, n and k, and moves past them.
bool read_key(const char** at, MissKey* key) {
  const int32_t num_kinds = kNumMisses * kNumOperations * kNumLayouts;
  for (key->kind = 0; key->kind < num_kinds; ++key->kind) {
    if (!skip(at, start_of(key->kind).characters)) continue;
    return read_number(at, INT32_MAX, &key->n) == ' ' && read_number(at, INT32_MAX, &key->k) == ' ';
  }
  return false;
}

// Reads each `m x launches` to the end of a line. Returns how many there were; 0 where something else is there.
int32_t read_rows(const char* at, MissRow* rows) {
  for (int32_t count = 0; count < MissTable::kMaxRows; ++count) {
    rows[count] = {0, 0, 0};
    if (read_number(&at, INT32_MAX, &rows[count].m) != 'x') return 0;
    const char end = read_number(&at, INT64_MAX, &rows[count].written);
    if (end == '\n') return count + 1;
    if (end != ' ') return 0;
  }
  return 0;
}

}  // namespace

MissKey MissKey::of(Miss miss, int32_t operation, int32_t layout, int64_t n, int64_t k) {
  return {(static_cast<int32_t>(miss) * kNumOperations + operation) * kNumLayouts + layout, n, k};
}

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
  char text[kMaxLine];
  // A file that grows while it is read ends where it has had more lines than a log has bytes.
  for (int32_t line = 1; line < kMaxBytes && std::fgets(text, kMaxLine, file) != nullptr; ++line) {
    if (line == 1 && std::strcmp(text, kFirstLine) != 0) return line;
    if (text[0] == '#') continue;
    const char* at = text;
    if (skip(&at, kDropped)) {
      int64_t dropped = 0;
      if (read_number(&at, INT64_MAX, &dropped) != '\n') return line;
      dropped_written_ = add_saturated(dropped_written_, dropped);
      continue;
    }
    MissKey key;
    MissRow rows[kMaxRows];
    const int32_t num_rows = read_key(&at, &key) ? read_rows(at, rows) : 0;
    if (num_rows == 0) return line;
    for (int32_t i = 0; i < num_rows; ++i) add(key, rows[i].m, rows[i].written, 0);
  }
  return 0;
}

void MissTable::write(FILE* file) const {
  std::fprintf(file, "%s%s", kFirstLine, kComment);
  const int64_t dropped = add_saturated(dropped_written_, dropped_pending_);
  if (dropped > 0) std::fprintf(file, "%s%" PRId64 "\n", kDropped, dropped);
  int16_t order[kMaxWeights];
  for (int32_t i = 0; i < num_weights_; ++i) order[i] = static_cast<int16_t>(i);
  std::sort(order, order + num_weights_,
            [this](int16_t i, int16_t j) { return precedes(weights_[i].key, weights_[j].key); });
  for (int32_t i = 0; i < num_weights_; ++i) {
    const Weight& weight = weights_[order[i]];
    const MissKey& key = weight.key;
    if (weight.num_rows == 0) continue;
    std::fprintf(file, "%s%" PRId64 " %" PRId64, start_of(key.kind).characters, key.n, key.k);
    for (const MissRow* row = weight.rows; row != weight.rows + weight.num_rows; ++row) {
      std::fprintf(file, " %" PRId64 "x%" PRId64, row->m, add_saturated(row->written, row->pending));
    }
    std::fputc('\n', file);
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
