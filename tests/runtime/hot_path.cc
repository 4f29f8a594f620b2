// Launches products through the C API where neither the heap nor a lock nor the kernel (of the operating system) may be
// asked for anything: the functions of the first two are this program's own and count, and the third kills it.
//
// usage: hot_path launch|preload|allocate|lock|call TAG...; all but the first two also do what must be found. Each operation
// is launched; one that takes further operands gets all that there are. With preload no launch comes before, but
// aot_gemm_preload.
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "aot_gemm.h"

extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* address, size_t size);
void __libc_free(void* address);

void recorder_pause(bool paused);

static int num_allocations = 0;
static int num_locks = 0;
static bool is_refused = false;  // the heap

// The dynamic linker finds these before libc's, for the library too; operator new calls malloc.
void* malloc(size_t size) {
  ++num_allocations;
  return is_refused ? nullptr : __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  ++num_allocations;
  return is_refused ? nullptr : __libc_calloc(count, size);
}

void* realloc(void* address, size_t size) {
  ++num_allocations;
  return is_refused ? nullptr : __libc_realloc(address, size);
}

void free(void* address) {
  ++num_allocations;
  __libc_free(address);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  ++num_locks;
  return pthread_mutex_trylock(mutex);  // one thread: it is free
}

}  // extern "C"

namespace {

constexpr int kNumTurns = 100;
constexpr int kMaxOperations = 64;

int32_t operations[kMaxOperations];
const char* tags[kMaxOperations];
int num_operations = 0;

void* address_of(uintptr_t number) { return reinterpret_cast<void*>(number << 44); }

bool has(const char* tag, const char* part) { return std::strstr(tag, part) != nullptr; }

// Adds the operands that an operation's tag tells of.
void add_operands(const char* tag, aot_gemm_problem_t* problem) {
  const bool is_scaled = has(tag, "e4m3") || has(tag, "e5m2") || has(tag, "int8_bf16") || has(tag, "int8_fp16");
  const bool is_of_one_type = std::strcmp(tag, "bf16") == 0 || std::strcmp(tag, "fp16") == 0;
  const bool is_plain = is_of_one_type || has(tag, "32") || has(tag, "block");
  if (is_scaled) problem->scale_a = {address_of(4), {1, 1}};
  if (is_scaled) problem->scale_b = {address_of(5), {1, 1}};
  if (has(tag, "e4m3_e4m3")) problem->scale_d = {address_of(6), {0, 0}};
  if (has(tag, "residual")) problem->residual = {address_of(7), {problem->n, 1}};
  if (!is_plain || has(tag, "e4m3_fp32")) problem->bias = {address_of(8), {0, 1}};
}

aot_gemm_problem_t product(int operation, int64_t m, int64_t n, int64_t k) {
  aot_gemm_problem_t problem = {};
  problem.struct_bytes = sizeof(problem);
  problem.operation = operations[operation];
  problem.device = -1;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = {address_of(1), {k, 1}};
  problem.b = {address_of(2), {k, 1}};
  problem.d = {address_of(3), {n, 1}};
  add_operands(tags[operation], &problem);
  return problem;
}

void* give(void* context, size_t) { return context; }

// Says how many launches failed: on a tuned shape, one of the grid, and one that only the fallback takes.
int launch_all() {
  int num_failed = 0;
  for (int i = 0; i < num_operations; ++i) {
    for (const aot_gemm_problem_t& problem :
         {product(i, 16, 4096, 4096), product(i, 300, 528, 272), product(i, 7, 33, 129)}) {
      num_failed += aot_gemm_launch_allocating(&problem, give, address_of(9), nullptr) != 0;
    }
  }
  return num_failed;
}

}  // namespace

int main(int count, char** arguments) {
  const char* what = arguments[1];
  for (int i = 2; i < count && num_operations < kMaxOperations; ++i) {
    tags[num_operations] = arguments[i];
    operations[num_operations++] = aot_gemm_operation(arguments[i]);
  }
  const bool is_first = std::strcmp(what, "preload") == 0;
  if (is_first ? aot_gemm_preload(-1) != 0 : launch_all() != 0) {
    std::fprintf(stderr, "%s\n", aot_gemm_last_error());
    return 2;
  }
  recorder_pause(true);
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  char text[64];
  num_allocations = num_locks = 0;
  is_refused = true;
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) return 3;  // from here on: read, write, exit
  int num_failed = 0;
  for (int i = 0; i < kNumTurns; ++i) num_failed += launch_all();
  if (std::strcmp(what, "allocate") == 0) free(malloc(8));
  if (std::strcmp(what, "lock") == 0) pthread_mutex_lock(&mutex);
  if (std::strcmp(what, "call") == 0) syscall(SYS_getpid);
  const int length = std::snprintf(text, sizeof(text), "%d %d %d\n", num_failed, num_allocations, num_locks);
  const ssize_t written = write(STDOUT_FILENO, text, static_cast<size_t>(length));
  syscall(SYS_exit, written == length ? 0 : 4);
}
