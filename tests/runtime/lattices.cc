// Compares lattice.cc with a list of every element, over random small matrices, of one element size and of several; then
// walks extents and strides at the limits, for the sanitizers to see. Argument: how many matrices. Prints what differs,
// and the counts.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "lattice.h"

namespace {

struct Matrix {
  uintptr_t address;
  aot::Axis axes[2];
  int64_t element_bytes;
};

std::mt19937_64 generator(12);

int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(generator); }

// Lists the address of each element; those of an axis of one step have no stride.
std::vector<uintptr_t> elements(const Matrix& matrix) {
  std::vector<uintptr_t> listed;
  for (int64_t i = 0; i < matrix.axes[0].extent; ++i) {
    for (int64_t j = 0; j < matrix.axes[1].extent; ++j) {
      const int64_t position = i * matrix.axes[0].stride + j * matrix.axes[1].stride;
      listed.push_back(matrix.address + static_cast<uintptr_t>(position * matrix.element_bytes));
    }
  }
  return listed;
}

// Elements of `element_bytes`, at a multiple of those.
Matrix draw_matrix(bool packed, int64_t element_bytes) {
  Matrix matrix = {static_cast<uintptr_t>(1000 + element_bytes * draw(0, 80 / element_bytes)),
                   {{draw(0, 6), draw(0, 20)}, {draw(0, 6), 1}},
                   element_bytes};
  if (!packed) matrix.axes[1].stride = draw(0, 20);
  if (!packed && draw(0, 9) == 0) ++matrix.address;
  if (draw(0, 1) == 1) std::swap(matrix.axes[0], matrix.axes[1]);
  return matrix;
}

// Says whether one byte is of an element of both.
bool share(const Matrix& a, const Matrix& b) {
  const std::vector<uintptr_t> of_b = elements(b);
  for (const uintptr_t x : elements(a)) {
    for (const uintptr_t y : of_b) {
      if (x < y + static_cast<uintptr_t>(b.element_bytes) && y < x + static_cast<uintptr_t>(a.element_bytes)) return true;
    }
  }
  return false;
}

struct Counts {
  int64_t overlaps;
  int64_t missed_overlaps;   // never
  int64_t needless_overlaps;  // never of packed matrices
  int64_t distinct;
  int64_t missed_repeats;    // never
  int64_t needless_repeats;  // never of packed matrices
  int64_t wrong_spans;       // never
};

void show(const char* what, const Matrix& a, const Matrix& b) {
  std::printf("%s:", what);
  for (const Matrix& x : {a, b}) {
    std::printf(" at %zu (%d, %d) by (%d, %d)", static_cast<size_t>(x.address), static_cast<int>(x.axes[0].extent),
                static_cast<int>(x.axes[1].extent), static_cast<int>(x.axes[0].stride),
                static_cast<int>(x.axes[1].stride));
  }
  std::printf("\n");
}

aot::Lattice make(const Matrix& matrix, Counts* counts) {
  aot::Lattice lattice;
  const bool fits = aot::make_lattice(matrix.address, matrix.axes[0], matrix.axes[1], matrix.element_bytes, &lattice);
  const std::vector<uintptr_t> listed = elements(matrix);
  uintptr_t end = matrix.address;
  for (const uintptr_t x : listed) end = std::max(end, x + static_cast<uintptr_t>(matrix.element_bytes));
  if (!fits || lattice.begin != matrix.address || lattice.end != end) {
    ++counts->wrong_spans;
    show("wrong span", matrix, matrix);
  }
  return lattice;
}

void compare(bool packed, bool mixed, Counts* counts) {
  const Matrix a = draw_matrix(packed, mixed ? int64_t{1} << draw(0, 2) : 2);
  const Matrix b = draw_matrix(packed, mixed ? int64_t{1} << draw(0, 2) : 2);
  const aot::Lattice first = make(a, counts);
  const aot::Lattice second = make(b, counts);
  const std::vector<uintptr_t> listed = elements(a);
  const bool truth = share(a, b);
  const bool answer = aot::overlap(first, second);
  counts->overlaps += truth;
  if (answer != aot::overlap(second, first)) show("not symmetric", a, b);
  if (truth && !answer) {
    ++counts->missed_overlaps;
    show("missed", a, b);
  }
  if (!truth && answer) {
    ++counts->needless_overlaps;
    if (packed) show("needless", a, b);
  }
  const bool is_distinct = std::set<uintptr_t>(listed.begin(), listed.end()).size() == listed.size();
  counts->distinct += is_distinct && !listed.empty();
  if (listed.empty()) return;
  if (!is_distinct && aot::is_distinct(first)) {
    ++counts->missed_repeats;
    show("repeats", a, a);
  }
  if (is_distinct && !aot::is_distinct(first)) {
    ++counts->needless_repeats;
    if (packed) show("does not repeat", a, a);
  }
}

