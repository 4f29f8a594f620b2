// What a function of the binding refused, for the thread that called it.
#ifndef AOT_GEMM_REFUSAL_H_
#define AOT_GEMM_REFUSAL_H_

namespace aot {

// The kind of a refusal whose message is a request that the library has no operation for: Python has the words for it.
constexpr char kNoOperation[] = "";

struct Refusal {
  const char* kind;  // the class of the Python package's error, such as "ShapeError"; or kNoOperation
  char message[1024];

  bool is_of_operation() const { return kind[0] == '\0'; }
};

// Sets the calling thread's refusal. Gives -1.
int refuse(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Gives the calling thread's last refusal.
const Refusal& last_refusal();

}  // namespace aot

#endif  // AOT_GEMM_REFUSAL_H_
