// What the simulated driver and the simulated entry of the kernel library tell each other.
#ifndef AOT_TESTS_SIMULATED_H_
#define AOT_TESTS_SIMULATED_H_

#include <cstddef>
#include <cstdint>

struct SimulatedTensor {
  void* data;
  int32_t shape[2];
  int64_t strides[2];
};

// One kernel on the point of being launched: what it is, and the operands that its C entry was given.
struct SimulatedCall {
  const char* kernel;
  int32_t dtype;
  int32_t layout;
  int32_t num_strides;
  SimulatedTensor a, b, d;
};

extern "C" {
int32_t simulated_launch(const SimulatedCall* call);
int32_t simulated_max_active_clusters(const SimulatedCall* call);
}

#endif  // AOT_TESTS_SIMULATED_H_
