/* Operations on rows: what stands between products. aot_gemm.h includes this. Each row of Y (rows, cols) is made of a row
 * of X, in float32, and each result is rounded once, or as a flag says. A tag has the element types of X and, where it is
 * another, of Y, then the function, which may be of another package too:
 *
 *   rms_norm       z = x + residual, rounded to X's type; y = z / sqrt(mean(z^2) + eps) * (weight + weight_offset)
 *   layer_norm     z likewise; y = (z - mean(z)) / sqrt(mean((z - mean(z))^2) + eps) * weight + bias
 *   silu_mul, gelu_tanh_mul   activation(gate) * linear, where X has 2 cols columns: cols of the gate, then the linear ones
 *   rotary         a rotary position embedding of X (rows, heads, cols): a row is a token, cols the elements of a head; keys,
 *                  turned likewise, and values may go to a cache in the same launch
 *   quantize       x itself, in fewer bits
 *
 * A Y of 8 bits is of float8_e4m3fn, or float8_e5m2 or int8 where the tag says so. It is x / scale, clamped: int8 rounded
 * half to even. Of nvfp4 and mxfp4 Y is e2m1 and of mxfp8 e4m3, and the scales are the factors that block-scaled products
 * take, by the rule of docs/formats.md. */
#ifndef AOT_GEMM_ROWS_H_
#define AOT_GEMM_ROWS_H_

#include "aot_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  void* data;         /* device address; null in queries, and of an operand that there is not */
  int64_t strides[3]; /* in elements, none below 0: from row to row, then from column to column; of a rotary embedding's x and
                         y, keys and values from token to token, head to head, then element to element */
} aot_rows_tensor_t;

/* Flags of a problem of rows. AOT_ROWS_SCALE_GIVEN: `scale` is read, not computed; not of a block_quantize or a
 * tensor_quantize. AOT_ROWS_INTERLEAVED: gate 2j stands before linear 2j + 1, and a rotary embedding turns the elements 2j and
 * 2j + 1; without it those are j of two halves. AOT_ROWS_ROUND_NORM: of a rms_norm, a normalised row is rounded to X's type
 * before it is multiplied with the weight. AOT_ROWS_OFFSETS_START: the offsets are num_groups + 1, where the first group
 * starts, then where each ends. */
#define AOT_ROWS_SCALE_GIVEN UINT64_C(1)
#define AOT_ROWS_INTERLEAVED UINT64_C(2)
#define AOT_ROWS_ROUND_NORM UINT64_C(4)
#define AOT_ROWS_OFFSETS_START UINT64_C(8)

/* One operation on rows. Operands are of X's element type, but for y and scale.
 *
 *   residual      (rows, cols), of a norm, optional: it is added to x before all else.
 *   residual_out  (rows, cols), optional: x + residual is written to it. It goes with a residual.
 *   weight        (1, cols), of a norm, optional; columns that are adjacent, as of a bias.
 *   bias          (1, cols), of a layer_norm, optional.
 *   cos, sin      (positions, rotary_dim / 2), of a rotary embedding: token i takes the row i modulo `positions`.
 *   keys, values  (rows, key_heads, cols), of a rotary embedding, optional, with the three below and the extents at the
 *                 struct's end: keys are turned as x is, values are not.
 *   key_cache, value_cache   (rows / num_positions, cache_length, key_heads, cols): what keys and values are written to. Their
 *                 strides are from sequence to sequence, position to position and head to head; elements of a head are
 *                 adjacent, and heads of a sequence follow those of the one before at the same step, as in (batch, key_heads,
 *                 cache_length, cols), or heads of a position follow one another.
 *   cache_position   (num_positions, 1), int64 on the device, adjacent: the position in the cache of each token of a sequence;
 *                 token i is of sequence i / num_positions, and takes the position i % num_positions. One below 0 counts from
 *                 the cache's end; one outside of the cache ends the kernel with an error of the device, as torch's do.
 *   scale         float32, of a Y of 8 bits: (rows, 1), of a block_quantize (rows, ceil(cols / 128)), or of a tensor_quantize
 *                 one for all, (1, 1). It is computed and written: the largest |y| of the row, block or tensor over the largest
 *                 value of Y's type, but at least 2^-126, and 1 where all are 0. With AOT_ROWS_SCALE_GIVEN it is read; a stride
 *                 of 0 has one scale serve all rows. Of nvfp4, mxfp4 and mxfp8 it is the factors in atoms, a byte each, as
 *                 scale_a of a product has them, at a multiple of 16 bytes; strides are not looked at. Behind the last block of
 *                 a row the last atom is filled up with 0; rows that fill atoms up are not written.
 *   tensor_scale  (1, 1) float32, of nvfp4: the scale of all of Y, which is read, and must be above 0.
 *   offsets       (num_groups, 1), int32 on the device, adjacent: where each group of rows of Y ends. Of nvfp4, mxfp4 and
 *                 mxfp8 but for norms, optional. Atoms of factors begin anew with each group, as scale_a of "..._grouped" has
 *                 them: ceil(rows / 128) + num_groups - 1 times 128 rows. Rows of no group are not written.
 *   index         (rows, 1), int32 on the device, adjacent, beside offsets, optional: the row of X, which has rows_of_x,
 *                 that each row of Y is made of. One that is no row of X, such as -1, counts as a row of zeros.
 *
 * An e2m1 takes half a byte, the first of two the lower half; extents and strides count elements, so that cols is even, and
 * so is the stride from row to row; elements of a row are adjacent.
 *
 * The fast kernels need last strides of 1, and addresses and other strides that are multiples of 16 bytes (of a y of 8 bits,
 * of 8, and of 4 bits of 4); anything else is computed by the fallback kernel, slower. Rows or cols of 0 are no work.
 *
 * y may be x itself, of the same address and strides, unless X has 2 cols columns; residual_out may be the residual or x
 * itself. What is written shares no element with itself or anything else. The struct's size is heeded as that of
 * aot_gemm_problem_t. */
