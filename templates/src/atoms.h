// The factors of blocks along k as Python has them: bytes, in rows of blocks or in atoms of 128 rows by 4 blocks.
#ifndef AOT_GEMM_ATOMS_H_
#define AOT_GEMM_ATOMS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "operands.h"
#include "operation.h"
#include "request.h"

namespace aot {

// The functions that give an int give 0, or -1 with the calling thread's refusal set.

// Says whether the factors of a call are of blocks along k: they are narrow, or the elements are packed.
bool are_of_atoms(const Operands& operands, Element a, Element b);

// Finds the operation of operands with such factors, and checks these.
int resolve_atoms(Product product, const Operands& operands, Request* request, int32_t* operation);

// Says whether factors lie in rows of blocks, and have to be put into atoms; those of a weight of groups, for each of these.
inline bool are_in_rows(const DLTensor& factors) { return factors.ndim != 1; }

// Says whether those of the weights of groups are a matrix, which has the atoms of each group in a row.
inline bool are_rows_of_atoms(const DLTensor& factors) { return factors.ndim == 2; }

// States factors in atoms for the C API.
int state_atoms(Product product, const char* name, const DLTensor& factors, aot_gemm_tensor_t* stated);

}  // namespace aot

#endif  // AOT_GEMM_ATOMS_H_
