// The expert-parallel layer in float64 on the CPU, and random weights and inputs for it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "moe/grouped_gemm.hpp"
#include "moe/weights.hpp"
#include "moe_ranks.cuh"
#include "xstage/moe.hpp"

namespace xstage::test {

inline float to_float(std::uint8_t e4m3) {
  __nv_fp8_e4m3 value;
  value.__x = e4m3;
  return static_cast<float>(value);
}

inline std::vector<std::uint16_t> random_bf16(std::size_t count, float spread,
                                              std::mt19937& random) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<std::uint16_t> values(count);
  for (auto& value : values) value = float_to_bf16(normal(random));
  return values;
}

// Matrices of one rank's experts, shared ones last: on the GPU prepared, on the host as numbers
// that the prepared ones stand for.
struct Weights {
  Buffer w1, w1_scales, w2, w2_scales;
  std::vector<float> gate_up;  // [experts][2 I][H], gate rows before up rows
  std::vector<float> down;     // [experts][H][I]

  Weights(const MoeShape& shape, int num_experts, int gpu, const xstage::Stream& stream,
          std::mt19937& random) {
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    const auto middle = static_cast<std::size_t>(shape.intermediate);
    const auto count = static_cast<std::size_t>(num_experts);
    const auto from1 = random_bf16(count * 2 * middle * hidden,
                                   1.f / std::sqrt(static_cast<float>(shape.hidden)), random);
    const auto from2 = random_bf16(count * hidden * middle,
                                   1.f / std::sqrt(static_cast<float>(shape.intermediate)), random);
    if (shape.dtype == DataType::bf16) {
      gate_up = as_floats(from1);
      down = as_floats(from2);
      const Buffer plain = test::upload(from1, gpu);
      w1 = Buffer(Buffer::Place::device, gpu, from1.size() * 2);
      moe::interleave_gate_up(plain.data(), w1.data(), num_experts, shape.intermediate,
                              shape.hidden, 2, stream);
      w2 = test::upload(from2, gpu);
    } else {
      const Buffer plain = quantise(from1, 2 * num_experts, shape.intermediate, shape.hidden, gpu,
                                    stream, w1_scales, gate_up);
      w1 = Buffer(Buffer::Place::device, gpu, from1.size());
      moe::interleave_gate_up(plain.data(), w1.data(), num_experts, shape.intermediate,
                              shape.hidden, 1, stream);
      w2 = quantise(from2, num_experts, shape.hidden, shape.intermediate, gpu, stream, w2_scales,
                    down);
    }
    check(cudaDeviceSynchronize(), "weights");
  }

  [[nodiscard]] MoeWeights view() const {
    return {w1.data(), w1_scales.as<float>(), w2.data(), w2_scales.as<float>()};
  }

 private:
  static std::vector<float> as_floats(const std::vector<std::uint16_t>& bits) {
    std::vector<float> values;
    values.reserve(bits.size());
    for (const auto b : bits) values.push_back(bf16_to_float(b));
    return values;
  }
  static Buffer quantise(const std::vector<std::uint16_t>& from, int matrices, int rows, int k,
                         int gpu, const xstage::Stream& stream, Buffer& scales,
                         std::vector<float>& values) {
    const Buffer plain = test::upload(from, gpu);
    Buffer quantised(Buffer::Place::device, gpu, from.size());
    const int row_blocks = (rows + 127) / 128;
    const int k_blocks = (k + 127) / 128;
    scales = Buffer(Buffer::Place::device, gpu,
                    static_cast<std::size_t>(matrices) * row_blocks * k_blocks * 4);
    moe::quantise_weights(plain.data(), quantised.data(), scales.as<float>(), matrices, rows, k,
                          stream);
    check(cudaDeviceSynchronize(), "quantise");
    const auto bytes = download<std::uint8_t>(quantised);
    const auto factors = download<float>(scales);
    values.resize(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto matrix = i / (static_cast<std::size_t>(rows) * k);
      const auto row = i / static_cast<std::size_t>(k) % static_cast<std::size_t>(rows);
      const auto column = i % static_cast<std::size_t>(k);
      values[i] =
          to_float(bytes[i]) * factors[(matrix * row_blocks + row / 128) * k_blocks + column / 128];
    }
    return quantised;
  }
};

inline HostInputs random_inputs(const MoeShape& shape, int num_tokens, const RoutingKind& kind,
                                std::mt19937& random) {
  HostInputs inputs;
  inputs.num_tokens = num_tokens;
  const auto count = static_cast<std::size_t>(num_tokens) * shape.hidden;
  std::normal_distribution<float> normal(0, 1);
  if (shape.dtype == DataType::bf16) {
    inputs.x.resize(count * 2);
    const auto values = random_bf16(count, 1, random);
    std::memcpy(inputs.x.data(), values.data(), count * 2);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      inputs.x.push_back(__nv_fp8_e4m3(normal(random) * 64.f).__x);
    }
    inputs.x_scales.resize(static_cast<std::size_t>(num_tokens) * ((shape.hidden + 127) / 128));
    for (auto& scale : inputs.x_scales) {
      scale = static_cast<float>(random() % 1000 + 500) / 64000.f;
    }
  }
  if (num_tokens > 2) {  // a token of zeros
    const std::size_t row = inputs.x.size() / static_cast<std::size_t>(num_tokens);
    std::fill_n(inputs.x.begin(), row, std::uint8_t{0});
  }
  inputs.ids = random_ids(shape, num_tokens, kind, random);
  for (std::size_t i = 0; i < inputs.ids.size(); ++i) {
    inputs.weights.push_back(random() % 16 == 0 ? 0.f
                                                : static_cast<float>(random() % 4096) / 4096.f);
  }
  return inputs;
}

