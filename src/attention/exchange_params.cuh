// What one launch of the fused attention and exchange kernel is given.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/exchange_layout.hpp"
#include "attention/exchange_problem.hpp"
#include "attention/exchange_trace.hpp"
#include "attention/forward_params.cuh"
#include "xstage/attention_order.hpp"
#include "xstage/peer_table.hpp"
#include "xstage/send.hpp"

namespace xstage::attention {

// Who waits for what, in a status record.
enum class ExchangeTag : std::uint32_t {
  released = static_cast<std::uint32_t>(WaitTag::first_operator_tag),  // a buffer to be free
  arrived,                                                             // rows of a call
  staged,                                                              // rows for a carrier
};

// A rank that gets rows, itself included. Addresses as this rank's GPU sees them.
struct ExchangeOwner {
  char* rows;               // of this rank's heads: batch 0, row 0
  float* lse;               // of this rank's heads; null: not wanted
  std::uint32_t* arrived;   // in the owner's memory: this rank's rows of that epoch are there
  std::uint32_t* released;  // in the owner's memory: this rank has done with that epoch's result
  std::uint32_t expected;   // rows x heads x batches that this rank sends to it
  std::int32_t num_rows;    // of its buffer
};

struct ExchangeParams {
  // Its map `out`: the staged rows, if carriers send them. Its lse: this rank's own, if exchanged.
  ForwardParams forward;
  CUtensorMap out[kMaxFusedOwners];  // this rank's heads of each owner's buffer
  SequenceShards shards;
  ExchangeOwner owners[kMaxFusedOwners];
  ExchangeHeader* header;  // this rank's
  // Counters in this rank's own memory, 0 before and after a launch.
  std::uint32_t* sent;      // [owner]: rows x heads x batches that are visible there
  std::uint32_t* num_done;  // senders that have ended
  ExchangeEvent* events;    // [CTA][group][max_events]; null: not wanted
  WaitContext wait;
  Send send;                   // as box_send() gave it
  std::uint32_t box_bytes;     // of a tensor map's box
  std::uint32_t pitch_bytes;   // from row to row of an owner's buffer
  std::int32_t num_heads_all;  // of an owner's buffer
  std::int32_t slot;
  std::int32_t max_events;
  // The variant whose last CTAs do nothing but send; see exchange_carrier.cuh.
  std::int32_t num_carriers;
  std::uint32_t* staged;  // [tile][group]: the latest call whose rows are staged
  bool wait_for_rows;     // the kernel ends when all rows of this rank have arrived
};

}  // namespace xstage::attention
