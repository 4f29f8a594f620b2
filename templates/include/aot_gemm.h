/* C API of an AOT GEMM library: prebuilt tensor-core matrix products for one GPU architecture.
 *
 *   D (m, n) = [ activation(A (m, k) @ B (n, k)^T * scale_a * scale_b + bias) + residual ] * scale_d
 *
 * Which of these an operation has, and their element types, its tag says (aot_gemm_operation). The sum is taken in
 * float32, of int8 exactly in int32, which holds all sums up to a k of 131,071; what follows is computed in float32, and
 * the result rounded once. B is held (n, k), as torch.nn.Linear holds a weight; a (k, n) right operand is the same matrix
 * with its two strides exchanged. With a gate B holds 2 n rows, and D = activation(gate) * linear of their two sums.
 *
 * Every function that returns aot_gemm_status_t gives AOT_GEMM_OK or an error whose text aot_gemm_last_error() gives,
 * and may be called from any thread. No function allocates device memory, or writes to disk unless AOT_GEMM_MISSES asks
 * for it. A launch only enqueues work, so that it may be captured into a CUDA graph; the first launch of a kernel loads
 * it, captured or not.
 *
 * The miss log. If the environment has AOT_GEMM_MISSES=file when the library is loaded, launches that no tuned (n, k)
 * answered (AOT_GEMM_TIER_GRID, AOT_GEMM_TIER_FALLBACK) are counted in that file, of which
 * `aot shapes from-misses file -o shapes.toml` makes what `aot tune --shapes` takes; %p in the name stands for the
 * process's id. The file is replaced whole, at the launches 1, 2, 4, 8, ... that miss, when the log has grown by an eighth,
 * after ten seconds, and at exit: a killed process loses what came since, and never damages it. Counts add up over processes
 * and runs; a captured launch counts once. When one (n, k) has had more than 64 m, they are rounded up to 8, 10, 12, 14, 16,
 * 20, ...; launches of more than 512 (n, k) count as `dropped`. No failure to write fails a launch; stderr has the first.
 */
#ifndef AOT_GEMM_H_
#define AOT_GEMM_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define AOT_GEMM_API __attribute__((visibility("default")))
#else
#define AOT_GEMM_API
#endif

/* Version of the binary interface: of the functions, and of what the fields of the structs mean. It is part of the
 * library's SONAME (lib<package>.so.<version>) and of its symbols' version. Fields are only ever added at the end of a
 * struct, which `struct_bytes` tells; then this number stays. aot_gemm_abi_version() says it of the library that was
 * loaded. */
#define AOT_GEMM_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  AOT_GEMM_OK = 0,
  AOT_GEMM_ERROR_ARGUMENT = 1,     /* a null pointer, what the operation does not take, no such kernel or device */
  AOT_GEMM_ERROR_OPERATION = 2,    /* an operation, as of another element type, that this library has no kernels for */
  AOT_GEMM_ERROR_SHAPE = 3,        /* a negative extent, or one past 2^31 - 1; with a gate n past 2^30 - 1 */
  AOT_GEMM_ERROR_STRIDE = 4,       /* a negative stride, a D over itself or an operand, an address that no kernel takes */
  AOT_GEMM_ERROR_NO_GPU = 5,       /* no GPU, no driver, or a driver too old */
  AOT_GEMM_ERROR_ARCHITECTURE = 6, /* a GPU that the kernels, or the one named, cannot run on */
  AOT_GEMM_ERROR_CUDA = 7,         /* a CUDA call failed; the text has CUDA's message */
  AOT_GEMM_ERROR_WORKSPACE = 8,    /* a workspace too small, missing, or not aligned to 16 bytes */
  AOT_GEMM_ERROR_TABLE = 9         /* the library's own dispatch table contradicts itself: build it again */
} aot_gemm_status_t;

