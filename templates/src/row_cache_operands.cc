#include "row_cache_operands.h"

#include <initializer_list>

#include "refusal.h"

namespace aot {

namespace {

constexpr Field kOfCache[] = {kKeys, kValues, kKeyCache, kValueCache, kCachePosition};
constexpr int32_t kCacheDims = 4;
constexpr uint8_t kPositionBits = 64;

// Checks the positions: a vector of int64, whose elements are adjacent.
int check_positions(Product product, const DLTensor& position, const DLTensor& x) {
  if (check_memory(product, "cache_position", position, x) != 0) return -1;
  if (position.dtype.code != kDLInt || position.dtype.bits != kPositionBits || position.dtype.lanes != 1) {
    return refuse("DtypeError", "%s: cache_position is %s; expected int64", product_name(product),
                  dtype_text(position).characters);
  }
  if (position.ndim != 1) {
    return refuse("ShapeError", "%s: cache_position has shape %s; expected a vector", product_name(product),
                  shape_text(position).characters);
  }
  if (position.shape[0] <= 1 || stride_of(position, 0) == 1) return 0;
  return refuse("StrideError", "%s: cache_position has the stride %lld; expected adjacent elements; make it contiguous",
                product_name(product), static_cast<long long>(stride_of(position, 0)));
}

// Checks the shape of keys or values: that of x but for the heads.
int check_heads(Product product, Field which, const Operands& operands) {
  const DLTensor& x = *operands[kLeft];
  const DLTensor& tensor = *operands[which];
  bool fits = tensor.ndim == x.ndim && tensor.shape[x.ndim - 2] > 0;
  for (int32_t i = 0; fits && i < x.ndim; ++i) fits = i == x.ndim - 2 || tensor.shape[i] == x.shape[i];
  if (fits && which == kValues) fits = tensor.shape[x.ndim - 2] == operands[kKeys]->shape[x.ndim - 2];
  if (fits) return 0;
  return refuse("ShapeError", "%s: %s has shape %s, beside x %s; expected that of x but for the heads, of which keys and values "
                "have as many", product_name(product), kOperandNames[which], shape_text(tensor).characters,
                shape_text(x).characters);
}

// Checks the shape of a cache: (batch, heads, length, dim), where the tokens are those of `batch` sequences.
int check_cache_shape(Product product, Field which, const Operands& operands) {
  const DLTensor& keys = *operands[kKeys];
  const DLTensor& cache = *operands[which];
  const DLTensor& of_keys = *operands[kKeyCache];
  const int32_t last = keys.ndim - 1;
  int64_t tokens = 1;
  for (int32_t i = 0; i < last - 1; ++i) tokens = times(tokens, keys.shape[i]);
  const bool is_cache = cache.ndim == kCacheDims && cache.shape[1] == keys.shape[last - 1] && cache.shape[3] == keys.shape[last];
  const int64_t positions = operands[kCachePosition]->shape[0];
  const bool has_all = is_cache && (tokens == 0 || (positions > 0 && tokens % positions == 0 &&
                                                    tokens / positions == cache.shape[0]));
  if (!has_all) {
    return refuse("ShapeError", "%s: %s has shape %s, beside keys %s and %lld positions; expected (batch, heads, length, dim), "
                  "where the tokens are batch times the positions", product_name(product), kOperandNames[which],
                  shape_text(cache).characters, shape_text(keys).characters, static_cast<long long>(positions));
  }
  if (!have_shape(cache, of_keys.shape, of_keys.ndim)) {
    return refuse("ShapeError", "%s: %s has shape %s, and key_cache %s; expected one shape", product_name(product),
                  kOperandNames[which], shape_text(cache).characters, shape_text(of_keys).characters);
  }
  if (cache.shape[3] <= 1 || stride_of(cache, 3) == 1) return 0;
  return refuse("StrideError", "%s: %s has strides %s; expected adjacent elements of a head", product_name(product),
                kOperandNames[which], stride_text(cache).characters);
}

}  // namespace

int check_cache(Product product, const Operands& operands, const Result& result) {
  Field missing = kKeys;
  int32_t count = 0;
  for (const Field which : kOfCache) {
    if (operands[which] != nullptr) ++count;
    if (operands[which] == nullptr) missing = which;
  }
  if (count == 0) return 0;
  if (count < static_cast<int32_t>(sizeof(kOfCache) / sizeof(*kOfCache))) {
    return refuse("OperandError", "%s: %s is missing; expected keys, values, key_cache, value_cache and cache_position, or none "
                  "of them", product_name(product), kOperandNames[missing]);
  }
  const DLTensor& x = *operands[kLeft];
  for (const Field which : {kKeys, kValues, kKeyCache, kValueCache}) {
    if (check_tensor_of(product, kOperandNames[which], *operands[which], x, result.computed_on_rows().x) != 0) return -1;
  }
  if (check_positions(product, *operands[kCachePosition], x) != 0) return -1;
  if (check_heads(product, kKeys, operands) != 0 || check_heads(product, kValues, operands) != 0) return -1;
  return check_cache_shape(product, kKeyCache, operands) != 0 ? -1 : check_cache_shape(product, kValueCache, operands);
}

int state_heads(Product product, const char* name, const DLTensor& tensor, aot_rows_tensor_t* stated) {
  Mode tokens;
  if (!join(tensor, 0, tensor.ndim - 2, &tokens)) {
    return refuse("StrideError", "%s: %s of shape %s and strides %s is not in one piece; expected leading dimensions that join "
                  "into tokens of one stride; make it contiguous", product_name(product), name, shape_text(tensor).characters,
                  stride_text(tensor).characters);
  }
  *stated = {data_of(tensor), {tokens.stride, stride_of(tensor, tensor.ndim - 2), stride_of(tensor, tensor.ndim - 1)}};
  return 0;
}

int state_cache(Product product, const Operands& operands, aot_rows_problem_t* problem) {
  if (operands[kKeys] == nullptr) return 0;
  const DLTensor& keys = *operands[kKeys];
  if (state_heads(product, "keys", keys, &problem->keys) != 0) return -1;
  if (state_heads(product, "values", *operands[kValues], &problem->values) != 0) return -1;
  const struct {
    const DLTensor& tensor;
    aot_rows_tensor_t* stated;
  } caches[] = {{*operands[kKeyCache], &problem->key_cache}, {*operands[kValueCache], &problem->value_cache}};
  for (const auto& [tensor, stated] : caches) {
    *stated = {data_of(tensor), {stride_of(tensor, 0), stride_of(tensor, 2), stride_of(tensor, 1)}};
  }
  problem->cache_position = {data_of(*operands[kCachePosition]), {1, 1, 0}};
  problem->key_heads = keys.shape[keys.ndim - 2];
  problem->cache_length = operands[kKeyCache]->shape[2];
  problem->num_positions = operands[kCachePosition]->shape[0];
  return 0;
}

}  // namespace aot
