// xstage probe: measure a link, keep the raw samples, fit them, write the link profile.
#include "xstage/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/fit_view.hpp"
#include "cli/link_option.hpp"
#include "cli/provenance.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/text.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"

namespace xstage::cli {
namespace {

namespace fs = std::filesystem;

struct ProbeVerbOptions {
  std::string device;
  std::string peer;
  std::string kind;
  std::string producers;
  std::string bytes;
  std::string min;
  std::string max;
  std::string factor = "2";
  std::string gap;
  std::string parts;
  std::string rounds = "0";
  std::string bursts = "0";
  std::string timeout = "300s";
  std::string seed = "1";
  std::string out;
  bool quick = false;
  bool force = false;
  bool tables = false;
};

ProbeOptions parse_options(const ProbeVerbOptions& text) {
  ProbeOptions options;
  if (!text.device.empty()) options.devices = split_list("--device", text.device);
  options.peer = text.peer;
  if (!text.kind.empty()) {
    for (const auto& word : split_list("--kind", text.kind)) {
      options.kinds.push_back(parse_store_kind(word));
    }
  }
  if (!text.producers.empty()) {
    options.producers = parse_list("--producers", text.producers, [](auto option, auto word) {
      return parse_count(option, word, {1, 1e5, "the SMs of the source are checked later"});
    });
  }
  const bool is_sweep = !text.min.empty() || !text.max.empty();
  if (is_sweep && (!text.bytes.empty() || text.min.empty() || text.max.empty())) {
    throw Error(ErrorCategory::usage, "--min and --max belong together and exclude --bytes");
  }
  if (is_sweep) options.bytes = size_sweep(text.min, text.max, text.factor);
  if (!text.bytes.empty()) {
    options.bytes = parse_list("--bytes", text.bytes, [](auto option, auto word) {
      return parse_size(option, word, kSizeRange);
    });
  }
  if (!text.gap.empty()) {
    options.gaps_ns = parse_list("--gap", text.gap, [](auto option, auto word) {
      return parse_time(option, word, {0, 1e9, "1 s"});
    });
  }
  if (!text.parts.empty()) options.parts = split_list("--parts", text.parts);
  options.num_rounds = parse_count("--rounds", text.rounds, {0, 1e6, "0: until the noise is low"});
  options.num_bursts = parse_count("--bursts", text.bursts, {0, 1e6, "0: the default"});
  options.timeout_s = parse_time("--timeout", text.timeout, {1e8, 3.6e12, "0.1 s to 1 h"}) / 1e9;
  options.seed = static_cast<std::uint64_t>(parse_count("--seed", text.seed, {0, 2e9, ""}));
  options.quick = text.quick;
  return options;
}

#ifdef XSTAGE_HAS_PROBE
ProbeResult run_on_gpu(const ProbeOptions& options) {
  return probe(options);
}
#else
ProbeResult run_on_gpu(const ProbeOptions& /*options*/) {
  throw Error(
      ErrorCategory::not_possible,
      "this build of xstage has no CUDA support and cannot measure; build it where nvcc is");
}
#endif

// "NVIDIA H200 NVL" -> a word for file names: lower case, dashes
std::string slug(std::string_view text) {
  std::string word;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty() && word.back() != '-') {
      word += '-';
    }
  }
  while (!word.empty() && word.back() == '-') word.pop_back();
  return word;
}

std::string endpoint_slug(const Endpoint& end) {
  std::string word = slug(end.name.empty() ? "unknown" : end.name);
  if (end.uuid.size() > 12) word += "-" + slug(end.uuid.substr(4, 8));
  return word;
}

struct PairFiles {
  fs::path link;
  fs::path samples;
  fs::path tables;
};

// --out may name a folder, or the link.json of the only pair.
PairFiles files_of(const ProbedPair& pair, const std::string& out, std::string& name) {
  std::string date = pair.provenance.date;
  std::replace(date.begin(), date.end(), ':', '-');
  name =
      fmt::format("{}-to-{}-{}", endpoint_slug(pair.source), endpoint_slug(pair.destination), date);
  fs::path folder = out.empty() ? probe_directory() : fs::path(out);
  if (folder.extension() == ".json") {
    name = folder.stem().string();
    folder = folder.parent_path();
  }
  return {folder / (name + ".json"), folder / (name + ".csv"), folder / (name + ".tables.json")};
}

Json tables_json(const std::vector<Table>& tables) {
  Json json = Json::array();
  for (const auto& table : tables) {
    Json rows = Json::array();
    for (const auto& row : table.rows) {
      Json cells = Json::array();
      for (const auto& cell : row) {
        if (const auto* number = std::get_if<double>(&cell)) {
          cells.push_back(std::isfinite(*number) ? Json(*number) : Json(nullptr));
        } else {
          cells.push_back(std::get<std::string>(cell));
        }
      }
      rows.push_back(std::move(cells));
    }
    json.push_back({{"name", table.name}, {"columns", table.columns}, {"rows", std::move(rows)}});
  }
  return json;
}

