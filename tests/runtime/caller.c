/* A program that calls every function of a problem, compiled by test_abi.py against headers of several ages.
 *
 * Arguments: element type, device, and any number of `byte=value`, which are written into the problem last. The problem
 * is of the shape 16, 4096, 4096; the memory behind it is all ones. Prints the status of each call, how many launches
 * there were, whether each might read B early, and the text of the last error. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot_gemm_tuning.h"

int32_t recorder_num_fake(void);
void recorder_fake(int32_t index, void* launch);

static void* allocate(void* context, size_t num_bytes) {
  (void)num_bytes;
  return context;
}

int main(int argc, char** argv) {
  struct {
    aot_gemm_problem_t problem;
    unsigned char behind[4096];
  } stated;
  aot_gemm_problem_t* problem = &stated.problem;
  memset(&stated, 0xff, sizeof(stated));
  memset(problem, 0, sizeof(*problem));
#ifdef HAS_STRUCT_BYTES
  problem->struct_bytes = sizeof(*problem);
#endif
  problem->operation = strcmp(argv[1], "bf16") == 0 ? aot_gemm_operation("bf16") : atoi(argv[1]);
  problem->device = atoi(argv[2]);
  problem->m = 16;
  problem->n = problem->k = 4096;
  aot_gemm_tensor_t* tensors[] = {&problem->a, &problem->b, &problem->d};
  for (int i = 0; i < 3; ++i) {
    tensors[i]->data = (void*)(((uintptr_t)i + 1) << 40);
    tensors[i]->strides[0] = 4096;
    tensors[i]->strides[1] = 1;
  }
  for (int i = 3; i < argc; ++i) {
    char* value = NULL;
    const unsigned long byte = strtoul(argv[i], &value, 10);
    ((unsigned char*)&stated)[byte] = (unsigned char)atoi(value + 1);
  }

  aot_gemm_selection_t selection;
  memset(&selection, 0, sizeof(selection));
#ifdef HAS_STRUCT_BYTES
  selection.struct_bytes = sizeof(selection);
#endif
  void* workspace = (void*)((uintptr_t)1 << 50);
  size_t num_bytes = 0;
  int32_t num_clusters = 0;
  const size_t plenty = (size_t)1 << 40;
  printf("%d", (int)aot_gemm_select(problem, &selection));
  printf(" %d", (int)aot_gemm_workspace_bytes(problem, &num_bytes));
  printf(" %d", (int)aot_gemm_launch(problem, workspace, plenty, NULL));
  printf(" %d", (int)aot_gemm_launch_allocating(problem, allocate, workspace, NULL));
  printf(" %d", (int)aot_gemm_kernel_workspace_bytes(0, problem, &num_bytes));
  printf(" %d", (int)aot_gemm_launch_kernel(3, problem, workspace, plenty, NULL));
  printf(" %d\n", (int)aot_gemm_kernel_max_active_clusters(0, problem, workspace, plenty, &num_clusters));
  printf("%d", (int)recorder_num_fake());
  for (int32_t i = 0; i < recorder_num_fake(); ++i) {
    int32_t launch[256]; /* kernel, number of arguments, device, workspace, whether B may be read early, ... */
    recorder_fake(i, launch);
    printf(" %d", (int)launch[4]);
  }
  printf("\n%s\n", aot_gemm_last_error());
  return 0;
}
