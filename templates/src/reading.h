// The operands of one call from Python: each read by its own framework, and ordered on the stream of the first one's.
#ifndef AOT_GEMM_READING_H_
#define AOT_GEMM_READING_H_

#include "products.h"
#include "python_state.h"

namespace aot {

// One operand: the Python object, and its tensor.
struct Operand {
  PyObject* object = nullptr;  // borrowed
  PyObject* copy = nullptr;    // owned: what stands for an object that is not one matrix in memory
  TensorType type = {nullptr, false};
  HeldTensor tensor;
  void* stream = nullptr;  // of its framework, where that is not the left operand's

  Operand() = default;
  ~Operand() {
    tensor.release();
    if (copy != nullptr) Py_DecRef(copy);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  const DLTensor* view() const { return tensor.view(); }
};

// Refuses operands on a GPU that the kernels are not for, where other packs are for it.
int check_device(const State& state, const DLTensor& left);

// Why a product is not answered, in the place of a request.
constexpr char kNoTunedSize[] = "no tuned size";

// Refuses a product that another pack is to be asked for: one of no tuned size, where the library answers for these alone.
int check_answered(const State& state, const Problems& problems);

// What calls have in common. The functions give 0, or -1 with a Python error set.
class Reader {
 protected:
  Reader(State* state, Product product) : state_(*state), product_(product) {}

  // Raises the calling thread's refusal.
  int refused() const;

  // Reads a tensor through the exchange API of its type.
  int read(Operand* operand);

  // Reads the left operand, by whose framework stream and memory are given.
  int read_left();

  // Has a copy stand for a left operand that is not readable where it lies.
  int compact_left(bool (*is_readable)(const DLTensor&) = &is_matrix);

  // Reads an operand by its own type: a weight is often of another than x. Where it is another framework's, the launch
  // is to come after what that has enqueued.
  int read_other(Operand* operand, bool is_written = false);

  // Reads a weight, which may be one that is promised to be constant; says whether it is. The promise is of the memory that
  // the tensor had when it was made.
  int read_weight(Operand* weight, bool* is_constant);

  // Reads one that is written, under its name in Python, and refuses one that must not be.
  int read_written(Operand* operand, const char* name);

  int order(void* first, void* second);

  // Launches products one after the other, on the stream and with memory of the left operand's framework.
  int launch(const Problems& problems);

  // Has the framework of an operand that is not the left one's wait for the launch, before it reads or frees the
  // operand.
  int release(const Operand& operand);

  // The class of the framework's error where memory is out; null for Python's own.
  PyObject* exhausted() const { return left_.type.is_of_torch ? state_.torch.exhausted() : nullptr; }

  State& state_;
  Product product_;
  Operand left_;
  Span original_ = {0, 0};  // of a left operand that a copy stands for
  void* stream_ = nullptr;

 private:
  // Refuses an operand whose gradient torch would record. Whether it records is asked once a call.
  int check_gradient(const Operand& operand);

  // Reads the capsule of an operand without an exchange API: its framework is told the stream that is to wait for it.
  int read_capsule(Operand* operand, bool is_written);

  // Says whether torch has counted a write of a promised tensor: 1 or 0, or -1 with a Python error set.
  int has_new_version(PyObject* handle, PyObject* tensor);

  static void* allocate_workspace(void* context, size_t num_bytes);

  // Called without the GIL, in the midst of a launch.
  void* allocate(size_t num_bytes);

  HeldTensor workspace_;
  WithoutGil* without_gil_ = nullptr;
  bool has_failed_ = false;  // to allocate
  bool has_asked_ = false;   // what follows is known
  TorchGuard::Recording recording_ = {false, false};
};

}  // namespace aot

#endif  // AOT_GEMM_READING_H_
