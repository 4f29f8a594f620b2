// What the functions of the binding share, and how they raise.
#ifndef AOT_GEMM_PYTHON_STATE_H_
#define AOT_GEMM_PYTHON_STATE_H_

#include "aot_gemm.h"
#include "exchange.h"
#include "operands.h"
#include "python_api.h"
#include "torch_guard.h"

namespace aot {

// A function of `_routes`, or another object that the functions below share; lives as long as the process.
class Shared {
 public:
  Shared(PyObject* module, const char* name) : object_(PyObject_GetAttrString(module, name)) {}
  explicit Shared(const char* name) : object_(PyUnicode_InternFromString(name)) {}
  ~Shared() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// What the functions share, held by the capsule that is their `self`.
struct State {
  PyObject* errors;  // the module of the error classes
  PyObject* routes;  // the module `_routes`, whose functions say what they take
  Shared run{routes, "run"};
  Shared settle{routes, "settle"};
  Shared multiply_by_torch{routes, "multiply_by_torch"};
  Shared capsule{routes, "capsule"};
  Shared compact{routes, "compact"};
  Shared pack_factors{routes, "pack_factors"};
  Shared refuse_unreadable{routes, "refuse_unreadable"};
  Shared refuse_request{routes, "refuse_request"};
  Shared check_gradient{routes, "check_gradient"};
  Shared release{routes, "release"};
  Shared constant{routes, "ConstantWeight"};  // the class of promised weights
  Shared examine{routes, "examine"};
  Shared tensor_name{"tensor"};
  Shared version_name{"_version"};
  Shared address_name{"address"};
  ExchangeTable types{examine.get()};
  TorchGuard torch;
  bool only_tuned = false;     // whether the library answers for tuned sizes alone, as one of several packs
  bool of_some_gpus = false;   // whether the process has GPUs that other packs are for

  State(PyObject* errors_module, PyObject* routes_module) : errors(errors_module), routes(routes_module) {
    Py_IncRef(errors);
    Py_IncRef(routes);
    read_flag("ONLY_TUNED", &only_tuned);
    read_flag("OF_SOME_GPUS", &of_some_gpus);
  }

  ~State() {
    Py_DecRef(errors);
    Py_DecRef(routes);
  }

  void read_flag(const char* name, bool* flag) {
    PyObject* answer = PyObject_GetAttrString(routes, name);
    if (answer == nullptr) return;
    *flag = PyObject_IsTrue(answer) == 1;
    Py_DecRef(answer);
  }

  static State& of(PyObject* self) { return *static_cast<State*>(PyCapsule_GetPointer(self, nullptr)); }

  // Finds what is known of an object's type, and what torch has to say of its tensors once there is one.
  int find_type(PyObject* object, TensorType* type) {
    if (types.find(object, type) != 0) return -1;
    return type->is_of_torch && !torch.is_loaded() ? torch.load(routes) : 0;
  }
};

// Lets other threads of Python run for a scope.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(thread_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Takes the GIL back for a call.
  template <typename Call>
  auto with_gil(Call call) {
    PyEval_RestoreThread(thread_);
    const auto result = call();
    thread_ = PyEval_SaveThread();
    return result;
  }

 private:
  PyThreadState* thread_;
};

// The functions that raise give null.

PyObject* raise(const State& state, const char* kind, const char* message);

// Raises the calling thread's last refusal.
PyObject* raise_refusal(const State& state);

// Raises the error of a status of the C API that is not AOT_GEMM_OK.
PyObject* raise_status(const State& state, aot_gemm_status_t status);

// Calls a function of `_routes` with the product's name and objects, up to the first that is null.
PyObject* call_route(const Shared& function, Product product, PyObject* first, PyObject* second = nullptr,
                     PyObject* third = nullptr, PyObject* fourth = nullptr, PyObject* fifth = nullptr);

// Calls one that gives nothing. Gives 0, or -1 with a Python error set.
int tell_route(const Shared& function, Product product, PyObject* first, PyObject* second);

bool is_none(PyObject* object);
PyObject* give_none();

}  // namespace aot

#endif  // AOT_GEMM_PYTHON_STATE_H_