typedef struct {
  uint64_t struct_bytes; /* sizeof(aot_rows_problem_t) */
  int32_t operation;     /* what aot_rows_operation returned in this process */
  int32_t device;        /* CUDA ordinal of the operands' and the stream's device; -1: the thread's current device */
  int64_t rows, cols;    /* of Y; of a rotary embedding the tokens, and the elements of a head */
  uint64_t flags;        /* of AOT_ROWS_SCALE_GIVEN and the others; 0 for none */
  float eps;             /* of a norm */
  float weight_offset;   /* of a rms_norm: it is added to each weight; 0 for none */
  aot_rows_tensor_t x, y;
  aot_rows_tensor_t residual; /* this and all below: all 0 where there is none */
  aot_rows_tensor_t residual_out;
  aot_rows_tensor_t weight;
  aot_rows_tensor_t bias;
  aot_rows_tensor_t cos;
  aot_rows_tensor_t sin;
  aot_rows_tensor_t scale;
  int64_t heads;      /* of a rotary embedding, and 0 of all others, as the two below */
  int64_t positions;  /* at least 1 */
  int64_t rotary_dim; /* how many elements of a head are turned, an even number; those behind them are copied */
  aot_rows_tensor_t tensor_scale;
  aot_rows_tensor_t offsets;
  aot_rows_tensor_t index;
  int64_t num_groups; /* of rows, 1 or more beside offsets; 0 where there are none */
  int64_t rows_of_x;  /* beside an index; else 0 */
  aot_rows_tensor_t keys;
  aot_rows_tensor_t values;
  aot_rows_tensor_t key_cache;
  aot_rows_tensor_t value_cache;
  aot_rows_tensor_t cache_position;
  int64_t key_heads;     /* of keys, and of values; 0 where there are none, as the two below */
  int64_t cache_length;  /* positions of a cache */
  int64_t num_positions; /* tokens of a sequence, of which rows are a multiple */
} aot_rows_problem_t;

/* Return the number of a row operation by its tag, such as "bf16_rms_norm" or "bf16_e4m3_quantize"; otherwise as
 * aot_gemm_operation. A library may have none. */
AOT_GEMM_API int32_t aot_rows_operation(const char* tag);

/* What the dispatch table says of a problem of rows. The caller sets `struct_bytes`; no more bytes than that are written. */
typedef struct {
  uint64_t struct_bytes; /* sizeof(aot_rows_selection_t) */
  int32_t kernel;        /* index of the row kernel */
  int32_t tier;          /* AOT_GEMM_TIER_GRID or AOT_GEMM_TIER_FALLBACK */
  int32_t section;       /* index of the row operation's section of `table` */
  int32_t index;         /* of the step among the section's; 0 of the fallback */
  int64_t rows, cols;    /* that were looked up: of a rotary embedding rows * heads */
  int32_t table;         /* index of the dispatch table that answered */
  int32_t reserved;      /* 0 */
} aot_rows_selection_t;

/* Choose the kernel for a problem of rows. Needs no GPU, as aot_gemm_select. */
AOT_GEMM_API aot_gemm_status_t aot_rows_select(const aot_rows_problem_t* problem, aot_rows_selection_t* selection);

/* Enqueue an operation on rows on a stream (a cudaStream_t) of the problem's device. It needs no workspace. */
AOT_GEMM_API aot_gemm_status_t aot_rows_launch(const aot_rows_problem_t* problem, void* stream);

/* Count the kernels of row operations, and name one; null past the end. aot_gemm_preload loads them too. */
AOT_GEMM_API int32_t aot_rows_num_kernels(void);
AOT_GEMM_API const char* aot_rows_kernel_name(int32_t kernel);

#ifdef __cplusplus
}
#endif

#endif /* AOT_GEMM_ROWS_H_ */
