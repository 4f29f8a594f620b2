#include "grid.h"

namespace aot {

namespace {

thread_local Grid3 last_refused = {0, 0, 0};

}  // namespace

int32_t check_grid(const Grid3& grid) {
  if (grid.x <= kMaxGrid.x && grid.y <= kMaxGrid.y && grid.z <= kMaxGrid.z) return 0;
  last_refused = grid;
  return kGridTooLarge;
}

Grid3 refused_grid() { return last_refused; }

}  // namespace aot
