// Co-located ranks of the expert-parallel layer in one process: inputs, buffers, and what the
// result must be.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "moe/layer.hpp"
#include "xstage/peers.hpp"

namespace xstage::test {

// How tokens choose experts.
struct RoutingKind {
  double masked = 0.1;     // share of empty slots
  double favourite = 0;    // share of slots that want one expert
  bool duplicates = true;  // may a token have the same expert twice?
};

struct HostInputs {
  int num_tokens = 0;
  std::vector<std::uint8_t> x;  // rows as the layer takes them
  std::vector<float> x_scales;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

inline std::vector<std::int32_t> random_ids(const MoeShape& shape, int num_tokens,
                                            const RoutingKind& kind, std::mt19937& random) {
  std::uniform_real_distribution<double> share(0, 1);
  const auto num_experts = static_cast<unsigned>(shape.num_experts);
  const auto favourite = static_cast<std::int32_t>(random() % num_experts);
  std::vector<std::int32_t> ids;
  for (int token = 0; token < num_tokens; ++token) {
    std::vector<std::int32_t> chosen;
    for (int k = 0; k < shape.top_k; ++k) {
      std::int32_t id = -1;
      if (share(random) >= kind.masked) {
        do {
          id = share(random) < kind.favourite ? favourite
                                              : static_cast<std::int32_t>(random() % num_experts);
        } while (!kind.duplicates && shape.top_k <= shape.num_experts && kind.favourite == 0 &&
                 std::find(chosen.begin(), chosen.end(), id) != chosen.end());
      }
      chosen.push_back(id);
      ids.push_back(id);
    }
  }
  return ids;
}

// One rank: its memory, its stream, its current inputs.
struct MoeRank {
  MoeRank(PeerMemory&& peer_memory, const MoeShape& shape, const MoeOptions& options)
      : memory(std::move(peer_memory)),
        stream(memory.device()),
        workspace(Buffer::Place::device, memory.device(),
                  MoeLayer::workspace_bytes(shape, memory.num_ranks(), options)),
        x(Buffer::Place::device, memory.device(),
          static_cast<std::size_t>(shape.max_tokens) * shape.hidden * element_bytes(shape.dtype)),
        x_scales(Buffer::Place::device, memory.device(),
                 static_cast<std::size_t>(shape.max_tokens) * ((shape.hidden + 127) / 128) * 4),
        ids(Buffer::Place::device, memory.device(),
            static_cast<std::size_t>(shape.max_tokens) * shape.top_k * 8),
        weights(Buffer::Place::device, memory.device(),
                static_cast<std::size_t>(shape.max_tokens) * shape.top_k * 4),
        y(Buffer::Place::device, memory.device(),
          static_cast<std::size_t>(shape.max_tokens) * shape.hidden * 2) {
    check(cudaMemset(workspace.data(), 0, workspace.size()), "memset");
    // Whatever the layer does not write itself stays poison.
    check(cudaMemset(y.data(), 0xff, y.size()), "memset");
    check(cudaDeviceSynchronize(), "memset");
  }

  void upload(const HostInputs& inputs, bool wide_ids = false) {
    const auto copy = [&](const Buffer& to, const void* from, std::size_t bytes) {
      if (bytes == 0) return;
      check(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyDefault, stream.get()), "upload");
    };
    copy(x, inputs.x.data(), inputs.x.size());
    copy(x_scales, inputs.x_scales.data(), inputs.x_scales.size() * 4);
    copy(weights, inputs.weights.data(), inputs.weights.size() * 4);
    std::vector<std::int64_t> wide(inputs.ids.begin(), inputs.ids.end());
    if (wide_ids) {
      copy(ids, wide.data(), wide.size() * 8);
    } else {
      copy(ids, inputs.ids.data(), inputs.ids.size() * 4);
    }
    stream.synchronize();
    call.num_tokens = inputs.num_tokens;
    call.x = x.data();
    call.x_scales = x_scales.as<float>();
    call.topk_ids = ids.data();
    call.ids_are_64_bit = wide_ids;
    call.topk_weights = weights.as<float>();
    call.y = y.data();
  }

  [[nodiscard]] xstage::Stream handle() const { return {stream.get()}; }

  PeerMemory memory;
  Stream stream;
  Buffer workspace, x, x_scales, ids, weights, y;
  MoeCall call;
};

inline std::vector<std::unique_ptr<MoeRank>> make_moe_ranks(int num_ranks, const MoeShape& shape,
                                                            const MoeOptions& options,
                                                            double deadline_s = 20) {
  PeerOptions peer;
  peer.deadline_ns = static_cast<std::uint64_t>(deadline_s * 1e9);
  std::vector<int> devices;
  for (int rank = 0; rank < num_ranks; ++rank) devices.push_back(rank % std::max(1, num_gpus()));
  std::vector<std::unique_ptr<MoeRank>> ranks;
  const std::size_t bytes = MoeLayer::buffer_bytes(shape, num_ranks, options);
  for (PeerMemory& member : PeerMemory::create_local(devices, bytes, peer)) {
    ranks.push_back(std::make_unique<MoeRank>(std::move(member), shape, options));
  }
  return ranks;
}

// --- numbers -------------------------------------------------------------------------------------

inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
// Round to nearest even; no NaN comes here.
inline std::uint16_t float_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace xstage::test
