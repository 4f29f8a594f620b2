// Everything the runtime asks of CUDA. cuda_entry.cc and graph_edge.cc answer with the static CUDA runtime; the tests with a recorder.
// An Error is a cudaError_t; 0 is success.
#ifndef AOT_GEMM_CUDA_ENTRY_H_
#define AOT_GEMM_CUDA_ENTRY_H_

#include <cstddef>
#include <cstdint>

namespace aot::cuda {

using Error = int32_t;

Error get_device(int32_t* device);
Error set_device(int32_t device);
Error get_capability(int32_t device, int32_t* major, int32_t* minor);

// What tells devices of one architecture apart.
struct DeviceFacts {
  char name[128];
  int32_t num_sms;
  int64_t bandwidth_gb_per_s;  // by memory clock and bus width; 0 where the driver does not say them
};
Error get_facts(int32_t device, DeviceFacts* facts);

// Enqueues the clearing of `num_bytes` bytes.
Error clear(void* data, size_t num_bytes, void* stream);

Error synchronize(void* stream);

Error is_capturing(void* stream, bool* answer);

// Has later work of `second` wait for the work that `first` has by now.
Error order(void* first, void* second);

// Between the two, this thread's launches and clearings do nothing; the second gives how many clusters of the kernel
// launched meanwhile the device can run at once, or -1 if it has none.
void begin_cluster_query();
int32_t end_cluster_query();

// Whether this thread's launches that are captured stay programmatic whatever is in front of them (graph_edge.h).
void stay_programmatic(bool stays);

// They do while it lives: the times of a record are all taken so, those from before the choice too.
class ProgrammaticScope {
 public:
  ProgrammaticScope() { stay_programmatic(true); }
  ~ProgrammaticScope() { stay_programmatic(false); }
  ProgrammaticScope(const ProgrammaticScope&) = delete;
  ProgrammaticScope& operator=(const ProgrammaticScope&) = delete;
};

// Lets the calling thread load kernels while a stream is being captured; `exchange_capture_mode` undoes it when called
// again with the mode it gave.
int32_t relaxed_capture_mode();
Error exchange_capture_mode(int32_t* mode);

// Says whether an error means that there is no usable GPU or driver at all.
bool means_no_gpu(Error error);

// Gives CUDA's text for an error, and forgets the thread's last CUDA error so that the caller's next check is its own.
const char* describe(Error error);

}  // namespace aot::cuda

#endif  // AOT_GEMM_CUDA_ENTRY_H_
