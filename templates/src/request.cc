#include "request.h"

#include <cstdio>

namespace aot {

namespace {

// The epilogue that an operation needs for what a request adds: vectors of factors, and packed weights, have a bias beside
// them in any case.
Epilogue epilogue_of(const Request& request) {
  if (request.epilogue != Epilogue::kNone) return request.epilogue;
  if (request.has_residual) return Epilogue::kResidual;
  const bool has_own_bias = request.scale == Scale::kVector || request.weight != WeightFormat::kNone;
  return request.has_bias && !has_own_bias ? Epilogue::kBias : Epilogue::kNone;
}

bool computes(const Operation& operation, const Request& request, Epilogue epilogue) {
  return operation.a == request.a && operation.b == request.b && operation.d == request.d &&
         operation.weight.format == request.weight && operation.scale == request.scale && operation.epilogue == epilogue &&
         (request.scale != Scale::kAtoms || operation.atoms.element == request.factor) &&
         operation.blocks_d.element == request.factor_d && operation.grouping == request.grouping &&
         operation.has_residual() == request.has_residual &&
         (operation.bias != Presence::kNone || !request.has_bias) && (!operation.is_fast || request.use_fast_accum) &&
         (!operation.is_tf32 || request.allow_tf32);
}

}  // namespace

int32_t find_operation(const Request& request) {
  const Epilogue epilogue = epilogue_of(request);
  const bool allows_more = request.allow_tf32 || request.use_fast_accum;
  int32_t found = -1;
  for (int32_t i = 0; i < kNumOperations; ++i) {
    if (!computes(kOperations[i], request, epilogue)) continue;
    found = i;
    if (!allows_more || kOperations[i].is_fast || kOperations[i].is_tf32) break;
  }
  return found;
}

RequestText write_request(Product product, const Request& request) {
  RequestText text;
  const char* right = request.weight == WeightFormat::kNone ? word_of(request.b) : word_of(request.weight);
  std::snprintf(text.characters, sizeof(text.characters), "%s %s %s %s %s %s %s %s %s %d %d %d %d", product_name(product),
                word_of(request.a), right, word_of(request.d), word_of(request.scale), word_of(request.factor),
                word_of(request.factor_d), word_of(request.epilogue), word_of(request.grouping), request.has_bias, request.has_residual, request.allow_tf32, request.use_fast_accum);
  return text;
}

}  // namespace aot