void print_table(const Table& table, Console& console) {
  io::TextTable text(table.columns);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const auto& cell : row) {
      const auto* number = std::get_if<double>(&cell);
      cells.push_back(number != nullptr ? io::format_number(*number) : std::get<std::string>(cell));
    }
    text.add(std::move(cells));
  }
  console.print("\n{}\n{}", console.tone(Tone::strong, table.name), text.str());
}

void print_measurements(const std::vector<Measurement>& measurements, Console& console) {
  if (measurements.empty()) return;
  using enum io::TextTable::Align;
  io::TextTable table({"measured besides", "value", "unit", ""}, {left, right, left, left});
  for (const auto& m : measurements) {
    table.add({m.name, io::format_number(m.value), m.unit,
               m.interval ? fmt::format("95 %: {} to {}", io::format_number(m.interval->low),
                                        io::format_number(m.interval->high))
                          : ""});
  }
  console.print("\n{}", table.str());
}

// A noisy machine has much to warn of: the first few, and where the rest is.
void show_warnings(const std::vector<std::string>& warnings, const fs::path& file,
                   const Console& console) {
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < std::min(kShown, warnings.size()); ++i) console.warn(warnings[i]);
  if (warnings.size() > kShown) {
    console.warn(fmt::format("and {} more like these, in {}", warnings.size() - kShown,
                             file.empty() ? "the output of --json" : file.string()));
  }
}

class PairWriter {
 public:
  PairWriter(const ProbeVerbOptions& options, Console& console)
      : options_(options), console_(console) {}

  // Returns the pair's exit code.
  int write(const ProbedPair& pair) {
    LinkProfile profile = profile_of(pair);
    Json json = {{"pair", describe_pair(profile)}};
    console_.print("{}\n", console_.tone(Tone::strong, describe_pair(profile)));
    json["warnings"] = pair.warnings;
    int code = 0;
    if (!pair.failure.empty()) {
      show_warnings(pair.warnings, {}, console_);
      console_.print("{}\n", console_.tone(Tone::bad, "failed: " + pair.failure));
      json["failure"] = pair.failure;
      code = static_cast<int>(pair.failure_category);
    } else {
      write_files(pair, profile, json);
    }
    pairs_.push_back(std::move(json));
    return code;
  }

  [[nodiscard]] Json take_json() { return std::move(pairs_); }
  [[nodiscard]] const std::string& last_link() const { return last_link_; }

 private:
  LinkProfile profile_of(const ProbedPair& pair) const {
    LinkProfile profile;
    profile.link = pair.link;
    profile.source = pair.source;
    profile.destination = pair.destination;
    profile.provenance = pair.provenance;
    if (profile.provenance.date.empty()) profile.provenance.date = utc_now();
    stamp(profile.provenance, console_.command_line);
    profile.measurements = pair.measurements;
    return profile;
  }

  void write_file(const fs::path& path, const std::string& text, const char* key, Json& json) {
    write_text_file(path, text, options_.force ? Overwrite::yes : Overwrite::no);
    json[key] = path.string();
    written_.push_back(path.string());
  }

  void write_files(const ProbedPair& pair, LinkProfile& profile, Json& json) {
    ProbedPair dated = pair;
    dated.provenance = profile.provenance;
    const PairFiles files = files_of(dated, options_.out, profile.name);
    std::error_code error;
    if (files.link.has_parent_path()) fs::create_directories(files.link.parent_path(), error);

    SampleFile samples;
    samples.name = profile.name;
    samples.link = profile.link;
    samples.source = profile.source;
    samples.destination = profile.destination;
    samples.provenance = profile.provenance;
    samples.samples = pair.samples;
    write_file(files.samples, format_samples(samples), "samples_file", json);
    if (!pair.tables.empty() || !pair.warnings.empty()) {
      Json tables = {{"schema", "xstage.tables"}, {"version", 1}, {"name", profile.name}};
      tables["date"] = profile.provenance.date;
      tables["command_line"] = profile.provenance.command_line;
      tables["warnings"] = pair.warnings;
      tables["tables"] = tables_json(pair.tables);
      write_file(files.tables, io::format_json(tables), "tables_file", json);
      json["tables"] = tables_json(pair.tables);
    }
    show_warnings(pair.warnings, files.tables, console_);
    fit_and_write(pair, files, profile, json);
    print_measurements(pair.measurements, console_);
    print_tables(pair.tables, files.tables);
    console_.print("\nwrote {}\n", fmt::join(written_, "\n      "));
    written_.clear();
  }

  // The tables are long: all of them on request, else where they are.
  void print_tables(const std::vector<Table>& tables, const fs::path& file) {
    if (tables.empty()) return;
    if (options_.tables) {
      for (const auto& table : tables) print_table(table, console_);
      return;
    }
    std::string names;
    for (const auto& table : tables) names += (names.empty() ? "" : ", ") + table.name;
    console_.print("\ntables in {} (--tables prints them):\n  {}\n", file.filename().string(),
                   names);
  }

