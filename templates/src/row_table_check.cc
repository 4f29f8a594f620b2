// Checks the table of row operations against itself and the kernels, once, when the library is loaded: what
// aot/kinds/rows/dispatch.py checks before it is written.
#include <cinttypes>
#include <cstdint>

#include "fault_text.h"
#include "row_dispatch.h"
#include "row_operation.h"

namespace aot {

namespace {

FaultText row_text;

bool is_of(int32_t kernel, const RowSection& section) {
  return kernel >= 0 && kernel < kNumRowKernels && kRowKernels[kernel].operation == section.operation;
}

bool takes_all(const RowLimits& limits) {
  return limits.alignment_bytes == 1 && limits.cols_multiple == 1 && limits.max_cols >= kMaxCols;
}

const char* find_fault_of_column(const RowSection& section, int32_t number, int32_t index) {
  const RowColumn& column = section.columns[index];
  if (!ascends(column.edges, column.num_steps)) {
    return row_text.write("row section %" PRId32 ", column %" PRId32 ": its edges do not ascend", number, index);
  }
  for (int32_t i = 0; i < column.num_steps; ++i) {
    const int32_t kernel = column.kernels[i];
    if (is_of(kernel, section) && kRowKernels[kernel].limits.max_cols >= section.cols[index]) continue;
    return row_text.write("row section %" PRId32 ", column %" PRId32 ": kernel %" PRId32 " of %" PRId32 " cannot stand there", number,
                     index, kernel, kNumRowKernels);
  }
  return nullptr;
}

const char* find_fault_of_section(int32_t number) {
  const RowSection& section = kRowSections[number];
  if (section.operation < 0 || section.operation >= kNumRowOperations || section.table < 0 || section.table >= kNumTables) {
    return row_text.write("row section %" PRId32 " is of operation %" PRId32 " and table %" PRId32, number, section.operation,
                     section.table);
  }
  if (!is_of(section.fallback, section) || !takes_all(kRowKernels[section.fallback].limits)) {
    return row_text.write("row section %" PRId32 ": kernel %" PRId32 " cannot be its fallback", number, section.fallback);
  }
  if (!ascends(section.cols, section.num_columns)) {
    return row_text.write("row section %" PRId32 ": its edges do not ascend", number);
  }
  int32_t first_step = 0;
  for (int32_t i = 0; i < section.num_columns; ++i) {
    const char* found = find_fault_of_column(section, number, i);
    if (found != nullptr) return found;
    if (section.columns[i].first_step != first_step) {
      return row_text.write("row section %" PRId32 ", column %" PRId32 ": its first step is not %" PRId32, number, i, first_step);
    }
    first_step += section.columns[i].num_steps;
  }
  return nullptr;
}

const char* find_row_fault() {
  for (int32_t i = 0; i < kNumRowKernels; ++i) {
    const RowKernel& kernel = kRowKernels[i];
    const bool is_legal = kernel.operation >= 0 && kernel.operation < kNumRowOperations && kernel.num_arguments >= 1 &&
                          kernel.num_arguments <= kNumRowArguments &&
                          kernel.signature[kernel.num_arguments - 1] == RowArgument::kStream;
    if (!is_legal) return row_text.write("row kernel %s is of no operation, or has no stream", kernel.name);
  }
  for (int32_t i = 0; i < kNumRowSections; ++i) {
    const char* found = find_fault_of_section(i);
    if (found != nullptr) return found;
  }
  for (int32_t i = 0; i < kNumTables * kNumRowOperations; ++i) {
    const int32_t section = kRowSectionOf[i];
    if (section == -1) continue;
    if (section < 0 || section >= kNumRowSections || kRowSections[section].operation != i % kNumRowOperations) {
      return row_text.write("table %" PRId32 " has row section %" PRId32 " for %s", i / kNumRowOperations, section,
                   kRowOperations[i % kNumRowOperations].tag);
    }
  }
  return nullptr;
}

}  // namespace

const char* const kRowTableFault = find_row_fault();

}  // namespace aot
