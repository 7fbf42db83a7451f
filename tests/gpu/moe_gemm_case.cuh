// One grouped GEMM on the GPU with random operands and poisoned surroundings, and its comparison
// with the exact reference. Everything that no row owns is NaN, before and after.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "moe/grouped_gemm.hpp"
#include "moe/reference.hpp"
#include "moe/weights.hpp"

namespace xstage::test {

// GPU memory, freed at the end of the scope.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) {
    if (cudaMalloc(&data_, std::max<std::size_t>(count, 1) * sizeof(T)) != cudaSuccess) {
      ADD_FAILURE() << "no GPU memory for " << count * sizeof(T) << " bytes";
      data_ = nullptr;
    }
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) { set(values); }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  void fill(int byte) { cudaMemset(data_, byte, bytes()); }
  void set(const std::vector<T>& values) {
    cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

inline __host__ __device__ std::uint64_t hash(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Standard normal numbers times `spread`; blocks of 128 of a row differ by powers of two, and every
// `zero_row`-th row is 0 (0: none).
__global__ void fill_normal(__nv_bfloat16* out, std::int64_t rows, std::int64_t k, float spread,
                            std::int32_t zero_row, std::uint64_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * k; i += stride) {
    const std::uint64_t bits = hash(static_cast<std::uint64_t>(i) + (seed << 40));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) / 16777216.f;
    const float angle = static_cast<float>(bits & 0xffffff) / 16777216.f * 6.2831853f;
    const std::int64_t row = i / k;
    const auto block =
        static_cast<int>(hash(static_cast<std::uint64_t>(row * 131 + i % k / 128)) % 4);
    const float scale = zero_row > 0 && row % zero_row == 0 ? 0.f : spread * exp2f(block - 2.f);
    out[i] = __float2bfloat16(scale * sqrtf(-2.f * logf(u)) * cosf(angle));
  }
}

// Rows without an owner become NaN.
__global__ void poison_rows(char* rows, const std::uint8_t* is_owned, std::int64_t num_rows,
                            std::int64_t row_bytes) {
  for (std::int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (is_owned[row] != 0) continue;
    for (std::int64_t i = threadIdx.x; i < row_bytes; i += blockDim.x)
      rows[row * row_bytes + i] = -1;
  }
}

struct Comparison {
  double worst = 0;            // largest error by its bound: at most 1
  double difference_norm = 0;  // squares, summed
  double reference_norm = 0;
  unsigned long long num_compared = 0;
  unsigned long long num_nan = 0;
  [[nodiscard]] double relative() const {
    return reference_norm > 0 ? std::sqrt(difference_norm / reference_norm) : 0;
  }
};

// An output element's error is bounded by rounding to its type, and sums by `sum_error` *
// magnitude.
__global__ void compare_kernel(const moe::GroupedGemm g, const moe::ReferenceValue* reference,
                               std::int32_t row_step, double sum_error, Comparison* result) {
  const int expert = static_cast<int>(blockIdx.y);
  const bool is_swiglu = g.output == moe::GemmOutput::swiglu;
  const bool is_quantised = is_swiglu && g.type == moe::GemmType::fp8;
  const std::int64_t columns = is_swiglu ? g.n / 2 : g.n;
  for (std::int64_t i = blockIdx.x; i < g.num_rows[expert]; i += gridDim.x) {
    if (i % row_step != 0 && i != g.num_rows[expert] - 1) continue;
    const std::int64_t row = g.first_row[expert] + i;
    for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      const std::int64_t at = row * columns + column;
      const moe::ReferenceValue exact = reference[at];
      double value = 0;
      double bound = fabs(exact.value) / 256 + sum_error * exact.magnitude + 1e-30;
      if (is_quantised) {
        const double scale = g.out_scales[column / 128 * g.out_scale_stride + row];
        __nv_fp8_e4m3 x;
        x.__x = static_cast<const __nv_fp8_storage_t*>(g.out)[at];
        value = static_cast<double>(static_cast<float>(x)) * scale;
        bound += fabs(exact.value) / 16 + scale / 512;  // 3 bits of fraction, least step 2^-9
      } else {
        value = __bfloat162float(static_cast<const __nv_bfloat16*>(g.out)[at]);
      }
      const double error = fabs(value - exact.value);
      if (isnan(value)) atomicAdd(&result->num_nan, 1ull);
      atomicAdd(&result->num_compared, 1ull);
      atomicAdd(&result->difference_norm, error * error);
      atomicAdd(&result->reference_norm, exact.value * exact.value);
      // Positive numbers order as their bits do.
      atomicMax(reinterpret_cast<unsigned long long*>(&result->worst),
                static_cast<unsigned long long>(__double_as_longlong(error / bound)));
    }
  }
}

