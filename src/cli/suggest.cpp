#include "cli/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "io/file_io.hpp"

namespace xstage::cli {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

std::vector<std::string> legal_words(const CLI::App& scope, bool options) {
  std::vector<std::string> words;
  if (options) {
    for (const auto* option : scope.get_options()) {
      for (const auto& name : option->get_lnames()) words.push_back("--" + name);
    }
  } else {
    for (const auto* verb : scope.get_subcommands([](const CLI::App*) { return true; })) {
      words.push_back(verb->get_name());
    }
  }
  return words;
}

}  // namespace

std::string unknown_argument(const CLI::App& scope, std::string_view word) {
  const bool is_option = word.starts_with("-");
  const std::string shown = io::printable(word);
  const auto words = legal_words(scope, is_option);
  const char* const what = is_option ? "option" : words.empty() ? "argument" : "verb";
  const auto nearest = std::min_element(words.begin(), words.end(), [&](auto& a, auto& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
  if (word.size() < 64 && nearest != words.end() &&
      edit_distance(word, *nearest) <= std::max<std::size_t>(1, word.size() / 3)) {
    return fmt::format("unknown {} '{}'; did you mean '{}'?", what, shown, *nearest);
  }
  if (words.empty()) return fmt::format("unexpected {} '{}'", what, shown);
  return fmt::format("unknown {} '{}'; legal are {}", what, shown, fmt::join(words, ", "));
}

}  // namespace xstage::cli
