// What the binding calls of CPython: functions and objects of the stable ABI of Python 3.10, as docs.python.org/3.10/
// c-api/stable.html lists them, declared here so that one binary, built without any Python's headers, serves every
// CPython from 3.10 on. tests/runtime/test_exchange.py compares the declarations with CPython's own.
//
// They are weak: the interpreter that loads the binding has them, and the linker still refuses anything else that is
// missing.
#ifndef AOT_GEMM_PYTHON_API_H_
#define AOT_GEMM_PYTHON_API_H_

#include <cstddef>

#define AOT_GEMM_OF_PYTHON __attribute__((weak))

extern "C" {

#ifndef Py_PYTHON_H
using PyObject = struct _object;  // opaque: its layout differs between builds
using PyTypeObject = struct _typeobject;
using Py_ssize_t = ptrdiff_t;
using PyThreadState = struct _ts;
using PyCFunction = PyObject* (*)(PyObject* self, PyObject* arguments);
using PyCapsule_Destructor = void (*)(PyObject* capsule);

struct PyMethodDef {
  const char* ml_name;
  PyCFunction ml_meth;
  int ml_flags;
  const char* ml_doc;
};

constexpr int METH_FASTCALL = 0x0080;  // Include/methodobject.h
constexpr int Py_EQ = 2;               // Include/object.h
#endif

AOT_GEMM_OF_PYTHON void Py_IncRef(PyObject* object);
AOT_GEMM_OF_PYTHON void Py_DecRef(PyObject* object);
AOT_GEMM_OF_PYTHON extern PyObject _Py_NoneStruct;

AOT_GEMM_OF_PYTHON PyObject* PyObject_Type(PyObject* object);
AOT_GEMM_OF_PYTHON PyObject* PyObject_GetAttr(PyObject* object, PyObject* name);
AOT_GEMM_OF_PYTHON PyObject* PyObject_GetAttrString(PyObject* object, const char* name);
AOT_GEMM_OF_PYTHON int PyObject_RichCompareBool(PyObject* left, PyObject* right, int operation);
AOT_GEMM_OF_PYTHON int PyObject_IsTrue(PyObject* object);
AOT_GEMM_OF_PYTHON PyObject* PyObject_CallNoArgs(PyObject* callable);
AOT_GEMM_OF_PYTHON PyObject* PyObject_CallFunctionObjArgs(PyObject* callable, ...);
AOT_GEMM_OF_PYTHON PyObject* PyCMethod_New(PyMethodDef* definition, PyObject* self, PyObject* module,
                                           PyTypeObject* type);

AOT_GEMM_OF_PYTHON PyObject* PyUnicode_FromString(const char* text);
AOT_GEMM_OF_PYTHON PyObject* PyUnicode_InternFromString(const char* text);
AOT_GEMM_OF_PYTHON PyObject* PyLong_FromSize_t(size_t value);
AOT_GEMM_OF_PYTHON PyObject* PyLong_FromLongLong(long long value);
AOT_GEMM_OF_PYTHON PyObject* PyLong_FromVoidPtr(void* value);
AOT_GEMM_OF_PYTHON long PyLong_AsLong(PyObject* object);
AOT_GEMM_OF_PYTHON void* PyLong_AsVoidPtr(PyObject* object);
AOT_GEMM_OF_PYTHON double PyFloat_AsDouble(PyObject* object);
AOT_GEMM_OF_PYTHON PyObject* PyTuple_Pack(Py_ssize_t count, ...);
AOT_GEMM_OF_PYTHON PyObject* PyTuple_New(Py_ssize_t count);
AOT_GEMM_OF_PYTHON int PyTuple_SetItem(PyObject* tuple, Py_ssize_t index, PyObject* item);
AOT_GEMM_OF_PYTHON Py_ssize_t PyTuple_Size(PyObject* tuple);
AOT_GEMM_OF_PYTHON PyObject* PyTuple_GetItem(PyObject* tuple, Py_ssize_t index);
AOT_GEMM_OF_PYTHON PyObject* PyDict_New();
AOT_GEMM_OF_PYTHON int PyDict_SetItemString(PyObject* dictionary, const char* key, PyObject* item);

AOT_GEMM_OF_PYTHON PyObject* PyCapsule_New(void* pointer, const char* name, PyCapsule_Destructor destructor);
AOT_GEMM_OF_PYTHON int PyCapsule_IsValid(PyObject* capsule, const char* name);
AOT_GEMM_OF_PYTHON void* PyCapsule_GetPointer(PyObject* capsule, const char* name);

AOT_GEMM_OF_PYTHON extern PyObject* PyExc_AttributeError;
AOT_GEMM_OF_PYTHON extern PyObject* PyExc_Exception;
AOT_GEMM_OF_PYTHON extern PyObject* PyExc_MemoryError;
AOT_GEMM_OF_PYTHON extern PyObject* PyExc_RuntimeError;
AOT_GEMM_OF_PYTHON PyObject* PyErr_Occurred();
AOT_GEMM_OF_PYTHON int PyErr_ExceptionMatches(PyObject* kind);
AOT_GEMM_OF_PYTHON void PyErr_Clear();
AOT_GEMM_OF_PYTHON void PyErr_SetString(PyObject* kind, const char* message);
AOT_GEMM_OF_PYTHON void PyErr_Fetch(PyObject** kind, PyObject** value, PyObject** traceback);
AOT_GEMM_OF_PYTHON void PyErr_NormalizeException(PyObject** kind, PyObject** value, PyObject** traceback);
AOT_GEMM_OF_PYTHON void PyErr_Restore(PyObject* kind, PyObject* value, PyObject* traceback);

AOT_GEMM_OF_PYTHON PyThreadState* PyEval_SaveThread();
AOT_GEMM_OF_PYTHON void PyEval_RestoreThread(PyThreadState* state);

}  // extern "C"

#endif  // AOT_GEMM_PYTHON_API_H_
