// Where the elements of a strided matrix lie in memory, and whether two matrices share one.
#ifndef AOT_GEMM_LATTICE_H_
#define AOT_GEMM_LATTICE_H_

#include <cstdint>

namespace aot {

// One dimension of a matrix: how many steps, and how many elements each is. Neither is below 0.
struct Axis {
  int64_t extent;
  int64_t stride;
};

// The elements of a matrix. An axis whose stride is 0 counts as one step here, since it only repeats elements.
struct Lattice {
  uintptr_t begin;  // address of the first byte
  uintptr_t end;    // address past the last byte; `begin` where there are no elements
  int64_t element_bytes;
  Axis outer;  // the axis of the larger stride
  Axis inner;
  bool repeats;  // some elements are several of the matrix, by a stride of 0
};

// Adds (extent - 1) * stride of an axis to a number of elements. Says false on overflow.
bool add_reach(const Axis& axis, int64_t* count);

// Reads a matrix of two axes, in any order, whose first element is at `address`. Says false where an element would lie
// past the end of the address space.
bool make_lattice(uintptr_t address, Axis first, Axis second, int64_t element_bytes, Lattice* lattice);

// Says whether each element is one of the matrix only. Conservative: only matrices whose rows, or columns, lie one
// after the other count as such.
bool is_distinct(const Lattice& lattice);

// Says whether two matrices share memory. Exact where the inner strides are 1, as of any matrix that is a part of a packed
// one; else it may say true of matrices that interleave without sharing an element.
bool overlap(const Lattice& a, const Lattice& b);

}  // namespace aot

#endif  // AOT_GEMM_LATTICE_H_
