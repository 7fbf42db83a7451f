// Host side of the attention forward operator: checks, tensor maps, one launch.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "attention/forward_host.cuh"
#include "attention/forward_kernel.cuh"
#include "xstage/error.hpp"

namespace xstage {
namespace attention {
namespace {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCategory::runtime,
              std::string("attention: ") + what + " failed: " + cudaGetErrorString(status));
}

int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's entry point, looked up at run time: programs start on machines without a driver.
EncodeTiled tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &result),
             "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(ErrorCategory::not_possible,
                "attention: this driver has no tensor maps (CUDA 12 is needed)");
  }
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

int hopper_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = device_attribute(cudaDevAttrComputeCapabilityMinor, device);
  if (major != 9 || minor != 0) {
    throw Error(ErrorCategory::not_possible,
                "attention: GPU " + std::to_string(device) + " is sm_" + std::to_string(major) +
                    std::to_string(minor) + ": the kernels need sm_90 (Hopper)");
  }
  return device;
}

void check_device(const char* name, const void* pointer, int device) {
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  const bool is_gpu_memory =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  if (!is_gpu_memory) {
    throw Error(ErrorCategory::usage, std::string("attention: ") + name + " is not in GPU memory");
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    throw Error(ErrorCategory::usage, std::string("attention: ") + name + " is on GPU " +
                                          std::to_string(attributes.device) +
                                          ", but the current device is " + std::to_string(device));
  }
}

CUtensorMap make_tensor_map(const TensorView& t, std::int64_t num_rows, int box_rows) {
  static const EncodeTiled encode = tensor_map_encoder();
  // Strides of dimensions of size 1 are never used, but have to be legal.
  const auto stride_bytes = [](std::int64_t stride, std::int64_t size) {
    return static_cast<cuuint64_t>(size > 1 ? stride * 2 : 16);
  };
  const cuuint64_t sizes[4] = {
      static_cast<cuuint64_t>(t.head_dim), static_cast<cuuint64_t>(t.num_heads),
      static_cast<cuuint64_t>(num_rows), static_cast<cuuint64_t>(t.num_batches)};
  const cuuint64_t strides[3] = {stride_bytes(t.head_stride, t.num_heads),
                                 stride_bytes(t.row_stride, t.num_rows),
                                 stride_bytes(t.batch_stride, t.num_batches)};
  const cuuint32_t box[4] = {kSwizzleColumns, 1, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             t.dtype == DataType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, t.data, sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCategory::runtime,
                "attention: cuTensorMapEncodeTiled failed with " + std::to_string(result));
  }
  return map;
}

ForwardParams make_forward_params(const Problem& problem, const TensorView& q, const TensorView& k,
                                  const TensorView& v, const ForwardOutputs& outputs,
                                  const Workspace& workspace) {
  const int box_keys = block_keys(problem.head_dim, problem.causal);
  ForwardParams params{};
  if (problem.num_ctas > 0) params.q = make_tensor_map(q, q.num_rows, kGroupRows);
  if (problem.num_ctas > 0 && problem.num_keys > 0) {
    params.k = make_tensor_map(k, problem.num_keys, box_keys);
    params.v = make_tensor_map(v, problem.num_keys, box_keys);
  }
  params.order = problem.order;
  params.num_heads = problem.num_heads;
  params.num_query_rows = problem.num_query_rows;
  params.num_keys = problem.num_keys;
  params.heads_per_kv = problem.num_heads > 0 ? problem.num_heads / problem.num_kv_heads : 1;
  params.scale = problem.scale;
  params.scale_log2 = problem.scale * 1.44269504088896340736f;
  params.keep_below = problem.rescale_threshold;
  params.lse = outputs.lse;
  const WorkspaceLayout layout = workspace_layout(problem);
  if (layout.bytes > 0) {
    char* base = static_cast<char*>(workspace.data);
    const auto counter = [base](std::size_t offset) {
      return reinterpret_cast<std::uint32_t*>(base + offset);
    };
    params.num_taken = counter(WorkspaceLayout::kTakenOffset);
    params.num_done = counter(WorkspaceLayout::kDoneOffset);
    params.part_arrivals = counter(WorkspaceLayout::kArrivalsOffset);
    params.part_stats = reinterpret_cast<float4*>(base + layout.stats_offset);
    params.part_rows = reinterpret_cast<float4*>(base + layout.rows_offset);
  }
  return params;
}

