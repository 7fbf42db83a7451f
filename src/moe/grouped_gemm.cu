// Host side of the grouped GEMM: tensor maps and one launch.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "moe/gemm_kernel.cuh"
#include "moe/grouped_gemm.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCategory::runtime,
              std::string("grouped_gemm: ") + what + " failed: " + cudaGetErrorString(status));
}

// SMs of the current device, if the kernels can run there.
int hopper_sms() {
  int device = 0;
  int major = 0;
  int minor = 0;
  int num_sms = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  if (major != 9 || minor != 0) {
    throw Error(ErrorCategory::not_possible,
                "grouped_gemm: GPU " + std::to_string(device) + " is sm_" + std::to_string(major) +
                    std::to_string(minor) + ": the kernels need sm_90 (Hopper)");
  }
  return num_sms;
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
                "grouped_gemm: this driver has no tensor maps (CUDA 12 is needed)");
  }
  return reinterpret_cast<EncodeTiled>(function);
}

struct MapShape {
  std::int64_t columns;
  std::int64_t rows;
  std::int64_t matrices;  // 0: a 2-D map
  int box_columns;
  int box_rows;
  CUtensorMapSwizzle swizzle;
};

// Contiguous matrices. Loads beyond the end give zeros, stores there are dropped.
CUtensorMap make_map(EncodeTiled encode, const void* data, int bytes, const MapShape& s) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(s.columns), static_cast<cuuint64_t>(s.rows),
                               static_cast<cuuint64_t>(s.matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(s.columns * bytes),
                                 static_cast<cuuint64_t>(s.columns * s.rows * bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(s.box_columns),
                             static_cast<cuuint32_t>(s.box_rows), 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             s.matrices == 0 ? 2 : 3, const_cast<void*>(data), sizes, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, s.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCategory::runtime, "grouped_gemm: cuTensorMapEncodeTiled failed with " +
                                            std::to_string(static_cast<int>(result)));
  }
  return map;
}

template <class Traits>
GemmParams make_params(const GroupedGemm& g) {
  const EncodeTiled encode = tensor_map_encoder();
  constexpr int kBytes = element_bytes(Traits::kType);
  constexpr int kStep = Traits::kStepElements;
  constexpr bool kQuantises = Traits::kIsFp8 && Traits::kIsSwiglu;
  const std::int64_t out_columns = Traits::kIsSwiglu ? g.n / 2 : g.n;
  GemmParams p{};
  p.a = make_map(encode, g.a, kBytes,
                 {g.k, g.pool_rows, 0, kStep, Traits::kLoadRows, CU_TENSOR_MAP_SWIZZLE_128B});
  p.w =
      make_map(encode, g.w, kBytes,
               {g.k, g.n, g.num_experts, kStep, Traits::kLoadColumns, CU_TENSOR_MAP_SWIZZLE_128B});
  p.out = make_map(encode, g.out, kQuantises ? 1 : 2,
                   {out_columns, g.pool_rows, 0, 64, kStoreRows,
                    kQuantises ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B});
  p.a_scales = g.a_scales;
  p.w_scales = g.w_scales;
  p.out_scales = g.out_scales;
  p.row_weights = g.row_weights;
  p.first_row = g.first_row;
  p.num_rows = g.num_rows;
  p.a_scale_stride = g.a_scale_stride;
  p.out_scale_stride = g.out_scale_stride;
  p.num_experts = g.num_experts;
  p.n = g.n;
  p.num_steps = static_cast<std::int32_t>(ceil_div(g.k, kStep));
  p.num_column_tiles = static_cast<std::int32_t>(ceil_div(g.n, Traits::kTaskColumns));
  p.num_scale_columns = static_cast<std::int32_t>(ceil_div(out_columns, kScaleBlock));
  p.clamp = g.clamp;
  p.num_taken = static_cast<std::uint32_t*>(g.workspace);
  p.num_done = p.num_taken + 1;
  return p;
}

template <class Traits>
void launch(const GroupedGemm& g, int num_sms, Stream stream) {
  const auto kernel = grouped_gemm_kernel<Traits>;
  constexpr int kSharedBytes = static_cast<int>(kGemmSharedBytes<Traits>);
  static_assert(kSharedBytes <= 227 * 1024);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  const GemmParams params = make_params<Traits>(g);
  const std::int64_t max_tiles =
      (g.pool_rows / Traits::kTileRows + g.num_experts) * params.num_column_tiles;
  const std::int64_t max_clusters = std::max(num_sms / Traits::kClusterBlocks, 1);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Traits::kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(std::min(max_tiles, max_clusters) * Traits::kClusterBlocks));
  config.blockDim = dim3(kNumThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &cluster;
  config.numAttrs = Traits::kClusterBlocks > 1 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "launch");
}

// Calls whose experts have at most so many rows are bound by reading weights.
constexpr std::int64_t kFewRowsUpTo = 64;

template <GemmType kType, GemmOutput kOutput>
void launch_for(const GroupedGemm& g, int num_sms, Stream stream) {
  const bool is_few =
      g.shape == GemmShape::few_rows || (g.shape == GemmShape::automatic && g.max_expert_rows > 0 &&
                                         g.max_expert_rows <= kFewRowsUpTo);
  if (is_few) {
    launch<GemmTraits<kType, kOutput, true, 1>>(g, num_sms, stream);
  } else {
    launch<GemmTraits<kType, kOutput, false, kManyRowsClusterBlocks<kType>>>(g, num_sms, stream);
  }
}

template <class Traits>
void load() {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, grouped_gemm_kernel<Traits>), "loading");
}

template <GemmType kType>
void load_all() {
  constexpr int kBlocks = kManyRowsClusterBlocks<kType>;
  load<GemmTraits<kType, GemmOutput::plain, true, 1>>();
  load<GemmTraits<kType, GemmOutput::swiglu, true, 1>>();
  load<GemmTraits<kType, GemmOutput::plain, false, kBlocks>>();
  load<GemmTraits<kType, GemmOutput::swiglu, false, kBlocks>>();
}

}  // namespace

void load_grouped_gemm(GemmType type) {
  type == GemmType::bf16 ? load_all<GemmType::bf16>() : load_all<GemmType::fp8>();
}

void grouped_gemm(const GroupedGemm& gemm, Stream stream) {
  validate(gemm);
  if (gemm.pool_rows == 0) return;
  const int all_sms = hopper_sms();
  const int num_sms = gemm.num_sms == 0 ? all_sms : std::min(gemm.num_sms, all_sms);
  const bool is_swiglu = gemm.output == GemmOutput::swiglu;
  if (gemm.type == GemmType::bf16) {
    is_swiglu ? launch_for<GemmType::bf16, GemmOutput::swiglu>(gemm, num_sms, stream)
              : launch_for<GemmType::bf16, GemmOutput::plain>(gemm, num_sms, stream);
  } else {
    is_swiglu ? launch_for<GemmType::fp8, GemmOutput::swiglu>(gemm, num_sms, stream)
              : launch_for<GemmType::fp8, GemmOutput::plain>(gemm, num_sms, stream);
  }
}

}  // namespace xstage::moe