// Extents and strides at the limits, where the sanitizers would see an overflow; gives how many fit the address space.
// Without an overflow, spans are those of 128-bit arithmetic.
int64_t walk_limits(int64_t count, Counts* counts) {
  const int64_t extents[] = {0, 1, 2, 3, 7, INT64_C(1) << 16, (INT64_C(1) << 16) + 1, INT32_MAX};
  const int64_t powers[] = {0, 1, 2, 7, 20, 30, 31, 32, 40, 46, 60, 61, 62};
  const auto draw_stride = [&powers] {
    const int64_t power = INT64_C(1) << powers[draw(0, 12)];
    return draw(0, 9) == 0 ? INT64_MAX : std::max<int64_t>(0, power + draw(-2, 2));
  };
  int64_t num_fitting = 0;
  std::vector<aot::Lattice> fitting;
  for (int64_t i = 0; i < count; ++i) {
    const uintptr_t addresses[] = {2, 1000, uintptr_t{1} << 47, uintptr_t{1} << 63, UINTPTR_MAX - 3, UINTPTR_MAX};
    const Matrix matrix = {addresses[draw(0, 5)] - static_cast<uintptr_t>(draw(0, 3)),
                           {{extents[draw(0, 7)], draw_stride()}, {extents[draw(0, 7)], draw_stride()}},
                           int64_t{1} << draw(0, 2)};
    aot::Lattice lattice;
    const bool fits = aot::make_lattice(matrix.address, matrix.axes[0], matrix.axes[1], matrix.element_bytes, &lattice);
    const bool is_empty = matrix.axes[0].extent == 0 || matrix.axes[1].extent == 0;
    __int128 last = 0;
    for (const aot::Axis& axis : matrix.axes) last += static_cast<__int128>(axis.extent - 1) * axis.stride;
    const __int128 end = is_empty ? matrix.address : matrix.address + (last + 1) * matrix.element_bytes;
    const bool could = end <= UINTPTR_MAX && (is_empty || (last + 1) * matrix.element_bytes <= INT64_MAX);
    if (fits != could || (fits && lattice.end != static_cast<uintptr_t>(end))) ++counts->wrong_spans;
    if (!fits) continue;
    ++num_fitting;
    (void)aot::is_distinct(lattice);
    for (const aot::Lattice& other : fitting) (void)aot::overlap(lattice, other);
    if (fitting.size() < 3) {
      fitting.push_back(lattice);
    } else {
      fitting[static_cast<size_t>(draw(0, 2))] = lattice;
    }
  }
  return num_fitting;
}

}  // namespace

int main(int, char** arguments) {
  const int64_t count = std::atoll(arguments[1]);
  for (const int32_t kind : {0, 1, 2, 3}) {
    const bool packed = kind % 2 == 0;
    Counts counts{};
    for (int64_t i = 0; i < count; ++i) compare(packed, kind >= 2, &counts);
    std::printf("%s%s %d %d %d %d %d\n", kind >= 2 ? "mixed " : "", packed ? "packed" : "any",
                static_cast<int>(counts.missed_overlaps), static_cast<int>(counts.missed_repeats),
                static_cast<int>(counts.wrong_spans),
                packed ? static_cast<int>(counts.needless_overlaps) : 0,
                packed ? static_cast<int>(counts.needless_repeats) : 0);
    std::printf("%d %d %d\n", static_cast<int>(counts.overlaps), static_cast<int>(counts.distinct),
                static_cast<int>(counts.needless_overlaps));
  }
  Counts counts{};
  const int64_t num_fitting = walk_limits(count / 20, &counts);
  std::printf("limits %d\n%d\n", static_cast<int>(counts.wrong_spans), static_cast<int>(num_fitting));
}
