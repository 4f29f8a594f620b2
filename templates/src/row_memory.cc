// Where the operands of a row operation lie: strides, addresses, and what may share memory with what.
#include <cinttypes>
#include <cstring>

#include "checks.h"
#include "error.h"
#include "lattice.h"
#include "row_problem.h"

namespace aot {

namespace {

constexpr int32_t kNumAxes = 3;
constexpr int64_t kPositionBytes = 4;       // of an offset, and of an index: int32
constexpr int64_t kCachePositionBytes = 8;  // int64

// An operand as its elements lie: as a lattice where two axes are enough, else as all between its first and last byte.
struct Place {
  const char* name;
  const aot_rows_tensor_t* tensor;  // null: there is none
  Axis axes[kNumAxes];
  int64_t element_bytes;
  Lattice lattice;
  bool is_exact;     // the lattice has the operand's elements alone
  bool is_distinct;  // no two elements are one

  bool is_there() const { return tensor != nullptr && tensor->data != nullptr; }
};

Place make_place(const char* name, const aot_rows_tensor_t& tensor, Axis first, Axis second, Axis third,
                 int64_t element_bytes) {
  return {name, &tensor, {first, second, third}, element_bytes, {}, true, true};
}

Place of_matrix(const char* name, const aot_rows_tensor_t& tensor, int64_t rows, int64_t columns, int64_t element_bytes) {
  return make_place(name, tensor, {rows, tensor.strides[0]}, {columns, tensor.strides[1]}, {1, 0}, element_bytes);
}

Place of_vector(const char* name, const aot_rows_tensor_t& tensor, int64_t columns, int64_t element_bytes) {
  return make_place(name, tensor, {1, 0}, {columns, tensor.strides[1]}, {1, 0}, element_bytes);
}

Place of_heads(const char* name, const aot_rows_tensor_t& tensor, int64_t heads, const aot_rows_problem_t& problem,
               int64_t element_bytes) {
  return make_place(name, tensor, {problem.rows, tensor.strides[0]}, {heads, tensor.strides[1]},
                    {problem.cols, tensor.strides[2]}, element_bytes);
}

aot_gemm_status_t check_strides(Place* place) {
  for (Axis& axis : place->axes) {
    if (axis.extent <= 1) axis.stride = 0;
    if (axis.stride >= 0) continue;
    return fail(AOT_GEMM_ERROR_STRIDE, "%s has the strides (%" PRId64 ", %" PRId64 ", %" PRId64
                "); expected none below 0; copy %s", place->name, place->tensor->strides[0], place->tensor->strides[1],
                place->tensor->strides[2], place->name);
  }
  if (reinterpret_cast<uintptr_t>(place->tensor->data) % static_cast<uintptr_t>(place->element_bytes) == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s is at address %p; expected a multiple of %" PRId64 ", the bytes of its elements; "
              "copy it", place->name, place->tensor->data, place->element_bytes);
}

// Joins an axis with the one inside it, where one stride steps through both.
bool join(const Axis& outer, const Axis& inner, Axis* joined) {
  if (outer.extent <= 1 || inner.extent <= 1) {
    *joined = outer.extent <= 1 ? inner : outer;
    return true;
  }
  int64_t whole = 0;
  if (__builtin_mul_overflow(inner.extent, inner.stride, &whole) || whole != outer.stride) return false;
  *joined = {outer.extent * inner.extent, inner.stride};  // both are up to 2^31
  return true;
}

// Gives the place of a cache, whose four axes have to be three: the heads of a sequence follow those of the one before it, or the
// elements of a head those of the one before it. Says false where neither is so.
bool find_cache(const char* name, const aot_rows_tensor_t& tensor, const aot_rows_problem_t& problem, int64_t element_bytes,
                Place* place) {
  const Axis sequences = {num_sequences(problem), tensor.strides[0]};
  const Axis positions = {problem.cache_length, tensor.strides[1]};
  const Axis heads = {problem.key_heads, tensor.strides[2]};
  const Axis elements = {problem.cols, 1};
  Axis joined;
  if (join(sequences, heads, &joined)) {
    const bool is_outer = joined.stride >= positions.stride;
    *place = make_place(name, tensor, is_outer ? joined : positions, is_outer ? positions : joined, elements, element_bytes);
    return true;
  }
  if (!join(heads, elements, &joined)) return false;
  *place = make_place(name, tensor, sequences, positions, joined, element_bytes);
  return true;
}

// Finds the lattice of an operand of three axes. Says false where it does not lie within the address space.
bool find_lattice(Place* place) {
  const Axis* axes = place->axes;
  const auto address = reinterpret_cast<uintptr_t>(place->tensor->data);
  Axis joined;
  Axis other;
  bool are_two = true;
  if (join(axes[1], axes[2], &joined)) {
    other = axes[0];
  } else if (join(axes[0], axes[1], &joined)) {
    other = axes[2];
  } else {
    are_two = false;
  }
  if (are_two) {
    if (!make_lattice(address, other, joined, place->element_bytes, &place->lattice)) return false;
    place->is_distinct = is_distinct(place->lattice);
    return true;
  }
  // Three axes that none of two are: heads within rows. Each must step over all that is inside it.
  int64_t row = 1;
  int64_t token = 0;
  if (!add_reach(axes[2], &row)) return false;
  token = row;
  if (!add_reach(axes[1], &token)) return false;
  int64_t all = token;
  if (!add_reach(axes[0], &all)) return false;
  place->is_exact = false;
  place->is_distinct = axes[2].stride > 0 && axes[1].stride >= row && axes[0].stride >= token;
  return make_lattice(address, {all, 1}, {1, 0}, place->element_bytes, &place->lattice);
}

aot_gemm_status_t locate(Place* place) {
  const aot_gemm_status_t status = check_strides(place);
  if (status != AOT_GEMM_OK || find_lattice(place)) return status;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s with strides (%" PRId64 ", %" PRId64 ", %" PRId64
              ") at address %p reaches past the end of the address space; mend its strides", place->name,
              place->tensor->strides[0], place->tensor->strides[1], place->tensor->strides[2], place->tensor->data);
}

// Says whether two operands are the same elements in the same order.
bool are_same(const Place& a, const Place& b) {
  bool equal = a.tensor->data == b.tensor->data && a.element_bytes == b.element_bytes;
  for (int32_t i = 0; equal && i < kNumAxes; ++i) {
    equal = a.axes[i].extent == b.axes[i].extent && a.axes[i].stride == b.axes[i].stride;
  }
  return equal;
}

// Checks that what is written shares no element with another operand, but for being it where that may be.
aot_gemm_status_t check_apart(const Place& written, const Place& other, bool may_be_same) {
  if (!written.is_there() || !other.is_there() || (may_be_same && are_same(written, other))) return AOT_GEMM_OK;
  if (!overlap(written.lattice, other.lattice)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s at address %p overlaps %s at address %p; expected a %s that shares no element with "
              "it%s; give it storage of its own", written.name, written.tensor->data, other.name, other.tensor->data,
              written.name, may_be_same ? ", or that is it, of the same strides" : "");
}

aot_gemm_status_t check_distinct(const Place& written) {
  if (written.is_distinct) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s with strides (%" PRId64 ", %" PRId64 ", %" PRId64
              ") overlaps itself; expected distinct elements; give it storage of its own", written.name,
              written.axes[0].stride, written.axes[1].stride, written.axes[2].stride);
}

enum Which {
  kPlaceX, kPlaceResidual, kPlaceWeight, kPlaceBias, kPlaceCos, kPlaceSin, kPlaceTensorScale, kPlaceOffsets, kPlaceIndex,
  kPlaceKeys, kPlaceValues, kPlaceCachePosition, kPlaceScale, kPlaceY, kPlaceOut, kPlaceKeyCache, kPlaceValueCache, kNum
};

// The places of all operands, by Which.
struct Places {
  Place all[kNum];

