// --link: the profile that a verb works with, and how a result names it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.hpp"
#include "io/result_json.hpp"
#include "xstage/files.hpp"

namespace xstage::cli {

// Adds --link to `app`; the text lives in `link`.
void add_link_option(CLI::App& app, std::string& link);

// Loads it and passes warnings on.
[[nodiscard]] LinkFile load_link_option(const std::string& link, Console& console);

using io::describe_pair;
using io::link_identity;

// The kinds named in --kind, or all of the profile if it is empty.
[[nodiscard]] std::vector<const KindFit*> select_kinds(const LinkProfile& profile,
                                                       std::string_view list);

}  // namespace xstage::cli
