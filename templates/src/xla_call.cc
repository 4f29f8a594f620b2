// The products as handlers of XLA's foreign function interface, which `aot_gemm.jax` registers. They depend on nothing
// of jaxlib: XLA calls them with the structs of xla_ffi.h.
//
// A call's operands are those that the bits of `given` name, in the order of Field; its results are D and, where one
// is needed, the workspace, so that XLA owns the memory of a CUDA graph that it captures. With `num_batches` of 0 or
// more the operands of the bits `batched`, and D, have one more dimension in front; each of their slices is a product.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include <dlpack/dlpack.h>

#include "aot_gemm.h"
#include "operands.h"
#include "products.h"
#include "refusal.h"
#include "request.h"
#include "xla_ffi.h"

namespace aot {

namespace {

// Of the versions 0.1 to 0.3 xla_ffi.h has what is common. XLA takes handlers of its own version and older; where it
// does not say which it has, it is an old one.
constexpr int32_t kOldestMinor = 1;
constexpr int32_t kNewestMinor = 3;

// Operands that a call of XLA may have: those before this one.
constexpr int32_t kNumSlots = kScaleD + 1;

// Finds an attribute that is an integer.
int read_attribute(const xla::Attributes& attributes, const char* name, int64_t* value) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const xla::Text& found = *attributes.names[i];
    if (found.size != std::strlen(name) || std::memcmp(found.characters, name, found.size) != 0) continue;
    const auto* scalar = static_cast<const xla::Scalar*>(attributes.values[i]);
    if (attributes.types[i] != xla::kScalar || scalar->type != xla::DataType::kInt64) break;
    *value = *static_cast<const int64_t*>(scalar->value);
    return 0;
  }
  return refuse("AotGemmError", "the call has no attribute `%s` of int64; expected one of this package's own calls",
                name);
}

// An element type that no operation has stays unknown here, and is refused where all operands are looked at.
DLDataType type_of(xla::DataType type) {
  switch (type) {
    case xla::DataType::kInt8: return dlpack_type(Element::kInt8);
    case xla::DataType::kInt32: return dlpack_type(Element::kInt32);
    case xla::DataType::kFloat16: return dlpack_type(Element::kFloat16);
    case xla::DataType::kFloat32: return dlpack_type(Element::kFloat32);
    case xla::DataType::kBfloat16: return dlpack_type(Element::kBfloat16);
    case xla::DataType::kE5m2: return dlpack_type(Element::kE5m2);
    case xla::DataType::kE4m3fn: return dlpack_type(Element::kE4m3);
    case xla::DataType::kE8m0fnu: return dlpack_type(Element::kE8m0);
    case xla::DataType::kUint8: return {kDLUInt, 8, 1};
    default: return {kDLOpaqueHandle, 0, 1};
  }
}

// XLA has made its device current for the calling thread: -1 is that one.
DLTensor as_tensor(const xla::Buffer& buffer) {
  const auto num_dims = static_cast<int32_t>(buffer.num_dims);
  return {buffer.data, {kDLCUDA, -1}, num_dims, type_of(buffer.type), buffer.extents, nullptr, 0};
}

// Gives a slice along the first dimension.
DLTensor slice(const DLTensor& whole, int64_t index) {
  DLTensor part = whole;
  part.ndim -= 1;
  part.shape += 1;
  int64_t num_bytes = whole.dtype.bits / 8;
  for (int32_t i = 0; i < part.ndim; ++i) num_bytes *= part.shape[i];
  part.data = static_cast<char*>(whole.data) + index * num_bytes;
  return part;
}

// One call: its tensors, attributes, workspace and stream. The functions give 0, or -1 with the thread's refusal set.
class XlaCall {
 public:
  XlaCall(Product product, const xla::CallFrame& frame) : product_(product), frame_(frame) {}

