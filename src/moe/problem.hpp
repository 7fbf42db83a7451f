// What the layer refuses, and the hash by which ranks find out that they disagree. No CUDA.
#pragma once

#include <cstdint>

#include "moe/layout.hpp"
#include "xstage/moe.hpp"

namespace xstage::moe {

// All throw Error(usage) that names the value and the legal ones.
void check_shape(const MoeShape& shape, int num_ranks, const MoeOptions& options);
void check_weights(const MoeShape& shape, const MoeWeights& weights);
void check_call(const MoeShape& shape, const MoeCall& call);
void check_room(const char* what, std::size_t bytes, std::size_t needed);

[[nodiscard]] std::uint32_t agreement(const MoeShape& shape, int num_ranks,
                                      const MoeOptions& options) noexcept;

// What a note says, in one line.
[[nodiscard]] std::string describe(const BadInputNote& note, const MoeShape& shape);

}  // namespace xstage::moe
