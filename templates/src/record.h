// The record that a function of the Python package hands over: its fields are in the order that kFieldsOf has.
#ifndef AOT_GEMM_RECORD_H_
#define AOT_GEMM_RECORD_H_

#include "fields.h"
#include "python_state.h"
#include "request.h"

namespace aot {

// The values of a record, which the caller keeps; a call that is plain has its first ones alone.
struct Record {
  PyObject* const* values;
  Py_ssize_t count;

  const Field* fields(Product product) const { return kFieldsOf[static_cast<int32_t>(product)].fields; }
};

// Says whether a record has as many values as a call may have; else a Python error is set.
bool is_whole(const State& state, Product product, const Record& record);

// Gives a record as a tuple; null with a Python error set.
PyObject* as_tuple(const Record& record);

// Gives what is a tensor for each group, borrowed, and how many there are; null where it is one tensor. `list` is kWeights, of a
// gate too, or kFactors.
PyObject* list_of(Product product, const Record& record, Field list, Py_ssize_t* count);

// Reads what a record says beside tensors. Gives 0, or -1 with a Python error set.
int read_options(const State& state, Product product, const Record& record, Options* options);

}  // namespace aot

#endif  // AOT_GEMM_RECORD_H_
