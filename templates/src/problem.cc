#include "problem.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "problem_operands.h"

namespace aot {

namespace {

// cuTensorMapEncodeTiled: addresses and strides are multiples of 16 bytes, or of what Operation says of A and B; strides are
// below 2^40 bytes.
constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kStrideLimitBytes = int64_t{1} << 40;

struct View {
  const void* data;
  int64_t outer;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
};

// What is asked of operands beside their form.
enum class Wanted { kAligned, kAny };

// Finds the leading stride of a matrix seen as `outer` runs of `inner` adjacent elements; 0 where it is not that, or
// not aligned as is asked. The stride of a single run is never used, so that any legal one stands for it.
int64_t leading_stride(const View& view, Element element, int64_t alignment, Wanted asked) {
  if (view.inner > 1 && view.inner_stride != 1) return 0;
  // Bits of an element are a power of two: a shift takes a fraction of a division's time.
  const int32_t shift = __builtin_ctzll(static_cast<uint64_t>(bits_in(element)));
  const int64_t own_bytes = is_packed(element) ? 1 : bytes_of(element);
  const uintptr_t bytes = static_cast<uintptr_t>(asked == Wanted::kAligned ? alignment : own_bytes);
  if ((reinterpret_cast<uintptr_t>(view.data) & (bytes - 1)) != 0) return 0;
  const int64_t step = 8 * alignment >> shift;
  if (view.outer <= 1) return (view.inner + step - 1) & -step;
  const bool legal = view.outer_stride >= view.inner && (asked != Wanted::kAligned || (view.outer_stride & (step - 1)) == 0) &&
                     view.outer_stride < 8 * kStrideLimitBytes >> shift;
  return legal ? view.outer_stride : 0;
}

// Sees a logical (rows, k) operand as contiguous along k (`major` 0) or along its rows (`major` 1).
int64_t leading_stride(const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k, int32_t major, Element element,
                       int64_t alignment, Wanted asked) {
  const View by_rows = {tensor.data, rows, k, tensor.strides[0], tensor.strides[1]};
  const View by_columns = {tensor.data, k, rows, tensor.strides[1], tensor.strides[0]};
  return leading_stride(major == 0 ? by_rows : by_columns, element, alignment, asked);
}

// Joins addresses and steps in bytes, so that the lowest bit that is set says of what all are multiples.
uint64_t bits_of(const aot_gemm_tensor_t& tensor, int64_t stride, Element element) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(tensor.data)) |
         static_cast<uint64_t>(size_of(element, stride)) | static_cast<uint64_t>(kAlignmentBytes);
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kAlignmentBytes == 0; }

// The distance of a step, which may be as far below 0 as there is.
uint64_t distance_of(int64_t step) { return step < 0 ? -static_cast<uint64_t>(step) : static_cast<uint64_t>(step); }

// Says whether TMA can load the parts of a gate's B, aligned as a matrix: a kernel puts those in order by their addresses.
bool has_short_steps(const aot_gemm_problem_t& problem, const Operation& operation, int64_t stride, Wanted asked) {
  const Parts steps = parts_of_b(problem, operation, stride);
  const int64_t limit = 8 * kStrideLimitBytes / bits_in(operation.b);
  const int64_t whole = 8 * operation.b_alignment / bits_in(operation.b);
  return distance_of(steps.part) < static_cast<uint64_t>(limit) && steps.row < limit &&
         (asked != Wanted::kAligned || steps.part % whole == 0);
}

aot_gemm_problem_t exchange(const aot_gemm_problem_t& problem) {
  aot_gemm_problem_t exchanged = problem;
  std::swap(exchanged.m, exchanged.n);
  std::swap(exchanged.a, exchanged.b);
  std::swap(exchanged.d.strides[0], exchanged.d.strides[1]);
  std::swap(exchanged.group_strides.a, exchanged.group_strides.b);
  exchanged.flags &= ~AOT_GEMM_B_CONSTANT;
  return exchanged;
}

// Says whether TMA can store rows of D of `columns` elements. It ends a load at a tensor's last element, but a store only
// at the next multiple of 16 bytes: on an H200, rows of 15 bfloat16 overwrote a sixteenth with zero.
bool ends_on_a_store(int64_t columns, Element element) { return columns * bits_in(element) % (8 * kAlignmentBytes) == 0; }

// Finds the leading strides of D and of a residual. Says false where TMA, if it is asked, does not take one of them, or the
// address of a bias is not aligned.
bool align_rows(const aot_gemm_problem_t& problem, const Operation& operation, Wanted asked, Strides* strides) {
  strides->d[0] = leading_stride(problem.d, problem.m, problem.n, 0, operation.d, kAlignmentBytes, asked);
  if (strides->d[0] == 0) return false;
  if (asked == Wanted::kAligned && !is_aligned(problem.bias.data)) return false;
  if (asked == Wanted::kAligned && !ends_on_a_store(problem.n, operation.d)) return false;
  if (!operation.has_residual()) return true;
  strides->residual[0] = leading_stride(problem.residual, problem.m, problem.n, 0, operation.d, kAlignmentBytes, asked);
  return strides->residual[0] != 0;
}

