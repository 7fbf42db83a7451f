#include "cli/help.hpp"

#include <fmt/format.h>

#include <sstream>

namespace xstage::cli {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kNameColumn = 24;

std::string wrap(const std::string& text) {
  std::string wrapped;
  std::size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > 0 && column + 1 + word.size() > kWidth - kNameColumn) {
      wrapped += '\n';
      column = 0;
    } else if (column > 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
  }
  return wrapped;
}

}  // namespace

HelpFormatter::HelpFormatter() {
  column_width(kNameColumn);
  label("Subcommands", "Verbs");
  label("SUBCOMMAND", "VERB");
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  return option->get_type_size() == 0 ? "" : fmt::format(" {}", option->get_type_name());
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  std::string text = option->get_description();
  if (!option->get_default_str().empty()) {
    text += fmt::format(" (default {})", option->get_default_str());
  }
  return wrap(text);
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  std::ostringstream out;
  CLI::detail::format_help(out, verb->get_name(), wrap(verb->get_description()), kNameColumn);
  return out.str();
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string usage = fmt::format("\nusage: {}", name);
  for (const auto* option : app->get_options()) {
    if (!option->get_positional()) continue;
    const std::string word = option->get_name(true);
    usage += option->get_required() ? fmt::format(" {}", word) : fmt::format(" [{}]", word);
  }
  const bool has_verbs = !app->get_subcommands([](const CLI::App*) { return true; }).empty();
  return usage + (has_verbs ? " VERB [options]\n" : " [options]\n");
}

}  // namespace xstage::cli