struct Case {
  std::string name;
  moe::GemmType type = moe::GemmType::bf16;
  moe::GemmOutput output = moe::GemmOutput::plain;
  std::vector<std::int32_t> rows;  // of each expert
  std::int32_t n = 256;
  std::int32_t k = 256;
  float clamp = 0.f;
  bool is_weighted = true;
  moe::GemmShape shape = moe::GemmShape::automatic;
  std::int32_t num_sms = 0;
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class GemmRun {
 public:
  explicit GemmRun(const Case& c, std::uint64_t seed = 1)
      : c_(c),
        placement_(c, seed),
        a_(size(placement_.pool_rows, c.k) * bytes()),
        w_(size(static_cast<std::int64_t>(c.rows.size()) * c.n, c.k) * bytes()),
        a_scales_(size(k_blocks(), placement_.pool_rows)),
        w_scales_(c.rows.size() * size(c.n / 64 + 2, k_blocks())),
        first_row_(placement_.first_row),
        num_rows_(c.rows),
        row_weights_(placement_.row_weights),
        is_owned_(placement_.is_owned),
        out_(size(placement_.pool_rows, out_columns()) * (is_quantised() ? 1 : 2)),
        out_scales_(size(out_columns() / 128 + 1, placement_.pool_rows)),
        workspace_(moe::grouped_gemm_workspace_bytes()) {
    workspace_.fill(0);
    make_operands(seed);
    poison();
  }

  moe::GroupedGemm problem() const {
    moe::GroupedGemm g;
    g.type = c_.type;
    g.output = c_.output;
    g.shape = c_.shape;
    g.num_experts = static_cast<std::int32_t>(c_.rows.size());
    g.n = c_.n;
    g.k = c_.k;
    g.pool_rows = placement_.pool_rows;
    g.a = a_.data();
    g.w = w_.data();
    if (c_.type == moe::GemmType::fp8) {
      g.a_scales = a_scales_.data();
      g.a_scale_stride = placement_.pool_rows;
      g.w_scales = w_scales_.data();
      g.out_scales = out_scales_.data();
      g.out_scale_stride = placement_.pool_rows;
    }
    g.first_row = first_row_.data();
    g.num_rows = num_rows_.data();
    g.out = out_.data();
    g.row_weights = c_.is_weighted ? row_weights_.data() : nullptr;
    g.clamp = c_.clamp;
    g.workspace = workspace_.data();
    g.num_sms = c_.num_sms;
    return g;
  }

  void poison() {
    out_.fill(0xff);
    out_scales_.fill(0xff);
  }
  void run(cudaStream_t stream = nullptr) { moe::grouped_gemm(problem(), {stream}); }
  void run(moe::GemmShape shape, std::int32_t num_sms) {
    moe::GroupedGemm g = problem();
    g.shape = shape;
    g.num_sms = num_sms;
    moe::grouped_gemm(g, {});
  }
  void set_rows(const std::vector<std::int32_t>& rows) { num_rows_.set(rows); }

  // Outputs and scales of the rows that hold tokens.
  std::vector<std::uint8_t> bits() const {
    const auto out = out_.host();
    const auto scales = out_scales_.host();
    const std::size_t row_bytes = out_.bytes() / static_cast<std::size_t>(placement_.pool_rows);
    std::vector<std::uint8_t> result;
    const auto append = [&](const void* data, std::size_t count) {
      const auto* first = static_cast<const std::uint8_t*>(data);
      result.insert(result.end(), first, first + count);
    };
    for (std::size_t row = 0; row < placement_.is_owned.size(); ++row) {
      if (placement_.is_owned[row] == 0) continue;
      append(out.data() + row * row_bytes, row_bytes);
      if (!is_quantised()) continue;
      for (std::int64_t block = 0; block < (out_columns() + 127) / 128; ++block) {
        append(&scales[size(block, placement_.pool_rows) + row], sizeof(float));
      }
    }
    return result;
  }

  // Rows that belong to no expert, its padding apart, are as they were.
  bool surroundings_are_untouched() const {
    const auto out = out_.host();
    const std::size_t row_bytes = out_.bytes() / static_cast<std::size_t>(placement_.pool_rows);
    for (std::size_t row = 0; row < placement_.is_padding.size(); ++row) {
      if (placement_.is_owned[row] != 0 || placement_.is_padding[row] != 0) continue;
      for (std::size_t i = 0; i < row_bytes; ++i) {
        if (static_cast<std::uint8_t>(out[row * row_bytes + i]) != 0xff) return false;
      }
    }
    return true;
  }
  bool workspace_is_zero() const {
    const auto words = workspace_.host();
    return std::all_of(words.begin(), words.end(), [](char c) { return c == 0; });
  }

  Comparison compare(std::int32_t row_step = 1) const {
    // Tensor cores keep 13 bits below the largest of 32 fp8 products, and more than 21 of bf16's.
    const double sum_error = c_.type == moe::GemmType::fp8 ? 6e-4 : 1e-5;
    const Buffer<moe::ReferenceValue> reference(size(placement_.pool_rows, out_columns()));
    Buffer<Comparison> result(std::vector<Comparison>(1));
    moe::reference_on_gpu(problem(), reference.data(), row_step, {});
    compare_kernel<<<dim3(64, static_cast<unsigned>(c_.rows.size())), 256>>>(
        problem(), reference.data(), row_step, sum_error, result.data());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return result.host()[0];
  }

  // Both references on the same operands.
  bool cpu_reference_agrees() const {
    moe::GroupedGemm g = problem();
    const auto a = a_.host();
    const auto w = w_.host();
    const auto a_scales = a_scales_.host();
    const auto w_scales = w_scales_.host();
    g.a = a.data();
    g.w = w.data();
    if (c_.type == moe::GemmType::fp8) {
      g.a_scales = a_scales.data();
      g.w_scales = w_scales.data();
    }
    g.first_row = placement_.first_row.data();
    g.num_rows = c_.rows.data();
    g.row_weights = c_.is_weighted ? placement_.row_weights.data() : nullptr;
    std::vector<moe::ReferenceValue> exact(size(placement_.pool_rows, out_columns()));
    auto single = exact;
    moe::reference_on_cpu(g, exact.data());
    moe::reference_on_cpu(g, single.data(), moe::ReferenceSums::float32);
    const Buffer<moe::ReferenceValue> on_gpu(exact);
    moe::reference_on_gpu(problem(), on_gpu.data(), 1, {});
    const auto gpu = on_gpu.host();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double magnitude = exact[i].magnitude + 1e-30;
      if (!(std::fabs(exact[i].value - gpu[i].value) <= 1e-13 * magnitude)) return false;
      if (!(std::fabs(exact[i].value - single[i].value) <= 1e-4 * magnitude)) return false;
    }
    return true;
  }