/* Which part of the dispatch table answered. */
typedef enum { AOT_GEMM_TIER_TUNED = 1, AOT_GEMM_TIER_GRID = 2, AOT_GEMM_TIER_FALLBACK = 3 } aot_gemm_tier_t;

/* Flag of a problem: the promise that nothing writes B while this launch is in flight, nor while launches that were
 * enqueued before it on the device are: that B was written, and the write waited for, before. A layer's weight that was
 * loaded once is such a B. Kernels that can then load B while the kernel in front on the stream still runs
 * (programmatic dependent launch); A is read and D written only after it has ended. Without the flag, B too is read
 * only then, and the product is right whatever wrote B. Where the promise is broken, the product may be of B's old
 * values. Where D is column-major, so that A and B are exchanged, the flag has no effect. AOT_GEMM_WEIGHT_PREFETCH=0 in
 * the environment when the library is loaded turns it off for the whole process. */
#define AOT_GEMM_B_CONSTANT UINT64_C(1)

/* Flag of a problem whose operation has a gate: B's rows, and the elements of a bias and of a vector of factors, are in
 * pairs, gate row 2j before linear row 2j + 1. Without it the n gate rows come first, then the n linear rows. */
#define AOT_GEMM_GATE_INTERLEAVED UINT64_C(2)

/* Flag of a problem: a row of D has the same bits whatever m is and whatever the other rows hold, and from run to run.
 * Between calls of one n, one k and one operation, operands with the same strides, and addresses that are multiples of 16
 * bytes in both or in neither, on devices that one table answers for. A kernel is then chosen among those that add up k
 * in one order, which costs time at some sizes. A library without such a table for the operation says so: an error. Of
 * groups that offsets tell, the bits of a row depend on its operands and on its group's alone: not on how many rows the
 * group has, nor on the other groups and their number. It costs nothing there, since a library's kernels of such an
 * operation have one order or refuse the flag. */
#define AOT_GEMM_BATCH_INVARIANT UINT64_C(4)

/* Flag of a problem: D has the same bits from run to run, of the same operands on the same device. Only kernels that add
 * in no fixed order are left out, if the library has any. */
#define AOT_GEMM_DETERMINISTIC UINT64_C(8)

/* Flag of a problem of groups: the offsets are num_groups + 1, where the first group starts, then where each ends. What
 * lies in front of the first group is of none. */
#define AOT_GEMM_OFFSETS_START UINT64_C(16)

/* Flag of a problem whose operation has a gate and no groups: the n gate rows of B begin at b.data, and the n linear rows
 * group_strides.b elements behind, as those of two matrices (n, k) of one stride that need not lie side by side. Below 0 the
 * linear rows lie in front. A bias and factors are (2 n) as ever, the gate's first; but of packed weights factors are two
 * vectors (n, 1) too, group_strides.scale_b elements apart. */
#define AOT_GEMM_GATE_PARTS UINT64_C(32)

/* One matrix, or one vector as a matrix of one row. Strides are in elements: strides[0] is the step from row to row,
 * strides[1] from column to column; neither is below 0. The stride of an extent of 1 or 0 is not looked at. */
typedef struct {
  void* data; /* device address; null in queries, where it counts as aligned. Only D is written, and its factors. */
  int64_t strides[2];
} aot_gemm_tensor_t;

/* Steps from product to product of a batch, or from group to group, in elements; 0 where all share an operand. None is
 * below 0, but for b and scale_b with AOT_GEMM_GATE_PARTS. */
typedef struct {
  int64_t a, b, d, bias, scale_a, scale_b, residual;
} aot_gemm_group_strides_t;

/* One weight of several: B (n, k), D (m, n) and a bias (1, n), all 0 where there is none. */
typedef struct {
  int64_t n;
  aot_gemm_tensor_t b, d, bias;
} aot_gemm_part_t;

/* Most weights of one launch. */
#define AOT_GEMM_MAX_PARTS 4