  // Checks one that is written against those before it in Which, that are read or written themselves.
  aot_gemm_status_t check(Which which, Which same, Which also_same) const {
    if (!all[which].is_there()) return AOT_GEMM_OK;
    aot_gemm_status_t status = check_distinct(all[which]);
    for (int32_t i = 0; i < which && status == AOT_GEMM_OK; ++i) {
      status = check_apart(all[which], all[i], i == same || i == also_same);
    }
    return status;
  }
};

// Gives the place of Y. Of elements that share bytes it is that of the bytes.
Place place_of_y(const aot_rows_problem_t& problem, const RowOperation& operation) {
  const int64_t bytes = bytes_of(operation.y);
  if (operation.is_rotary()) return of_heads("y", problem.y, problem.heads, problem, bytes);
  if (!is_packed(operation.y)) return of_matrix("y", problem.y, problem.rows, problem.cols, bytes);
  return make_place("y", problem.y, {problem.rows, problem.y.strides[0] / kElementsInByte},
                    {problem.cols / kElementsInByte, problem.y.strides[1]}, {1, 0}, 1);
}

Places places_of(const aot_rows_problem_t& problem, const RowOperation& operation, const aot_rows_tensor_t& scales) {
  const int64_t x = bytes_of(operation.x);
  const int64_t rows = problem.rows;
  const int64_t cols = problem.cols;
  Places places = {};
  const Place none = make_place("", problem.scale, {0, 0}, {0, 0}, {0, 0}, 1);
  for (Place& place : places.all) {
    place = none;
    place.tensor = nullptr;
  }
  const bool is_rotary = operation.is_rotary();
  places.all[kPlaceX] = is_rotary ? of_heads("x", problem.x, problem.heads, problem, x)
                                  : of_matrix("x", problem.x, rows_of_x(problem), columns_of_x(problem, operation), x);
  places.all[kPlaceY] = place_of_y(problem, operation);
  if (problem.residual.data != nullptr) places.all[kPlaceResidual] = of_matrix("the residual", problem.residual, rows, cols, x);
  if (problem.residual_out.data != nullptr) {
    places.all[kPlaceOut] = of_matrix("residual_out", problem.residual_out, rows, cols, x);
  }
  if (problem.weight.data != nullptr) places.all[kPlaceWeight] = of_vector("the weight", problem.weight, cols, x);
  if (problem.bias.data != nullptr) places.all[kPlaceBias] = of_vector("the bias", problem.bias, cols, x);
  if (is_rotary) {
    places.all[kPlaceCos] = of_matrix("cos", problem.cos, problem.positions, problem.rotary_dim / 2, x);
    places.all[kPlaceSin] = of_matrix("sin", problem.sin, problem.positions, problem.rotary_dim / 2, x);
  }
  if (problem.key_heads > 0) {
    places.all[kPlaceKeys] = of_heads("keys", problem.keys, problem.key_heads, problem, x);
    places.all[kPlaceValues] = of_heads("values", problem.values, problem.key_heads, problem, x);
    places.all[kPlaceCachePosition] =
        of_matrix("cache_position", problem.cache_position, problem.num_positions, 1, kCachePositionBytes);
  }
  if (operation.has_scale()) {
    places.all[kPlaceScale] = of_matrix("the scale", scales, rows_of_scales(problem, operation),
                                        scales_of_row(problem, operation), operation.has_factors() ? 1 : kFactorBytes);
  }
  if (operation.has_tensor_scale()) {
    places.all[kPlaceTensorScale] = of_vector("the tensor's scale", problem.tensor_scale, 1, kFactorBytes);
  }
  if (problem.offsets.data != nullptr) {
    places.all[kPlaceOffsets] = of_matrix("offsets", problem.offsets, num_offsets(problem), 1, kPositionBytes);
  }
  if (problem.index.data != nullptr) {
    places.all[kPlaceIndex] = of_matrix("the index", problem.index, rows, 1, kPositionBytes);
  }
  return places;
}

// Checks that the elements of a weight or bias are adjacent.
aot_gemm_status_t check_adjacent(const char* name, const aot_rows_tensor_t& tensor, int64_t cols) {
  if (tensor.data == nullptr || cols <= 1 || tensor.strides[1] == 1) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s of %" PRId64 " elements has the stride %" PRId64
              "; expected 1, elements that are adjacent; copy it", name, cols, tensor.strides[1]);
}

// Checks that offsets, or those of an index, or positions of a cache, are adjacent.
aot_gemm_status_t check_positions(const char* name, const aot_rows_tensor_t& tensor, int64_t count) {
  if (tensor.data == nullptr || count <= 1 || tensor.strides[0] == 1) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "%s of %" PRId64 " integers has the stride %" PRId64
              "; expected 1, elements that are adjacent; copy it", name, count, tensor.strides[0]);
}

