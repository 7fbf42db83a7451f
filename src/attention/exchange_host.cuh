// The host's steps of one exchange call: each function enqueues, and checks nothing again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/exchange_params.cuh"
#include "attention/exchange_problem.hpp"
#include "xstage/attention.hpp"
#include "xstage/peers.hpp"
#include "xstage/tensor.hpp"

namespace xstage::attention {

// Where a call's bytes lie.
struct ExchangePlace {
  PeerTable table;
  WaitContext wait;
  std::size_t offset = 0;  // of the operator's bytes in every rank's memory
  ExchangeLayout layout;
  int slot = 0;
  std::uint32_t* sent = nullptr;      // kMaxFusedOwners words of this rank's own memory, 0
  std::uint32_t* num_done = nullptr;  // one more
  float* own_lse = nullptr;           // [batch, local head, row], if the call exchanges it
};

struct ExchangeInputs {
  TensorView q, k, v;
  Workspace workspace;
};

// Events of the fused kernel's senders; see ExchangeEvent.
struct ExchangeEvents {
  ExchangeEvent* data = nullptr;  // [CTA][group][max_items]
  int max_items = 0;
};

// SMs that do nothing but send, for comparison; none: senders of the computing SMs do.
struct ExchangeCarriers {
  int num_sms = 0;                  // beside those that the problem's order is for
  TensorView rows;                  // room for all rows of this rank's heads
  std::uint32_t* staged = nullptr;  // two words a tile, 0 before the first call
};

[[nodiscard]] void* out_of(const ExchangePlace& place, int rank);
[[nodiscard]] float* lse_of(const ExchangePlace& place, int rank);

void enqueue_fused(const ExchangeProblem& problem, const BoxSend& send, const ExchangePlace& place,
                   const ExchangeInputs& inputs, const ExchangeEvents& events,
                   const ExchangeCarriers& carriers, Stream stream);
// Attention into `scratch`, then the push kernel.
void enqueue_serial(const ExchangeProblem& problem, const ExchangePlace& place,
                    const ExchangeInputs& inputs, const TensorView& scratch, int num_sms,
                    Stream stream);
void enqueue_wait(const ExchangePlace& place, Stream stream);

// Loads every kernel of an exchange on the current device: before any rank waits for another.
void load_exchange_kernels();

}  // namespace xstage::attention
