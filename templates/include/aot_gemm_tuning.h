/* What tuning and checking a kernel library take beside aot_gemm.h: each kernel by its index, whatever the dispatch table
 * says.
 *
 * `aot tune`, `aot verify` and the tests are the callers. A wheel's library exports these functions, since `aot verify`
 * runs every kernel of a finished wheel, but the wheel does not carry this header: the functions are no part of the
 * interface that AOT_GEMM_ABI_VERSION counts, and change with any release.
 */
#ifndef AOT_GEMM_TUNING_H_
#define AOT_GEMM_TUNING_H_

#include "aot_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Store the bytes of workspace that one kernel needs for a problem. A kernel that cannot take the problem returns
 * AOT_GEMM_ERROR_STRIDE, AOT_GEMM_ERROR_SHAPE or AOT_GEMM_ERROR_OPERATION, here and below. Needs no GPU. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_kernel_workspace_bytes(int32_t kernel, const aot_gemm_problem_t* problem,
                                                               size_t* num_bytes);

/* Enqueue a product with one kernel; the other arguments are those of aot_gemm_launch. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_launch_kernel(int32_t kernel, const aot_gemm_problem_t* problem,
                                                      void* workspace, size_t workspace_bytes, void* stream);

/* The same with the tiles taken in another order, 1 to 8: along m in groups of 1, 2, 4 or 8 clusters, then along n. A
 * kernel that takes its tiles in one order alone returns AOT_GEMM_ERROR_ARGUMENT. 0 is what aot_gemm_launch_kernel does. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_launch_kernel_in_order(int32_t kernel, int32_t tile_order,
                                                               const aot_gemm_problem_t* problem, void* workspace,
                                                               size_t workspace_bytes, void* stream);

/* Store how many clusters of a kernel the device can run at once for a problem; -1 where the kernel has no clusters.
 * Nothing runs; the arguments are those of a launch. With 0 a launch would fail, as on a device with few SMs. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_kernel_max_active_clusters(int32_t kernel, const aot_gemm_problem_t* problem,
                                                                   void* workspace, size_t workspace_bytes,
                                                                   int32_t* num_clusters);

/* Enqueue an operation on rows with one row kernel; the other arguments are those of aot_rows_launch. */
AOT_GEMM_API aot_gemm_status_t aot_rows_launch_kernel(int32_t kernel, const aot_rows_problem_t* problem, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* AOT_GEMM_TUNING_H_ */
