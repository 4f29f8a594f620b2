#include "dispatch.h"

#include <algorithm>

#include "aot_gemm.h"

namespace aot {

namespace {

// std::lower_bound over the elements that `is_below` holds for first, with a number of steps that is the table's alone
// and no branch in them: which way a shape goes cannot be predicted, and a wrong guess costs more than a step.
template <typename Element, typename Predicate>
const Element* lower_bound(const Element* first, int32_t count, Predicate is_below) {
  while (count > 1) {
    const int32_t half = count / 2;
    first = is_below(first[half - 1]) ? first + half : first;
    count -= half;
  }
  return count == 1 && is_below(*first) ? first + 1 : first;
}

// Extents are below 2^31, so that (n, k) is ordered as one number.
uint64_t key(int64_t n, int64_t k) { return static_cast<uint64_t>(n) << 32 | static_cast<uint64_t>(k); }

const Ladder* find_ladder(const Section& section, int64_t n, int64_t k) {
  const uint64_t wanted = key(n, k);
  const Ladder* ladder = lower_bound(section.ladders, section.num_ladders, [wanted](const Ladder& candidate) {
    return key(candidate.n, candidate.k) < wanted;
  });
  const bool is_there = ladder != section.ladders + section.num_ladders && ladder->n == n && ladder->k == k;
  return is_there ? ladder : nullptr;
}

const uint32_t* find_step(const Grid& grid, int32_t column, int64_t m) {
  const uint32_t* first = grid.steps + grid.starts[column];
  const auto count = static_cast<int32_t>(grid.starts[column + 1] - grid.starts[column]);
  // Past the last edge the last step answers, so that it need not be compared.
  return lower_bound(first, count - 1, [m](uint32_t candidate) { return candidate >> kKernelBits < m; });
}

Choice choose_in_grid(const Grid& grid, int32_t column, int64_t m) {
  const uint32_t choice = *find_step(grid, column, m) & kPlaceMask;
  return {grid.kernels[choice], AOT_GEMM_TIER_GRID, column, grid.tile_orders[choice]};
}

}  // namespace

int32_t round_up(int64_t value, const int64_t* edges, int32_t num_edges) {
  const int64_t* edge = lower_bound(edges, num_edges, [value](int64_t candidate) { return candidate < value; });
  const auto index = static_cast<int32_t>(edge - edges);
  return std::min(index, num_edges - 1);
}

int32_t find_section(const Table& table, int32_t operation, int32_t layout) {
  const int32_t* sections = table.section_of + operation * kNumLayouts;
  if (layout >= 0 && sections[layout] >= 0) return sections[layout];
  for (int32_t i = 0; i < kNumLayouts; ++i) {
    if (sections[i] >= 0) return sections[i];
  }
  return -1;
}

int32_t find_section_for(int32_t first, int64_t num_groups, bool batch_invariant) {
  const Section& like = kSections[first];
  int32_t found = -1;
  for (int32_t i = first; i < kNumSections; ++i) {
    const Section& section = kSections[i];
    if (section.table != like.table || section.operation != like.operation || section.layout != like.layout) break;
    if (section.batch_invariant != batch_invariant || section.between_sectors || section.loads != 0) continue;
    found = i;
    if (section.num_groups >= num_groups) break;
  }
  return found;
}

int32_t find_section_between(int32_t first) {
  const Section& like = kSections[first];
  for (int32_t i = first; i < kNumSections; ++i) {
    const Section& section = kSections[i];
    if (section.table != like.table || section.operation != like.operation || section.layout != like.layout) break;
    if (section.between_sectors) return i;
  }
  return first;
}

int32_t find_unaligned_section(int32_t first, int64_t loads, int64_t num_groups) {
  int32_t found = -1;
  for (int32_t i = first; i >= 0 && i < kNumSections; ++i) {
    const Section& section = kSections[i];
    const Section& like = kSections[first];
    if (section.table != like.table || section.operation != like.operation || section.layout != like.layout) break;
    if (section.loads <= 0 || section.loads > loads) continue;
    // They ascend by these bytes, and of equal bytes by numbers of products.
    const bool is_enough = found >= 0 && kSections[found].loads == section.loads && kSections[found].num_groups >= num_groups;
    if (!is_enough) found = i;
  }
  return found;
}

Cell cell_of(const Grid& grid, int32_t column, int64_t m) {
  return {*find_step(grid, column, m) >> kKernelBits, grid.n_edges[column / grid.num_k], grid.k_edges[column % grid.num_k]};
}

RowChoice choose_rows(const Section& section, int64_t rows, int64_t cols) {
  const Grid& grid = section.grid;
  const uint32_t* step = find_step(grid, round_up(cols, grid.n_edges, grid.num_n), rows);
  return {grid.kernels[*step & kPlaceMask], static_cast<int32_t>(step - grid.steps)};
}

Choice choose(const Section& section, const Multiples* multiples, int64_t m, int64_t n, int64_t k, bool aligned) {
  if (!aligned) return {section.fallback, AOT_GEMM_TIER_FALLBACK, 0};
  const Ladder* ladder = find_ladder(section, n, k);
  if (ladder == nullptr) {
    const Grid& grid = section.grid;
    const int32_t column = round_up(n, grid.n_edges, grid.num_n) * grid.num_k + round_up(k, grid.k_edges, grid.num_k);
    return choose_in_grid(grid, column, m);
  }
  const int32_t step = round_up(m, ladder->edges, ladder->num_edges);
  const Row row = ladder->rows[step];
  const Multiples& needed = multiples[row.kernel];
  // In 32 bits, in which a division takes a fraction of the time.
  const bool takes = static_cast<uint32_t>(m) % static_cast<uint32_t>(needed.m) == 0 &&
                     static_cast<uint32_t>(n) % static_cast<uint32_t>(needed.n) == 0;
  return {takes ? row.kernel : row.general, AOT_GEMM_TIER_TUNED, ladder->first_row + step, takes ? row.tile_order : 0};
}

}  // namespace aot
