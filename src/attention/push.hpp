// Carrying out a plan of the serial exchange: a kernel that pushes, or the copy engine. Both only
// enqueue and can be captured in a graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/push_plan.hpp"
#include "xstage/peer_table.hpp"
#include "xstage/tensor.hpp"

namespace xstage::attention {

// How the two sides of an exchange know of each other. Epochs count calls: those that have ended on
// this rank are in `epoch`, this call's is one more; they wrap.
struct PushOwner {
  std::uint32_t* arrived = nullptr;         // in the owner's memory: set to the call's epoch when
                                            // all of its rows are visible; null: not told
  const std::uint32_t* released = nullptr;  // in this rank's memory: raised by the owner when it
                                            // has read what earlier calls put there; null: no wait
};
struct PushSync {
  WaitContext wait;
  std::uint32_t* epoch = nullptr;     // null: no flags at all, the caller orders by other means
  std::uint32_t* last_use = nullptr;  // epoch of the last call into these destinations; owners have
                                      // to release it before the first store. Then: this call's
  std::uint32_t* counter = nullptr;   // a word that is 0, and is left so
  std::vector<PushOwner> owners;      // [rank]
};

struct PushOptions {
  enum class Kind : std::uint8_t {
    bulk,        // copied into shared memory and out of it by the copy engine; sm_90 on
    register16,  // loads and stores of 16 bytes
  };
  Kind kind = Kind::bulk;
  int num_sms = 0;  // 0: all
};

// Loads all kernels of this file on the current device. Call it before any rank may wait for
// another one: loading waits for kernels that run.
void load_push_kernels();

// One kernel on the current device. Throws Error(runtime) if CUDA fails.
void push(const PushPlan& plan, const PushSync& sync, const PushOptions& options, Stream stream);

// The same bytes by cudaMemcpy2DAsync, one copy a part, run of rows and batch; flags by a kernel
// before and one behind them.
void copy_by_engine(const PushPlan& plan, const PushSync& sync, Stream stream);

// Waits until every rank's rows of this rank's latest call are here: arrived[r] has reached *epoch
// for all r. For callers that have no operator around them.
void wait_for_rows(const WaitContext& wait, const std::uint32_t* epoch,
                   const std::uint32_t* arrived, int num_ranks, Stream stream);

// Empty if kernels on `device` can store to all of these addresses, else why not. What cannot be
// stored to, the copy engine may still reach.
[[nodiscard]] std::string why_not_storable(const PeerTable& table, int device);

}  // namespace xstage::attention
