// Groups of rows or of k, as a caller states them.
#ifndef AOT_GEMM_GROUPS_H_
#define AOT_GEMM_GROUPS_H_

#include "aot_gemm.h"
#include "operation.h"

namespace aot {

// Checks the memory of a problem of groups: that what belongs to it lies in the address space, and apart from D, whose
// elements are its own.
aot_gemm_status_t check_groups(const aot_gemm_problem_t& problem, const Operation& operation);

// Says whether the groups' B, or their atoms of factors, have an address each.
inline bool lie_apart(const aot_gemm_problem_t& problem) {
  return problem.b_of_groups != nullptr || problem.scale_b_of_groups != nullptr;
}

// States groups whose B have an address each by a stack: one of a step that leads to each of them, where they are those
// that `b_of_groups` names; or of the step that they have, or where k is 0 and none is read, and then it names none. So too
// of their atoms, which are a stack where they lie one behind the other. The problem has been checked.
aot_gemm_problem_t stack_of_groups(const aot_gemm_problem_t& problem, const Operation& operation);

}  // namespace aot

#endif  // AOT_GEMM_GROUPS_H_
