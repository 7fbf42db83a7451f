// --link: the profile that a verb works with, and how a result names it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.hpp"
#include "xstage/files.hpp"

namespace xstage::cli {

// Adds --link to `app`; the text lives in `link`.
void add_link_option(CLI::App& app, std::string& link);

// Loads it and passes warnings on.
[[nodiscard]] LinkFile load_link_option(const std::string& link, Console& console);

// "NVIDIA H200 -> pinned host memory over PCIe 5 x16"
[[nodiscard]] std::string describe_pair(const LinkProfile& profile);
// What a result must say about the profile it rests on: name, hash, pair, date.
[[nodiscard]] Json link_identity(const LinkProfile& profile);

// The kinds named in --kind, or all of the profile if it is empty.
[[nodiscard]] std::vector<const KindFit*> select_kinds(const LinkProfile& profile,
                                                       std::string_view list);

}  // namespace xstage::cli