// Finds the places of both caches, and checks that heads or elements of one follow one another.
aot_gemm_status_t find_caches(const aot_rows_problem_t& problem, const RowOperation& operation, Places* places) {
  const int64_t bytes = bytes_of(operation.x);
  const struct {
    const char* name;
    const aot_rows_tensor_t& tensor;
    Which which;
  } all[] = {{"key_cache", problem.key_cache, kPlaceKeyCache}, {"value_cache", problem.value_cache, kPlaceValueCache}};
  for (const auto& [name, tensor, which] : all) {
    if (find_cache(name, tensor, problem, bytes, &places->all[which])) continue;
    return fail(AOT_GEMM_ERROR_STRIDE, "%s has the strides (%" PRId64 ", %" PRId64 ", %" PRId64 ") from sequence to sequence, "
                "position to position and head to head; expected heads of a sequence that follow those of the one before, or "
                "heads of a position that follow one another", name, tensor.strides[0], tensor.strides[1], tensor.strides[2]);
  }
  return AOT_GEMM_OK;
}

// Checks that rows of elements that share bytes begin with one, and that their elements are adjacent.
aot_gemm_status_t check_bytes_of_y(const aot_rows_problem_t& problem) {
  const int64_t* const strides = problem.y.strides;
  const bool has_bytes = problem.rows <= 1 || strides[0] % kElementsInByte == 0;
  if (has_bytes && (problem.cols <= 1 || strides[1] == 1)) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "y of elements of 4 bits has the strides (%" PRId64 ", %" PRId64 "); expected an even one, "
              "then 1, in elements, two of which are a byte; give it storage of its own", strides[0], strides[1]);
}

