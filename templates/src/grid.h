// The size of a launch's grid, looked at before CUDA is asked: what CUDA refuses, it refuses with a word for many
// faults.
#ifndef AOT_GEMM_GRID_H_
#define AOT_GEMM_GRID_H_

#include <cstdint>

namespace aot {

struct Grid3 {
  uint32_t x;
  uint32_t y;
  uint32_t z;
};

// Blocks along each dimension. CUDA C++ Programming Guide, technical specifications per compute capability.
constexpr Grid3 kMaxGrid = {INT32_MAX, 65535, 65535};

// What a launch gives whose grid is larger: no cudaError_t.
constexpr int32_t kGridTooLarge = -1;

// Gives 0, or kGridTooLarge, and then keeps the grid for `refused_grid`.
int32_t check_grid(const Grid3& grid);

// Gives the grid of the calling thread's last launch that was too large.
Grid3 refused_grid();

}  // namespace aot

#endif  // AOT_GEMM_GRID_H_
