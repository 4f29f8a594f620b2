// What torch knows of its tensors beside their memory, and a product must heed: gradients, the bit that says that the
// memory holds the negative values, and the version that counts writes.
#ifndef AOT_GEMM_TORCH_GUARD_H_
#define AOT_GEMM_TORCH_GUARD_H_

#include <cstdint>

#include <dlpack/dlpack.h>

#include "python_api.h"

namespace aot {

// Functions and names of torch, looked up once. The functions below that give an int give 0, or -1 with a Python error
// set, and need the GIL.
class TorchGuard {
 public:
  TorchGuard() = default;
  ~TorchGuard();
  TorchGuard(const TorchGuard&) = delete;
  TorchGuard& operator=(const TorchGuard&) = delete;

  bool is_loaded() const { return hooks_ != nullptr; }

  // Takes the tuple that `_torch.hooks()` gives.
  int load(PyObject* routes);

  // Says whether a tensor has no memory behind it: its address is then its offset from null.
  int is_without_memory(PyObject* tensor, const DLTensor& view, bool* answer) const;

  // Says whether a tensor's values are other than its memory's.
  int is_negated(PyObject* tensor, const DLTensor& view, bool* answer) const;

  // What torch may record of a product.
  struct Recording {
    bool gradients;  // of tensors that require one
    bool always;     // forward-mode differentiation is on, or torch.jit traces
  };

  // Says what torch may record now. Where nothing, no tensor need be asked.
  int find_recording(Recording* recording) const;

  // Says whether torch.use_deterministic_algorithms is on.
  int find_deterministic(bool* answer) const;

  // Says whether a tensor requires a gradient.
  int requires_gradient(PyObject* tensor, bool* answer) const;

  // The class of torch's error where memory is out.
  PyObject* exhausted() const { return exhausted_; }

  // Tells torch that a tensor was written, so that a backward pass that needs the old values fails.
  int note_write(PyObject* tensor) const;

 private:
  PyObject* hooks_ = nullptr;  // the tuple, which owns what follows
  PyObject* is_grad_enabled_ = nullptr;
  PyObject* forward_ad_ = nullptr;
  PyObject* is_neg_ = nullptr;
  PyObject* increment_version_ = nullptr;
  PyObject* storage_offset_ = nullptr;
  PyObject* tracing_state_ = nullptr;
  PyObject* requires_grad_ = nullptr;  // names
  PyObject* level_ = nullptr;
  PyObject* are_deterministic_ = nullptr;
  PyObject* exhausted_ = nullptr;
};

}  // namespace aot

#endif  // AOT_GEMM_TORCH_GUARD_H_
