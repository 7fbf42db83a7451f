#include "probe/tensor_map.hpp"

#include <cuda_runtime.h>

#include <string>

#include "probe/cuda.hpp"

namespace xstage::probing {

CUtensorMap make_row_box_map(void* base, std::uint64_t row_bytes, std::uint64_t num_rows,
                             std::uint64_t pitch_bytes, std::uint32_t box_bytes,
                             std::uint32_t box_rows) {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000,
                                         cudaEnableDefault, &found),
        "cudaGetDriverEntryPoint");
  if (found != cudaDriverEntryPointSuccess) {
    throw Error(ErrorCategory::not_possible, "the driver has no tensor maps (needs CUDA 12.0)");
  }
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(symbol);
  CUtensorMap map{};
  const cuuint64_t dims[2] = {row_bytes / 2, num_rows};
  const cuuint64_t strides[1] = {pitch_bytes};
  const cuuint32_t box[2] = {box_bytes / 2, box_rows};
  const cuuint32_t element_strides[2] = {1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, dims, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCategory::runtime, "tensor map with a box of " + std::to_string(box_rows) +
                                            " rows of " + std::to_string(box_bytes) +
                                            " bytes: driver error " + std::to_string(status));
  }
  return map;
}

}  // namespace xstage::probing