/* One product, a batch of products, or groups. Extents are in elements; A is (m, k), B (n, k), D (m, n).
 *
 *   bias      (1, n), columns that are adjacent, of D's element type, or bfloat16 where D's is of 8 bits. Operations that
 *             are named by it need one; the others may be left without: all 0.
 *   scale_a   float32 factors of A. A vector (m, 1) has one for each row: strides[0] is 1, or 0 where one serves all. An
 *             operation of blocks has (m, ceil(k / 128)), of any strides. Of nvfp4, mxfp4 and mxfp8 they are a byte each, in
 *             atoms of 512: see below.
 *   scale_b   likewise of B: (n, 1), or (ceil(n / 128), ceil(k / 128)).
 *   residual  (m, n), of D's element type, added behind the activation.
 *   scale_d   one float32, that D is multiplied by before it is rounded to 8 bits; of nvfp4 the product of the factors of
 *             all of A and of all of B, that the sum is multiplied by before a bias is added.
 *   own_d     of a D in nvfp4, as of "nvfp4_nvfp4_swiglu": one float32, D's own factor, which is known before: what D stands
 *             for are its elements, times the factors of their blocks, times this. The largest magnitude that D is to hold
 *             over 6 * 448 is a good one. Of groups there is one for all of them.
 *   factors_d of a D in nvfp4, mxfp4 or mxfp8 ("mxfp8_mxfp8_gelu"): the atoms that the factors of its blocks along n are
 *             written to. D and they are what the next product reads as its a and scale_a, of the same groups if there are any.
 *   gate      B is (2 n, k), a bias (1, 2 n) and the factors of B (2 n, 1): see AOT_GEMM_GATE_INTERLEAVED, which nvfp4
 *             and mxfp8 need, and AOT_GEMM_GATE_PARTS.
 *
 * nvfp4, mxfp4, mxfp8: the factor of row i of A, or of B, and of block j along k (16, 32 and 32 elements) is byte
 * (i / 128 * ceil(blocks / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4. Strides of factors are not looked at,
 * addresses are multiples of 16. What fills a row's last four blocks up has to be zero. Elements of 4 bits lie two in a
 * byte, the first in the lower half; extents and strides count elements, and rows begin with a byte. Of "..._grouped" the
 * factors of a group's rows begin with an atom: row i of group g, which starts at row s of all groups, counts as row
 * (s / 128 + g) * 128 + i - s in that formula, and A has ceil(m / 128) + num_groups - 1 times 128 rows of factors, of which
 * those that are no row's may hold anything. B's are a group's atoms, group_strides.scale_b bytes behind those of the one
 * before it, which has to be their number; scale_d is (num_groups, 1), adjacent: of all of A times all of the group's B.
 *
 * A D in such a format: the sums, with all that is added and multiplied to them, are float32 numbers x. Of nvfp4 a block's
 * factor is the e4m3 that is nearest to its largest |x| / (6 own_d), from 2^-9 to 448, and an element the e2m1 that is nearest
 * to x over the factor times own_d, at most 6. Of mxfp4 and mxfp8 a factor is the least power of two by which no |x| of its
 * block is more than 6, or 448, and an element the nearest to x over it. Ties go to even, as the Python package's `quantize`
 * rounds float32 numbers. A block that has a NaN has the factor NaN. Columns behind n have factors of 0, and those of rows
 * behind m, or of no group, are not written. Of elements of 4 bits n is even, and the fast kernels need a multiple of 32, of
 * mxfp8 one of 16.
 *
 * A packed weight ("bf16xint4g128_bf16" and others): B is the bytes that the Python package's `pack` writes, at a multiple of
 * 16, and its strides are not looked at. n and k are those of the weight; k is a multiple of 128, 32 or 16, as the format says.
 * A row of bytes is 16 rows of the weight, of blocks of 128 elements along k, rounded up. scale_b, where the format has it,
 * is (n, 1); there is no scale_a, and a bias is optional. With a gate ("bf16xint4g128_bf16_swiglu") B is two such weights of
 * one n and k, one behind the other, or with AOT_GEMM_GATE_PARTS wherever they are, a multiple of 16 bytes apart; rows do not
 * alternate. Of "bf16xint4g128_bf16_grouped" and "..._gathered" each group has such a weight, group_strides.b bytes behind the
 * one before it, a multiple of 16.
 *
 * Several weights of one A in one launch, "bf16_many" and "fp16_many": D_i (m, n_i) = A @ B_i^T + bias_i. Each weight is one
 * of `parts`, which has its own b, d and bias, null where there is none, and n; the problem's n is that of all, and its own
 * b, d and bias are null. Any addresses and strides will do; one launch serves all parts where those of A, B and D are as the
 * fast kernels need them, and D at any element. A part may have no rows. No two parts share an element of D.
 *
 * Several products in one launch:
 *
 *   num_groups     of more than 1 makes a batch of any operation without a grouping in its tag: `num_groups` products of
 *                  the same sizes, each `group_strides` behind the one before it. An operation "..._batched" has kernels
 *                  for that; where the library has none, or AOT_GEMM_BATCH_INVARIANT is set, each product is a launch of
 *                  its own.
 *   offsets        (num_groups, 1), int32 on the device, adjacent: where each group ends. Of "..._grouped" a group is the
 *                  rows of A and of D from the end of the one before it; m is that of all groups, and B (n, k), what
 *                  belongs to its rows and a bias are one for each group, `group_strides` apart. Of "..._kgrouped" it is a
 *                  range of k, which is that of all groups, and each has a D of its own.
 *   index          (m, 1), int32 on the device, adjacent: of "..._gathered" the row of A that row i of the groups is. A is
 *                  (rows_of_a, k). An index that is not one of its rows, such as -1, reads a row of zeros, whose factor
 *                  is 0.
 *
 *   b_of_groups    of "..._grouped" and "..._gathered", where the groups' B are no one stack: the device addresses of
 *                  `num_groups` of them, an array in host memory that is read before the call returns. All have b.strides;
 *                  b.data and group_strides.b are then 0. Where the addresses have one step, this costs nothing; elsewhere
 *                  a small kernel is launched in front, which writes where each B is to the workspace: 4 bytes for each
 *                  group, so that one is asked for with the addresses themselves. A CUDA graph keeps those of its capture.
 *   scale_b_of_groups  likewise of factors of B in atoms, which are elsewhere one run of bytes, with B's addresses or alone:
 *                  scale_b and group_strides.scale_b are then 0. The same small kernel serves both.
 *
 * Offsets that do not lie within what is grouped count as its nearest end, and a group that ends before it starts is
 * empty. Rows of D that are in no group are not written; those of a group without k, of "..._kgrouped", are zeros. Where
 * offsets descend, rows may be in several groups: each then holds what one of them gives.
 *
 * An operand that the operation takes and does not say to be optional is needed; one that it does not take must be null.
 *
 * The fast kernels need, of each matrix, one stride of 1, an address and another stride that are multiples of 16 bytes;
 * of D, as many bytes along the stride of 1, since they write it in pieces of 16 bytes. Of a bias they need an address
 * that is a multiple of 16 bytes; a D with anything added or multiplied to the sum, and a residual, are row-major; so is B
 * with a gate, and its parts are a multiple of 16 bytes and less than 2^40 apart; beside blocks of factors n is a multiple of
 * 128 then. Anything else is computed by the fallback kernel, slower. Factors lie at multiples of 4 bytes. m or n of 0 is no
 * work; k of 0 gives what the operation makes of sums of zero.
 *
 * D may share no element with itself or an operand; a residual that is D itself, which torch takes, is refused too.
 *
 * A program that was compiled with an older header has a smaller struct: the fields that it lacks count as 0. One that
 * was compiled with a newer header has a larger one, whose further bytes must be 0.
 */
