// What tests' programs need of a C++ library where zig links them: building its own takes zig a minute for each target.
#include <cstdlib>
#include <new>
#include <string>

template class std::basic_string<char>;

void* operator new(size_t num_bytes) {
  void* memory = std::malloc(num_bytes > 0 ? num_bytes : 1);
  if (memory == nullptr) std::abort();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// libc++ calls it where it would throw, and lets a program bring its own.
void std::__libcpp_verbose_abort(const char*, ...) noexcept { std::abort(); }
