// Where link profiles are looked for. Documented in docs/measuring.md, "Which profile is used".
#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <system_error>

#include "io/file_io.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"

namespace xstage {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::vector<fs::path> profiles_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // A probe writes NAME.json and, beside it, NAME.tables.json, which is no profile.
    if (name.ends_with(".json") && !name.ends_with(".tables.json")) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// UUIDs of this machine's GPUs as the driver shows them; none without a driver.
std::vector<std::string> local_gpu_uuids() {
  std::vector<std::string> uuids;
  std::error_code error;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", error), end; !error && it != end;
       it.increment(error)) {
    std::ifstream file(it->path() / "information");
    for (std::string line; std::getline(file, line);) {
      const std::size_t start = line.find("GPU-");
      if (line.rfind("GPU UUID", 0) == 0 && start != std::string::npos) {
        uuids.push_back(line.substr(start));
      }
    }
  }
  return uuids;
}

// The newest profile whose source is a GPU of this machine. Without a driver the machine cannot be
// told from others that share the folder, so every profile counts.
std::optional<fs::path> newest_probe() {
  const auto uuids = local_gpu_uuids();
  std::optional<fs::path> newest;
  std::string newest_date;
  for (const auto& path : profiles_in(probe_directory())) {
    try {
      const LinkProfile profile = read_link(path).profile;
      const bool is_local = uuids.empty() || std::find(uuids.begin(), uuids.end(),
                                                       profile.source.uuid) != uuids.end();
      if (is_local && (!newest || profile.provenance.date > newest_date)) {
        newest = path;
        newest_date = profile.provenance.date;
      }
    } catch (const Error&) {
      // A damaged file there must not hide the sound ones; asked for by path it is reported.
    }
  }
  return newest;
}

std::string shipped_names() {
  std::vector<std::string> names;
  for (const auto& folder : shipped_profile_directories()) {
    for (const auto& path : profiles_in(folder)) names.push_back(path.stem().string());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

fs::path probe_directory() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && data[0] == '/') {
    return fs::path(data) / "xstage";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] != '\0') {
    return fs::path(home) / ".local" / "share" / "xstage";
  }
  const passwd* user = ::getpwuid(::getuid());
  return fs::path(user != nullptr ? user->pw_dir : "/") / ".local" / "share" / "xstage";
}

std::vector<fs::path> shipped_profile_directories() {
  std::vector<fs::path> folders;
  const auto add = [&folders](const fs::path& folder) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (!error && is_folder(real) &&
        std::find(folders.begin(), folders.end(), real) == folders.end()) {
      folders.push_back(real);
    }
  };
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (!error) add(executable.parent_path() / ".." / "share" / "xstage" / "profiles");
#ifdef XSTAGE_PROFILE_DIR
  add(XSTAGE_PROFILE_DIR);
#endif
  if (!error) add(executable.parent_path() / ".." / "profiles");
  return folders;
}

fs::path find_link(std::string_view name_or_path) {
  if (name_or_path.empty()) {
    if (const auto path = newest_probe()) return *path;
    throw Error(ErrorCategory::usage,
                fmt::format("no link profile given, and no probe of this machine in {}; "
                            "measure one with 'xstage probe', or name one that ships: {}",
                            probe_directory().string(), shipped_names()));
  }
  const bool is_path = name_or_path == "-" || name_or_path.find('/') != std::string_view::npos ||
                       name_or_path.ends_with(".json");
  if (is_path) return fs::path(name_or_path);
  const std::string file_name = fmt::format("{}.json", name_or_path);
  std::error_code ignored;
  for (const auto& folder : shipped_profile_directories()) {
    if (fs::exists(folder / file_name, ignored)) return folder / file_name;
  }
  if (fs::exists(probe_directory() / file_name, ignored)) return probe_directory() / file_name;
  throw Error(ErrorCategory::usage,
              fmt::format("link '{}': legal are a path to a link.json, or one that ships: {}",
                          io::printable(name_or_path), shipped_names()));
}

LinkFile load_link(std::string_view name_or_path) {
  return read_link(find_link(name_or_path));
}

}  // namespace xstage