typedef struct {
  uint64_t struct_bytes; /* sizeof(aot_gemm_problem_t) */
  int32_t operation;     /* what aot_gemm_operation returned in this process; 0 is none */
  int32_t device;        /* CUDA ordinal of the operands' and the stream's device; -1: the thread's current device */
  int64_t m, n, k;
  aot_gemm_tensor_t a, b, d;
  uint64_t flags; /* AOT_GEMM_B_CONSTANT and the others; 0 for none */
  aot_gemm_tensor_t bias;     /* all 0 where there is none */
  aot_gemm_tensor_t scale_a;  /* this and all below: all 0 where the operation has none */
  aot_gemm_tensor_t scale_b;
  aot_gemm_tensor_t residual;
  aot_gemm_tensor_t scale_d;
  int64_t num_groups; /* products of a batch, or groups; 0 counts as 1 */
  aot_gemm_group_strides_t group_strides;
  aot_gemm_tensor_t offsets; /* this and below: all 0 where the operation has none */
  aot_gemm_tensor_t index;
  int64_t rows_of_a; /* of "..._gathered": the rows that A has, which need not be m; 0 elsewhere */
  const void* const* b_of_groups; /* null where the groups' B are one stack, of all else too */
  const aot_gemm_part_t* parts;   /* of "..._many": in host memory, read before the call returns; null elsewhere */
  int64_t num_parts;              /* 1 to AOT_GEMM_MAX_PARTS; 0 elsewhere */
  const void* const* scale_b_of_groups; /* null where the groups' atoms are one run, of all else too */
  aot_gemm_tensor_t own_d;     /* this and below: of a D whose blocks have factors; all 0 elsewhere */
  aot_gemm_tensor_t factors_d; /* written */
} aot_gemm_problem_t;

