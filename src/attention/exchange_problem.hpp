// What an exchange call asks for, checked and laid out. Pure: no CUDA. What is refused is refused
// with the same words on every rank, unless a rank alone was given a wrong tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/exchange_layout.hpp"
#include "attention/problem.hpp"
#include "xstage/attention_order.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::attention {

// More owners than this: the serial path.
inline constexpr int kMaxFusedOwners = 8;

// Of whom a call is.
struct ExchangeRank {
  int rank = 0;
  int num_ranks = 1;
  int num_sms = 1;  // that this rank may use
};

struct ExchangeProblem {
  Problem attention;  // of this rank's heads; its order knows the shards, whichever path
  SequenceShards shards;
  std::int32_t num_heads = 0;   // of all ranks
  std::int32_t first_head = 0;  // of this rank's heads among them
  bool lse = false;
  bool wait = false;
  ExchangePath path = ExchangePath::fused;  // fused or serial
  std::string reason;                       // why not fused
};

// How the fused path sends.
struct BoxSend {
  Send send;         // kind tensor or register16; chunk_bytes a multiple of a box, or of a row
  int box_rows = 0;  // of the tensor maps' boxes: 8, 16, 32 or 64
};

// All throw Error(usage).
void check_shape(const AttentionShape& max, int num_ranks);
void check_options(const UlyssesOptions& options, int num_sms);
[[nodiscard]] BoxSend box_send(const Send& send, std::int64_t head_dim);
[[nodiscard]] ExchangeProblem make_exchange_problem(const ExchangeRank& who,
                                                    const AttentionShape& max,
                                                    const UlyssesOptions& options,
                                                    const TensorView& q, const TensorView& k,
                                                    const TensorView& v, const AttentionCall& call);

// Rows x batches x heads that `rank`'s heads put into the owner's buffer.
[[nodiscard]] constexpr std::int64_t expected_rows(const ExchangeProblem& problem,
                                                   int owner) noexcept {
  return std::int64_t{problem.attention.num_batches} * problem.attention.num_heads *
         problem.shards.owner_rows(owner);
}

// The rows of this rank's heads in the buffer of `owner` that begins at `out`: [batch, the owner's
// rows, this rank's heads, head_dim].
[[nodiscard]] TensorView destination(const ExchangeProblem& problem, int owner, void* out) noexcept;
// All of an owner's buffer: [batch, its rows, all heads, head_dim].
[[nodiscard]] TensorView owner_view(const ExchangeProblem& problem, int owner, void* out) noexcept;
// This rank's heads in an owner's log-sum-exp buffer [batch, head, row]: the value of (batch, local
// head, owner's row) lies at `first + batch * batch_stride + head * head_stride + row`, counted in
// floats.
struct LseDestination {
  std::int64_t first = 0;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
};
[[nodiscard]] LseDestination lse_destination(const ExchangeProblem& problem, int owner) noexcept;

// What ranks compare when an operator is created: equal text, equal operator.
[[nodiscard]] std::string describe_operator(const AttentionShape& max,
                                            const UlyssesOptions& options, std::size_t offset);

}  // namespace xstage::attention
