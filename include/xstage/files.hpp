// Sample files and link profiles on disk. Schemas: docs/measuring.md.
//
// Every function throws Error(bad_file) that names the file, the place in it (line and column, or
// the JSON pointer) and the reason; whatever the file holds, reading ends soon and never crashes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/link_profile.hpp"
#include "xstage/samples.hpp"

namespace xstage {

enum class Overwrite : bool { no, yes };

// A CSV of samples with what its comment lines say about where they come from.
struct SampleFile {
  static constexpr int kSchemaVersion = 1;
  std::string name;  // "h200-nv18"; the file's stem if the file does not say
  std::string link;
  Endpoint source;
  Endpoint destination;
  Provenance provenance;
  std::vector<Sample> samples;
  std::string hash;                   // SHA-256 of the file; filled by read_samples
  std::vector<std::string> warnings;  // columns ignored, rows that contradict themselves
};

[[nodiscard]] SampleFile read_samples(const std::filesystem::path& path);
// `file_name` only names the place in errors.
[[nodiscard]] SampleFile parse_samples(std::string_view text, std::string_view file_name);
[[nodiscard]] std::string format_samples(const SampleFile& file);

// A profile with the things in its file that were not understood but do no harm.
struct LinkFile {
  LinkProfile profile;
  std::filesystem::path path;
  std::vector<std::string> warnings;
};

[[nodiscard]] LinkFile read_link(const std::filesystem::path& path);
[[nodiscard]] LinkFile parse_link(std::string_view text, std::string_view file_name);
[[nodiscard]] std::string format_link(const LinkProfile& profile);

// Writes the whole file or nothing: a temporary file beside it is renamed. An existing file is
// Error(usage) unless `overwrite` says yes.
void write_text_file(const std::filesystem::path& path, std::string_view text, Overwrite overwrite);

// Finds a profile: a path (it has a '/' or ends in ".json"), else the name of one that ships, else
// ("" given) the newest probe of this machine. Throws Error(usage) that names what there is.
[[nodiscard]] std::filesystem::path find_link(std::string_view name_or_path);
[[nodiscard]] LinkFile load_link(std::string_view name_or_path);

// Where probes of this machine are kept: $XDG_DATA_HOME/xstage or ~/.local/share/xstage.
[[nodiscard]] std::filesystem::path probe_directory();
// Folders with profiles that ship, existing ones only: beside the executable, then the source tree.
[[nodiscard]] std::vector<std::filesystem::path> shipped_profile_directories();

// 64 lower-case hexadecimal digits.
[[nodiscard]] std::string sha256_hex(std::string_view bytes);

}  // namespace xstage
