// A CUDA runtime of the few calls that a launch makes, for tests without a driver: it gives a driver's launch that
// records what it is told and answers as it is told, and records what comes to its own. Its one stream can be captured;
// a node of its graphs is `kMemset`, or the function of a kernel.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "cuda_entry.h"

extern "C" cudaError_t _cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned int,
                                            cudaLibraryOption*, void**, unsigned int);
extern "C" cudaError_t _cudaLaunchKernelEx(const cudaLaunchConfig_t*, const void*, void**);

namespace {

CUlaunchConfig recorded;
CUlaunchAttribute attribute;
const void* recorded_kernel;
void** recorded_arguments;
int driver_calls, runtime_calls, searches, function_queries;
bool has_function, has_functions;
CUresult driver_answer;
unsigned long long context;  // 0: none is current

struct {
  unsigned int num_options;
  cudaLibraryOption option;
  const void* value;
} loaded;

constexpr uintptr_t kMemset = 1;
CUgraphNode in_front[4];
size_t num_in_front;
bool is_captured, has_graphs;
int capture_queries;
bool is_cluster_told;

// Gives a function that tells kernel and context.
CUfunction function_in(const void* kernel, unsigned long long in) {
  return reinterpret_cast<CUfunction>(reinterpret_cast<char*>(const_cast<void*>(kernel)) + in);
}

CUresult get_context_id(CUcontext which, unsigned long long* id) {
  *id = context;
  return context == 0 || which != nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult get_function(CUfunction* function, CUkernel kernel) {
  ++function_queries;
  *function = function_in(kernel, context);
  return CUDA_SUCCESS;
}

CUresult launch(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  ++driver_calls;
  recorded = *config;
  if (config->numAttrs > 0) attribute = config->attrs[0];
  is_cluster_told = config->numAttrs > 1 && config->attrs[1].value.clusterDim.x == 2;
  recorded_kernel = function;
  recorded_arguments = arguments;
  return extra == nullptr ? driver_answer : CUDA_ERROR_INVALID_VALUE;
}

CUresult is_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = is_captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*, CUgraph*, const CUgraphNode** nodes,
                      const CUgraphEdgeData** edges, size_t* count) {
  ++capture_queries;
  if (edges == nullptr) return CUDA_ERROR_LOSSY_QUERY;
  *nodes = in_front;
  *count = num_in_front;
  return is_capturing(stream, status);
}

CUresult node_type(CUgraphNode node, CUgraphNodeType* type) {
  *type = node == reinterpret_cast<CUgraphNode>(kMemset) ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_KERNEL;
  return CUDA_SUCCESS;
}

CUresult kernel_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  params->func = reinterpret_cast<CUfunction>(node);  // a node of ours is its function
  params->sharedMemBytes = recorded.sharedMemBytes;
  return CUDA_SUCCESS;
}

// A device with the SMs of an H200.
constexpr int kSmemBytes = 228 * 1024, kReservedBytes = 1024;
int major = 9, most_smem;

