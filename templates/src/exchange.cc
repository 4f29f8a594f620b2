#include "exchange.h"

#include <cstdio>
#include <cstring>

namespace aot {

namespace {

constexpr char kCapsule[] = "dltensor";
constexpr char kVersionedCapsule[] = "dltensor_versioned";

// Keeps a Python error aside while a framework's code runs that may itself be Python.
class ErrorAside {
 public:
  ErrorAside() { PyErr_Fetch(&kind_, &value_, &traceback_); }
  ~ErrorAside() { PyErr_Restore(kind_, value_, traceback_); }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

 private:
  PyObject* kind_;
  PyObject* value_;
  PyObject* traceback_;
};

// A framework that fails should have set an error; without one, Python would find a null result and no reason.
int framework_failed(const char* what) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, what);
  return -1;
}

// What an allocator says of its failure. It may do so without the GIL, so that Python hears of it afterwards.
struct AllocationError {
  char kind[64];
  char message[960];
};

void note_error(void* context, const char* kind, const char* message) {
  auto* error = static_cast<AllocationError*>(context);
  std::snprintf(error->kind, sizeof(error->kind), "%s", kind == nullptr ? "" : kind);
  std::snprintf(error->message, sizeof(error->message), "%s", message == nullptr ? "" : message);
}

// Frameworks give names of exceptions, or of their own functions; only what callers are known to catch keeps its class.
// torch calls each of its errors a MemoryError, and raises none where it is asked in Python: `exhausted` is what it raises
// then where memory is out.
int raise_noted(const AllocationError& error, PyObject* exhausted) {
  if (error.kind[0] == '\0' && error.message[0] == '\0') return framework_failed("a framework gave no memory");
  char text[sizeof(error.kind) + sizeof(error.message) + 2];
  if (exhausted != nullptr) {
    PyErr_SetString(std::strstr(error.message, "out of memory") ? exhausted : PyExc_RuntimeError, error.message);
  } else if (std::strcmp(error.kind, "MemoryError") == 0 || std::strcmp(error.kind, "RuntimeError") == 0) {
    PyErr_SetString(error.kind[0] == 'M' ? PyExc_MemoryError : PyExc_RuntimeError, error.message);
  } else {
    std::snprintf(text, sizeof(text), "%s: %s", error.kind, error.message);
    PyErr_SetString(PyExc_RuntimeError, text);
  }
  return -1;
}

const DLPackExchangeAPI* usable(const DLPackExchangeAPIHeader* header) {
  while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  if (api == nullptr || api->current_work_stream == nullptr) return nullptr;
  const bool gives_tensors =
      api->dltensor_from_py_object_no_sync != nullptr || api->managed_tensor_from_py_object_no_sync != nullptr;
  return gives_tensors ? api : nullptr;
}

int ask_for_api(PyObject* type, const DLPackExchangeAPI** api) {
  constexpr char kName[] = "dlpack_exchange_api";
  *api = nullptr;
  PyObject* capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return -1;
    PyErr_Clear();
    return 0;
  }
  if (PyCapsule_IsValid(capsule, kName) != 0) {
    *api = usable(static_cast<const DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule, kName)));
  }
  Py_DecRef(capsule);
  return 0;
}

}  // namespace

ExchangeTable::ExchangeTable(PyObject* examine) : examine_(examine) { Py_IncRef(examine_); }

ExchangeTable::~ExchangeTable() {
  Py_DecRef(examine_);
  for (int32_t i = 0; i < num_entries_.load(std::memory_order_relaxed); ++i) Py_DecRef(entries_[i].type);
}

int ExchangeTable::ask(PyObject* type, TensorType* found) {
  PyObject* answer = PyObject_CallFunctionObjArgs(examine_, type, nullptr);
  if (answer == nullptr) return -1;
  const int is_of_torch = PyObject_IsTrue(answer);
  Py_DecRef(answer);
  if (is_of_torch < 0) return -1;
  found->is_of_torch = is_of_torch != 0;
  return ask_for_api(type, &found->api);
}

int ExchangeTable::find(PyObject* object, TensorType* found) {
  PyObject* type = PyObject_Type(object);
  const int32_t count = num_entries_.load(std::memory_order_acquire);
  for (int32_t i = 0; i < count; ++i) {
    if (entries_[i].type == type) {
      *found = entries_[i].known;
      Py_DecRef(type);
      return 0;
    }
  }
  const int status = ask(type, found);
  if (status == 0) add(type, *found);
  Py_DecRef(type);
  return status;
}

