// Views of attention tensors in GPU memory and of the stream that work is ordered in. No CUDA
// header: a stream is an opaque handle, a tensor is a pointer with sizes and strides.
#pragma once

#include <cstdint>

#include "xstage/data_type.hpp"

namespace xstage {

// A cudaStream_t; null is the default stream.
struct Stream {
  void* handle = nullptr;
};

// A 4-D tensor: batch, row (position in the sequence), head, element. Strides count elements, so
// any memory order of the first three is a view. The view owns nothing.
struct TensorView {
  void* data = nullptr;
  DataType dtype = DataType::bf16;
  std::int64_t num_batches = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t element_stride = 1;

  // Contiguous [batch, row, head, element].
  [[nodiscard]] static constexpr TensorView bshd(void* data, DataType dtype,
                                                 std::int64_t num_batches, std::int64_t num_rows,
                                                 std::int64_t num_heads,
                                                 std::int64_t head_dim) noexcept {
    return {data,
            dtype,
            num_batches,
            num_rows,
            num_heads,
            head_dim,
            num_rows * num_heads * head_dim,
            num_heads * head_dim,
            head_dim,
            1};
  }
  // Contiguous [batch, head, row, element].
  [[nodiscard]] static constexpr TensorView bhsd(void* data, DataType dtype,
                                                 std::int64_t num_batches, std::int64_t num_rows,
                                                 std::int64_t num_heads,
                                                 std::int64_t head_dim) noexcept {
    return {data,
            dtype,
            num_batches,
            num_rows,
            num_heads,
            head_dim,
            num_rows * num_heads * head_dim,
            head_dim,
            num_rows * head_dim,
            1};
  }
};

}  // namespace xstage