// Bytes of a sector of the L2, as SECTOR_BYTES of aot.core.alignment.
constexpr uint64_t kSectorBytes = 32;

// Gives the bytes between an operand's runs along its contiguous mode, of which a single one has none.
uint64_t step_of(int64_t runs, int64_t stride, Element element) {
  return runs > 1 ? static_cast<uint64_t>(size_of(element, stride)) : 0;
}

// Joins the steps of A and B. Addresses are no part of it: a query, whose addresses are null, gets the kernel of the launch.
uint64_t steps_of(const aot_gemm_problem_t& problem, const Operation& operation, int32_t layout, const Strides& strides) {
  return step_of(layout >> 1 ? problem.k : rows_of_a(problem, operation), strides.a[0], operation.a) |
         step_of(layout & 1 ? problem.k : rows_of_b(problem, operation), strides.b[0], operation.b);
}

int32_t lowest_of(uint64_t bits) { return static_cast<int32_t>(bits & (~bits + 1)); }

// Finds of what addresses and leading strides of A and B are multiples, and from part to part of a gate's B, or from product
// to product of a batch.
int32_t loads_of(const aot_gemm_problem_t& problem, const Operation& operation, const Strides& strides) {
  uint64_t bits = bits_of(problem.a, strides.a[0], operation.a) | bits_of(problem.b, strides.b[0], operation.b);
  if (operation.has_gate()) {
    bits |= static_cast<uint64_t>(size_of(operation.b, parts_of_b(problem, operation, strides.b[0]).part));
  }
  if (problem.num_groups > 1) {
    bits |= static_cast<uint64_t>(size_of(operation.a, problem.group_strides.a));
    bits |= static_cast<uint64_t>(size_of(operation.b, problem.group_strides.b));
  }
  return lowest_of(bits);
}

// Writes the weights that have rows as runs along one mode, and joins the bits of their addresses and steps. Says false where
// one of them is not in the form that is asked for.
bool align_parts(const aot_gemm_problem_t& problem, const Operation& operation, int32_t layout, Wanted asked,
                 Canonical* canonical, uint64_t* bits, uint64_t* steps) {
  int32_t count = 0;
  const int leading = layout & 1;
  for (int64_t i = 0; i < problem.num_parts; ++i) {
    const aot_gemm_part_t& part = problem.parts[i];
    if (part.n == 0) continue;
    int64_t b[] = {1, 1};
    b[leading] = leading_stride(part.b, part.n, problem.k, leading, operation.b, operation.b_alignment, asked);
    const int64_t d[] = {leading_stride(part.d, problem.m, part.n, 0, operation.d, kAlignmentBytes, asked), 1};
    const bool is_stored = asked == Wanted::kAny || ends_on_a_store(part.n, operation.d);
    if (b[leading] == 0 || d[0] == 0 || !is_stored) return false;
    *bits |= bits_of(part.b, b[leading], operation.b);
    *steps |= step_of(leading == 0 ? part.n : problem.k, b[leading], operation.b);
    write_part(part, b, d, canonical->parts[count++]);
  }
  fill_parts(count, canonical);
  return true;
}

void write_form(const aot_gemm_problem_t& problem, int32_t layout, Wanted asked, int32_t loads, uint64_t steps,
                Canonical* canonical) {
  canonical->aligned = asked == Wanted::kAligned;
  canonical->loads = canonical->aligned ? kAlignmentBytes : loads;
  canonical->between_sectors = canonical->aligned && (steps & (kSectorBytes - 1)) != 0;
  canonical->exchanged = false;
  canonical->b_constant = (problem.flags & AOT_GEMM_B_CONSTANT) != 0;
  canonical->layout = layout;
}

// The same as `align` of several weights, each of which is looked at by itself.
bool align_many(const aot_gemm_problem_t& problem, const Operation& operation, uint32_t layouts, Wanted asked,
                Canonical* canonical) {
  for (int32_t layout = 0; layout < 4; ++layout) {
    if ((layouts >> layout & 1) == 0) continue;
    Strides strides = {};
    strides.a[0] = leading_stride(problem.a, problem.m, problem.k, layout >> 1, operation.a, operation.a_alignment, asked);
    uint64_t bits = bits_of(problem.a, strides.a[0], operation.a);
    uint64_t steps = step_of(layout >> 1 ? problem.k : problem.m, strides.a[0], operation.a);
    if (strides.a[0] == 0 || !align_parts(problem, operation, layout, asked, canonical, &bits, &steps)) continue;
    strides.b[0] = problem.parts[0].b.strides[layout & 1];  // which no kernel reads by
    strides.d[0] = problem.parts[0].d.strides[0];
    write_form(problem, layout, asked, lowest_of(bits), steps, canonical);
    write_operands(problem, operation, strides, canonical);
    return true;
  }
  return false;
}

