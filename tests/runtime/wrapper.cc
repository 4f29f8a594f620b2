// What aot_gemm.hpp does, over the recorder: prints a line for each thing that test_wrapper.py looks at.
#include "aot_gemm.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "problem.h"

extern "C" {
void recorder_reset();
void recorder_fail(int32_t call, int32_t error);
int32_t recorder_num_fake();
void recorder_fake(int32_t index, void* launch);
}

namespace {

// The beginning of the recorder's FakeLaunch.
struct Launch {
  int32_t kernel;
  int32_t num_arguments;
  int32_t device;
  int32_t workspace_floats;
  int32_t reads_early;
  aot::RightOperand a;
  aot::RightOperand b;
  aot::RightOperand d;
  aot::Bias bias;
  void* workspace;
  void* stream;
  char rest[1024];
};

void* address(uint64_t value) { return reinterpret_cast<void*>(static_cast<uintptr_t>(value)); }

uint64_t number(const void* data) { return reinterpret_cast<uintptr_t>(data); }

void* const kA = address(1ull << 40);
void* const kB = address(2ull << 40);
void* const kD = address(3ull << 40);
void* const kStream = address(0x50);

int64_t allocated = 0;  // bytes that are not freed

struct Memory {
  bool is_out = false;
  void* allocate(size_t num_bytes) {
    if (is_out) return nullptr;
    allocated += static_cast<int64_t>(num_bytes);
    return address(0x700000);
  }
  void free(void*, size_t num_bytes) { allocated -= static_cast<int64_t>(num_bytes); }
};

void print_error(const char* what, const aot_gemm::Error& error) {
  std::printf("%s: error %d %s\n", what, static_cast<int>(error.status), error.message.c_str());
}

template <typename T>
void print(const char* what, const aot_gemm::Result<T>& result) {
  if (result) {
    std::printf("%s: fine\n", what);
  } else {
    print_error(what, result.error());
  }
}

void print_launches(const char* what) {
  for (int32_t i = 0; i < recorder_num_fake(); ++i) {
    Launch seen;
    recorder_fake(i, &seen);
    std::printf("%s: a %" PRIx64 " (%d, %d) b %" PRIx64 " (%d, %d) d %" PRIx64 " (%d, %d) early %d workspace %d"
                " %" PRIx64 " stream %" PRIx64 " device %d\n",
                what, number(seen.a.matrix.data), seen.a.matrix.shape[0], seen.a.matrix.shape[1], number(seen.b.matrix.data),
                seen.b.matrix.shape[0], seen.b.matrix.shape[1], number(seen.d.matrix.data), seen.d.matrix.shape[0], seen.d.matrix.shape[1],
                seen.reads_early, seen.workspace_floats, number(seen.workspace), number(seen.stream), seen.device);
  }
  recorder_reset();
}

aot_gemm::Result<aot_gemm::Problem> stated(const char* tag, int64_t m, int64_t n, int64_t k) {
  const auto operation = aot_gemm::Operation::find(tag);
  if (!operation) return operation.error();
  return aot_gemm::Problem::make(*operation, aot_gemm::row_major<const void>(kA, m, k),
                                 aot_gemm::row_major<const void>(kB, n, k), aot_gemm::row_major(kD, m, n));
}

void try_products() {
  const auto problem = stated("bf16", 64, 4096, 4096);
  std::printf("extents: %d %d %d\n", static_cast<int>(problem->m()), static_cast<int>(problem->n()),
              static_cast<int>(problem->k()));
  const auto selection = aot_gemm::select(*problem);
  std::printf("kernel: %s\n", aot_gemm::kernel_name(selection->kernel));
  const auto num_bytes = aot_gemm::workspace_bytes(*problem);
  std::printf("bytes: %d\n", static_cast<int>(num_bytes.value_or(1)));
  aot_gemm::Workspace<Memory> workspace;
  print("launch", aot_gemm::launch(*problem, workspace, kStream));
  print_launches("launched");
  print("constant", aot_gemm::launch(problem->with_constant_b(), workspace, kStream));
  print_launches("launched");
  print("on device 3", aot_gemm::launch(problem->with_device(3), workspace, kStream));
  print_launches("launched");
  // B as a matrix product has it, and a D whose columns lie one after the other.
  const auto operation = aot_gemm::Operation::find(std::string("bf16"));
  const auto plain = aot_gemm::Problem::make(*operation, aot_gemm::row_major<const void>(kA, 8, 128),
                                             aot_gemm::row_major<const void>(kB, 128, 64).transposed(),
                                             aot_gemm::column_major(kD, 8, 64));
  print("transposed", aot_gemm::launch(*plain, workspace, kStream));
  print_launches("launched");
  const auto with_bias = stated("bf16_bias", 16, 64, 64);
  print("without bias", aot_gemm::launch(*with_bias, workspace, kStream));
  print("with bias", aot_gemm::launch(with_bias->with_bias(address(0x7a0000000)), workspace, kStream));
  print_launches("launched");
  print("synchronize", aot_gemm::synchronize(kStream));
  print("preload", aot_gemm::preload());
  print("abi", aot_gemm::check_abi());
  const auto table = aot_gemm::device_table();
  std::printf("table: %s, %s\n", table->target, table->reason);
  std::printf("choices: %zu digits\n", std::strlen(*aot_gemm::choices()));
  recorder_reset();
}

void try_groups() {
  const auto* offsets = static_cast<const int32_t*>(address(0x60));
  const auto* index = static_cast<const int32_t*>(address(0x70));
  const void* const separate[] = {kB, kA, kD};
  const auto plain = *stated("bf16", 64, 128, 256);
  const auto print_groups = [&](const char* what, const aot_gemm::Problem& problem) {
    const aot_gemm_problem_t& c = problem.c();
    std::printf("%s: %d groups, offsets %" PRIx64 " %d, b %" PRIx64 " step %d, separate %d, index %" PRIx64 " of %d, steps %d %d, "
                "factors %" PRIx64 " %d\n",
                what, static_cast<int>(c.num_groups), number(c.offsets.data), static_cast<int>(c.offsets.strides[0]),
                number(c.b.data), static_cast<int>(c.group_strides.b), c.b_of_groups == separate, number(c.index.data),
                static_cast<int>(c.rows_of_a), static_cast<int>(c.group_strides.bias), static_cast<int>(c.group_strides.scale_b),
                number(c.scale_b.data), c.scale_b_of_groups == separate);
  };
  print_groups("stack", plain.with_groups(3, offsets, 32768).with_group_steps(128, 7));
  print_groups("separate", plain.with_groups(3, offsets, separate));
  print_groups("apart", plain.with_groups(3, offsets, separate).with_group_steps(128, 7).with_scale_b_of_groups(separate));
  print_groups("gathered", plain.with_groups(3, offsets, int64_t{0}).with_index(index, aot_gemm::row_major<const void>(kA, 9, 256)));
}

// Finds a problem whose kernel needs a workspace.
aot_gemm::Problem split() {
  for (const int64_t n : {64, 4096, 5120}) {
    for (const int64_t k : {64, 72, 4096}) {
      for (int64_t m = 1; m < 20000; m += m / 8 + 1) {
        const auto problem = stated("bf16", m, n, k);
        if (*aot_gemm::workspace_bytes(*problem) > 0) return *problem;
      }
    }
  }
  return *stated("bf16", 1, 1, 1);
}

void try_workspaces() {
  const aot_gemm::Problem problem = split();
  const auto num_bytes = static_cast<int64_t>(*aot_gemm::workspace_bytes(problem));
  std::printf("needed: %" PRId64 "\n", num_bytes);
  {
    aot_gemm::Workspace<Memory> workspace;
    print("grows", aot_gemm::launch(problem, workspace, kStream));
    std::printf("held: %" PRId64 "\n", allocated);
    print("again", aot_gemm::launch(problem, workspace, kStream));
    std::printf("held: %" PRId64 "\n", allocated);
    aot_gemm::Workspace<Memory> other = std::move(workspace);
    const bool is_left = workspace.data() == nullptr;  // NOLINT: what was moved from is empty
    std::printf("moved: %d %d %" PRId64 "\n", is_left, other.data() != nullptr, allocated);
    other = aot_gemm::Workspace<Memory>();
    std::printf("assigned: %" PRId64 "\n", allocated);
    print("reserve", other.reserve(100));
  }
  std::printf("freed: %" PRId64 "\n", allocated);
  print_launches("launched");
  aot_gemm::Workspace<Memory> none(Memory{true});
  print("out of memory", aot_gemm::launch(problem, none, kStream));
  size_t asked = 0;
  const auto allocate = [&asked](size_t size) {
    asked += size;
    return address(0x700000);
  };
  print("allocating", aot_gemm::launch_allocating(problem, allocate, kStream));
  std::printf("asked: %d\n", asked == static_cast<size_t>(num_bytes));
  print_launches("launched");
  print("null", aot_gemm::launch_allocating(problem, [](size_t) -> void* { return nullptr; }, kStream));
#if defined(__cpp_exceptions)
  print("throws", aot_gemm::launch_allocating(problem, [](size_t) -> void* { throw 1; }, kStream));
  struct Throwing {
    void* allocate(size_t) { throw 1; }
    void free(void*, size_t) {}
  };
  aot_gemm::Workspace<Throwing> throwing;
  print("throws", aot_gemm::launch(problem, throwing, kStream));
#endif
  print("too small", aot_gemm::launch(problem, address(0x700000), 16, kStream));
  recorder_reset();
}

void try_errors() {
  print("tag", aot_gemm::Operation::find("bf17"));
  const auto operation = aot_gemm::Operation::find("bf16");
  const auto a = aot_gemm::row_major<const void>(kA, 4, 64);
  const auto b = aot_gemm::row_major<const void>(kB, 32, 64);
  print("k", aot_gemm::Problem::make(*operation, a, b.transposed(), aot_gemm::row_major(kD, 4, 64)));
  print("d", aot_gemm::Problem::make(*operation, a, b, aot_gemm::row_major(kD, 32, 4)));
  const auto odd = aot_gemm::row_major<const void>(kB, 33, 64);
  print("odd", aot_gemm::Problem::make_gated(*operation, a, odd, aot_gemm::row_major(kD, 4, 16)));
  const auto gated = aot_gemm::Problem::make_gated(*operation, a, b, aot_gemm::row_major(kD, 4, 16));
  std::printf("gated: %d\n", static_cast<int>(gated->n()));
  const auto wide = aot_gemm::Problem::make(*operation, a, b, aot_gemm::row_major(kD, 4, 32, -32));
  print("stride", aot_gemm::launch(*wide, nullptr, 0, kStream));
  constexpr int32_t kLaunch = 2;
  recorder_fail(kLaunch, 719);
  aot_gemm::Workspace<Memory> workspace;
  print("cuda", aot_gemm::launch(*stated("bf16", 7, 7, 7), workspace, kStream));
  recorder_reset();
}

// What is to be refused while it compiles: a view of what is only read is none of what is written.
static_assert(!std::is_convertible_v<aot_gemm::MatrixView<const float>, aot_gemm::Matrix>);
static_assert(std::is_convertible_v<aot_gemm::MatrixView<float>, aot_gemm::ConstMatrix>);
static_assert(!std::is_copy_constructible_v<aot_gemm::Workspace<Memory>>);
static_assert(std::is_nothrow_move_constructible_v<aot_gemm::Workspace<Memory>>);

}  // namespace

int main() {
  try_products();
  try_groups();
  try_workspaces();
  try_errors();
  return 0;
}