CUresult current_device(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = major; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = kSmemBytes; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = kReservedBytes; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult function_attribute(int* value, CUfunction_attribute, CUfunction) {
  *value = most_smem;
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction, CUfunction_attribute, int value) {
  most_smem = value;
  return CUDA_SUCCESS;
}

CUresult occupancy(int* count, CUfunction, int, size_t smem_bytes) {
  *count = static_cast<int>(kSmemBytes / (smem_bytes + kReservedBytes));
  return CUDA_SUCCESS;
}

// As an H200 answers, with a place less than the SMs have for clusters of 2.
CUresult active_clusters(int* count, CUfunction, const CUlaunchConfig* config) {
  const int size = static_cast<int>(config->attrs[1].value.clusterDim.x);
  *count = (size == 2 ? 65 : 32) * static_cast<int>(kSmemBytes / (config->sharedMemBytes + kReservedBytes));
  return CUDA_SUCCESS;
}

const struct {
  const char* name;
  void* function;
} kGraphFunctions[] = {
    {"cuStreamIsCapturing", reinterpret_cast<void*>(&is_capturing)},
    {"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&capture_info)},
    {"cuGraphNodeGetType", reinterpret_cast<void*>(&node_type)},
    {"cuGraphKernelNodeGetParams", reinterpret_cast<void*>(&kernel_params)},
    {"cuCtxGetDevice", reinterpret_cast<void*>(&current_device)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(&device_attribute)},
    {"cuFuncGetAttribute", reinterpret_cast<void*>(&function_attribute)},
    {"cuFuncSetAttribute", reinterpret_cast<void*>(&set_attribute)},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", reinterpret_cast<void*>(&occupancy)},
    {"cuOccupancyMaxActiveClusters", reinterpret_cast<void*>(&active_clusters)},
};

struct Size {
  unsigned int num_ctas, smem_bytes, cluster;
};

// Launches a kernel of ours by its number, on a stream; says what the driver was told of programmatic launch, or -1.
int launch_programmatically(int kernel_number, cudaStream_t stream, const Size& size = {1, 0, 2}) {
  static char kernels[16];
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {size.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(size.num_ctas, 1, 1);
  config.blockDim = dim3(1, 1, 1);
  config.dynamicSmemBytes = size.smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  if (_cudaLaunchKernelEx(&config, &kernels[kernel_number], nullptr) != cudaSuccess || recorded.numAttrs != 2) return -1;
  const bool is_untouched = attributes[0].val.programmaticStreamSerializationAllowed == 1;
  return is_untouched && is_cluster_told ? attribute.value.programmaticStreamSerializationAllowed : -1;
}

}  // namespace

extern "C" {

// What stands in front of the next launch in the graph that is captured.
void fake_capture(int captured, int with_graphs, int count, const uintptr_t* nodes) {
  is_captured = captured != 0;
  has_graphs = with_graphs != 0;
  num_in_front = static_cast<size_t>(count);
  for (int i = 0; i < count; ++i) in_front[i] = reinterpret_cast<CUgraphNode>(nodes[i]);
  capture_queries = 0;
}

int fake_capture_queries() { return capture_queries; }

int fake_programmatic(int kernel_number, uintptr_t stream) {
  return launch_programmatically(kernel_number, reinterpret_cast<cudaStream_t>(stream));
}

// Launches a kernel of so many CTAs in clusters on a device of an architecture; gives the shared memory it was told of.
unsigned int fake_spread(int kernel_number, uintptr_t stream, unsigned int num_ctas, unsigned int smem_bytes,
                         unsigned int cluster, int architecture) {
  major = architecture;
  launch_programmatically(kernel_number, reinterpret_cast<cudaStream_t>(stream), {num_ctas, smem_bytes, cluster});
  return recorded.sharedMemBytes;
}

int fake_most_smem() { return most_smem; }

// Gives the node of the last launch of ours.
uintptr_t fake_node() { return reinterpret_cast<uintptr_t>(recorded_kernel); }

void fake_stay(int stays) { aot::cuda::stay_programmatic(stays != 0); }

void fake_set(int with_function, int answer) {
  has_function = with_function != 0;
  driver_answer = static_cast<CUresult>(answer);
  driver_calls = runtime_calls = searches = function_queries = 0;
}

// From now on the driver gives functions of kernels, and this is the current context's id.
void fake_set_context(unsigned long long id) {
  has_functions = true;
  context = id;
}

int fake_driver_calls() { return driver_calls; }

// Loads an image with options of the caller's, as many as are told; says which option the runtime got, and 0 where it got
// none, or not as it is: an option, and what it points to.
int fake_load(int num_options) {
  cudaLibrary_t library = nullptr;
  cudaLibraryOption own = cudaLibraryHostUniversalFunctionAndDataTable;
  void* value = &library;
  loaded = {};
  const cudaError_t error = _cudaLibraryLoadData(&library, "image", nullptr, nullptr, 0, num_options > 0 ? &own : nullptr,
                                                 num_options > 0 ? &value : nullptr, static_cast<unsigned int>(num_options));
  const void* expected = num_options > 0 ? value : reinterpret_cast<void*>(uintptr_t{1});
  const bool is_told = error == cudaSuccess && loaded.num_options == 1 && loaded.value == expected;
  return is_told ? 100 + static_cast<int>(loaded.option) : 0;
}
int fake_runtime_calls() { return runtime_calls; }
int fake_searches() { return searches; }
int fake_function_queries() { return function_queries; }

// Launches what all values of differ; says whether the driver was told just that.
int fake_launch(int kernel_number) {
  static char kernels[16 * 4096];  // handles, alike in their lower bits
  const char& kernel = kernels[4096 * kernel_number];
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 3, 4};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(5, 6, 7);
  config.blockDim = dim3(8, 9, 10);
  config.dynamicSmemBytes = 227 * 1024;
  config.stream = reinterpret_cast<cudaStream_t>(0x1230);
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* arguments[] = {&config};
  const cudaError_t error = _cudaLaunchKernelEx(&config, &kernel, arguments);
  if (error != cudaSuccess || runtime_calls > 0) return error;
  const unsigned int sizes[] = {recorded.gridDimX,  recorded.gridDimY,  recorded.gridDimZ, recorded.blockDimX,
                                recorded.blockDimY, recorded.blockDimZ, recorded.sharedMemBytes};
  const unsigned int expected[] = {5, 6, 7, 8, 9, 10, 227 * 1024};
  const bool is_same = std::memcmp(sizes, expected, sizeof(sizes)) == 0 && recorded.hStream == config.stream &&
                       recorded.numAttrs == 1 && attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
                       attribute.value.clusterDim.x == 2 && attribute.value.clusterDim.y == 3 &&
                       attribute.value.clusterDim.z == 4 && recorded_kernel == function_in(&kernel, context) &&
                       recorded_arguments == arguments;
  return is_same ? 0 : -1;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  ++searches;
  *found = has_function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (has_function && std::strcmp(name, "cuLaunchKernelEx") == 0) *function = reinterpret_cast<void*>(&launch);
  if (has_functions && std::strcmp(name, "cuCtxGetId") == 0) *function = reinterpret_cast<void*>(&get_context_id);
  if (has_functions && std::strcmp(name, "cuKernelGetFunction") == 0) *function = reinterpret_cast<void*>(&get_function);
  for (const auto& graph : kGraphFunctions) {
    if (std::strcmp(name, graph.name) != 0) continue;
    *found = has_graphs ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    *function = graph.function;
  }
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned int, cudaLibraryOption* options,
                                void** values, unsigned int num_options) {
  loaded = {num_options, num_options > 0 ? *options : cudaLibraryOption{}, num_options > 0 ? *values : nullptr};
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  ++runtime_calls;
  return cudaSuccess;
}

}  // extern "C"
