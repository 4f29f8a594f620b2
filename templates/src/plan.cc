#include "plan.h"

#include <cinttypes>

#include <algorithm>

#include "batch.h"
#include "cuda_entry.h"
#include "devices.h"
#include "error.h"
#include "groups.h"
#include "kernel.h"
#include "runtime.h"
#include "stated.h"

namespace aot {

namespace {

// Checks that an address is there for each group.
aot_gemm_status_t check_addresses(const aot_gemm_problem_t& problem, const void* const* of_groups, const char* name) {
  aot_gemm_status_t status = AOT_GEMM_OK;
  for (int64_t i = 0; i < num_groups_of(problem) && status == AOT_GEMM_OK; ++i) status = check_argument(of_groups[i], name);
  return status;
}

aot_gemm_status_t check_factors_of_b(const aot_gemm_problem_t& problem) {
  if (problem.scale_b_of_groups == nullptr) return check_argument(problem.scale_b.data, "scale_b.data");
  return check_addresses(problem, problem.scale_b_of_groups, "scale_b_of_groups[i]");
}

// Checks that what the operation takes beside A, B, D and a bias is there. Where k is 0, no block has a factor.
aot_gemm_status_t check_further(const aot_gemm_problem_t& problem, const Operation& operation) {
  const bool of_blocks = operation.scale == Scale::kBlock || operation.scale == Scale::kAtoms;
  const bool needs_factors = operation.scale == Scale::kVector || (of_blocks && problem.k > 0);
  aot_gemm_status_t status = AOT_GEMM_OK;
  if (needs_factors && operation.takes(Argument::kScaleA)) status = check_argument(problem.scale_a.data, "scale_a.data");
  if (status == AOT_GEMM_OK && needs_factors) status = check_factors_of_b(problem);
  if (status == AOT_GEMM_OK && operation.scales_d()) status = check_argument(problem.scale_d.data, "scale_d.data");
  if (status == AOT_GEMM_OK && operation.takes(Argument::kOwnD)) status = check_argument(problem.own_d.data, "own_d.data");
  if (status == AOT_GEMM_OK && operation.writes_factors()) status = check_argument(problem.factors_d.data, "factors_d.data");
  if (status != AOT_GEMM_OK || !operation.has_residual()) return status;
  return check_argument(problem.residual.data, "residual.data");
}

// Checks that what groups and their rows are found by is there.
aot_gemm_status_t check_group_places(const aot_gemm_problem_t& problem, const Operation& operation) {
  const aot_gemm_status_t status = check_argument(problem.offsets.data, "offsets.data");
  if (status != AOT_GEMM_OK || !operation.gathers()) return status;
  return check_argument(problem.index.data, "index.data");
}

// Checks that each of several weights is there, and its D.
aot_gemm_status_t check_part_operands(const aot_gemm_problem_t& problem) {
  aot_gemm_status_t status = AOT_GEMM_OK;
  for (int64_t i = 0; i < problem.num_parts && status == AOT_GEMM_OK; ++i) {
    if (problem.parts[i].n == 0) continue;
    status = check_argument(problem.parts[i].d.data, "parts[i].d.data");
    if (status == AOT_GEMM_OK && problem.k > 0) status = check_argument(problem.parts[i].b.data, "parts[i].b.data");
  }
  return status;
}

aot_gemm_status_t check_operands(const aot_gemm_problem_t& problem, const Operation& operation) {
  aot_gemm_status_t status =
      operation.has_parts() ? check_part_operands(problem) : check_argument(problem.d.data, "d.data");
  const bool needs_bias = operation.bias == Presence::kRequired;
  if (status == AOT_GEMM_OK && needs_bias) status = check_argument(problem.bias.data, "bias.data");
  if (status == AOT_GEMM_OK && operation.takes_further()) status = check_further(problem, operation);
  if (status == AOT_GEMM_OK && operation.has_offsets()) status = check_group_places(problem, operation);
  const bool reads_a = problem.k > 0 && (!operation.gathers() || problem.rows_of_a > 0);
  if (status == AOT_GEMM_OK && reads_a) status = check_argument(problem.a.data, "a.data");
  if (status != AOT_GEMM_OK || problem.k == 0 || operation.has_parts()) return status;
  if (problem.b_of_groups == nullptr) return check_argument(problem.b.data, "b.data");
  return check_addresses(problem, problem.b_of_groups, "b_of_groups[i]");
}

// A kernel of two strides takes the problem as stated.
constexpr uint32_t kAsStated = 0;

aot_gemm_status_t measure_workspace(Plan* plan) {
  const int64_t num_bytes = workspace_bytes(kKernels[plan->kernel], plan->problem);
  plan->workspace_bytes = num_bytes;
  if (num_bytes / 4 <= INT32_MAX) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_SHAPE,
              "kernel %s would need a workspace of %" PRId64 " bytes for m %" PRId64 " n %" PRId64
              "; at most 8 GiB can be addressed; split the problem",
              kKernels[plan->kernel].name, num_bytes, plan->problem.m, plan->problem.n);
}

aot_gemm_status_t check_kernel(int32_t kernel) {
  if (kernel >= 0 && kernel < kNumKernels) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "kernel index is %" PRId32 "; expected 0 to %" PRId32, kernel, kNumKernels - 1);
}

