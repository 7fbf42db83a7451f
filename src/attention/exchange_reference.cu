#include <cuda_runtime.h>

#include <string>

#include "attention/exchange_reference.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

// Row of the whole sequence that lies in row `row` of an owner's buffer.
__device__ std::int64_t row_of(const SequenceShards& shards, int owner, std::int64_t row) {
  const std::int64_t prefix = shards.prefix_rows;
  const std::int64_t own = shards.first_row[owner + 1] - shards.first_row[owner];
  if (row < prefix) return row;
  if (row < prefix + own) return shards.first_row[owner] + row - prefix;
  return shards.first_row[shards.num_ranks] + row - prefix - own;
}

__device__ std::int64_t element_of(const TensorView& t, std::int64_t batch, std::int64_t row,
                                   std::int64_t head, std::int64_t element) {
  return batch * t.batch_stride + row * t.row_stride + head * t.head_stride +
         element * t.element_stride;
}

__global__ void gather_kernel(const __grid_constant__ SequenceShards shards, int owner,
                              TensorView source, TensorView destination) {
  const std::int64_t count =
      destination.num_batches * destination.num_rows * destination.num_heads * destination.head_dim;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::int64_t d = i % destination.head_dim;
    const std::int64_t h = i / destination.head_dim % destination.num_heads;
    const std::int64_t row =
        i / destination.head_dim / destination.num_heads % destination.num_rows;
    const std::int64_t b = i / destination.head_dim / destination.num_heads / destination.num_rows;
    static_cast<std::uint16_t*>(destination.data)[element_of(destination, b, row, h, d)] =
        static_cast<const std::uint16_t*>(
            source.data)[element_of(source, b, row_of(shards, owner, row), h, d)];
  }
}

__global__ void count_kernel(const std::uint8_t* a, const std::uint8_t* b, std::int64_t bytes,
                             std::uint64_t* num_different) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned long long count = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes;
       i += stride) {
    count += a[i] != b[i] ? 1 : 0;
  }
  if (count > 0) atomicAdd(reinterpret_cast<unsigned long long*>(num_different), count);
}

void check_launch() {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw Error(ErrorCategory::runtime,
              std::string("exchange reference: launch: ") + cudaGetErrorString(status));
}

}  // namespace

void reference_gather(const SequenceShards& shards, int owner, const TensorView& source,
                      const TensorView& destination, Stream stream) {
  gather_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      shards, owner, source, destination);
  check_launch();
}

void count_different_bytes(const void* a, const void* b, std::int64_t bytes,
                           std::uint64_t* num_different, Stream stream) {
  count_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const std::uint8_t*>(a), static_cast<const std::uint8_t*>(b), bytes,
      num_different);
  check_launch();
}

}  // namespace xstage::attention
