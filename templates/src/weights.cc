#include "weights.h"

#include <cinttypes>
#include <cstdlib>

#include "matrix.h"
#include "refusal.h"

namespace aot {

namespace {

// Strides of extents of 1 or less, which nothing reads, do not count.
bool have_strides(const DLTensor& weight, const int64_t* strides) {
  for (int32_t i = 0; i < weight.ndim; ++i) {
    if (weight.shape[i] > 1 && stride_of(weight, i) != strides[i]) return false;
  }
  return true;
}

}  // namespace

WeightList::~WeightList() {
  if (addresses_ != own_) std::free(addresses_);
}

int WeightList::begin(Product product, Field list, int64_t count, const DLTensor& first) {
  product_ = product;
  if (list == kFactors) name_ = "scale_w";
  const bool are_packed = product == Product::kPackedLinear;
  const int status = are_packed ? begin_packed(count, first)
                     : list == kFactors ? begin_factors(count, first) : begin_weights(count, first);
  if (status != 0) return -1;
  addresses_ = own_;
  if (count > kNumOwn) addresses_ = static_cast<const void**>(std::malloc(static_cast<size_t>(count) * sizeof(void*)));
  if (addresses_ != nullptr) return 0;
  return refuse("AotGemmError", "no memory for the addresses of %" PRId64 " tensors", count);
}

int WeightList::begin_weights(int64_t count, const DLTensor& first) {
  const Product product = product_;
  if (product == Product::kGatedLinear && count != kNumParts) {
    return refuse("ShapeError", "gated_linear: got %" PRId64 " weights; expected two, the gate's and the linear one", count);
  }
  if (first.ndim != 2 || first.shape == nullptr) {
    const char* shapes = product == Product::kGatedLinear ? "matrices (n, k), the gate's and the linear one"
                                                          : "matrices (n, k), or with a gate (2 n, k), one for each group";
    return refuse("ShapeError", "%s: weight 0 of %" PRId64 " has %d dimensions; expected %s", product_name(product), count,
                  first.ndim, shapes);
  }
  stack_ = first;
  shape_[0] = count;
  for (int32_t i = 0; i < 2; ++i) {
    shape_[i + 1] = first.shape[i];
    strides_[i + 1] = stride_of(first, i);
  }
  stack_.ndim = 3;
  stack_.shape = shape_;
  stack_.strides = strides_;
  if (product != Product::kGatedLinear) return 0;
  rows_[0] = kNumParts * first.shape[0];
  rows_[1] = first.shape[1];
  stack_.ndim = 2;
  stack_.shape = rows_;
  stack_.strides = strides_ + 1;
  return 0;
}

int WeightList::begin_packed(int64_t count, const DLTensor& first) {
  constexpr int32_t kMostModes = 2;
  if (count != kNumParts || first.ndim < 0 || first.ndim > kMostModes || (first.ndim > 0 && first.shape == nullptr)) {
    return refuse("ShapeError", "packed_linear: %s 0 of %" PRId64 " has %d dimensions; expected two, the gate's and the linear one, "
                  "of up to two dimensions", name_, count, first.ndim);
  }
  rank_ = first.ndim;
  stack_ = first;
  for (int32_t i = 0; i < rank_; ++i) {
    shape_[i + 1] = first.shape[i];
    strides_[i + 1] = stride_of(first, i);
  }
  return 0;
}

int WeightList::begin_factors(int64_t count, const DLTensor& first) {
  rank_ = 1;
  const bool is_vector = first.ndim == 1 && first.shape != nullptr && first.shape[0] >= 0;
  const bool is_run = is_vector && (first.shape[0] <= 1 || stride_of(first, 0) == 1);
  if (!is_run || first.shape[0] > INT64_MAX / count) {
    return refuse("ShapeError", "%s: scale_w 0 of %" PRId64 " has %d dimensions or is no run; expected atoms of one dimension for each "
                  "group, as one run of bytes; put factors into them by pack_factors", product_name(product_), count, first.ndim);
  }
  stack_ = first;
  shape_[1] = first.shape[0];
  shape_[0] = count * shape_[1];
  strides_[0] = strides_[1] = 1;
  stack_.shape = shape_;
  stack_.strides = strides_;
  return 0;
}

int WeightList::spread(const DLTensor& atoms) {
  int64_t stride = stride_of(atoms, 1);
  DLTensor row = atoms;
  row.ndim = 1;
  row.shape = atoms.shape + 1;
  row.strides = &stride;
  if (begin(Product::kGroupedLinear, kFactors, atoms.shape[0], row) != 0) return -1;
  for (int64_t i = 0; i < atoms.shape[0]; ++i) {
    if (add(row) != 0) return -1;
    row.byte_offset += static_cast<uint64_t>(stride_of(atoms, 0));
  }
  return 0;
}

int WeightList::add(const DLTensor& weight) {
  const int64_t number = num_added_;
  const DLTensor& first = stack_;
  const bool has_type = weight.dtype.code == first.dtype.code && weight.dtype.bits == first.dtype.bits &&
                        weight.dtype.lanes == first.dtype.lanes;
  if (!has_type) {
    return refuse("DtypeError", "%s: %s %" PRId64 " is of another element type than %s 0; expected one element type; convert it",
                  product_name(product_), name_, number, name_);
  }
  const bool is_beside =
      weight.device.device_type == first.device.device_type && weight.device.device_id == first.device.device_id;
  if (!is_beside) {
    return refuse("DeviceError", "%s: %s %" PRId64 " is on GPU %d, %s 0 on GPU %d; expected one GPU", product_name(product_), name_,
                  number, weight.device.device_id, name_, first.device.device_id);
  }
  const bool has_extents = weight.ndim >= 0 && weight.ndim <= kMaxDims && (weight.ndim == 0 || weight.shape != nullptr);
  if (!has_extents) {
    return refuse("ShapeError", "%s: %s %" PRId64 " has %d dimensions; expected 0 to %d, with extents", product_name(product_), name_,
                  number, weight.ndim, kMaxDims);
  }
  const int64_t* const shape = shape_ + 1;
  bool has_shape = weight.ndim == rank_;
  bool has_elements = true;
  for (int32_t i = 0; i < rank_; ++i) {
    has_shape = has_shape && weight.shape[i] == shape[i];
    has_elements = has_elements && shape[i] != 0;
  }
  if (!has_shape) {
    return refuse("ShapeError", "%s: %s %" PRId64 " has shape %s; expected that of %s 0, %s", product_name(product_), name_, number,
                  shape_text(weight).characters, name_, Text(shape, rank_).characters);
  }
  if (!have_strides(weight, strides_ + 1)) {
    return refuse("StrideError", "%s: %s %" PRId64 " has the strides %s; expected those of %s 0, %s; make them contiguous",
                  product_name(product_), name_, number, stride_text(weight).characters, name_, Text(strides_ + 1, rank_).characters);
  }
  if (weight.data == nullptr && has_elements) {
    return refuse("OperandError", "%s: %s %" PRId64 " has no memory of its own (its address is null); expected a tensor in GPU "
                  "memory; pass the tensor that it stands for", product_name(product_), name_, number);
  }
  addresses_[num_added_++] = data_of(weight);
  return 0;
}

}  // namespace aot
