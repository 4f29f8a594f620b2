// Tensors of Python as DLPack gives them: through the C exchange API of their type, or out of a capsule.
//
// Functions that return an int give 0, or -1 with a Python error set. All need the GIL, where there is one.
#ifndef AOT_GEMM_EXCHANGE_H_
#define AOT_GEMM_EXCHANGE_H_

#include <atomic>
#include <cstdint>

#include <dlpack/dlpack.h>
#include <pthread.h>

#include "matrix.h"
#include "python_api.h"

namespace aot {

// What is known of a type of tensors.
struct TensorType {
  const DLPackExchangeAPI* api;  // null where it has none of our major version
  bool is_of_torch;              // it has torch's attributes of gradients and versions
};

// What types of tensors have for an exchange API. Entries are only ever added, and are complete before they are
// counted, so that a look-up takes no lock, in a Python without the GIL too.
class ExchangeTable {
 public:
  // `examine` is a Python function of a type: whether it is torch's. It raises for types whose tensors are no memory of
  // their own, which are asked again at each look-up.
  explicit ExchangeTable(PyObject* examine);
  ~ExchangeTable();
  ExchangeTable(const ExchangeTable&) = delete;
  ExchangeTable& operator=(const ExchangeTable&) = delete;

  // Finds what is known of an object's type.
  int find(PyObject* object, TensorType* found);

 private:
  static constexpr int32_t kMaxTypes = 64;  // further ones are asked at each look-up

  struct Entry {
    PyObject* type;  // a reference is held: the address of a type that is gone could be another's
    TensorType known;
  };

  int ask(PyObject* type, TensorType* found);
  void add(PyObject* type, const TensorType& known);

  PyObject* examine_;
  Entry entries_[kMaxTypes];
  std::atomic<int32_t> num_entries_{0};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

// A tensor for the length of a call, with whatever keeps it alive.
class HeldTensor {
 public:
  HeldTensor() = default;
  ~HeldTensor();
  HeldTensor(const HeldTensor&) = delete;
  HeldTensor& operator=(const HeldTensor&) = delete;

  int read(const DLPackExchangeAPI& api, PyObject* object);

  // Reads a capsule, which is not consumed, and takes the reference to it.
  int read_capsule(PyObject* capsule);

  // `exhausted` is the class of the framework's error where memory is out; null for Python's MemoryError.
  int allocate(const DLPackExchangeAPI& api, DLDevice device, DLDataType dtype, const int64_t* extents,
               int32_t num_dims, PyObject* exhausted);

  // Gives an allocated tensor as an object of its framework; null with a Python error set.
  PyObject* hand_on(const DLPackExchangeAPI& api);

  // Holds a tensor that has no memory to keep alive; its extents stay the caller's.
  void describe(const DLTensor& tensor) {
    own_ = tensor;
    view_ = &own_;
  }

  // Lets go of what was read, to read something else.
  void release();

  const DLTensor* view() const { return view_; }
  bool is_read_only() const { return is_read_only_; }
  void* data() const { return data_of(*view_); }

 private:
  DLTensor own_;
  const DLTensor* view_ = nullptr;
  DLManagedTensorVersioned* managed_ = nullptr;
  PyObject* capsule_ = nullptr;
  bool is_read_only_ = false;
};

// Gives the stream that a framework works on, of a device in GPU memory.
int find_stream(const DLPackExchangeAPI& api, DLDevice device, void** stream);

// Says whether an object is a capsule that HeldTensor::read_capsule can read.
bool is_capsule(PyObject* object);

}  // namespace aot

#endif  // AOT_GEMM_EXCHANGE_H_
