// The weights of groups that are tensors of their own, seen as a stack of them.
#ifndef AOT_GEMM_WEIGHTS_H_
#define AOT_GEMM_WEIGHTS_H_

#include <cstdint>

#include <dlpack/dlpack.h>

namespace aot {

class WeightList {
 public:
  WeightList() = default;
  ~WeightList();
  WeightList(const WeightList&) = delete;
  WeightList& operator=(const WeightList&) = delete;

  // Begins a list of so many, of the first one's sizes and strides. Gives 0, or -1 with the calling thread's refusal set,
  // as `add`.
  int begin(int64_t count, const DLTensor& first);

  // Adds the next one, which must be as the first, but for its address.
  int add(const DLTensor& weight);

  // The stack that they are, (groups, n, k), whose first stride means nothing; null where there is no list.
  const DLTensor* view() const { return addresses_ == nullptr ? nullptr : &stack_; }
  const void* const* addresses() const { return addresses_; }

 private:
  static constexpr int64_t kNumOwn = 128;

  DLTensor stack_ = {};
  int64_t shape_[3] = {};
  int64_t strides_[3] = {};
  int64_t num_added_ = 0;
  const void** addresses_ = nullptr;
  const void* own_[kNumOwn];  // the addresses, unless there are more
};

}  // namespace aot

#endif  // AOT_GEMM_WEIGHTS_H_
