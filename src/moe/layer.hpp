// The layer phase by phase: what MoeLayer::run() enqueues. Tests and benchmarks enqueue the phases
// one by one.
#pragma once

#include <cstdint>

#include "moe/layout.hpp"
#include "xstage/moe.hpp"

namespace xstage::moe {

// A kernel launch of the layer: pinned host memory for what it has to say.
class PinnedNote {
 public:
  PinnedNote();
  ~PinnedNote();
  PinnedNote(const PinnedNote&) = delete;
  PinnedNote& operator=(const PinnedNote&) = delete;
  [[nodiscard]] BadInputNote* get() const noexcept { return note_; }

 private:
  BadInputNote* note_ = nullptr;
};

// Everything but the products: any function of rows may stand between dispatch and combine.
class Exchange {
 public:
  Exchange(PeerMemory& memory, const MoeShape& shape, const Workspace& workspace,
           const MoeOptions& options);

  // In this order, by all ranks. stage() copies call.x to where peers read; nothing if null.
  void stage(const MoeCall& call, Stream stream) const;
  void route(const MoeCall& call, Stream stream) const;     // meets all ranks
  void dispatch(const MoeCall& call, Stream stream) const;  // by push: meets all ranks
  void scatter(Stream stream) const;                        // combine by push: sends; pull: nothing
  void meet(Stream stream) const;  // all ranks have their experts' outputs, or have sent them
  void sum(const MoeCall& call, Stream stream) const;

  [[nodiscard]] const Geometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] const PeerLayout& peer_layout() const noexcept { return peer_; }
  [[nodiscard]] const LocalLayout& local_layout() const noexcept { return local_; }
  [[nodiscard]] const MoeShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const MoeOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::uint32_t agreement() const noexcept { return agreement_; }
  [[nodiscard]] int num_sms() const noexcept { return num_sms_; }
  [[nodiscard]] int num_local() const noexcept;  // experts, shared ones included

  [[nodiscard]] RouteTables* tables() const noexcept;
  [[nodiscard]] MoeInput input() const noexcept;
  [[nodiscard]] char* local(std::size_t offset) const noexcept;
  [[nodiscard]] char* mine(std::size_t offset) const noexcept;  // in peer memory
  [[nodiscard]] char* pool() const noexcept;                    // rows of my experts
  [[nodiscard]] float* pool_scales() const noexcept;
  [[nodiscard]] char* outputs() const noexcept;  // bf16 rows of the pool, before the combine
  [[nodiscard]] MoeStatus status() const;

 private:
  PeerMemory* memory_;
  MoeShape shape_;
  MoeOptions options_;
  Geometry geometry_;
  PeerLayout peer_;
  LocalLayout local_;
  PeerTable table_;
  WaitContext wait_;
  std::uint32_t agreement_ = 0;
  char* workspace_ = nullptr;
  int num_sms_ = 0;
  std::unique_ptr<PinnedNote> note_;
};

// With the grouped GEMMs.
class Layer {
 public:
  Layer(PeerMemory& memory, const MoeShape& shape, const MoeWeights& weights,
        const Workspace& workspace, const MoeOptions& options);

  void linear1(const MoeCall& call, Stream stream) const;  // and SwiGLU, and requantisation
  void linear2(const MoeCall& call, Stream stream) const;
  void run(const MoeCall& call, Stream stream) const;

  [[nodiscard]] const Exchange& exchange() const noexcept { return exchange_; }

 private:
  Exchange exchange_;
  MoeWeights weights_;
};

}  // namespace xstage::moe
