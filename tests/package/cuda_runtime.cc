// A CUDA runtime of the few calls that a launch makes, for tests without a driver: it gives a driver's launch that
// records what it is told and answers as it is told, and records what comes to its own.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

namespace {

CUlaunchConfig recorded;
CUlaunchAttribute attribute;
const void* recorded_kernel;
void** recorded_arguments;
int driver_calls, runtime_calls, searches, function_queries;
bool has_function, has_functions;
CUresult driver_answer;
unsigned long long context;  // 0: none is current

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
  recorded_kernel = function;
  recorded_arguments = arguments;
  return extra == nullptr ? driver_answer : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

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
  extern cudaError_t _cudaLaunchKernelEx(const cudaLaunchConfig_t*, const void*, void**);
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
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  ++runtime_calls;
  return cudaSuccess;
}

}  // extern "C"
