// What a launcher of a `Binary` includes (aot.families): how a kernel that another compiler made is launched.
//
// A launcher is C11. It defines
//
//     static int32_t launch(<the arguments of the kernel's signature, in its order>, aot_stream_t stream);
//
// which returns a cudaError_t, 0 for success; this header stands in front of it. Tensors come as pointers to the structs
// below, int32 arguments as int32_t. It fills an aot_launch_t and calls `aot_launch` with the addresses of the kernel's own
// parameters, as cuLaunchKernel takes them. It allocates nothing, waits for nothing and keeps nothing: it is called by any
// thread, and while a stream is captured. It calls nothing of CUDA: a wheel has the driver alone.
//
// AOT_NUM_THREADS and AOT_SMEM_BYTES are the `num_threads` and `smem_bytes` of the Binary.
#ifndef AOT_LAUNCH_H_
#define AOT_LAUNCH_H_

#include <stddef.h>
#include <stdint.h>

// The operands, as templates/src/problem.h has them. Strides are in elements. A family of one stride (`num_strides`)
// reads that of the leading mode alone, `strides[0]`; the other mode's is 1. Behind a stack's first stride, from matrix to
// matrix, the rest is as of a matrix.
typedef struct aot_matrix {
  void *data;
  int32_t shape[2];
  int64_t strides[2];
} aot_matrix_t;

typedef struct aot_stack {
  void *data;
  int32_t shape[3];
  int64_t strides[3];
} aot_stack_t;

typedef struct aot_gate_stack {
  void *data;
  int32_t shape[4];
  int64_t strides[4];
} aot_gate_stack_t;

// Adjacent elements.
typedef struct aot_vector {
  void *data;
  int32_t shape[1];
} aot_vector_t;

// float32 factors: adjacent, or with a stride of 0 one for all.
typedef struct aot_factors {
  void *data;
  int32_t shape[1];
  int64_t strides[1];
} aot_factors_t;

// Addresses of matrices, in host memory.
typedef struct aot_addresses {
  const void *const *data;
  int32_t shape[1];
} aot_addresses_t;

typedef void *aot_stream_t;

// How a kernel is launched. What is left 0 is as usual.
typedef struct aot_launch {
  uint32_t grid[3];     // blocks along x, y, z; 0 counts as 1
  uint32_t block[3];    // threads, AOT_NUM_THREADS in all; all 0: so many along x
  uint32_t cluster[3];  // blocks of a cluster, at most 8 in all, which divide the grid; all 0: no clusters
  int32_t programmatic;  // not 0: it may begin before the kernel in front has ended. It must wait by griddepcontrol.wait.
  aot_stream_t stream;
} aot_launch_t;

// Returns how many blocks of `size` cover `count`, which is at least 0.
static inline int64_t aot_ceil_div(int64_t count, int64_t size) { return count / size + (count % size != 0); }

// Returns a number of blocks as `grid` has it. One that is too large stays so: the library refuses it with its figures.
static inline uint32_t aot_blocks(int64_t count) { return count > UINT32_MAX ? UINT32_MAX : (uint32_t)count; }

#ifdef AOT_NUM_THREADS

// The layouts of cudaLaunchAttribute and cudaLaunchConfig_t. Source: driver_types.h of CUDA 13.0.
typedef struct aot_attribute {
  int32_t id;
  char pad[4];
  int32_t value[16];
} aot_attribute_t;

typedef struct aot_config {
  uint32_t grid[3];
  uint32_t block[3];
  size_t smem_bytes;
  void *stream;
  const aot_attribute_t *attributes;
  uint32_t num_attributes;
} aot_config_t;

enum {
  AOT_INVALID_VALUE = 1,  // cudaErrorInvalidValue
  AOT_CLUSTER = 4,        // cudaLaunchAttributeClusterDimension
  AOT_PROGRAMMATIC = 6,   // cudaLaunchAttributeProgrammaticStreamSerialization
  AOT_DYNAMIC_SMEM = 8    // cudaFuncAttributeMaxDynamicSharedMemorySize
};

// What the library answers: templates/src/cuda_entry.cc.
int32_t _cudaLibraryLoadData(void **library, const void *image, void *, void *, uint32_t, void *, void *, uint32_t);
int32_t _cudaLibraryGetKernel(void **kernel, void *library, const char *name);
int32_t _cudaKernelSetAttributeForDevice(void *kernel, int32_t attribute, int32_t value, int32_t device);
int32_t _cudaLaunchKernelEx(const aot_config_t *config, const void *kernel, void **parameters);

static void *aot_kernel;  // written once, before the first launch, under the library's lock

// Launches the kernel. `parameters` are the addresses of its parameters, in their order.
static inline int32_t aot_launch(const aot_launch_t *how, void **parameters) {
  aot_config_t config = {{1, 1, 1}, {AOT_NUM_THREADS, 1, 1}, AOT_SMEM_BYTES, how->stream, NULL, 0};
  aot_attribute_t attributes[2] = {{0}};
  if (how->block[0] != 0) {
    const uint64_t plane = (uint64_t)how->block[0] * how->block[1];
    if (plane * how->block[2] != AOT_NUM_THREADS) return AOT_INVALID_VALUE;
    for (int axis = 0; axis < 3; ++axis) config.block[axis] = how->block[axis];
  }
  for (int axis = 0; axis < 3; ++axis) config.grid[axis] = how->grid[axis] == 0 ? 1 : how->grid[axis];
  if (how->cluster[0] != 0) {
    aot_attribute_t *attribute = &attributes[config.num_attributes++];
    attribute->id = AOT_CLUSTER;
    for (int axis = 0; axis < 3; ++axis) attribute->value[axis] = (int32_t)how->cluster[axis];
  }
  if (how->programmatic != 0) {
    aot_attribute_t *attribute = &attributes[config.num_attributes++];
    attribute->id = AOT_PROGRAMMATIC;
    attribute->value[0] = 1;
  }
  config.attributes = attributes;
  return _cudaLaunchKernelEx(&config, aot_kernel, parameters);
}

#endif  // AOT_NUM_THREADS

#endif  // AOT_LAUNCH_H_
