// xstage fit: measured samples -> link profile.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/fit_view.hpp"
#include "cli/link_option.hpp"
#include "cli/provenance.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

namespace fs = std::filesystem;

struct FitVerbOptions {
  std::string samples;
  std::string out;
  std::string name;
  std::string note;
  std::string seed = "1";
  std::string num_bootstrap = "200";
  bool all = false;
  bool force = false;
};

// The samples as the profile names them: relative to its folder if they lie in or below it.
std::string relative_samples(const fs::path& samples, const fs::path& profile) {
  if (samples == "-") return "";
  std::error_code error;
  const fs::path folder = fs::absolute(profile, error).parent_path();
  const fs::path relative = fs::absolute(samples, error).lexically_relative(folder);
  if (relative.empty() || *relative.begin() == "..") return samples.filename().string();
  return relative.string();
}

int run_fit(const FitVerbOptions& options, Console& console) {
  if (!options.out.empty() && !options.force && fs::exists(options.out)) {
    throw Error(ErrorCategory::usage, fmt::format("{}: exists; --force replaces it", options.out));
  }
  FitOptions fit_options;
  fit_options.hold_out = !options.all;
  fit_options.seed =
      static_cast<unsigned long long>(parse_count("--seed", options.seed, {0, 2e9, ""}));
  fit_options.num_bootstrap =
      parse_count("--bootstrap", options.num_bootstrap, {0, 100'000, "resamples"});

  const SampleFile samples = read_samples(options.samples);
  for (const auto& warning : samples.warnings) console.warn(warning);
  LinkProfile profile = profile_from_samples(samples, fit(samples.samples, fit_options));
  if (!options.name.empty()) profile.name = options.name;
  if (!options.note.empty()) profile.provenance.note = options.note;
  stamp(profile.provenance, console.command_line);
  profile.samples_file =
      relative_samples(options.samples, options.out.empty() ? "link.json" : options.out);
  const std::string text = format_link(profile);
  profile.hash = sha256_hex(text);
  if (!options.out.empty()) {
    write_text_file(options.out, text, options.force ? Overwrite::yes : Overwrite::no);
  }

  console.print("{}  {} rows, {} store kind{}   {}\n", console.tone(Tone::strong, profile.name),
                samples.samples.size(), profile.kinds.size(), profile.kinds.size() == 1 ? "" : "s",
                describe_pair(profile));
  console.print("{}", params_table(profile.kinds));
  console.print("{}", held_out_table(profile.kinds));
  if (const auto table = capacity_table(profile.kinds); !table.empty()) {
    console.print("\n{}", table);
  }
  if (const auto lines = unidentified_lines(profile.kinds); !lines.empty()) {
    console.print("\n{}", lines);
  }
  if (!options.out.empty()) console.print("\nwrote {}\n", options.out);
  console.result("samples_sha256", samples.hash);
  console.result("link", Json::parse(text));
  console.next(options.out.empty()
                   ? fmt::format("xstage fit {} --out link.json", options.samples)
                   : fmt::format("xstage predict --link {} --bytes 32K --gap 8us", options.out));
  return 0;
}

}  // namespace

Action setup_fit(CLI::App& app) {
  auto options = std::make_shared<FitVerbOptions>();
  app.add_option("SAMPLES", options->samples,
                 "CSV of samples (docs/measuring.md), - for standard input")
      ->required()
      ->type_name("");
  app.add_option("--out", options->out, "Write the link profile to this file")->type_name("FILE");
  app.add_flag("--force", options->force, "Replace that file");
  app.add_option("--name", options->name, "Name of the profile; left out: what the samples say")
      ->type_name("NAME");
  app.add_option("--note", options->note, "Where the samples are from, for whoever reads it later")
      ->type_name("TEXT");
  app.add_flag("--all", options->all,
               "Fit every sample, the held-out ones as well; then no error can be given");
  app.add_option("--seed", options->seed, "Of the resampling that gives the intervals")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--bootstrap", options->num_bootstrap, "Resamples for the intervals")
      ->type_name("N")
      ->capture_default_str();
  app.footer("example: xstage fit profiles/h200-nv18.csv --out link.json");
  return [options](Console& console) { return run_fit(*options, console); };
}

}  // namespace xstage::cli
