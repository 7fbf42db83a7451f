// What a verb is: a function that adds its options and returns what to run once they are parsed.
//
// A new verb is a file of its own with `Action setup_NAME(CLI::App&)` and a line in verbs.def.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/console.hpp"

namespace xstage::cli {

// Returns the exit code; throws xstage::Error.
using Action = std::function<int(Console&)>;

#define XSTAGE_VERB(name, summary) Action setup_##name(CLI::App& app);
#include "cli/verbs.def"
#undef XSTAGE_VERB

}  // namespace xstage::cli
