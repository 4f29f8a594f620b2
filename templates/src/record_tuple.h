// A record as a tuple whose tensors are DLPack capsules, or shapes where there is no memory: read, checked and stated. All
// functions that return a bool say false with a Python error set.
#ifndef AOT_GEMM_RECORD_TUPLE_H_
#define AOT_GEMM_RECORD_TUPLE_H_

#include <cstdint>

#include "aot_gemm.h"
#include "exchange.h"
#include "operands.h"
#include "products.h"
#include "python_state.h"
#include "record.h"
#include "weights.h"

namespace aot {

// A tensor as it is told without memory, as where torch traces: an address that nothing reads, and packed strides.
struct Shape {
  HeldTensor tensor;
  int64_t extents[kMaxDims];

  // Reads a capsule, or a tuple of the code and the bits of the element type, as DLPack has them, and of the extents.
  bool read(const State& state, const char* name, PyObject* object);
};

// A record whose tensors are capsules that the caller keeps, or shapes.
struct Capsules {
  Shape shapes[kNumOperands];
  Options options;
  WeightList weights;
  WeightList factors;

  // Gives the operands as they are checked and stated; what is stated may point into this.
  Operands views() const;
};

// Reads a record that is a tuple, and checks what it asks for.
bool read_record(const State& state, Product product, PyObject* tuple, Capsules* held, Result* result);

// A record of capsules, stated for the C API: products, or an operation on rows.
struct StatedRecord {
  Capsules held;
  Problems products;
  aot_rows_problem_t rows;

  // `promised` is the address that the right operand is promised to be constant at, or 0.
  bool read(const State& state, Product product, PyObject* tuple, PyObject* promised);
};

}  // namespace aot

#endif  // AOT_GEMM_RECORD_TUPLE_H_
