// One computing rank of the exchange benchmark: its tensors and peer memory, the ways to carry the
// exchange out, each enqueued on the rank's stream. Host code.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/push.hpp"
#include "attention/timed_inputs.hpp"
#include "attention/timed_shape.hpp"
#include "probe/cuda.hpp"
#include "xstage/attention.hpp"
#include "xstage/exchange_bench.hpp"
#include "xstage/peers.hpp"
#include "xstage/tensor.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::attention {

// Where things lie in a rank's peer memory: the fused operator, then flags and result of the serial
// ways, then the inputs that are exchanged.
struct TimedLayout {
  std::size_t serial_flags = 0;
  std::size_t serial_out = 0;
  std::size_t inputs = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] TimedLayout timed_layout(const TimedShape& shape,
                                       const std::vector<ExchangeCandidate>& candidates);

// Orders two streams, also in a capture.
class TimedEvent {
 public:
  TimedEvent();
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class TimedRank {
 public:
  TimedRank(const TimedShape& shape, PeerMemory memory, std::uint64_t seed,
            const std::vector<ExchangeCandidate>& candidates, Group* group);
  ~TimedRank();
  TimedRank(const TimedRank&) = delete;
  TimedRank& operator=(const TimedRank&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int device() const { return memory_.device(); }
  [[nodiscard]] PeerMemory& memory() { return memory_; }
  [[nodiscard]] const probing::Stream& stream() const { return stream_; }

  // The operator with all owners in local memory, for candidates that ask for it.
  void make_local_twin();

  // Work and, apart, the wait for what this rank must receive. Between start and end of a capture,
  // or not.
  void enqueue(const ExchangeCandidate& candidate);
  void enqueue_wait(const ExchangeCandidate& candidate);
  // Why the fused operator's latest call took the serial path; "" if it did not.
  [[nodiscard]] std::string fell_back(const ExchangeCandidate& candidate) const;

  // Everything that the candidate writes, so that what it leaves out is seen.
  void poison(const ExchangeCandidate& candidate);
  // Bytes that are not as the reference has them, in the buffers of all owners that this rank
  // alone has written (ghosts and itself), or in its own, which all ranks have written.
  [[nodiscard]] std::int64_t wrong_bytes(const ExchangeCandidate& candidate);

 private:
  struct Fused;
  // Tensors of the heads that `rank` computes; the timed ones are this rank's.
  [[nodiscard]] TensorView view(const probing::Buffer& buffer, std::int64_t heads) const;
  [[nodiscard]] TensorView query(int rank) const;
  [[nodiscard]] TensorView key(int rank) const;
  [[nodiscard]] TensorView value(int rank) const;
  [[nodiscard]] TensorView result(int rank) const;
  [[nodiscard]] AttentionOptions options() const;
  [[nodiscard]] AttentionCall call(const ExchangeCandidate& candidate) const;
  void fill_inputs(int rank);
  [[nodiscard]] TimedInputs::Tensors inputs_of(int rank) const;
  void compute_attention(int rank, const TimedInputs::Tensors& inputs);
  void enqueue_chunks(const ExchangeCandidate& candidate);
  [[nodiscard]] TensorView owner_view(void* data, int owner) const;
  [[nodiscard]] char* owner_data(const ExchangeCandidate& candidate, int owner) const;
  [[nodiscard]] std::int64_t count_wrong(const void* a, const void* b, std::size_t bytes,
                                         bool exact);

  TimedShape shape_;
  PeerMemory memory_;
  int rank_;
  std::uint64_t seed_;
  probing::Stream stream_;
  probing::Stream side_;
  TimedEvent computed_;
  int num_sms_ = 0;
  TimedLayout layout_;
  probing::Buffer q_, k_, v_, out_, workspace_;
  std::size_t workspace_bytes_ = 0;
  PushPlan serial_plan_;
  std::map<std::string, std::ptrdiff_t> fused_offsets_;  // of a candidate's latest result
  std::unique_ptr<TimedInputs> inputs_;
  std::unique_ptr<Fused> fused_;
  std::unique_ptr<Fused> twin_;
};

}  // namespace xstage::attention