  int read() {
    if (read_attributes() != 0 || read_tensors() != 0) return -1;
    xla::GetStream asked = {sizeof(asked), nullptr, frame_.context, nullptr};
    error_ = frame_.api->get_stream(&asked);
    stream_ = asked.stream;
    return error_ == nullptr ? 0 : -1;
  }

  int launch() {
    const bool is_one = num_batches_ < 0;
    for (int64_t i = 0; i < (is_one ? 1 : num_batches_); ++i) {
      DLTensor parts[kNumSlots];
      for (int slot = 0; slot < kNumSlots; ++slot) {
        const bool is_sliced = !is_one && has(batched_, slot);
        parts[slot] = is_sliced ? slice(tensors_[slot], i) : tensors_[slot];
      }
      if (launch_one(parts, is_one ? out_ : slice(out_, i)) != 0) return -1;
    }
    return 0;
  }

  // Gives the error of a function above, for XLA to own.
  xla::Error* error() const {
    if (error_ != nullptr) return error_;
    if (status_ != AOT_GEMM_OK) return make_error(code_of(status_), aot_gemm_last_error());
    const Refusal& refusal = last_refusal();
    if (!refusal.is_of_operation()) return make_error(xla::Code::kInvalidArgument, refusal.message);
    char text[2 * sizeof(refusal.message)];
    std::snprintf(text, sizeof(text), "this library has no kernels for %s; it has %s", refusal.message,
                  list_operations().characters);
    return make_error(xla::Code::kUnimplemented, text);
  }

 private:
  static bool has(int64_t bits, int slot) { return (bits >> slot & 1) != 0; }
  static bool has(int64_t flags, CallFlag flag) { return (flags & static_cast<int64_t>(flag)) != 0; }

  static xla::Code code_of(aot_gemm_status_t status) {
    switch (status) {
      case AOT_GEMM_ERROR_OPERATION: return xla::Code::kUnimplemented;
      case AOT_GEMM_ERROR_NO_GPU:
      case AOT_GEMM_ERROR_ARCHITECTURE: return xla::Code::kFailedPrecondition;
      case AOT_GEMM_ERROR_CUDA:
      case AOT_GEMM_ERROR_TABLE: return xla::Code::kInternal;
      default: return xla::Code::kInvalidArgument;
    }
  }

  xla::Error* make_error(xla::Code code, const char* message) const {
    xla::CreateError stated = {sizeof(stated), nullptr, message, code};
    return frame_.api->create_error(&stated);
  }

  int read_attributes() {
    const xla::Attributes& attributes = frame_.attributes;
    int64_t epilogue = 0;
    int64_t flags = 0;
    if (read_attribute(attributes, "given", &given_) != 0 || read_attribute(attributes, "batched", &batched_) != 0 ||
        read_attribute(attributes, "num_batches", &num_batches_) != 0 ||
        read_attribute(attributes, "epilogue", &epilogue) != 0 || read_attribute(attributes, "flags", &flags) != 0) {
      return -1;
    }
    options_.epilogue = static_cast<Epilogue>(epilogue);
    options_.allow_tf32 = has(flags, CallFlag::kAllowTf32);
    options_.use_fast_accum = has(flags, CallFlag::kUseFastAccum);
    options_.is_interleaved = has(flags, CallFlag::kInterleaved);
    return 0;
  }

