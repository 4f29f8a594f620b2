// Launches problems with named kernels over the recorder, and writes what it recorded: standard input to standard output,
// in the binary form that programs.py states. Built for each machine whose host code is to be compared.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "aot_gemm_tuning.h"
#include "recorder.h"

namespace {

struct Request {
  int32_t kernel;
  int32_t num_sizes;  // parameters of the kernel, whose sizes follow
  int32_t is_of_rows;  // whether an aot_rows_problem_t follows, and not an aot_gemm_problem_t
  char operation[60];  // its tag
  void* stream;
  int64_t tile_order;
};

// What is given where the places of groups are to be written; operand_launches.py has it too.
constexpr uintptr_t kWorkspace = uintptr_t{1} << 46;
constexpr size_t kWorkspaceBytes = 8192;

struct Header {
  int32_t major;  // of the compute capability, which the runtime asks for before it loads
  int32_t minor;
  int32_t stack_byte;
};

template <typename T>
bool read(T* values, size_t count = 1) {
  return std::fread(values, sizeof(T), count, stdin) == count;
}

// Reads the addresses of groups, where there are any, and has them stand for those that were told.
bool read_addresses(int64_t num_groups, const void* const** told, std::vector<const void*>* addresses) {
  if (*told == nullptr) return true;
  addresses->resize(static_cast<size_t>(num_groups));
  *told = addresses->data();
  return read(addresses->data(), addresses->size());
}

template <typename T>
void write(const T* values, size_t count = 1) {
  if (std::fwrite(values, sizeof(T), count, stdout) != count) std::exit(2);
}

// Fills the stack that a launch will use, so that a parameter which nobody wrote shows.
__attribute__((noinline)) void fill_stack(int32_t byte) {
  volatile unsigned char frame[64 * 1024];
  for (volatile unsigned char& x : frame) x = static_cast<unsigned char>(byte);
}

void write_recorded(size_t num_parameter_bytes) {
  const int32_t num_settings = recorder_num_settings();
  write(&num_settings);
  for (int32_t i = 0; i < num_settings; ++i) {
    Setting setting;
    recorder_setting(i, &setting);
    write(&setting);
  }
  const int32_t num_launches = recorder_num_real();
  write(&num_launches);
  for (int32_t i = 0; i < num_launches; ++i) {
    RealLaunch launch;
    recorder_real(i, &launch);
    write(launch.grid, 3);
    write(launch.block, 3);
    write(&launch.smem_bytes);
    write(&launch.stream);
    write(&launch.num_attributes);
    write(launch.attribute_ids, 4);
    write(launch.attribute_values, 4);
    write(launch.parameters, num_parameter_bytes);
  }
}

}  // namespace

int main() {
  Header header;
  if (!read(&header)) return 1;
  Request request;
  aot_gemm_problem_t problem;
  aot_rows_problem_t of_rows;
  while (read(&request)) {
    if (!(request.is_of_rows != 0 ? read(&of_rows) : read(&problem))) return 1;
    std::vector<int32_t> sizes(request.num_sizes);
    if (!read(sizes.data(), sizes.size())) return 1;
    // The addresses of separate B, whose own here are another process's, follow, and those of their factors; a launch for
    // each 128 groups is in front.
    std::vector<const void*> separate, factors;
    if (request.is_of_rows == 0 && !read_addresses(problem.num_groups, &problem.b_of_groups, &separate)) return 1;
    if (request.is_of_rows == 0 && !read_addresses(problem.num_groups, &problem.scale_b_of_groups, &factors)) return 1;
    const bool is_separate = !separate.empty() || !factors.empty();
    void* const workspace = is_separate ? reinterpret_cast<void*>(kWorkspace) : nullptr;
    recorder_reset();
    recorder_leave_parameters(static_cast<int32_t>((std::max(separate.size(), factors.size()) + 127) / 128));
    recorder_set_capability(header.major, header.minor);
    recorder_set_parameters(sizes.data(), request.num_sizes);
    fill_stack(header.stack_byte);
    int32_t status;
    if (request.is_of_rows != 0) {
      of_rows.operation = aot_rows_operation(request.operation);
      status = aot_rows_launch_kernel(request.kernel, &of_rows, request.stream);
    } else {
      problem.operation = aot_gemm_operation(request.operation);
      status = aot_gemm_launch_kernel_in_order(request.kernel, static_cast<int32_t>(request.tile_order), &problem, workspace,
                                               is_separate ? kWorkspaceBytes : 0, request.stream);
    }
    if (status != 0) std::fprintf(stderr, "%s\n", aot_gemm_last_error());
    write(&status);
    size_t num_bytes = 0;
    for (const int32_t size : sizes) num_bytes += static_cast<size_t>(size);
    write_recorded(num_bytes);
  }
  return 0;
}
