// The exchange before attention, for the benchmark's whole block: q, k and v of this rank's rows go
// to the ranks that compute their heads, and are read from there.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "attention/push.hpp"
#include "attention/timed_shape.hpp"
#include "probe/cuda.hpp"
#include "xstage/peers.hpp"
#include "xstage/tensor.hpp"

namespace xstage::attention {

class TimedInputs {
 public:
  // q, k, v of one rank's heads, all rows.
  struct Tensors {
    TensorView q, k, v;
  };

  // Bytes of every rank's peer memory, from `offset` on.
  [[nodiscard]] static std::size_t bytes(const TimedShape& shape);
  // Empty if the workload's inputs can be exchanged, else why not.
  [[nodiscard]] static std::string why_not(const TimedShape& shape);

  // `of_rank(r)` enqueues and returns what rank r computes on; that of the own rank is called last.
  TimedInputs(const TimedShape& shape, PeerMemory& memory, std::size_t offset,
              const std::function<Tensors(int)>& of_rank, Stream stream);

  // The push, and the wait for what this rank receives.
  void enqueue(Stream stream) const;
  // What attention reads: this rank's heads, in its peer memory.
  [[nodiscard]] Tensors tensors() const;
  // What the exchange is going to write here: all rows if every rank computes, else the own ones.
  void poison(int byte, Stream stream) const;

 private:
  [[nodiscard]] PushSync sync() const;
  [[nodiscard]] Tensors tensors_of(int rank) const;

  TimedShape shape_;
  PeerMemory& memory_;
  std::size_t offset_;
  probing::Buffer owned_[kMaxPushTensors];  // this rank's rows of all heads of q, k and v
  PushPlan plan_;
};

}  // namespace xstage::attention