// Checks the address and the size of factors in atoms, as products do.
aot_gemm_status_t check_atoms(const aot_rows_problem_t& problem, const RowOperation& operation) {
  const int64_t num_bytes = rows_of_scales(problem, operation) * scales_of_row(problem, operation);
  if (num_bytes > kMaxExtent) {
    return fail(AOT_GEMM_ERROR_SHAPE, "the scale of (%" PRId64 ", %" PRId64 ") takes %" PRId64 " bytes; expected at most %" PRId64
                "; split the problem", problem.rows, problem.cols, num_bytes, kMaxExtent);
  }
  if (reinterpret_cast<uintptr_t>(problem.scale.data) % kPackedRunBytes == 0) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_STRIDE, "the scale is at address %p; expected a multiple of %" PRId64 " bytes, as products take "
              "factors in atoms; copy it", problem.scale.data, kPackedRunBytes);
}

aot_gemm_status_t check_address(const char* name, const aot_rows_tensor_t& tensor) {
  if (tensor.data != nullptr) return AOT_GEMM_OK;
  return fail(AOT_GEMM_ERROR_ARGUMENT, "`%s.data` is null; expected an address", name);
}

aot_gemm_status_t check_addresses_of_cache(const aot_rows_problem_t& problem) {
  aot_gemm_status_t status = check_address("keys", problem.keys);
  if (status == AOT_GEMM_OK) status = check_address("values", problem.values);
  if (status == AOT_GEMM_OK) status = check_address("key_cache", problem.key_cache);
  if (status == AOT_GEMM_OK) status = check_address("value_cache", problem.value_cache);
  return status == AOT_GEMM_OK ? check_address("cache_position", problem.cache_position) : status;
}

}  // namespace

