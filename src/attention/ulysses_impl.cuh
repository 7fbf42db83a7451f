// What an UlyssesAttention holds.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "attention/exchange_host.cuh"
#include "xstage/ulysses.hpp"

namespace xstage::attention {

// Zeroed memory of the current GPU.
struct OwnMemory {
  explicit OwnMemory(std::size_t size);
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace xstage::attention

namespace xstage {

struct UlyssesAttention::Impl {
  // `memory` has room from `offset` on.
  Impl(PeerMemory& memory, const AttentionShape& max, std::size_t offset);

  void run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionCall& call,
           Stream stream);
  void reserve(const TensorView& q, const TensorView& k, const TensorView& v,
               const AttentionCall& call);
  void record(int max_tiles);
  [[nodiscard]] Timeline timeline() const;
  [[nodiscard]] int share_of_sms() const { return options.num_sms > 0 ? options.num_sms : num_sms; }
  [[nodiscard]] attention::ExchangeProblem problem_of(const TensorView& q, const TensorView& k,
                                                      const TensorView& v,
                                                      const AttentionCall& call) const;
  // Memory that only some calls need: allocated by the first, zeroed.
  void* room(std::vector<std::unique_ptr<attention::OwnMemory>>& memory_of_calls, std::size_t bytes,
             Stream stream);
  // All rows of this rank's heads before they are pushed, and flags of what is there.
  TensorView scratch_for(const attention::ExchangeProblem& call, Stream stream);
  std::uint32_t* staged_for(const attention::ExchangeProblem& call, Stream stream);

  PeerMemory& memory;
  AttentionShape max;
  UlyssesOptions options;
  attention::ExchangePlace place;  // of the latest call
  int num_sms = 0;
  int next_slot = 0;
  std::int64_t num_calls = 0;
  attention::ExchangeProblem problem;  // of the latest call
  attention::ExchangeEvents events;
  std::unique_ptr<attention::OwnMemory> counters;
  std::unique_ptr<attention::OwnMemory> workspace;
  std::unique_ptr<attention::OwnMemory> own_lse;
  std::vector<std::unique_ptr<attention::OwnMemory>> event_memory;
  std::vector<std::unique_ptr<attention::OwnMemory>> scratch;
  std::vector<std::unique_ptr<attention::OwnMemory>> staged;
};

}  // namespace xstage