// One token through one expert, in float64.
struct ExpertRow {
  std::vector<double> value;
  std::vector<double> magnitude;  // of the products of the second matrix
};

inline ExpertRow through_expert(const MoeShape& shape, const std::vector<double>& x,
                                const float* gate_up, const float* down, double clamp) {
  const int hidden = shape.hidden;
  const int middle = shape.intermediate;
  std::vector<double> h(static_cast<std::size_t>(middle));
  for (int i = 0; i < middle; ++i) {
    double gate = 0;
    double up = 0;
    const float* gate_row = gate_up + static_cast<std::size_t>(i) * hidden;
    const float* up_row = gate_row + static_cast<std::size_t>(middle) * hidden;
    for (int k = 0; k < hidden; ++k) {
      gate += x[static_cast<std::size_t>(k)] * gate_row[k];
      up += x[static_cast<std::size_t>(k)] * up_row[k];
    }
    if (clamp > 0) {
      gate = std::min(gate, clamp);
      up = std::clamp(up, -clamp, clamp);
    }
    h[static_cast<std::size_t>(i)] = gate / (1 + std::exp(-gate)) * up;
  }
  ExpertRow row;
  row.value.resize(static_cast<std::size_t>(hidden));
  row.magnitude.resize(static_cast<std::size_t>(hidden));
  for (int n = 0; n < hidden; ++n) {
    const float* w = down + static_cast<std::size_t>(n) * middle;
    double sum = 0;
    double magnitude = 0;
    for (int i = 0; i < middle; ++i) {
      const double product = h[static_cast<std::size_t>(i)] * w[i];
      sum += product;
      magnitude += std::fabs(product);
    }
    row.value[static_cast<std::size_t>(n)] = sum;
    row.magnitude[static_cast<std::size_t>(n)] = magnitude;
  }
  return row;
}

// Compares every value of y of one rank; "" if all are right. The bound follows the roundings:
// operands of the second product to bf16 or e4m3, its output to bf16, the sum to bf16.
inline std::string wrong_value(const MoeShape& shape, const MoeOptions& options,
                               const std::vector<Weights>& weights, int rank,
                               const HostInputs& inputs, const std::vector<std::uint16_t>& got) {
  const moe::Partition experts{shape.num_experts, static_cast<int>(weights.size())};
  const bool is_fp8 = shape.dtype == DataType::fp8;
  const double middle_error = is_fp8 ? 1.0 / 14 : 1.0 / 200;
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const std::size_t matrix = hidden * static_cast<std::size_t>(shape.intermediate);
  double difference = 0;
  double reference = 0;
  for (int token = 0; token < inputs.num_tokens; ++token) {
    const auto at = static_cast<std::size_t>(token);
    std::vector<double> x(hidden);
    for (std::size_t k = 0; k < hidden; ++k) {
      if (is_fp8) {
        x[k] = to_float(inputs.x[at * hidden + k]) *
               inputs.x_scales[at * ((hidden + 127) / 128) + k / 128];
      } else {
        std::uint16_t bits;
        std::memcpy(&bits, &inputs.x[(at * hidden + k) * 2], 2);
        x[k] = bf16_to_float(bits);
      }
    }
    std::vector<double> sum(hidden, 0.0);
    std::vector<double> bound(hidden, 1e-6);
    for (int slot = 0; slot < shape.top_k + shape.num_shared_experts; ++slot) {
      auto owner = static_cast<std::size_t>(rank);
      std::size_t local = 0;
      double weight = 1;
      if (slot < shape.top_k) {
        const std::size_t entry = at * static_cast<std::size_t>(shape.top_k) + slot;
        const int id = inputs.ids[entry];
        if (id < 0) continue;
        owner = static_cast<std::size_t>(experts.owner(id));
        local = static_cast<std::size_t>(id - experts.first(static_cast<int>(owner)));
        weight = inputs.weights[entry];
      } else {
        local = static_cast<std::size_t>(experts.count(rank) + slot - shape.top_k);
      }
      const Weights& w = weights[owner];
      const ExpertRow row = through_expert(shape, x, w.gate_up.data() + local * 2 * matrix,
                                           w.down.data() + local * matrix, options.clamp);
      for (std::size_t n = 0; n < hidden; ++n) {
        sum[n] += weight * row.value[n];
        bound[n] += weight * (middle_error * row.magnitude[n] + std::fabs(row.value[n]) / 128);
      }
    }
    for (std::size_t n = 0; n < hidden; ++n) {
      const double value = bf16_to_float(got[at * hidden + n]);
      if (!(std::fabs(value - sum[n]) <= bound[n] + std::fabs(sum[n]) / 128)) {
        return "rank " + std::to_string(rank) + ", token " + std::to_string(token) + ", column " +
               std::to_string(n) + ": " + std::to_string(value) + " instead of " +
               std::to_string(sum[n]);
      }
      difference += (value - sum[n]) * (value - sum[n]);
      reference += sum[n] * sum[n];
    }
  }
  const double relative = reference > 0 ? std::sqrt(difference / reference) : 0;
  if (relative <= (is_fp8 ? 0.04 : 0.006)) return "";
  return "rank " + std::to_string(rank) + ": relative error " + std::to_string(relative);
}

}  // namespace xstage::test
