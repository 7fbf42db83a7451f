#include "moe/problem.hpp"

#include <cmath>
#include <string>

#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "moe: " + message);
}

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  refuse(std::string(name) + " is " + std::to_string(value) + ": legal " + std::to_string(low) +
         ".." + std::to_string(high));
}

void check_row(const char* name, int value) {
  if (value >= 64 && value <= kMaxRowElements && value % 64 == 0) return;
  refuse(std::string(name) + " is " + std::to_string(value) + ": legal are multiples of 64 up to " +
         std::to_string(kMaxRowElements));
}

void check_transfer(const char* name, MoeTransfer transfer) {
  if (transfer == MoeTransfer::pull || transfer == MoeTransfer::push) return;
  refuse(std::string(name) + " is " + std::to_string(static_cast<int>(transfer)) +
         ": legal pull, push");
}

void check_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (pointer == nullptr) refuse(std::string(name) + " is null");
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address % alignment == 0) return;
  refuse(std::string(name) + " is at " + std::to_string(address) + ", which is not a multiple of " +
         std::to_string(alignment) + " bytes");
}

void check_send(const Send& send) {
  if (send.kind != StoreKind::bulk) refuse("send.kind: legal bulk");
  if (send.chunk_bytes % 16 != 0) {
    refuse("send.chunk_bytes is " + std::to_string(send.chunk_bytes) +
           ": legal are multiples of 16, and 0 for whole rows");
  }
}

}  // namespace

void check_shape(const MoeShape& shape, int num_ranks, const MoeOptions& options) {
  check_range("num_ranks", num_ranks, 1, kMaxRanks);
  check_range("max_tokens", shape.max_tokens, 1, kMaxTokens);
  check_row("hidden", shape.hidden);
  check_row("intermediate", shape.intermediate);
  check_range("num_experts", shape.num_experts, num_ranks, kMaxExperts);
  check_range("top_k", shape.top_k, 1, kMaxSlots);
  check_range("num_shared_experts", shape.num_shared_experts, 0, kMaxShared);
  const int num_slots = shape.top_k + shape.num_shared_experts;
  check_range("top_k + num_shared_experts", num_slots, 1, kMaxSlots);
  check_range("max_tokens x (top_k + num_shared_experts)",
              static_cast<std::int64_t>(shape.max_tokens) * num_slots, 1, kMaxEntries);
  if (shape.dtype != DataType::bf16 && shape.dtype != DataType::fp8) {
    refuse("dtype is " + std::to_string(static_cast<int>(shape.dtype)) + ": legal bf16, fp8");
  }
  check_transfer("dispatch", options.dispatch);
  check_transfer("combine", options.combine);
  if (!std::isfinite(options.clamp) || options.clamp < 0.f) {
    refuse("clamp is " + std::to_string(options.clamp) +
           ": legal are positive numbers, and 0 for none");
  }
  check_range("num_sms", options.num_sms, 0, 1 << 16);
  check_send(options.send);
}

void check_weights(const MoeShape& shape, const MoeWeights& weights) {
  check_pointer("weights.w1", weights.w1, 16);
  check_pointer("weights.w2", weights.w2, 16);
  if (shape.dtype != DataType::fp8) return;
  check_pointer("weights.w1_scales", weights.w1_scales, 4);
  check_pointer("weights.w2_scales", weights.w2_scales, 4);
}

void check_call(const MoeShape& shape, const MoeCall& call) {
  check_range("num_tokens", call.num_tokens, 0, shape.max_tokens);
  if (call.num_tokens == 0) return;
  if (call.x != nullptr) {
    check_pointer("x", call.x, 16);
    if (shape.dtype == DataType::fp8) check_pointer("x_scales", call.x_scales, 4);
  }
  check_pointer("topk_ids", call.topk_ids, call.ids_are_64_bit ? 8 : 4);
  check_pointer("topk_weights", call.topk_weights, 4);
  check_pointer("y", call.y, 16);
}

void check_room(const char* what, std::size_t bytes, std::size_t needed) {
  if (bytes >= needed) return;
  refuse(std::string(what) + " holds " + std::to_string(bytes) + " bytes: at least " +
         std::to_string(needed) + " are needed");
}

std::uint32_t agreement(const MoeShape& shape, int num_ranks, const MoeOptions& options) noexcept {
  const std::uint32_t words[] = {
      static_cast<std::uint32_t>(num_ranks),
      static_cast<std::uint32_t>(shape.max_tokens),
      static_cast<std::uint32_t>(shape.hidden),
      static_cast<std::uint32_t>(shape.intermediate),
      static_cast<std::uint32_t>(shape.num_experts),
      static_cast<std::uint32_t>(shape.top_k),
      static_cast<std::uint32_t>(shape.num_shared_experts),
      static_cast<std::uint32_t>(shape.dtype),
      static_cast<std::uint32_t>(options.dispatch),
      static_cast<std::uint32_t>(options.combine),
  };
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const std::uint32_t word : words) {
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (word >> (8 * byte) & 0xffu)) * 16777619u;
  }
  return hash;
}

std::string describe(const BadInputNote& note, const MoeShape& shape) {
  switch (static_cast<BadInput>(note.what)) {
    case BadInput::none:
      return "";
    case BadInput::expert_id: {
      const auto top_k = static_cast<std::uint32_t>(shape.top_k);
      return "moe: topk_ids[" + std::to_string(note.entry / top_k) + ", " +
             std::to_string(note.entry % top_k) + "] is " + std::to_string(note.value) +
             ": legal -1.." + std::to_string(shape.num_experts - 1) + "; the slot was left empty";
    }
    case BadInput::agreement:
      return "moe: rank " + std::to_string(note.peer) +
             " has another shape, other options or a layer that was never called";
    case BadInput::num_tokens:
      return "moe: rank " + std::to_string(note.peer) + " says it has " +
             std::to_string(note.value) + " tokens: legal 0.." + std::to_string(shape.max_tokens);
  }
  return "moe: unknown note";
}

}  // namespace xstage::moe
