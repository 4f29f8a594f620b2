// What XLA's foreign function interface calls a handler with: the structs of its C API, version 0.1 and newer, as far
// as a handler reads them. They are declared here so that the library is built without jaxlib;
// tests/runtime/test_xla.py compares them with jaxlib's own header (xla/ffi/api/c_api.h).
#ifndef AOT_GEMM_XLA_FFI_H_
#define AOT_GEMM_XLA_FFI_H_

#include <cstddef>
#include <cstdint>

namespace aot::xla {

struct Error;             // opaque
struct ExecutionContext;  // opaque

struct Extension {
  size_t struct_bytes;
  int32_t type;
  Extension* next;
};

struct ApiVersion {
  size_t struct_bytes;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

// Codes of absl::Status.
enum class Code : int32_t { kInvalidArgument = 3, kFailedPrecondition = 9, kUnimplemented = 12, kInternal = 13 };

struct CreateError {
  size_t struct_bytes;
  Extension* extensions;
  const char* message;
  Code code;
};

struct GetStream {
  size_t struct_bytes;
  Extension* extensions;
  ExecutionContext* context;
  void* stream;  // out
};

// The leading functions of XLA_FFI_Api; others follow them.
struct Api {
  size_t struct_bytes;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(CreateError*);
  void* get_error_message;
  void* destroy_error;
  void* register_handler;
  Error* (*get_stream)(GetStream*);
};

// Element types: xla::PrimitiveType.
enum class DataType : int32_t {
  kInt8 = 2,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kFloat16 = 10,
  kFloat32 = 11,
  kBfloat16 = 16,
  kE5m2 = 19,
  kE4m3fn = 20,
  kE8m0fnu = 33
};

// A row-major array in the memory of the device.
struct Buffer {
  size_t struct_bytes;
  Extension* extensions;
  DataType type;
  void* data;
  int64_t num_dims;
  int64_t* extents;
};

// What a list of operands and one of results hold.
constexpr int32_t kBuffer = 1;

struct Buffers {
  size_t struct_bytes;
  Extension* extensions;
  int64_t size;
  const int32_t* types;
  Buffer** buffers;
};

struct Text {
  const char* characters;
  size_t size;
};

struct Scalar {
  DataType type;
  const void* value;
};

constexpr int32_t kScalar = 3;  // of the types of attributes

struct Attributes {
  size_t struct_bytes;
  Extension* extensions;
  int64_t size;
  const int32_t* types;
  Text** names;  // sorted
  void** values;
};

enum class Stage : int32_t { kInstantiate, kPrepare, kInitialize, kExecute };

struct CallFrame {
  size_t struct_bytes;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

// What XLA asks of a handler when it is registered.
constexpr int32_t kMetadata = 1;  // of the types of extensions
constexpr uint32_t kCanBeCaptured = 1;  // the same kernels are launched in every call; no memory is allocated

struct Metadata {
  size_t struct_bytes;
  ApiVersion version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace aot::xla

#endif  // AOT_GEMM_XLA_FFI_H_
