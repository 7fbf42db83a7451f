// Unknown words, and what was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace xstage::cli {

// "unknown option '--prodcers'; did you mean '--producers'?", or the legal ones.
[[nodiscard]] std::string unknown_argument(const CLI::App& scope, std::string_view word);

}  // namespace xstage::cli