  // Samples that cannot be fitted are kept all the same.
  void fit_and_write(const ProbedPair& pair, const PairFiles& files, LinkProfile& profile,
                     Json& json) {
    try {
      profile.kinds = fit(pair.samples).kinds;
      for (auto& kind : profile.kinds) {
        kind.params.load_rate_loss =
            load_rate_loss(pair.tables, kind.params.kind, pair.source.num_sms);
        kind.params.load_bypass_bytes = load_bypass_bytes(
            pair.tables, kind.params.kind, pair.source.num_sms, kind.params.drain_rate);
      }
    } catch (const Error& error) {
      console_.warn(fmt::format("no link profile: {}", error.what()));
      return;
    }
    profile.samples_file = files.samples.filename().string();
    const std::string text = format_link(profile);
    write_file(files.link, text, "link_file", json);
    last_link_ = options_.out.empty() ? profile.name : files.link.string();
    json["link"] = Json::parse(text);
    console_.print("{}", params_table(profile.kinds));
    console_.print("{}", held_out_table(profile.kinds));
    if (const auto table = capacity_table(profile.kinds); !table.empty()) {
      console_.print("\n{}", table);
    }
    if (const auto lines = unidentified_lines(profile.kinds); !lines.empty()) {
      console_.print("\n{}", lines);
    }
  }

  const ProbeVerbOptions& options_;
  Console& console_;
  Json pairs_ = Json::array();
  std::vector<std::string> written_;
  std::string last_link_;
};

int run_probe(const ProbeVerbOptions& text, Console& console) {
  ProbeOptions options = parse_options(text);
  if (fs::path(text.out).extension() == ".json" && !text.force && fs::exists(text.out)) {
    throw Error(ErrorCategory::usage, fmt::format("{}: exists; --force replaces it", text.out));
  }
  options.progress = [&console](std::string_view part, double done) {
    console.progress(fmt::format("{:3.0f} %  {}", 100 * done, part));
  };
  console.next("xstage doctor");
  const ProbeResult result = run_on_gpu(options);
  if (result.pairs.size() > 1 && fs::path(text.out).extension() == ".json") {
    throw Error(ErrorCategory::usage,
                fmt::format("--out {}: {} pairs were probed; legal is a folder", text.out,
                            result.pairs.size()));
  }
  PairWriter writer(text, console);
  int code = 0;
  for (const auto& pair : result.pairs) {
    const int pair_code = writer.write(pair);
    if (code == 0) code = pair_code;
  }
  console.result("schema", "xstage.probe");
  console.result("version", 1);
  console.result("pairs", writer.take_json());
  console.next(
      writer.last_link().empty()
          ? "xstage doctor"
          : fmt::format("xstage predict --link {} --bytes 32K --gap 8us", writer.last_link()));
  return code;
}

}  // namespace

Action setup_probe(CLI::App& app) {
  auto options = std::make_shared<ProbeVerbOptions>();
  const auto add = [&app](const char* name, std::string& value, const char* what,
                          const char* type) {
    return app.add_option(name, value, what)->type_name(type);
  };
  add("--device", options->device, "Source GPUs: index or UUID; left out: all", "LIST");
  add("--peer", options->peer,
      "Destination: GPU index or UUID, host (pinned host memory) or local (the control); left out: "
      "every accessible GPU, else host",
      "PEER");
  add("--kind", options->kind, "Store kinds; left out: register16, bulk, tensor", "LIST");
  add("--producers", options->producers, "SMs that store at once; left out: the documented grid",
      "LIST");
  add("--bytes", options->bytes, "Bytes of each producer in a burst; left out: the grid", "LIST");
  add("--min", options->min, "Smallest size of a sweep instead of --bytes", "SIZE");
  add("--max", options->max, "Largest size of the sweep", "SIZE");
  add("--factor", options->factor, "Step of the sweep", "X")->capture_default_str();
  add("--gap", options->gap, "Gaps between periodic bursts; left out: the grid", "LIST");
  add("--parts", options->parts, "Parts of the probe (docs/measuring.md); left out: all", "LIST");
  add("--rounds", options->rounds, "Rounds of each point; 0: until the noise is low", "N")
      ->capture_default_str();
  add("--bursts", options->bursts, "Bursts of each periodic point; 0: the default", "N")
      ->capture_default_str();
  app.add_flag("--tables", options->tables, "Print the tables that go to the tables file");
  app.add_flag("--quick", options->quick, "Canary, R, T0 and q only: under 10 s a pair");
  add("--timeout", options->timeout, "Deadline of every wait", "TIME")->capture_default_str();
  add("--seed", options->seed, "Of the order of points and of the payload", "N")
      ->capture_default_str();
  add("--out", options->out,
      "Folder for the results, or the link.json of the only pair; left out: where probes of this "
      "machine are kept",
      "PATH");
  app.add_flag("--force", options->force, "Replace files that exist");
  app.footer("example: xstage probe --quick --peer host --out link.json");
  return [options](Console& console) { return run_probe(*options, console); };
}

}  // namespace xstage::cli
