// Launches products through the C API where neither the heap nor a lock nor the kernel (of the operating system) may be
// asked for anything: the functions of the first two are this program's own and count, and the third kills it.
//
// usage: hot_path launch|allocate|lock|call; all but the first also do what must be found.
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "aot_gemm.h"

extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* address, size_t size);
void __libc_free(void* address);

void recorder_pause(bool paused);

static int num_allocations = 0;
static int num_locks = 0;

// The dynamic linker finds these before libc's, for the library too; operator new calls malloc.
void* malloc(size_t size) {
  ++num_allocations;
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  ++num_allocations;
  return __libc_calloc(count, size);
}

void* realloc(void* address, size_t size) {
  ++num_allocations;
  return __libc_realloc(address, size);
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

constexpr int kNumTurns = 1000;

aot_gemm_problem_t product(int64_t m, int64_t n, int64_t k) {
  aot_gemm_problem_t problem = {};
  problem.struct_bytes = sizeof(problem);
  problem.operation = aot_gemm_operation("bf16");
  problem.device = -1;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = {reinterpret_cast<void*>(0x7F0000000000), {k, 1}};
  problem.b = {reinterpret_cast<void*>(0x7F1000000000), {k, 1}};
  problem.d = {reinterpret_cast<void*>(0x7F2000000000), {n, 1}};
  return problem;
}

void* give(void* context, size_t) { return context; }

// Says how many launches failed: on a tuned shape, one of the grid, and one that only the fallback takes.
int launch_all() {
  const aot_gemm_problem_t problems[] = {product(16, 4096, 4096), product(300, 520, 264), product(7, 33, 129)};
  int num_failed = 0;
  for (const aot_gemm_problem_t& problem : problems) {
    num_failed += aot_gemm_launch_allocating(&problem, give, reinterpret_cast<void*>(0x7F3000000000), nullptr) != 0;
  }
  return num_failed;
}

}  // namespace

int main(int, char** arguments) {
  const char* what = arguments[1];
  if (launch_all() != 0) {
    std::fprintf(stderr, "%s\n", aot_gemm_last_error());
    return 2;
  }
  recorder_pause(true);
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  char text[64];
  num_allocations = num_locks = 0;
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