// Finds the device that a problem is for; null where there is none that the kernels run on, which a launch will say.
const Device* ask_device(int32_t ordinal, Plan* plan) {
  if (ordinal < 0) {
    const cuda::Error error = cuda::get_device(&plan->current_device);
    if (error != 0) {
      plan->current_device = -1;
      cuda::describe(error);  // which forgets it
      return nullptr;
    }
    ordinal = plan->current_device;
  }
  const Device* device = nullptr;
  find_device(ordinal, &device);
  return device;
}

bool asks_for(const aot_gemm_problem_t& problem, uint64_t flag) { return ((problem.flags | kDefaultFlags) & flag) != 0; }

// Most launches of one call: a quarter of a second of host time.
constexpr int64_t kMaxLaunches = 1 << 16;

// How a problem is computed: as it is, or as another one.
struct Asked {
  const aot_gemm_problem_t* problem;
  int32_t operation;
  int64_t num_launches;
  aot_gemm_problem_t storage;
};

// Finds the operation of one product that an operation for batches computes many of; the latter itself where the library
// has none. No table of one order of sums is made for batches, so that a batch-invariant call takes that of one product.
int32_t without_batches(int32_t operation) {
  for (int32_t i = 0; i < kNumOperations; ++i) {
    const Operation& other = kOperations[i];
    if (other.batched == operation && other.bias == Presence::kNone && other.layouts != 0) return i;
  }
  return operation;
}

// Has a batch be one product of all rows, or be computed by the operation for batches, or product by product where the
// table has no section of that, or none whose rows' bits do not depend on the batch.
void resolve(const aot_gemm_problem_t& problem, int32_t operation, Asked* asked) {
  const bool is_invariant = asks_for(problem, AOT_GEMM_BATCH_INVARIANT);
  if (is_invariant && kOperations[operation].grouping == Grouping::kBatched) operation = without_batches(operation);
  asked->problem = &problem;
  asked->operation = operation;
  asked->num_launches = 1;
  const Operation& own = kOperations[operation];
  if (lie_apart(problem) && !is_empty(problem)) {
    asked->storage = stack_of_groups(problem, own);
    asked->problem = &asked->storage;
  }
  if (own.has_parts() && !is_empty(problem)) {
    asked->storage = as_first_part(problem);
    asked->problem = &asked->storage;
  }
  if (!is_batch(problem, own) || own.grouping == Grouping::kBatched || is_empty(problem)) return;
  if (fold(problem, own, &asked->storage)) {
    asked->problem = &asked->storage;
  } else if (!is_invariant && own.batched >= 0 && kOperations[own.batched].layouts != 0 && own.bias == Presence::kNone) {
    asked->operation = own.batched;
  } else {
    asked->storage = product_of(problem, own, 0);
    asked->problem = &asked->storage;
    asked->num_launches = problem.num_groups;
  }
}

// The rows of D by which a table is asked: where rows are grouped, those that are expected of one group.
int64_t rows_looked_up(int64_t m, int64_t groups, const Operation& operation) {
  return operation.groups_rows() ? (m + groups - 1) / groups : m;
}