bool align(const aot_gemm_problem_t& problem, const Operation& operation, uint32_t layouts, Wanted asked,
           Canonical* canonical) {
  if (operation.has_parts()) return align_many(problem, operation, layouts, asked, canonical);
  Strides strides = {};
  if (asked == Wanted::kAligned ? !has_aligned_steps(problem, operation) : operation.has_offsets()) return false;
  // Rows of elements that share bytes are loaded in whole pieces.
  if ((problem.k & (operation.k_step - 1)) != 0) return false;
  // A block of factors with rows of the gate and linear ones.
  if (operation.has_gate() && operation.scale == Scale::kBlock && problem.n % kScaleBlock != 0) return false;
  if (!align_rows(problem, operation, asked, &strides)) return false;
  const int64_t rows = rows_of_b(problem, operation);
  for (int32_t layout = 0; layout < 4; ++layout) {
    if ((layouts >> layout & 1) == 0) continue;
    strides.a[0] = leading_stride(problem.a, rows_of_a(problem, operation), problem.k, layout >> 1, operation.a,
                                  operation.a_alignment, asked);
    strides.b[0] = operation.weight.is_packed()
                       ? operation.weight.row_bytes(problem.k)
                       : leading_stride(problem.b, rows, problem.k, layout & 1, operation.b, operation.b_alignment, asked);
    if (strides.a[0] == 0 || strides.b[0] == 0) continue;
    // The parts of a B that is contiguous along its rows, where they take turns, are not.
    const bool is_row_major = (layout & 1) == 0;
    if (operation.has_gate() && !(is_row_major && has_short_steps(problem, operation, strides.b[0], asked))) continue;
    const uint64_t steps = steps_of(problem, operation, layout, strides);
    write_form(problem, layout, asked, loads_of(problem, operation, strides), steps, canonical);
    write_operands(problem, operation, strides, canonical);
    return true;
  }
  return false;
}

// Names the contiguous mode of a (rows, k) operand, aligned or not: 0 for k, 1 for the rows, -1 for neither.
int32_t contiguous_mode(const aot_gemm_tensor_t& tensor, int64_t rows, int64_t k) {
  if (k <= 1 || tensor.strides[1] == 1) return 0;
  return rows <= 1 || tensor.strides[0] == 1 ? 1 : -1;
}

}  // namespace

bool has_aligned_steps(const aot_gemm_problem_t& problem, const Operation& operation) {
  if (problem.num_groups <= 1) return true;
  const auto is_aligned_step = [](int64_t step, Element element, int64_t alignment) {
    const int64_t bits = bits_in(element);
    return step >= 0 && step < 8 * kStrideLimitBytes / bits && step * bits % (8 * alignment) == 0;
  };
  return is_aligned_step(problem.group_strides.a, operation.a, operation.a_alignment) &&
         is_aligned_step(problem.group_strides.b, operation.b, operation.b_alignment) &&
         is_aligned_step(problem.group_strides.d, operation.d, kAlignmentBytes);
}

void canonicalise(const aot_gemm_problem_t& problem, const Operation& operation, uint32_t layouts, Canonical* canonical) {
  if (problem.k > 0 && layouts != 0) {
    for (const Wanted asked : {Wanted::kAligned, Wanted::kAny}) {
      if (align(problem, operation, layouts, asked, canonical)) return;
      if (operation.can_exchange && align(exchange(problem), operation, layouts, asked, canonical)) {
        canonical->exchanged = true;
        return;
      }
    }
  }
  const int32_t a = contiguous_mode(problem.a, problem.m, problem.k);
  const bool is_packed_weight = operation.weight.is_packed();
  const int32_t b = is_packed_weight ? 0 : contiguous_mode(problem.b, rows_of_b(problem, operation), problem.k);
  canonical->aligned = false;
  canonical->loads = 0;
  canonical->between_sectors = false;
  canonical->exchanged = false;
  canonical->b_constant = false;
  canonical->layout = a < 0 || b < 0 ? -1 : a * 2 + b;
  Strides strides;
  std::memcpy(strides.a, problem.a.strides, sizeof(strides.a));
  std::memcpy(strides.b, problem.b.strides, sizeof(strides.b));
  std::memcpy(strides.d, problem.d.strides, sizeof(strides.d));
  std::memcpy(strides.residual, problem.residual.strides, sizeof(strides.residual));
  write_operands(problem, operation, strides, canonical);
  if (!operation.has_parts()) return;
  int32_t count = 0;
  for (int64_t i = 0; i < problem.num_parts; ++i) {
    const aot_gemm_part_t& part = problem.parts[i];
    if (part.n > 0) write_part(part, part.b.strides, part.d.strides, canonical->parts[count++]);
  }
  fill_parts(count, canonical);
}

aot_gemm_problem_t as_first_part(const aot_gemm_problem_t& problem) {
  const aot_gemm_part_t* part = problem.parts;
  while (part->n == 0) ++part;
  aot_gemm_problem_t first = problem;
  first.b = part->b;
  first.d = part->d;
  return first;
}

}  // namespace aot