 private:
  // Where the rows of the experts lie: in order, some with 64 rows of nobody between them.
  struct Placement {
    Placement(const Case& c, std::uint64_t seed) {
      for (std::size_t e = 0; e < c.rows.size(); ++e) {
        if (hash(seed * 7919 + e) % 4 == 0) pool_rows += 64;
        first_row.push_back(static_cast<std::int32_t>(pool_rows));
        pool_rows += (c.rows[e] + 63) / 64 * 64;
      }
      pool_rows = std::max<std::int64_t>(pool_rows + 64 * static_cast<int>(seed % 2), 64);
      is_owned.assign(static_cast<std::size_t>(pool_rows), 0);
      is_padding = is_owned;
      row_weights.assign(is_owned.size(), std::nanf(""));
      for (std::size_t e = 0; e < c.rows.size(); ++e) {
        for (std::int32_t i = 0; i < (c.rows[e] + 63) / 64 * 64; ++i) {
          const auto row = static_cast<std::size_t>(first_row[e] + i);
          (i < c.rows[e] ? is_owned : is_padding)[row] = 1;
          // Some tokens have weight 0.
          row_weights[row] = static_cast<float>(hash(row + seed) % 8) / 8.f;
        }
      }
    }
    std::int64_t pool_rows = 0;
    std::vector<std::int32_t> first_row;
    std::vector<float> row_weights;
    std::vector<std::uint8_t> is_owned, is_padding;
  };