// The same of k, where that is grouped.
int64_t depth_looked_up(const Canonical& canonical, const Operation& operation) {
  const int64_t groups = canonical.batch.num_products;
  return operation.grouping == Grouping::kKgrouped ? (canonical.k + groups - 1) / groups : canonical.k;
}

// Groups need a table of their own for it only where their kernels have several orders; of one, none changes a row's bits.
aot_gemm_status_t fail_invariant(const Operation& operation) {
  if (operation.has_offsets()) {
    return fail(AOT_GEMM_ERROR_OPERATION,
                "the kernels of %s in this library add up k in more than one order, by which a row's bits depend on the "
                "sizes of groups; expected a call without AOT_GEMM_BATCH_INVARIANT, or a library built of a selection that "
                "`aot select --batch-invariant` made",
                operation.tag);
  }
  return fail(AOT_GEMM_ERROR_OPERATION,
              "this library has no batch-invariant table of %s; expected a call without AOT_GEMM_BATCH_INVARIANT, or a library "
              "built of a selection that `aot select --batch-invariant` made",
              operation.tag);
}

aot_gemm_status_t look_up(int32_t table, int32_t num_sms, const aot_gemm_problem_t& stated,
                          aot_gemm_selection_t* selection, Plan* plan);

// Finds the section for operands that are in a layout of the operation's but not aligned; -1 where there is none.
int32_t find_unaligned(const Table& table, int32_t operation, const Canonical& canonical) {
  if (canonical.loads == 0 || canonical.aligned) return -1;
  const int32_t any = find_section(table, operation, canonical.layout);
  return find_unaligned_section(any, canonical.loads, canonical.batch.num_products);
}

// Finds the largest workspace that a product of a batch needs where each has a launch of its own: they may differ where
// only some are aligned.
aot_gemm_status_t measure_launches(int32_t table, int32_t num_sms, const aot_gemm_problem_t& batch,
                                   const Operation& operation, Plan* plan) {
  if (has_aligned_steps(batch, operation)) return AOT_GEMM_OK;
  for (int64_t i = 1; i < batch.num_groups; ++i) {
    aot_gemm_selection_t selection;
    Plan own;
    const aot_gemm_status_t status = look_up(table, num_sms, product_of(batch, operation, i), &selection, &own);
    if (status != AOT_GEMM_OK) return status;
    plan->workspace_bytes = std::max(plan->workspace_bytes, own.workspace_bytes);
  }
  return AOT_GEMM_OK;
}