void ExchangeTable::add(PyObject* type, const TensorType& known) {
  pthread_mutex_lock(&mutex_);
  const int32_t count = num_entries_.load(std::memory_order_relaxed);
  bool is_there = count == kMaxTypes;
  for (int32_t i = 0; i < count; ++i) is_there = is_there || entries_[i].type == type;
  if (!is_there) {
    Py_IncRef(type);
    entries_[count] = {type, known};
    num_entries_.store(count + 1, std::memory_order_release);
  }
  pthread_mutex_unlock(&mutex_);
}

HeldTensor::~HeldTensor() { release(); }

void HeldTensor::release() {
  view_ = nullptr;
  is_read_only_ = false;
  if (managed_ == nullptr && capsule_ == nullptr) return;
  const ErrorAside aside;
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
  if (capsule_ != nullptr) Py_DecRef(capsule_);
  managed_ = nullptr;
  capsule_ = nullptr;
}

int HeldTensor::read(const DLPackExchangeAPI& api, PyObject* object) {
  if (api.dltensor_from_py_object_no_sync != nullptr) {
    if (api.dltensor_from_py_object_no_sync(object, &own_) != 0) return framework_failed("a tensor gave no DLTensor");
    view_ = &own_;
    return 0;
  }
  if (api.managed_tensor_from_py_object_no_sync(object, &managed_) != 0 || managed_ == nullptr) {
    managed_ = nullptr;
    return framework_failed("a tensor gave no DLManagedTensorVersioned");
  }
  view_ = &managed_->dl_tensor;
  is_read_only_ = (managed_->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  return 0;
}

int HeldTensor::read_capsule(PyObject* capsule) {
  capsule_ = capsule;
  if (PyCapsule_IsValid(capsule, kCapsule) != 0) {
    view_ = &static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule))->dl_tensor;
    return 0;
  }
  auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kVersionedCapsule));
  if (managed == nullptr) return -1;
  if (managed->version.major != DLPACK_MAJOR_VERSION) {
    PyErr_SetString(PyExc_RuntimeError, "a capsule is of another major version of DLPack");
    return -1;
  }
  view_ = &managed->dl_tensor;
  is_read_only_ = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  return 0;
}

int HeldTensor::allocate(const DLPackExchangeAPI& api, DLDevice device, DLDataType dtype, const int64_t* extents,
                         int32_t num_dims, PyObject* exhausted) {
  // DLPack forbids an API without these, and there are some: with `out` given they are not missed.
  if (api.managed_tensor_allocator == nullptr || api.managed_tensor_to_py_object_no_sync == nullptr) {
    return framework_failed("the framework has no allocator for DLPack; pass out=");
  }
  DLTensor prototype{};
  prototype.device = device;
  prototype.dtype = dtype;
  prototype.ndim = num_dims;
  prototype.shape = const_cast<int64_t*>(extents);
  AllocationError error{};
  if (api.managed_tensor_allocator(&prototype, &managed_, &error, &note_error) != 0 || managed_ == nullptr) {
    managed_ = nullptr;
    return PyErr_Occurred() != nullptr ? -1 : raise_noted(error, exhausted);
  }
  view_ = &managed_->dl_tensor;
  return 0;
}

PyObject* HeldTensor::hand_on(const DLPackExchangeAPI& api) {
  void* object = nullptr;
  DLManagedTensorVersioned* handed = managed_;
  managed_ = nullptr;  // taken, whether or not an object comes of it
  if (api.managed_tensor_to_py_object_no_sync(handed, &object) != 0 || object == nullptr) {
    framework_failed("a framework made no tensor of its memory");
    return nullptr;
  }
  return static_cast<PyObject*>(object);
}

int find_stream(const DLPackExchangeAPI& api, DLDevice device, void** stream) {
  *stream = nullptr;
  if (api.current_work_stream(device.device_type, device.device_id, stream) == 0) return 0;
  return framework_failed("a framework gave no stream");
}

bool is_capsule(PyObject* object) {
  return PyCapsule_IsValid(object, kCapsule) != 0 || PyCapsule_IsValid(object, kVersionedCapsule) != 0;
}

}  // namespace aot
