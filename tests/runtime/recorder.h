// What the recorder keeps of a launch by a real kernel object, and the calls by which C++ programs of the tests ask it;
// host.py has the same by ctypes.
#ifndef AOT_GEMM_TESTS_RECORDER_H_
#define AOT_GEMM_TESTS_RECORDER_H_

#include <cstdint>

struct RealLaunch {
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t smem_bytes;
  void* stream;
  const void* kernel;
  int32_t num_attributes;
  int32_t attribute_ids[4];
  int32_t attribute_values[4][3];
  unsigned char parameters[4096];
};

// A function attribute (cudaFuncAttribute) that loading a kernel sets.
struct Setting {
  int32_t attribute;
  int32_t value;
};

extern "C" {

void recorder_reset();
void recorder_set_capability(int32_t major, int32_t minor);
void recorder_set_parameters(const int32_t* sizes, int32_t count);
void recorder_leave_parameters(int32_t num_launches);
// Fills the stack below the caller with a byte, which shows in what a kernel's entry does not write of parameters.
void recorder_fill_stack(int32_t byte);
void recorder_set_first_parameters(const int32_t* sizes, int32_t count);
int32_t recorder_num_real();
void recorder_real(int32_t index, RealLaunch* launch);
int32_t recorder_num_settings();
void recorder_setting(int32_t index, Setting* setting);

}  // extern "C"

#endif  // AOT_GEMM_TESTS_RECORDER_H_