// Looks a problem up in a table, for a device of so many SMs.
aot_gemm_status_t look_up(int32_t table, int32_t num_sms, const aot_gemm_problem_t& stated,
                          aot_gemm_selection_t* selection, Plan* plan) {
  if (kTableFault != nullptr) return fail_table(kTableFault);
  int32_t index;
  const aot_gemm_status_t status = check(stated, &index);
  if (status != AOT_GEMM_OK) return status;
  Asked asked;
  resolve(stated, index, &asked);
  if (asked.num_launches > kMaxLaunches) {
    return fail(AOT_GEMM_ERROR_SHAPE,
                "a batch of %" PRId64 " products of %s, which this library launches one by one; expected at most %" PRId64
                "; split the batch",
                asked.num_launches, kOperations[index].tag, kMaxLaunches);
  }
  const aot_gemm_problem_t& problem = *asked.problem;
  const Operation& operation = kOperations[asked.operation];
  if (operation.layouts == 0) {
    return fail(AOT_GEMM_ERROR_OPERATION, "the dispatch table of this library has no section of %s; launch its kernels by "
                "index", operation.tag);
  }
  const Canonical& canonical = plan->problem;
  canonicalise(problem, operation, operation.layouts, &plan->problem);
  const bool is_invariant = asks_for(problem, AOT_GEMM_BATCH_INVARIANT);
  const int32_t unaligned = is_invariant ? -1 : find_unaligned(kTables[table], asked.operation, canonical);
  if (canonical.loads != 0 && !canonical.aligned && unaligned < 0) {
    canonicalise(problem, operation, kAsStated, &plan->problem);
  }
  const int64_t num_groups = canonical.batch.num_products;
  const int32_t any = find_section(kTables[table], asked.operation, canonical.layout);
  const bool needs_own = is_invariant && !(operation.has_offsets() && kSections[any].has_one_order);
  const int32_t aligned = needs_own || operation.grouping != Grouping::kDense
                              ? find_section_for(any, num_groups, needs_own)
                          : canonical.between_sectors ? find_section_between(any)
                                                      : any;
  const int32_t found = unaligned >= 0 ? unaligned : aligned;
  if (found < 0) return fail_invariant(operation);
  const char* const fault = fault_of_section(found);
  if (fault != nullptr) return fail_table(fault);
  const Section& section = kSections[found];
  const int64_t rows = rows_looked_up(canonical.m, num_groups, operation);
  const int64_t depth = depth_looked_up(canonical, operation);
  const Choice choice = choose(section, kMultiples, rows, canonical.n, depth, canonical.loads != 0);
  const bool must_repeat = asks_for(problem, AOT_GEMM_DETERMINISTIC);
  const Kernel& chosen = kKernels[choice.kernel];
  const bool is_fit = chosen.resident_sms <= num_sms && (chosen.is_deterministic || !must_repeat);
  plan->kernel = is_fit ? choice.kernel : section.substitute;
  plan->tile_order = is_fit ? choice.tile_order : 0;
  plan->num_launches = asked.num_launches;
  *selection = {sizeof(*selection), plan->kernel,        choice.tier, section.number, choice.index,
                canonical.layout,   canonical.exchanged, canonical.m, canonical.n,    canonical.k,
                section.table,      plan->tile_order,    num_groups,  asked.num_launches};
  const Kernel& kernel = kKernels[plan->kernel];  // a section's fallback takes both strides: kTableFault sees to it
  if (canonical.loads != 0 && kernel.num_strides == 2) canonicalise(problem, operation, kAsStated, &plan->problem);
  const aot_gemm_status_t measured = measure_workspace(plan);
  if (measured != AOT_GEMM_OK || asked.num_launches == 1) return measured;
  return measure_launches(table, num_sms, stated, kOperations[index], plan);
}

}  // namespace

aot_gemm_status_t fail_table(const char* fault) {
  return fail(AOT_GEMM_ERROR_TABLE, "the dispatch table of this library contradicts itself: %s; build it again", fault);
}

int64_t count_launches(const aot_gemm_problem_t& problem) {
  int32_t index;
  if (check(problem, &index) != AOT_GEMM_OK) return 1;
  Asked asked;
  resolve(problem, index, &asked);
  return asked.num_launches;
}

aot_gemm_status_t select(const aot_gemm_problem_t& problem, Asking asking, aot_gemm_selection_t* selection, Plan* plan) {
  const Device* device = known_device(problem.device);
  const bool is_asked = asking == Asking::kForLaunch ? !is_empty(problem) : kNumTables > 1;
  if (device == nullptr && is_asked) device = ask_device(problem.device, plan);
  return device == nullptr ? look_up(0, INT32_MAX, problem, selection, plan)
                           : look_up(device->table, device->num_sms, problem, selection, plan);
}

aot_gemm_status_t select_in(int32_t table, const aot_gemm_problem_t& problem, aot_gemm_selection_t* selection,
                            Plan* plan) {
  return look_up(table, INT32_MAX, problem, selection, plan);
}

Cell find_cell(const aot_gemm_selection_t& selection) {
  if (selection.tier != AOT_GEMM_TIER_GRID) return {};
  const Section* section = kSections;  // of products, which are before those on rows
  while (section->table != selection.table || section->number != selection.section) ++section;
  const Operation& operation = kOperations[section->operation];
  const int64_t rows = rows_looked_up(selection.m, selection.num_groups, operation);
  return cell_of(section->grid, selection.index, rows);
}

