// Records the launches of row kernels that have no object: what their entries were called with.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "kernel.h"
#include "row_operation.h"
#include "row_problem.h"

extern "C" int32_t record_launch(int32_t* device);

namespace {

struct RowLaunch {
  int32_t kernel;
  int32_t device;
  int32_t num_arguments;
  int32_t flags;
  float eps;
  float weight_offset;
  aot::RowOperand x;
  aot::RowOperand residual;
  aot::Vector weight;
  aot::Vector bias;
  aot::Tensor cos;
  aot::Tensor sin;
  aot::RowOperand keys;
  aot::RowOperand values;
  aot::RowOperand y;
  aot::CacheTensor key_cache;
  aot::CacheTensor value_cache;
  aot::RowOperand residual_out;
  aot::Tensor scale;
  aot::Vector tensor_scale;
  aot::Vector offsets;
  aot::Vector index;
  aot::Vector cache_position;
  void* stream;
};

std::vector<RowLaunch> launches;

template <typename Value>
void keep(bool is_it, const void* value, Value* field) {
  if (is_it) *field = *static_cast<const Value*>(value);
}

}  // namespace

extern "C" {

// `signature` names the arguments as the manifest does, with spaces between them; the error comes behind them.
int32_t record_rows(int32_t kernel, const char* signature, void** arguments, int32_t num_arguments) {
  RowLaunch launch{};
  launch.kernel = kernel;
  launch.num_arguments = num_arguments;
  int32_t count = 0;
  for (const char* at = signature; *at != '\0'; ++count) {
    const size_t length = std::strcspn(at, " ");
    const auto is = [at, length](const char* name) {
      return std::strlen(name) == length && std::strncmp(at, name, length) == 0;
    };
    const void* value = arguments[count];
    keep(is("x"), value, &launch.x);
    keep(is("residual"), value, &launch.residual);
    keep(is("weight"), value, &launch.weight);
    keep(is("bias"), value, &launch.bias);
    keep(is("cos"), value, &launch.cos);
    keep(is("sin"), value, &launch.sin);
    keep(is("keys"), value, &launch.keys);
    keep(is("values"), value, &launch.values);
    keep(is("y"), value, &launch.y);
    keep(is("key_cache"), value, &launch.key_cache);
    keep(is("value_cache"), value, &launch.value_cache);
    keep(is("cache_position"), value, &launch.cache_position);
    keep(is("residual_out"), value, &launch.residual_out);
    keep(is("scale"), value, &launch.scale);
    keep(is("tensor_scale"), value, &launch.tensor_scale);
    keep(is("offsets"), value, &launch.offsets);
    keep(is("index"), value, &launch.index);
    keep(is("eps"), value, &launch.eps);
    keep(is("weight_offset"), value, &launch.weight_offset);
    keep(is("flags"), value, &launch.flags);
    keep(is("stream"), value, &launch.stream);
    at += length + std::strspn(at + length, " ");
  }
  if (count + 1 != num_arguments) std::abort();
  const int32_t error = record_launch(&launch.device);
  if (error == 0) launches.push_back(launch);
  return error;
}

void recorder_reset_rows() { launches.clear(); }
int32_t recorder_num_rows() { return static_cast<int32_t>(launches.size()); }
void recorder_rows(int32_t index, RowLaunch* launch) { *launch = launches[static_cast<size_t>(index)]; }

// `shapes` has rows and cols of each problem; `choices` gets kernel and index.
void chooser_choose_rows(int32_t operation, int64_t count, const int64_t* shapes, int64_t* choices) {
  for (int64_t i = 0; i < count; ++i) {
    const aot::Section& found = aot::kSections[aot::find_section(aot::kTables[0], aot::kNumOperations + operation, 0)];
    const aot::RowChoice choice = aot::choose_rows(found, shapes[2 * i], shapes[2 * i + 1]);
    choices[2 * i] = choice.kernel - aot::kNumKernels;
    choices[2 * i + 1] = choice.step;
  }
}

}  // extern "C"
