// The dispatch table and its look-up: the twin of aot/core/dispatch.py, which states the rule; tests/runtime proves them
// equal.
#ifndef AOT_GEMM_DISPATCH_H_
#define AOT_GEMM_DISPATCH_H_

#include <atomic>
#include <cstdint>

#include "enumerations.h"

namespace aot {

struct Row {
  int16_t kernel;
  int16_t general;  // for problems that are not whole tiles of `kernel`
  int16_t tile_order;  // of `kernel`; 0 where it takes none
};

// Orders in which a kernel can take its tiles: NUM_ORDERS of aot/core/tile_order.py.
constexpr int32_t kNumTileOrders = 9;

// Tier 1 of one tuned (n, k). `edges` and `rows` have num_edges entries each.
struct Ladder {
  int64_t n;
  int64_t k;
  const int64_t* edges;
  const Row* rows;
  int32_t num_edges;
  int32_t first_row;  // rows of the section's ladders before this one
};

// A step of a column of the grid: its upper edge of m above the number of its choice, a kernel in an order of tiles, so that
// steps ascend as numbers.
constexpr uint32_t kKernelBits = 12;
constexpr uint32_t kPlaceMask = (1u << kKernelBits) - 1;

// Tier 2. Columns are ordered by n, then k. The steps of column i are those from starts[i] to before starts[i + 1]. Sections
// whose grids differ in kernels alone have the same arrays but for `kernels`.
struct Grid {
  const int64_t* n_edges;
  const int64_t* k_edges;
  const uint32_t* starts;
  const uint32_t* steps;
  int32_t num_n;
  int32_t num_k;
  const uint8_t* tile_orders;  // by the numbers in the steps, as kernels are
  const int16_t* kernels;
  int32_t num_choices;
};

// The part of a table that is of one operation and layout, up to a number of products or groups. Ladders ascend by (n, k).
// Of an operation on rows it has a grid alone, whose m is rows, and whose n is cols; all are of layout 0.
// Sections of one operation and layout follow each other: those that any call takes by `num_groups`, then the one for rows
// between sectors, then the one whose kernels for one n and k all add up k in one order, then those for what is not aligned,
// by `loads`.
struct Section {
  int32_t operation;  // index into kOperations, or behind those into kRowOperations
  int32_t layout;
  int64_t num_groups;  // the largest that it is for, unless it is the last; 1 where an operation has one product
  bool batch_invariant;
  int32_t loads;  // 0; else bytes of which addresses and leading strides of A and B are multiples, and D's may be of any
  bool between_sectors;  // for aligned operands whose rows of A or B are odd multiples of 16 bytes apart
  bool has_one_order;  // of groups: all kernels of the operation's sections of this table add up k in one order
  const Ladder* ladders;
  int32_t num_ladders;
  Grid grid;
  int32_t fallback;
  int32_t substitute;  // kernel for devices with too few SMs for the one chosen: it waits for nothing, and has no workspace
  int32_t table;       // index into kTables
  int32_t number;      // among the sections of its table: those of products, or those on rows
};

// The table of one device. What it has no section of, a section of another table answers.
struct Table {
  const char* target;
  const char* const* device_names;  // as CUDA has them
  int32_t num_device_names;
  int32_t num_sms;
  int64_t bandwidth_gb_per_s;
  const int32_t* section_of;  // index into kSections by operation, as a section has it, and layout; -1 where no table has one
  int32_t num_sections;       // of its own
};

// Written by table.cc. The sections of a table follow each other, those of products before those on rows.
extern const Section kSections[];
extern const int32_t kNumSections;
extern const Table kTables[];
extern const int32_t kNumTables;

// What a kernel can take, as the look-up needs it; kernels.cc has one for each kernel.
struct Multiples {
  int32_t m;
  int32_t n;
};

// Whether the ladders and the grid of each section were looked at and found right. Written by table_check.cc.
extern std::atomic<bool> section_is_right[];

// What is wrong with the table but for ladders and grids, found when the library is loaded; null where nothing is. Looked at
// before each look-up, since a table that points outside itself would be memory of others.
extern const char* const kTableFault;

// Looks at the ladders and the grid of a section; null where nothing is wrong.
const char* look_at_section(int32_t section);

// Gives what is wrong with the ladders or the grid of a section; null where nothing is. The first call for a section looks at
// them, at some hundred thousand entries in a tenth of a millisecond: a process waits for those alone that it asks.
inline const char* fault_of_section(int32_t section) {
  return section_is_right[section].load(std::memory_order_acquire) ? nullptr : look_at_section(section);
}

struct Choice {
  int32_t kernel;
  int32_t tier;
  int32_t index;  // of the ladders' row, or of the grid's column
  int32_t tile_order = 0;
};

// The upper edges of what a step of a grid answers.
struct Cell {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// What an operation on rows gets.
struct RowChoice {
  int32_t kernel;
  int32_t step;  // of the grid's
};

// Gives the index of the first edge that is not below `value`; past the last edge, the last index.
int32_t round_up(int64_t value, const int64_t* edges, int32_t num_edges);

// Finds the section that answers for an operation and layout; -1 where the library has none. For a layout of -1, or one
// without a section, any of the operation: only its fallback can compute that.
int32_t find_section(const Table& table, int32_t operation, int32_t layout);

// Finds among the sections of the same operation and layout, of which one is given, the one for a number of products or
// groups; or the one that is batch-invariant, -1 where there is none.
int32_t find_section_for(int32_t section, int64_t num_groups, bool batch_invariant);

// Finds among them the one for rows between sectors; the section that is given, the first of them, where there is none.
int32_t find_section_between(int32_t section);

// Finds among them the one for operands that are not aligned, whose A and B are of multiples of `loads` bytes, for a number
// of products; -1 where there is none.
int32_t find_unaligned_section(int32_t section, int64_t loads, int64_t num_groups);

// Gives the cell of a grid by which a column answers.
Cell cell_of(const Grid& grid, int32_t column, int64_t m);

// Chooses the kernel of an operation on rows for extents of 1 and more. Whether it takes the problem is not asked.
RowChoice choose_rows(const Section& section, int64_t rows, int64_t cols);

// Chooses the kernel for extents of 0 to 2^31 - 1. `aligned` says whether the operands are as the section has them.
Choice choose(const Section& section, const Multiples* multiples, int64_t m, int64_t n, int64_t k, bool aligned);

}  // namespace aot

#endif  // AOT_GEMM_DISPATCH_H_