/* Return the number of an operation for `aot_gemm_problem_t.operation`, by its tag. That is of the element types, such as
 * "bf16", "e4m3_bf16" (of A and B, then of D where it is another: with vectors of factors) or "e4m3_bf16_block" (with those
 * of blocks); int8_int32, tf32 and fp32 have no factors. Then of what is done to the sum, such as "bf16_bias",
 * "bf16_gelu_tanh", "e4m3_bf16_silu", "bf16_residual" or "bf16_swiglu" (a gate). Which there are depends on the library: an
 * unknown tag's error lists them. The number holds in this process and for this library alone: ask for it where the
 * program starts. An operation that the library has no kernels for, and a null tag, return the negative of an
 * aot_gemm_status_t, whose text aot_gemm_last_error() gives. */
AOT_GEMM_API int32_t aot_gemm_operation(const char* tag);

/* What the dispatch table says of a problem. `m`, `n`, `k` and `layout` are those that were looked up: where D is
 * column-major, the roles of A and B, m and n are exchanged. The caller sets `struct_bytes`; no more bytes than that
 * are written. */
typedef struct {
  uint64_t struct_bytes; /* sizeof(aot_gemm_selection_t) */
  int32_t kernel;  /* index of the kernel */
  int32_t tier;    /* aot_gemm_tier_t */
  int32_t section; /* index of the section (operation and layout) of `table` */
  int32_t index;   /* tuned: row among the section's ladder rows; grid: the cell; fallback: 0 */
  int32_t layout;  /* bit 1: A is contiguous along m instead of k; bit 0: B along n instead of k; -1: neither */
  int32_t exchanged;
  int64_t m, n, k;
  int32_t table;    /* index of the dispatch table that answered */
  int32_t tile_order; /* how the kernel walks its tiles; 0: as it does where nothing better was measured */
  int64_t num_groups;   /* products of a batch that one launch computes, or groups; else 1 */
  int64_t num_launches; /* 1; of a batch that the library has no kernels for, one for each product */
} aot_gemm_selection_t;

