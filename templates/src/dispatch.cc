#include "dispatch.h"

#include <algorithm>

#include "aot_gemm.h"

namespace aot {

namespace {

const Ladder* find_ladder(const Section& section, int64_t n, int64_t k) {
  const Ladder* end = section.ladders + section.num_ladders;
  const Ladder* ladder = std::lower_bound(section.ladders, end, 0, [n, k](const Ladder& candidate, int) {
    return candidate.n != n ? candidate.n < n : candidate.k < k;
  });
  return ladder != end && ladder->n == n && ladder->k == k ? ladder : nullptr;
}

}  // namespace

int32_t round_up(int64_t value, const int64_t* edges, int32_t num_edges) {
  const auto index = static_cast<int32_t>(std::lower_bound(edges, edges + num_edges, value) - edges);
  return std::min(index, num_edges - 1);
}

int32_t find_section(int32_t dtype, int32_t layout) {
  for (int32_t i = 0; i < kNumSections; ++i) {
    if (kSections[i].dtype == dtype && kSections[i].layout == layout) return i;
  }
  return -1;
}

int32_t find_section(int32_t dtype) {
  for (int32_t i = 0; i < kNumSections; ++i) {
    if (kSections[i].dtype == dtype) return i;
  }
  return -1;
}

Choice choose(const Section& section, const Multiples* multiples, int64_t m, int64_t n, int64_t k, bool aligned) {
  if (!aligned) return {section.fallback, AOT_GEMM_TIER_FALLBACK, 0};
  Row row;
  int32_t tier;
  int32_t index;
  if (const Ladder* ladder = find_ladder(section, n, k)) {
    const int32_t step = round_up(m, ladder->edges, ladder->num_edges);
    row = ladder->rows[step];
    tier = AOT_GEMM_TIER_TUNED;
    index = ladder->first_row + step;
  } else {
    const Grid& grid = section.grid;
    const int32_t i = round_up(m, grid.m_edges, grid.num_m);
    const int32_t j = round_up(n, grid.n_edges, grid.num_n);
    index = (i * grid.num_n + j) * grid.num_k + round_up(k, grid.k_edges, grid.num_k);
    row = grid.cells[index];
    tier = AOT_GEMM_TIER_GRID;
  }
  const Multiples& needed = multiples[row.kernel];
  const bool takes = m % needed.m == 0 && n % needed.n == 0;
  return {takes ? row.kernel : row.general, tier, index};
}

}  // namespace aot