  static std::size_t size(std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns);
  }
  [[nodiscard]] std::size_t bytes() const { return c_.type == moe::GemmType::fp8 ? 1 : 2; }
  [[nodiscard]] std::int64_t k_blocks() const { return (c_.k + 127) / 128; }
  [[nodiscard]] bool is_swiglu() const { return c_.output == moe::GemmOutput::swiglu; }
  [[nodiscard]] bool is_quantised() const { return is_swiglu() && c_.type == moe::GemmType::fp8; }
  [[nodiscard]] std::int64_t out_columns() const { return is_swiglu() ? c_.n / 2 : c_.n; }

  void make_operands(std::uint64_t seed) {
    const auto experts = static_cast<std::int32_t>(c_.rows.size());
    const std::int64_t weight_rows = std::int64_t{experts} * c_.n;
    const Buffer<__nv_bfloat16> a(size(placement_.pool_rows, c_.k));
    const Buffer<__nv_bfloat16> w(size(weight_rows, c_.k));
    fill_normal<<<1024, 256>>>(a.data(), placement_.pool_rows, c_.k, 1.f, 17, seed);
    fill_normal<<<1024, 256>>>(w.data(), weight_rows, c_.k,
                               1.f / std::sqrt(static_cast<float>(c_.k)), 0, seed + 1);
    const Buffer<char> plain(w_.bytes());
    if (c_.type == moe::GemmType::fp8) {
      a_scales_.fill(0xff);
      moe::quantise_rows(a.data(), a_.data(), a_scales_.data(), placement_.pool_rows,
                         placement_.pool_rows, c_.k, {});
      moe::quantise_weights(w.data(), plain.data(), w_scales_.data(),
                            is_swiglu() ? 2 * experts : experts, is_swiglu() ? c_.n / 2 : c_.n,
                            c_.k, {});
    } else {
      cudaMemcpy(a_.data(), a.data(), a_.bytes(), cudaMemcpyDeviceToDevice);
      cudaMemcpy(plain.data(), w.data(), plain.bytes(), cudaMemcpyDeviceToDevice);
    }
    if (is_swiglu()) {
      moe::interleave_gate_up(plain.data(), w_.data(), experts, c_.n / 2, c_.k,
                              static_cast<int>(bytes()), {});
    } else {
      cudaMemcpy(w_.data(), plain.data(), plain.bytes(), cudaMemcpyDeviceToDevice);
    }
    poison_rows<<<1024, 256>>>(a_.data(), is_owned_.data(), placement_.pool_rows,
                               static_cast<std::int64_t>(bytes()) * c_.k);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  Case c_;
  Placement placement_;
  Buffer<char> a_, w_;
  Buffer<float> a_scales_, w_scales_;
  Buffer<std::int32_t> first_row_, num_rows_;
  Buffer<float> row_weights_;
  Buffer<std::uint8_t> is_owned_;
  Buffer<char> out_;
  Buffer<float> out_scales_;
  Buffer<char> workspace_;
};

}  // namespace xstage::test
