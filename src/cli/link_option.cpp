#include "cli/link_option.hpp"

#include "cli/values.hpp"
#include "io/metadata.hpp"
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

std::string describe_pair(const LinkProfile& profile) {
  const auto end = [](const Endpoint& endpoint) {
    return endpoint.name.empty() ? std::string(io::to_string(endpoint.type)) : endpoint.name;
  };
  std::string text = fmt::format("{} -> {}", end(profile.source), end(profile.destination));
  if (!profile.link.empty()) text += fmt::format(", {}", profile.link);
  return text;
}

Json link_identity(const LinkProfile& profile) {
  Json json = {{"name", profile.name}, {"sha256", profile.hash}, {"pair", describe_pair(profile)}};
  json["date"] = profile.provenance.date.empty() ? Json(nullptr) : Json(profile.provenance.date);
  return json;
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
