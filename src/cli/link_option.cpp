#include "cli/link_option.hpp"

#include "cli/values.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {

void add_link_option(CLI::App& app, std::string& link) {
  app.add_option("--link", link,
                 "Link profile: a link.json, or the name of one that ships or that was probed; "
                 "left out: the newest probe of this machine")
      ->type_name("PROFILE");
}

LinkFile load_link_option(const std::string& link, Console& console) {
  LinkFile file = load_link(link);
  for (const auto& warning : file.warnings) console.warn(warning);
  return file;
}

std::vector<const KindFit*> select_kinds(const LinkProfile& profile, std::string_view list) {
  std::vector<const KindFit*> kinds;
  if (list.empty()) {
    for (const auto& kind : profile.kinds) kinds.push_back(&kind);
    return kinds;
  }
  for (const auto& word : split_list("--kind", list)) {
    try {
      kinds.push_back(&profile.kind(parse_store_kind(word)));
    } catch (const Error&) {
      std::string legal;
      for (const auto& kind : profile.kinds) {
        legal += fmt::format("{}{}", legal.empty() ? "" : ", ", to_string(kind.params.kind));
      }
      fail_value("--kind", word, fmt::format("{} (measured in {})", legal, profile.name));
    }
  }
  return kinds;
}

}  // namespace xstage::cli