aot_gemm_status_t check_memory_of_rows(const aot_rows_problem_t& problem, const RowOperation& operation) {
  aot_gemm_status_t status = check_adjacent("the weight", problem.weight, problem.cols);
  if (status == AOT_GEMM_OK) status = check_adjacent("the bias", problem.bias, problem.cols);
  if (status == AOT_GEMM_OK && is_packed(operation.y)) status = check_bytes_of_y(problem);
  if (status == AOT_GEMM_OK) status = check_positions("offsets", problem.offsets, num_offsets(problem));
  if (status == AOT_GEMM_OK) status = check_positions("the index", problem.index, problem.rows);
  if (status == AOT_GEMM_OK) status = check_positions("cache_position", problem.cache_position, problem.num_positions);
  if (status == AOT_GEMM_OK && operation.has_factors()) status = check_atoms(problem, operation);
  const aot_rows_tensor_t scales = scales_of(problem, operation);
  Places places = places_of(problem, operation, scales);
  if (status == AOT_GEMM_OK && problem.key_heads > 0) status = find_caches(problem, operation, &places);
  for (Place& place : places.all) {
    if (status == AOT_GEMM_OK && place.tensor != nullptr) status = locate(&place);
  }
  if (status != AOT_GEMM_OK) return status;
  // A computed scale is written after all that is read and before Y in the order of Which.
  const bool writes_scale = operation.has_scale() && (problem.flags & AOT_ROWS_SCALE_GIVEN) == 0;
  if (writes_scale) status = places.check(kPlaceScale, kNum, kNum);
  if (status == AOT_GEMM_OK) status = places.check(kPlaceY, operation.is_pair() ? kNum : kPlaceX, kNum);
  if (status == AOT_GEMM_OK) status = places.check(kPlaceOut, kPlaceX, kPlaceResidual);
  if (status == AOT_GEMM_OK) status = places.check(kPlaceKeyCache, kNum, kNum);
  return status == AOT_GEMM_OK ? places.check(kPlaceValueCache, kNum, kNum) : status;
}

aot_gemm_status_t check_addresses_of_rows(const aot_rows_problem_t& problem, const RowOperation& operation) {
  aot_gemm_status_t status = check_address("x", problem.x);
  if (status == AOT_GEMM_OK) status = check_address("y", problem.y);
  const bool reads_angles = operation.is_rotary() && problem.rotary_dim > 0;
  if (status == AOT_GEMM_OK && reads_angles) status = check_address("cos", problem.cos);
  if (status == AOT_GEMM_OK && reads_angles) status = check_address("sin", problem.sin);
  if (status == AOT_GEMM_OK && problem.key_heads > 0) status = check_addresses_of_cache(problem);
  if (status == AOT_GEMM_OK && operation.has_tensor_scale()) status = check_address("tensor_scale", problem.tensor_scale);
  if (status == AOT_GEMM_OK && problem.num_groups > 0) status = check_address("offsets", problem.offsets);
  if (status == AOT_GEMM_OK && problem.rows_of_x > 0) status = check_address("index", problem.index);
  return status == AOT_GEMM_OK && operation.has_scale() ? check_address("scale", problem.scale) : status;
}

}  // namespace aot
