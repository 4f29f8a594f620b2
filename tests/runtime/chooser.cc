// Asks the look-up for whole arrays of shapes, so that a million are quick.
#include <cstdint>

#include "dispatch.h"
#include "kernel.h"

extern "C" {

int32_t chooser_find_section(int32_t operation, int32_t layout) { return aot::find_section(aot::kTables[0], operation, layout); }

// `shapes` has m, n, k and whether the operands are aligned, of each problem; `choices` gets kernel, tier, index and order of tiles.
void chooser_choose(int32_t section, int64_t count, const int64_t* shapes, int64_t* choices) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t* shape = shapes + 4 * i;
    const aot::Choice choice =
        aot::choose(aot::kSections[section], aot::kMultiples, shape[0], shape[1], shape[2], shape[3] != 0);
    choices[4 * i] = choice.kernel;
    choices[4 * i + 1] = choice.tier;
    choices[4 * i + 2] = choice.index;
    choices[4 * i + 3] = choice.tile_order;
  }
}

void chooser_round_up(int64_t count, const int64_t* values, int32_t num_edges, const int64_t* edges, int64_t* indices) {
  for (int64_t i = 0; i < count; ++i) indices[i] = aot::round_up(values[i], edges, num_edges);
}

}  // extern "C"