aot_gemm_status_t plan_kernel(int32_t index, const aot_gemm_problem_t& problem, Plan* plan) {
  int32_t operation = 0;
  aot_gemm_status_t status = check_kernel(index);
  if (status == AOT_GEMM_OK) status = check(problem, &operation);
  if (status != AOT_GEMM_OK) return status;
  const Kernel& kernel = kKernels[index];
  if (kernel.operation != operation) {
    return fail(AOT_GEMM_ERROR_OPERATION, "kernel %s is for %s; the problem is %s", kernel.name,
                kOperations[kernel.operation].tag, kOperations[operation].tag);
  }
  plan->kernel = index;
  const bool has_places = lie_apart(problem) && !is_empty(problem);
  const bool has_parts = kOperations[operation].has_parts() && !is_empty(problem);
  const aot_gemm_problem_t stated = has_places  ? stack_of_groups(problem, kOperations[operation])
                                    : has_parts ? as_first_part(problem)
                                                : problem;
  canonicalise(stated, kOperations[operation], kernel.num_strides == 2 ? kAsStated : 1u << kernel.layout, &plan->problem);
  if (kernel.num_strides == 2 || is_empty(problem)) return measure_workspace(plan);
  const Canonical& canonical = plan->problem;
  const bool takes_operands = canonical.loads >= kernel.load_alignment && kernel.store_alignment == 1;
  if (!canonical.aligned && !takes_operands) {
    return fail(AOT_GEMM_ERROR_STRIDE,
                "kernel %s cannot take these operands; expected A contiguous along %s, B along %s, addresses and leading "
                "strides of both multiples of %" PRId32 " bytes, those of D and its rows of %" PRId32 ", k above 0; use "
                "aot_gemm_launch",
                kernel.name, kernel.layout >> 1 ? "m" : "k", kernel.layout & 1 ? "n" : "k", kernel.load_alignment,
                kernel.store_alignment);
  }
  const Multiples& multiples = kMultiples[index];
  if (canonical.m % multiples.m != 0 || canonical.n % multiples.n != 0) {
    return fail(AOT_GEMM_ERROR_SHAPE,
                "kernel %s takes whole tiles; expected m a multiple of %" PRId32 " and n of %" PRId32 ", got m %" PRId64
                " n %" PRId64 "; use aot_gemm_launch",
                kernel.name, multiples.m, multiples.n, canonical.m, canonical.n);
  }
  return measure_workspace(plan);
}

aot_gemm_status_t plan_order(int32_t tile_order, Plan* plan) {
  const Kernel& kernel = kKernels[plan->kernel];
  const int32_t count = takes(kernel, Argument::kTileOrder) ? kNumTileOrders : 1;
  plan->tile_order = tile_order;
  if (tile_order >= 0 && tile_order < count) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "order of tiles is %" PRId32 "; kernel %s takes 0 to %" PRId32, tile_order, kernel.name,
              count - 1);
}

namespace {

// Launches the products of a batch one by one. They follow each other on the stream, so that one workspace serves all.
aot_gemm_status_t launch_each(const aot_gemm_problem_t& batch, const Operation& operation, void* workspace,
                              size_t num_bytes, void* stream) {
  for (int64_t i = 0; i < batch.num_groups; ++i) {
    const aot_gemm_problem_t product = product_of(batch, operation, i);
    aot_gemm_selection_t selection;
    Plan plan;
    aot_gemm_status_t status = select(product, Asking::kForLaunch, &selection, &plan);
    if (status == AOT_GEMM_OK) status = launch_plan(product, &plan, workspace, num_bytes, stream);
    if (status != AOT_GEMM_OK) return status;
  }
  return AOT_GEMM_OK;
}

}  // namespace

aot_gemm_status_t launch_plan(const aot_gemm_problem_t& problem, Plan* plan, void* workspace, size_t num_bytes,
                              void* stream) {
  const Operation& operation = kOperations[kKernels[plan->kernel].operation];
  const aot_gemm_status_t status = check_operands(problem, operation);
  if (status != AOT_GEMM_OK) return status;
  if (plan->num_launches > 1) return launch_each(problem, operation, workspace, num_bytes, stream);
  const DeviceScope scope(problem.device, plan->current_device);
  if (scope.status() != AOT_GEMM_OK) return scope.status();
  return launch(plan->kernel, plan->tile_order, &plan->problem, workspace, num_bytes, stream, scope.device());
}

}  // namespace aot
