/* What a library holds in memory, and how it is kept small: where CPU and GPU share one memory, all of it counts.
 *
 * A library's own memory is its file, mapped, of which untouched pages take none and others may be dropped and read again;
 * a fixed number of bytes that are written; and a few kilobytes for each thread. It takes no workspace that it keeps:
 * callers hand one in, or a function that allocates it. CUDA holds an image of each kernel that was loaded on each device,
 * and is told that the file stays, so that it needs no copy of the image in host memory. That is why the library, once
 * loaded, stays in the process when it is closed. */
#ifndef AOT_GEMM_MEMORY_H_
#define AOT_GEMM_MEMORY_H_

#include "aot_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Load the kernels of one operation alone onto a device (-1: the current one), by its tag: "bf16", or of rows
 * "bf16_rms_norm". What aot_gemm_preload loads of all, without the memory of the others; a call that needs another kernel
 * loads it then. A batch takes kernels of the operation "..._batched", where the library has it, and else these. An unknown
 * tag gives AOT_GEMM_ERROR_OPERATION, with those that there are. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_preload_operation(const char* tag, int32_t device);

/* Bytes are of the kernels' objects as they lie in the file: each an image for the device, and the host code that launches
 * it, which is a small part. How much device memory CUDA takes for an image is CUDA's. */
typedef struct {
  uint64_t struct_bytes; /* sizeof(aot_gemm_memory_t) */
  int64_t num_objects;   /* kernels that differ in their sizes alone may share one */
  int64_t object_bytes;
  int64_t num_loaded; /* of which so many are loaded on the device */
  int64_t loaded_bytes;
} aot_gemm_memory_t;

/* Say what of the kernels is in the memory of a device (-1: the current one). Loads nothing. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_memory(int32_t device, aot_gemm_memory_t* memory);

#ifdef __cplusplus
}
#endif

#endif /* AOT_GEMM_MEMORY_H_ */