  int read_tensors() {
    const xla::Buffers& operands = frame_.operands;
    const xla::Buffers& results = frame_.results;
    int64_t num_read = 0;
    for (int slot = 0; slot < kNumSlots; ++slot) {
      if (!has(given_, slot)) continue;
      if (num_read == operands.size) break;
      tensors_[slot] = as_tensor(*operands.buffers[num_read]);
      if (has(batched_, slot) && num_batches_ >= 0 && check_batched(tensors_[slot]) != 0) return -1;
      ++num_read;
    }
    if (num_read != operands.size || __builtin_popcountll(static_cast<uint64_t>(given_)) != num_read ||
        !has(given_, kLeft) || !has(given_, kRight) || results.size < 1 || results.size > 2) {
      return refuse("AotGemmError", "the call has %" PRId64 " operands and %" PRId64 " results, and `given` is %" PRId64
                    "; expected one of this package's own calls", operands.size, results.size, given_);
    }
    out_ = as_tensor(*results.buffers[0]);
    if (results.size == 2) {
      const xla::Buffer& workspace = *results.buffers[1];
      workspace_ = workspace.data;
      workspace_bytes_ = workspace.num_dims == 1 ? static_cast<size_t>(workspace.extents[0]) : 0;
    }
    return num_batches_ >= 0 ? check_batched(out_) : 0;
  }

  int check_batched(const DLTensor& tensor) const {
    if (tensor.ndim >= 1 && tensor.shape[0] == num_batches_) return 0;
    return refuse("ShapeError", "%s: an operand or the result has no first extent of %" PRId64
                  ", the number of batches", product_name(product_), num_batches_);
  }

  int launch_one(const DLTensor* tensors, const DLTensor& out) {
    Operands operands = {{}, options_};
    for (int32_t slot = 0; slot < kNumSlots; ++slot) operands.tensors[slot] = has(given_, slot) ? &tensors[slot] : nullptr;
    operands.tensors[kOut] = &out;
    Result result;
    Problems problems;
    if (check_operands(product_, operands, &result) != 0 ||
        state_problems(product_, operands, result, false, &problems) != 0) {
      return -1;
    }
    for (int64_t i = 0; i < problems.count && status_ == AOT_GEMM_OK; ++i) {
      const aot_gemm_problem_t problem = problems.at(i);
      status_ = aot_gemm_launch(&problem, workspace_, workspace_bytes_, stream_);
    }
    return status_ == AOT_GEMM_OK ? 0 : -1;
  }

  const Product product_;
  const xla::CallFrame& frame_;
  int64_t given_ = 0;
  int64_t batched_ = 0;
  int64_t num_batches_ = -1;
  Options options_;
  DLTensor tensors_[kNumSlots] = {};
  DLTensor out_ = {};
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  void* stream_ = nullptr;
  aot_gemm_status_t status_ = AOT_GEMM_OK;
  xla::Error* error_ = nullptr;
};

// Answers what XLA asks when a handler is registered. Says whether that was the question.
bool describe(const xla::CallFrame& frame) {
  const xla::Extension* extension = frame.extensions;
  if (extension == nullptr || extension->type != xla::kMetadata) return false;
  xla::Metadata* metadata = reinterpret_cast<const xla::MetadataExtension*>(extension)->metadata;
  const int32_t minor = frame.api == nullptr ? kOldestMinor : frame.api->version.minor;
  metadata->version = {sizeof(xla::ApiVersion), nullptr, 0, minor < kNewestMinor ? minor : kNewestMinor};
  metadata->traits = xla::kCanBeCaptured;
  return true;
}

xla::Error* handle(Product product, const xla::CallFrame& frame) {
  if (describe(frame) || frame.stage != xla::Stage::kExecute) return nullptr;
  XlaCall call(product, frame);
  return call.read() == 0 && call.launch() == 0 ? nullptr : call.error();
}

}  // namespace

}  // namespace aot

extern "C" {

AOT_GEMM_API aot::xla::Error* aot_gemm_xla_linear(const aot::xla::CallFrame* frame) {
  return aot::handle(aot::Product::kLinear, *frame);
}

AOT_GEMM_API aot::xla::Error* aot_gemm_xla_gated_linear(const aot::xla::CallFrame* frame) {
  return aot::handle(aot::Product::kGatedLinear, *frame);
}

AOT_GEMM_API aot::xla::Error* aot_gemm_xla_matmul(const aot::xla::CallFrame* frame) {
  return aot::handle(aot::Product::kMatmul, *frame);
}

}  // extern "C"
