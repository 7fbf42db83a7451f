// xstage: measure, model and use the X-Stage of GPU remote stores.
#include <csignal>
#include <exception>
#include <memory>

#include "cli/help.hpp"
#include "cli/suggest.hpp"
#include "cli/verb.hpp"
#include "xstage/error.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

struct VerbInfo {
  const char* name;
  const char* summary;
  Action (*setup)(CLI::App&);
};

constexpr VerbInfo kVerbs[] = {
#define XSTAGE_VERB(name, summary) {#name, summary, setup_##name},
#include "cli/verbs.def"
#undef XSTAGE_VERB
};

std::string version_text() {
#ifdef XSTAGE_HAS_PROBE
  constexpr std::string_view kParts = "with CUDA";
#else
  constexpr std::string_view kParts = "without CUDA";
#endif
  return fmt::format("xstage {} ({}, {})", version(), source_commit(), kParts);
}

constexpr const char* kFooter =
    "Sizes: 4096, 32K, 1M (powers of 1024). Times: 500 (ns), 8us, 2ms. Lists: 1,2,4.\n"
    "Exit codes: 0 done, 1 a check failed, 2 usage, 3 not possible on this machine,\n"
    "            4 GPU or runtime error, 5 timeout or lost peer, 6 bad file.\n"
    "next: xstage doctor, or xstage predict --link h200-nv18 --bytes 32K --gap 8us";

// A word as a shell would take it back.
std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// The verb that was given, or its sub-command; the program itself if there is none.
const CLI::App& deepest(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : deepest(*parsed.front());
}

// What CLI11 calls a parse error, in our words.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& scope = deepest(app);
  const auto extras = app.remaining(true);
  if (!extras.empty()) return unknown_argument(scope, extras.front());
  if (&scope == &app) return "no verb given";
  const auto words = scope.get_subcommands([](const CLI::App*) { return true; });
  if (words.empty()) return error.what();
  std::string legal;
  for (const auto* word : words) legal += (legal.empty() ? "" : ", ") + word->get_name();
  return fmt::format("what to {} is missing; legal are {}", scope.get_name(), legal);
}

// "xstage ", "xstage bench exchange ".
std::string words_to(const CLI::App& app) {
  const std::string here = app.get_name() + " ";
  return app.get_parent() == nullptr ? here : words_to(*app.get_parent()) + here;
}

int run(int argc, char** argv, Console& console) {
  CLI::App app(
      "Measure, model and use the X-Stage: the hidden, finite buffer between a GPU's remote\n"
      "store being accepted and its bytes being visible at the peer.");
  app.name("xstage");
  app.set_version_flag("--version", version_text());
  app.footer(kFooter);
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  console.command_line = "xstage";
  for (int i = 1; i < argc; ++i) console.command_line += fmt::format(" {}", shell_word(argv[i]));
  std::vector<std::pair<CLI::App*, Action>> verbs;
  for (const auto& info : kVerbs) {
    CLI::App* verb = app.add_subcommand(info.name, info.summary);
    verb->group("Verbs");
    verb->footer("");
    Action action = info.setup(*verb);
    verb->add_flag("--json", console.json, "The result as JSON on stdout");
    verb->add_flag("--no-color", console.no_color, "No colours");
    verbs.emplace_back(verb, std::move(action));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    console.next(words_to(deepest(app)) + "--help");
    throw Error(ErrorCategory::usage, explain(app, error));
  }
  for (const auto& [verb, action] : verbs) {
    if (!verb->parsed()) continue;
    console.next(
        fmt::format("xstage {} --help", verb->get_name()));  // unless the verb knows better
    const int code = action(console);
    console.finish();
    return code;
  }
  return 0;
}

}  // namespace
}  // namespace xstage::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout is seen at write()
  xstage::cli::Console console;
  using xstage::ErrorCategory;
  const auto report = [&console](const std::string& message, ErrorCategory category) {
    const int code = static_cast<int>(category);
    try {
      console.fail(message, xstage::to_string(category), code);
    } catch (const std::exception&) {
      // stdout is gone as well; the exit code still tells.
    }
    return code;
  };
  try {
    return xstage::cli::run(argc, argv, console);
  } catch (const xstage::Error& error) {
    return report(error.what(), error.category());
  } catch (const std::bad_alloc&) {
    return report("out of memory", ErrorCategory::runtime);
  } catch (const std::exception& error) {
    return report(error.what(), ErrorCategory::runtime);
  }
}
