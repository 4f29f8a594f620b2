#include "lattice.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>

namespace aot {

namespace {

// Rows that are compared one by one: more than that counts as an overlap, so that the time of a check is bounded.
constexpr int64_t kMaxComparedRows = 1 << 16;

int64_t floor_div(int64_t value, int64_t divisor) {
  return value / divisor - (value % divisor != 0 && value < 0 ? 1 : 0);
}

// Counts the elements from the first to past the last along an axis. `make_lattice` has seen that it does not overflow.
int64_t width(const Axis& axis) { return (axis.extent - 1) * axis.stride + 1; }

// Says whether one of `row`'s elements, `width_of_row` from `start` on, lies in a row of `other`. Positions are in
// elements from the first element of `other`.
bool meets_a_row(int64_t start, int64_t width_of_row, const Lattice& other) {
  const int64_t width_of_other = width(other.inner);
  // Row i of the other is [i * stride, i * stride + width_of_other): the last row that starts before the end of this
  // one must end past its start.
  const int64_t last_start = start + width_of_row - 1;
  if (last_start < 0) return false;
  const int64_t row = std::min(floor_div(last_start, std::max<int64_t>(other.outer.stride, 1)), other.outer.extent - 1);
  return row * other.outer.stride + width_of_other > start;
}

// The same question for rows of one stride, all at once: rows j of `b`, i of `a` are (j - i) strides and `distance`
// apart.
bool rows_of_one_stride_meet(const Lattice& a, const Lattice& b, int64_t distance) {
  const int64_t stride = a.outer.stride;
  // They meet where -width(b) < distance + steps * stride < width(a), for a number of steps that there is.
  const int64_t least = floor_div(-width(b.inner) - distance, stride) + 1;
  const int64_t most = -floor_div(-(width(a.inner) - distance), stride) - 1;
  return std::max(least, -(a.outer.extent - 1)) <= std::min(most, b.outer.extent - 1);
}

// Reads a matrix as one of smaller elements: each of its own becomes a run of those. Where its elements are not adjacent,
// what lies between them counts as its own.
Lattice divided(const Lattice& lattice, int64_t element_bytes) {
  const int64_t parts = lattice.element_bytes / element_bytes;
  const Axis outer = {lattice.outer.extent, lattice.outer.stride * parts};
  return {lattice.begin, lattice.end, element_bytes, outer, {width(lattice.inner) * parts, 1}, lattice.repeats};
}

}  // namespace

bool add_reach(const Axis& axis, int64_t* count) {
  int64_t reach = 0;
  return !__builtin_mul_overflow(axis.extent - 1, axis.stride, &reach) && !__builtin_add_overflow(*count, reach, count);
}

bool make_lattice(uintptr_t address, Axis first, Axis second, int64_t element_bytes, Lattice* lattice) {
  *lattice = {address, address, element_bytes, first, second, false};
  if (first.extent == 0 || second.extent == 0) return true;
  for (Axis* axis : {&lattice->outer, &lattice->inner}) {
    lattice->repeats = lattice->repeats || (axis->extent > 1 && axis->stride == 0);
    if (axis->extent == 1 || axis->stride == 0) *axis = {1, 0};
  }
  if (lattice->outer.stride < lattice->inner.stride) std::swap(lattice->outer, lattice->inner);
  int64_t last = 0;
  if (!add_reach(lattice->outer, &last) || !add_reach(lattice->inner, &last)) return false;
  int64_t num_bytes = 0;
  if (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, element_bytes, &num_bytes)) return false;
  return !__builtin_add_overflow(address, static_cast<uintptr_t>(num_bytes), &lattice->end);
}

bool is_distinct(const Lattice& lattice) {
  if (lattice.begin == lattice.end) return true;  // whose strides nothing has looked at
  return !lattice.repeats && (lattice.outer.extent == 1 || lattice.outer.stride >= width(lattice.inner));
}

bool overlap(const Lattice& a, const Lattice& b) {
  if (a.begin == a.end || b.begin == b.end || a.end <= b.begin || b.end <= a.begin) return false;
  if (a.element_bytes > b.element_bytes) return overlap(divided(a, b.element_bytes), b);
  if (a.element_bytes < b.element_bytes) return overlap(a, divided(b, a.element_bytes));
  if (a.begin > b.begin) return overlap(b, a);
  const uintptr_t num_bytes = b.begin - a.begin;
  const auto element_bytes = static_cast<uintptr_t>(a.element_bytes);
  if (num_bytes % element_bytes != 0) return true;  // half elements: nothing below looks at those
  const auto distance = static_cast<int64_t>(num_bytes / element_bytes);
  // All elements lie at multiples of this step from the first ones.
  const int64_t step = std::gcd(std::gcd(a.outer.stride, a.inner.stride), std::gcd(b.outer.stride, b.inner.stride));
  if (step > 0 && distance % step != 0) return false;
  if (a.outer.stride == b.outer.stride && a.outer.stride > 0) return rows_of_one_stride_meet(a, b, distance);
  const bool walks_b = b.outer.extent <= a.outer.extent;
  const Lattice& walked = walks_b ? b : a;
  const Lattice& other = walks_b ? a : b;
  if (walked.outer.extent > kMaxComparedRows) return true;
  for (int64_t i = 0; i < walked.outer.extent; ++i) {
    const int64_t start = (walks_b ? distance : -distance) + i * walked.outer.stride;
    if (meets_a_row(start, width(walked.inner), other)) return true;
  }
  return false;
}

}  // namespace aot