namespace {

template <class Traits>
void launch(const Problem& problem, const ForwardParams& params, Stream stream) {
  const auto kernel = attention_forward_kernel<Traits>;
  constexpr int kSharedBytes = static_cast<int>(kForwardSharedBytes<Traits>);
  static_assert(kSharedBytes <= 227 * 1024);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(problem.num_ctas), kNumThreads, kSharedBytes,
           static_cast<cudaStream_t>(stream.handle)>>>(params);
  check_cuda(cudaGetLastError(), "launch");
}

template <typename Element>
void launch_for(const Problem& p, const ForwardParams& params, Stream stream) {
  if (p.head_dim == 128) {
    p.causal ? launch<ForwardTraits<Element, 128, true>>(p, params, stream)
             : launch<ForwardTraits<Element, 128, false>>(p, params, stream);
  } else {
    p.causal ? launch<ForwardTraits<Element, 64, true>>(p, params, stream)
             : launch<ForwardTraits<Element, 64, false>>(p, params, stream);
  }
}

}  // namespace

void enqueue_forward(const Problem& problem, const TensorView& q, const TensorView& k,
                     const TensorView& v, const TensorView& out, const ForwardOutputs& outputs,
                     const Workspace& workspace, Stream stream) {
  if (problem.num_ctas == 0) return;
  ForwardParams params = make_forward_params(problem, q, k, v, outputs, workspace);
  params.out = make_tensor_map(out, out.num_rows, kGroupRows);
  if (problem.dtype == DataType::bf16) {
    launch_for<__nv_bfloat16>(problem, params, stream);
  } else {
    launch_for<__half>(problem, params, stream);
  }
}

namespace {

template <typename Element>
void load_kernels_of() {
  cudaFuncAttributes attributes{};
  const auto load = [&](auto kernel) {
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  };
  load(attention_forward_kernel<ForwardTraits<Element, 128, true>>);
  load(attention_forward_kernel<ForwardTraits<Element, 128, false>>);
  load(attention_forward_kernel<ForwardTraits<Element, 64, true>>);
  load(attention_forward_kernel<ForwardTraits<Element, 64, false>>);
}

}  // namespace

void load_forward_kernels() {
  load_kernels_of<__nv_bfloat16>();
  load_kernels_of<__half>();
}

}  // namespace attention

std::size_t attention_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                      const AttentionOptions& options, int num_sms) {
  return attention::workspace_layout(attention::make_problem(q, k, v, options, num_sms)).bytes;
}

void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const AttentionOptions& options,
                       const Workspace& workspace, Stream stream) {
  using namespace attention;
  // What is wrong with the arguments themselves is said on any machine.
  (void)make_problem(q, k, v, options, std::max(options.num_sms, 1));
  check_output(q, out);
  const int device = hopper_device();
  const Problem problem =
      make_problem(q, k, v, options, device_attribute(cudaDevAttrMultiProcessorCount, device));
  if (problem.num_ctas == 0) return;
  const WorkspaceLayout layout = workspace_layout(problem);
  check_workspace(layout, workspace);
  check_device("q.data", q.data, device);
  check_device("k.data", problem.num_keys > 0 ? k.data : nullptr, device);
  check_device("v.data", problem.num_keys > 0 ? v.data : nullptr, device);
  check_device("out.data", out.data, device);
  check_device("lse", options.lse, device);
  if (layout.bytes > 0) check_device("workspace.data", workspace.data, device);

  enqueue_forward(problem, q, k, v, out, {options.lse}, workspace, stream);
}

}  // namespace xstage
