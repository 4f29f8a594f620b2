#include "fault_text.h"

#include <cstdarg>
#include <cstdio>

namespace aot {

const char* FaultText::write(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(characters, sizeof(characters), format, arguments);
  va_end(arguments);
  return characters;
}

bool ascends(const int64_t* edges, int32_t num_edges) {
  bool ascending = num_edges > 0 && edges[0] > 0;
  for (int32_t i = 1; ascending && i < num_edges; ++i) ascending = edges[i - 1] < edges[i];
  return ascending;
}

}  // namespace aot
