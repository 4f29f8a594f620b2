#include "graph_edge.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda_entry.h"
#include "driver_function.h"
#include "spread.h"

namespace aot::cuda {

namespace {

std::atomic<decltype(&cuStreamIsCapturing)> driver_is_capturing{nullptr};
std::atomic<decltype(&cuStreamGetCaptureInfo_v3)> driver_capture_info{nullptr};
std::atomic<decltype(&cuGraphNodeGetType)> driver_node_type{nullptr};
std::atomic<decltype(&cuGraphKernelNodeGetParams)> driver_kernel_params{nullptr};

thread_local bool stays_programmatic = false;

// Functions of ours that let the next kernel begin before they end, as they were captured, by open addressing. Nothing
// is ever taken out: a function whose context is gone is one that no graph has. Where it is full, overlap is lost.
constexpr size_t kNumFunctions = 4096;
std::atomic<CUfunction> early_functions[kNumFunctions] = {};

size_t place_of(CUfunction function) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;  // the golden ratio in 64 bits
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(function)) * kMix >> 32 & (kNumFunctions - 1);
}

void remember(CUfunction function) {
  for (size_t i = 0; i < kNumFunctions; ++i) {
    std::atomic<CUfunction>* slot = &early_functions[(place_of(function) + i) & (kNumFunctions - 1)];
    CUfunction found = nullptr;
    if (slot->compare_exchange_strong(found, function) || found == function) return;
  }
}

bool is_remembered(CUfunction function) {
  for (size_t i = 0; i < kNumFunctions; ++i) {
    const CUfunction found = early_functions[(place_of(function) + i) & (kNumFunctions - 1)].load();
    if (found == function) return found != nullptr;
    if (found == nullptr) return false;
  }
  return false;
}

// Says whether a node is a kernel of ours that lets the next one begin before it ends, and which. Of another's the driver
// does not tell: it gives no attribute of a node that was captured.
bool lets_next_begin(CUgraphNode node, Front* front) {
  const auto type_of = find_once(&driver_node_type, "cuGraphNodeGetType", 10000);
  const auto params_of = find_once(&driver_kernel_params, "cuGraphKernelNodeGetParams", 12000);
  if (type_of == nullptr || params_of == nullptr) return true;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (type_of(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_KERNEL) return false;
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (params_of(node, &params) != CUDA_SUCCESS || !is_remembered(params.func)) return false;
  *front = {params.func, params.sharedMemBytes};
  return true;
}

// Nothing captures the legacy stream, and a question about it is an error while other streams are captured.
bool can_be_captured(CUstream stream) { return stream != nullptr && stream != CU_STREAM_LEGACY; }

bool is_captured(CUstream stream) {
  if (!can_be_captured(stream)) return false;
  const auto ask = find_once(&driver_is_capturing, "cuStreamIsCapturing", 10000);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != nullptr && ask(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// Has this library stay in the process: a graph may be replayed after a program has closed the handle that it loaded it by,
// and at the unloading the CUDA runtime in here would unload the graph's kernels.
void keep_loaded() {
  static std::atomic<bool> is_kept{false};
  if (is_kept.load(std::memory_order_relaxed) || is_kept.exchange(true)) return;
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&keep_loaded), &here) == 0) return;
  dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);  // of what is loaded: no file is read
}

// Says whether all that the next launch of a captured stream waits for lets it begin early; true where that is not known.
// Where it is one kernel, says which.
bool gains_by_overlap(CUstream stream, Front* front) {
  const auto ask = find_once(&driver_capture_info, "cuStreamGetCaptureInfo", 12030);
  if (ask == nullptr) return true;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  if (ask(stream, &status, nullptr, nullptr, &nodes, &edges, &count) != CUDA_SUCCESS) return true;
  for (size_t i = 0; i < count; ++i) {
    if (!lets_next_begin(nodes[i], front)) return false;
  }
  if (count != 1) *front = {};
  return count > 0;
}

}  // namespace

void choose_edge(CUfunction function, CUlaunchAttribute (&attributes)[kMaxAttributes], CUlaunchConfig* config) {
  if (stays_programmatic || !is_captured(config->hStream)) return;
  keep_loaded();
  unsigned int index = 0;
  while (index < config->numAttrs &&
         config->attrs[index].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
    ++index;
  }
  if (index == config->numAttrs || config->numAttrs > kMaxAttributes) return;
  if (config->attrs[index].value.programmaticStreamSerializationAllowed == 0) return;
  remember(function);
  Front front = {};
  if (gains_by_overlap(config->hStream, &front)) return spread(function, front, config);
  for (unsigned int i = 0; i < config->numAttrs; ++i) attributes[i] = config->attrs[i];
  attributes[index].value.programmaticStreamSerializationAllowed = 0;
  config->attrs = attributes;
}

void stay_programmatic(bool stays) { stays_programmatic = stays; }

}  // namespace aot::cuda
