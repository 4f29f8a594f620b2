// The weights of groups that are tensors of their own, seen as a stack of them; the two of a gate, seen as one matrix, or where
// they are packed as the first; and the factors of groups' weights in atoms, seen as one run.
#ifndef AOT_GEMM_WEIGHTS_H_
#define AOT_GEMM_WEIGHTS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "fields.h"
#include "request.h"

namespace aot {

class WeightList {
 public:
  WeightList() = default;
  ~WeightList();
  WeightList(const WeightList&) = delete;
  WeightList& operator=(const WeightList&) = delete;

  // Begins a list of so many for a product, of the first one's sizes and strides: of weights, or of factors where `list` is
  // kFactors. Gives 0, or -1 with the calling thread's refusal set, as `add`.
  int begin(Product product, Field list, int64_t count, const DLTensor& first);

  // Adds the next one, which must be as the first, but for its address.
  int add(const DLTensor& weight);

  // Makes the list of the rows of a matrix of bytes, the atoms of each group, which may lie apart. Gives as `begin` does.
  int spread(const DLTensor& atoms);

  // The stack that they are, (groups, n, k), whose first stride means nothing, or of a gate (2 n, k); of factors the run; of
  // packed weights, and their factors, the first; null where there is no list.
  const DLTensor* view() const { return addresses_ == nullptr ? nullptr : &stack_; }
  const void* const* addresses() const { return addresses_; }
  int64_t size() const { return num_added_; }

 private:
  static constexpr int64_t kNumOwn = 128;
  static constexpr int64_t kNumParts = 2;

  int begin_weights(int64_t count, const DLTensor& first);
  int begin_factors(int64_t count, const DLTensor& first);
  int begin_packed(int64_t count, const DLTensor& first);

  Product product_ = Product::kGroupedLinear;
  const char* name_ = "weight";
  int32_t rank_ = 2;
  DLTensor stack_ = {};
  int64_t shape_[3] = {};
  int64_t strides_[3] = {};
  int64_t rows_[2] = {};  // (2 n, k), of a gate
  int64_t num_added_ = 0;
  const void** addresses_ = nullptr;
  const void* own_[kNumOwn];  // the addresses, unless there are more
};

}  // namespace aot

#endif  // AOT_GEMM_WEIGHTS_H_