/* Choose the kernel for a problem. Needs no GPU: where there is none, or one of another architecture, the first table
 * answers. A library of one table asks the driver nothing. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_select(const aot_gemm_problem_t* problem, aot_gemm_selection_t* selection);

/* Give the bytes of workspace that aot_gemm_launch needs for a problem; often 0. Needs no GPU. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_workspace_bytes(const aot_gemm_problem_t* problem, size_t* num_bytes);

/* Enqueue a product on a stream (a cudaStream_t; null is the legacy default stream) of the problem's device.
 * `workspace` is device memory of at least aot_gemm_workspace_bytes, 16-byte aligned, not used by anything else until
 * the work is done; null where 0 bytes are needed. Its content need not be set. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_launch(const aot_gemm_problem_t* problem, void* workspace,
                                               size_t workspace_bytes, void* stream);

/* Give `num_bytes` of device memory as aot_gemm_launch wants its workspace, or null where there is none. */
typedef void* (*aot_gemm_allocate_t)(void* context, size_t num_bytes);

/* The same for callers whose memory is to be had at once, as that of a stream-ordered pool: where the launch needs a
 * workspace, `allocate` is called with `context`, once. One look-up then serves size and launch. What it gave may be
 * released, in the order of the stream, when this returns. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_launch_allocating(const aot_gemm_problem_t* problem,
                                                          aot_gemm_allocate_t allocate, void* context, void* stream);

/* Count the dispatch tables, and name the target of one, such as "h200"; null past the end. */
AOT_GEMM_API int32_t aot_gemm_num_tables(void);
AOT_GEMM_API const char* aot_gemm_table_target(int32_t table);

/* Say which table answers for a device (-1: the current one), and why: it is the device's own, by its name and number of
 * SMs, or the nearest by SMs and memory bandwidth. The text is valid as long as the library is loaded. Each device of a
 * process has its own answer, which does not change. On a device with fewer SMs than a kernel was built for, whose blocks
 * wait for each other, another kernel is launched in its place, which needs no workspace. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_device_table(int32_t device, int32_t* table, const char** reason);

/* Give the SHA-256, as 64 hexadecimal digits, of all that decides which kernel a problem gets on a device (-1: the current
 * one): the library's tables, kernels and code, the table that answers there, the device's number of SMs, and
 * AOT_GEMM_WEIGHT_PREFETCH. Two processes with the same text choose alike, on whichever machines. Where it is another, some
 * choice may be another. The text is valid as long as the library is loaded, and does not change. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_choices(int32_t device, const char** sha256);

/* Count the kernels, and name one; null past the end. Names are stable from release to release, indices are not. */
AOT_GEMM_API int32_t aot_gemm_num_kernels(void);
AOT_GEMM_API const char* aot_gemm_kernel_name(int32_t kernel);

/* Load every kernel that a device can run onto it now (-1: the current one), instead of each at its first launch, and look
 * at all sections of the tables. After it, this library opens no file, and takes nothing from the heap. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_preload(int32_t device);

/* Wait until a stream of a device (-1: the current one) is done: the only function that waits. A stream that is being
 * captured gives AOT_GEMM_ERROR_ARGUMENT, and its capture goes on. */
AOT_GEMM_API aot_gemm_status_t aot_gemm_synchronize(int32_t device, void* stream);

/* Give the text of the calling thread's last error, valid until its next: what failed, the value got, what was expected. */
AOT_GEMM_API const char* aot_gemm_last_error(void);

/* Give the file that the miss log goes to; null where it is off. Valid as long as the library is loaded. */
AOT_GEMM_API const char* aot_gemm_misses_file(void);

/* Give AOT_GEMM_ABI_VERSION of the library. A program compares it with the header's. */
AOT_GEMM_API int32_t aot_gemm_abi_version(void);

/* Give the library's version and the architecture of its kernels, such as "sm_90a". */
AOT_GEMM_API const char* aot_gemm_version(void);
AOT_GEMM_API const char* aot_gemm_arch(void);

#ifdef __cplusplus
}
#endif

#include "aot_gemm_rows.h" /* operations on rows */

#endif /* AOT_GEMM_H_ */
