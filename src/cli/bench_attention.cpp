// xstage bench attention: our attention on this GPU, beside what its tensor cores do at best.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "attention/benchmark.hpp"
#include "cli/provenance.hpp"
#include "cli/values.hpp"
#include "cli/verb.hpp"
#include "io/text.hpp"
#include "model/robust.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/tile_costs.hpp"
#include "xstage/workload.hpp"

namespace xstage::cli {
namespace {

using attention::BenchRow;
using attention::BenchShape;

struct AttentionBenchOptions {
  std::vector<std::string> workloads;
  std::string shapes;
  std::string ranks = "1";
  std::string device = "0";
  std::string rounds = "0";
  std::string seconds = "1s";
  std::string seed = "1";
  std::string out;
  std::string costs;
  bool force = false;
};

constexpr int kBootstrapDraws = 1000;
constexpr double kMaxTensorBytes = 32.0 * (1 << 30);  // of q; what a GPU of today may hold

// Without workloads and shapes: one of each kind of wave, length, mask and head size.
constexpr std::string_view kDefaultShapes =
    "1x4608x24,1x16384x16,1x16384x16:causal,1x32760x20,1x4608x12,1x8704x12,1x4416x16:kv4,"
    "1x8192x4,4x4096x16,1x17776x30x64,1x17776x30x64:causal";

std::string name_of(const BenchShape& s) {
  std::string name = fmt::format("{}x{}x{}x{}", s.num_batches, s.num_rows, s.num_heads, s.head_dim);
  if (s.num_kv_heads != s.num_heads) name += fmt::format(":kv{}", s.num_kv_heads);
  if (s.causal) name += ":causal";
  if (s.dtype != DataType::bf16) name += fmt::format(":{}", to_string(s.dtype));
  return name;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void check_shape(const BenchShape& s, std::string_view option, std::string_view word) {
  if (s.head_dim != 64 && s.head_dim != 128) {
    fail_value(option, word, fmt::format("head dimensions 64 and 128, not {}", s.head_dim));
  }
  if (s.num_heads % s.num_kv_heads != 0) {
    fail_value(option, word, fmt::format("KV heads that divide {} heads", s.num_heads));
  }
  const double bytes = 2.0 * static_cast<double>(s.num_batches * s.num_rows) *
                       static_cast<double>(s.num_heads * s.head_dim);
  if (bytes > kMaxTensorBytes) {
    fail_value(option, word, fmt::format("up to {} for q", io::format_bytes(kMaxTensorBytes)));
  }
}

// "1x4608x24", "1x4416x16x128:kv4:causal:fp16".
BenchShape parse_shape(std::string_view option, std::string_view word) {
  constexpr std::string_view kLegal =
      "BATCHxROWSxHEADS[xHEAD_DIM] with :kvN, :causal, :bf16 or :fp16 behind it";
  const auto parts = split(word, ':');
  const auto sizes = split(parts.front(), 'x');
  if (sizes.size() < 3 || sizes.size() > 4) fail_value(option, word, kLegal);
  BenchShape s;
  s.num_batches = parse_count(option, sizes[0], {1, 65535, "batches"});
  s.num_rows = parse_count(option, sizes[1], {1, 16777216, "rows"});
  s.num_heads = parse_count(option, sizes[2], {1, 65535, "heads"});
  s.num_kv_heads = s.num_heads;
  if (sizes.size() == 4) s.head_dim = parse_count(option, sizes[3], {64, 128, "64 or 128"});
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i] == "causal") {
      s.causal = true;
    } else if (parts[i] == "bf16" || parts[i] == "fp16") {
      s.dtype = parse_data_type(parts[i]);
    } else if (parts[i].size() > 2 && parts[i].starts_with("kv")) {
      s.num_kv_heads = parse_count(option, parts[i].substr(2), {1, 65535, "KV heads"});
    } else {
      fail_value(option, word, kLegal);
    }
  }
  check_shape(s, option, word);
  return s;
}

// What one of `num_ranks` ranks computes of a workload: its share of the heads.
BenchShape shape_of(const std::string& name, int num_ranks) {
  const Workload workload = read_workload(find_workload(name));
  const auto* op = std::get_if<AttentionWorkload>(&workload.op);
  if (op == nullptr) {
    throw Error(ErrorCategory::usage,
                fmt::format("{} is a mixture of experts: legal are attention workloads", name));
  }
  const int num_kv_heads = op->num_kv_heads > 0 ? op->num_kv_heads : op->num_heads;
  if (op->num_heads % num_ranks != 0 || num_kv_heads % num_ranks != 0) {
    throw Error(ErrorCategory::usage,
                fmt::format("--ranks {}: legal are divisors of {} heads and {} KV heads ({})",
                            num_ranks, op->num_heads, num_kv_heads, name));
  }
  BenchShape s;
  s.dtype = op->dtype;
  s.num_batches = op->batch;
  s.num_rows = op->sequence;
  s.num_heads = op->num_heads / num_ranks;
  s.num_kv_heads = num_kv_heads / num_ranks;
  s.head_dim = op->head_dim;
  s.causal = op->causal;
  check_shape(s, "workload", name);
  return s;
}

std::vector<BenchShape> all_shapes(const AttentionBenchOptions& text) {
  std::vector<BenchShape> shapes;
  const int num_ranks = parse_count("--ranks", text.ranks, {1, Workload::kMaxRanks, ""});
  for (const auto& name : text.workloads) shapes.push_back(shape_of(name, num_ranks));
  if (num_ranks != 1 && text.workloads.empty()) {
    throw Error(ErrorCategory::usage, "--ranks divides the heads of workloads: name some");
  }
  std::string_view list = text.shapes;
  if (list.empty() && shapes.empty()) list = kDefaultShapes;
  if (!list.empty()) {
    for (const auto& shape : parse_list("--shapes", list, parse_shape)) shapes.push_back(shape);
  }
  return shapes;
}

#ifdef XSTAGE_HAS_ATTENTION
attention::BenchMachine machine_of(int device) {
  return attention::bench_machine(device);
}
BenchRow measure(const BenchShape& shape, const attention::BenchOptions& options) {
  return attention::bench_attention(shape, options);
}
double operations_of(const BenchShape& shape) {
  return attention::num_operations(shape);
}
#else
[[noreturn]] void not_built() {
  throw Error(
      ErrorCategory::not_possible,
      "this build of xstage has no CUDA support and cannot run kernels; build it where nvcc "
      "is");
}
attention::BenchMachine machine_of(int /*device*/) {
  not_built();
}
BenchRow measure(const BenchShape& /*shape*/, const attention::BenchOptions& /*options*/) {
  not_built();
}
double operations_of(const BenchShape& /*shape*/) {
  not_built();
}
#endif

// Median with its 95 % interval over rounds.
struct Estimate {
  double median = NAN;
  std::optional<Interval> interval;
};

Estimate estimate(const std::vector<double>& values, std::uint64_t seed) {
  Estimate e{model::median(values), std::nullopt};
  e.interval = model::bootstrap(values.size(), kBootstrapDraws, seed, [&](const auto& drawn) {
    std::vector<double> sample;
    for (const std::size_t idx : drawn) sample.push_back(values[idx]);
    return std::optional<double>(model::median(std::move(sample)));
  });
  return e;
}

Json to_json(const Estimate& e) {
  Json json = {{"median", std::isfinite(e.median) ? Json(e.median) : Json(nullptr)}};
  json["interval"] = e.interval ? Json::array({e.interval->low, e.interval->high}) : Json(nullptr);
  return json;
}

struct Derived {
  Estimate call_ns;
  Estimate tflops;
  Estimate of_dense;  // of the rate of plain products in the same round
  Estimate of_clock;  // of what the tensor cores could do at the clock that they ran at
};

// 4 tensor cores an SM, 512 multiply-adds of 16-bit numbers a cycle each.
constexpr double kOperationsPerCycle = 4096;

Derived derive(const BenchRow& row, int num_sms, std::uint64_t seed) {
  const double operations = operations_of(row.shape);
  std::vector<double> tflops;
  std::vector<double> of_dense;
  std::vector<double> of_clock;
  for (std::size_t i = 0; i < row.call_ns.size(); ++i) {
    tflops.push_back(operations / row.call_ns[i] / 1e3);
    of_dense.push_back(tflops[i] / row.dense_tflops[i]);
    of_clock.push_back(tflops[i] * 1e6 / (kOperationsPerCycle * num_sms * row.sm_mhz[i]));
  }
  return {estimate(row.call_ns, seed), estimate(tflops, seed), estimate(of_dense, seed),
          estimate(of_clock, seed)};
}

Json row_json(const BenchRow& row, const Derived& d) {
  const BenchShape& s = row.shape;
  Json json = {{"shape", name_of(s)},
               {"batch", s.num_batches},
               {"rows", s.num_rows},
               {"heads", s.num_heads},
               {"kv_heads", s.num_kv_heads},
               {"head_dim", s.head_dim},
               {"dtype", to_string(s.dtype)},
               {"causal", s.causal},
               {"operations", operations_of(s)}};
  json["repeats"] = row.num_repeats;
  json["call_ns"] = to_json(d.call_ns);
  json["tflops"] = to_json(d.tflops);
  json["of_dense_rate"] = to_json(d.of_dense);
  json["of_clock_peak"] = to_json(d.of_clock);
  json["relative_error"] = row.relative_error;
  json["relative_error_bound"] = row.error_bound;
  json["checked_rows"] = row.num_checked_rows;
  const auto median_or_null = [](const std::vector<double>& values) {
    return values.empty() ? Json(nullptr) : Json(model::median(values));
  };
  json["sm_mhz"] = median_or_null(row.sm_mhz);
  json["nvml_sm_mhz"] = median_or_null(row.nvml_mhz);
  json["nvml_watts"] = median_or_null(row.watts);
  json["rounds"] = {{"call_ns", row.call_ns},
                    {"dense_tflops", row.dense_tflops},
                    {"sm_mhz", row.sm_mhz},
                    {"nvml_sm_mhz", row.nvml_mhz},
                    {"nvml_watts", row.watts}};
  return json;
}

std::string with_interval(const Estimate& e, const char* format) {
  std::string text = fmt::format(fmt::runtime(format), e.median);
  if (e.interval) {
    text += fmt::format(" ({}..{})", fmt::format(fmt::runtime(format), e.interval->low),
                        fmt::format(fmt::runtime(format), e.interval->high));
  }
  return text;
}

// Costs of our kernels in place of those of the file that ships; what is not measured stays.
TileCosts costs_from(const std::vector<BenchRow>& rows, const attention::BenchMachine& machine,
                     const std::string& date, Console& console) {
  TileCosts costs = read_costs(find_costs(""));
  std::string covered;
  for (AttentionCost& cost : costs.attention) {
    std::vector<AttentionTiming> timings;
    for (const BenchRow& row : rows) {
      if (row.shape.causal || row.shape.dtype != cost.dtype ||
          row.shape.head_dim != cost.head_dim) {
        continue;
      }
      timings.push_back({static_cast<double>(row.work.num_steps),
                         static_cast<double>(row.work.num_tiles),
                         static_cast<double>(row.work.num_parts), model::median(row.call_ns)});
      cost.block_rows = row.work.block_rows;
      cost.block_keys = row.work.block_keys;
    }
    const std::string kind = fmt::format("{} D={}", to_string(cost.dtype), cost.head_dim);
    if (timings.empty()) {
      console.warn(fmt::format("costs: no full {} shape was measured, kept as they were", kind));
      continue;
    }
    const AttentionCostFit fit = fit_attention_cost(timings, costs.launch_ns);
    cost.step_ns = std::round(fit.step_ns);
    cost.tile_ns = std::round(fit.tile_ns);
    cost.part_ns = std::round(fit.part_ns);
    cost.estimated = false;
    covered += fmt::format("{}{} from {} shapes within {}", covered.empty() ? "" : ", ", kind,
                           timings.size(), io::format_percent(fit.worst_error));
  }
  costs.gpu = machine.gpu;
  costs.num_sms = machine.num_sms;
  costs.source =
      fmt::format("Attention: {}, {}. Before that: {}", date.substr(0, 10), covered, costs.source);
  return costs;
}

int run_bench(const AttentionBenchOptions& text, Console& console) {
  attention::BenchOptions options;
  options.device = parse_count("--device", text.device, {0, 1023, ""});
  options.num_rounds = parse_count("--rounds", text.rounds, {0, 10000, "0: as many as fit"});
  options.seconds = parse_time("--seconds", text.seconds, {1e6, 6e11, "10 minutes"}) / 1e9;
  options.seed = static_cast<std::uint64_t>(parse_count("--seed", text.seed, {0, 2e9, ""}));
  const auto shapes = all_shapes(text);
  const Overwrite overwrite = text.force ? Overwrite::yes : Overwrite::no;
  for (const std::string& file : {text.out, text.costs}) {
    if (!file.empty() && !text.force && std::filesystem::exists(file)) {
      throw Error(ErrorCategory::usage, fmt::format("{}: exists; --force replaces it", file));
    }
  }
  console.next("xstage doctor");
  const attention::BenchMachine machine = machine_of(options.device);

  using enum io::TextTable::Align;
  io::TextTable table({"batch x rows x heads x dim", "us a call", "TFLOP/s", "of dense rate",
                       "of peak at its clock", "SM MHz", "error"},
                      {left, right, right, right, right, right, right});
  std::vector<BenchRow> rows;
  Json json_rows = Json::array();
  std::string failures;
  for (const BenchShape& shape : shapes) {
    const std::string name = name_of(shape);
    options.progress = [&](std::string_view what) {
      console.progress(fmt::format("{}/{}  {}  {}", rows.size() + 1, shapes.size(), name, what));
    };
    rows.push_back(measure(shape, options));
    const BenchRow& row = rows.back();
    const Derived d = derive(row, machine.num_sms, options.seed);
    json_rows.push_back(row_json(row, d));
    const bool good = row.relative_error <= row.error_bound;  // false for not-a-number
    const std::string error = fmt::format("{:.2e}", row.relative_error);
    if (!good) failures += fmt::format("{}{} {}", failures.empty() ? "" : ", ", name, error);
    table.add({name, with_interval({d.call_ns.median / 1e3, std::nullopt}, "{:.1f}"),
               with_interval(d.tflops, "{:.0f}"), with_interval(d.of_dense, "{:.3f}"),
               with_interval(d.of_clock, "{:.3f}"),
               fmt::format("{:.0f}", model::median(row.sm_mhz)), error});
  }
  const std::string date = utc_now();
  Provenance provenance;
  stamp(provenance, console.command_line);
  Json result = {{"schema", "xstage.bench_attention"}, {"version", 1}};
  result["date"] = date;
  result["tool_version"] = provenance.tool_version;
  result["commit"] = provenance.commit;
  result["command_line"] = provenance.command_line;
  result["seed"] = options.seed;
  result["gpu"] = {{"name", machine.gpu},
                   {"uuid", machine.uuid},
                   {"num_sms", machine.num_sms},
                   {"driver_cuda", machine.driver},
                   {"runtime_cuda", machine.runtime}};
  result["rows"] = json_rows;
  for (const auto& [key, value] : result.items()) console.result(key, value);
  console.print("{}, {} SMs; median over rounds (95 % interval)\n\n{}", machine.gpu,
                machine.num_sms, table.str());
  if (!text.out.empty()) {
    write_text_file(text.out, io::format_json(result), overwrite);
    console.print("\nwrote {}\n", text.out);
  }
  if (!failures.empty()) {
    throw Error(ErrorCategory::check_failed, "relative error above its bound: " + failures);
  }
  if (!text.costs.empty()) {
    write_text_file(text.costs, format_costs(costs_from(rows, machine, date, console)), overwrite);
    console.print("{}wrote {}\n", text.out.empty() ? "\n" : "", text.costs);
    console.next(
        fmt::format("xstage plan flux.1-dev-1024 --link h200-nv18 --costs {}", text.costs));
  } else {
    console.next("xstage bench attention --costs costs.json   (for xstage plan)");
  }
  return 0;
}

}  // namespace

Action setup_bench_attention(CLI::App& app) {
  auto options = std::make_shared<AttentionBenchOptions>();
  const auto add = [&app](const char* name, std::string& value, const char* what,
                          const char* type) {
    return app.add_option(name, value, what)->type_name(type);
  };
  app.add_option("workloads", options->workloads,
                 "Attention workloads: names of those that ship, or files")
      ->type_name("WORKLOAD");
  add("--shapes", options->shapes,
      "BATCHxROWSxHEADS[xHEAD_DIM][:kvN][:causal][:fp16], e.g. 1x4608x24,1x4416x16:kv4; left out "
      "without workloads: a set of eleven",
      "LIST");
  add("--ranks", options->ranks, "Measure what one of so many ranks computes of a workload", "N")
      ->capture_default_str();
  add("--device", options->device, "GPU", "N")->capture_default_str();
  add("--rounds", options->rounds, "Rounds of each shape; 0: as many as fit --seconds", "N")
      ->capture_default_str();
  add("--seconds", options->seconds, "Measuring time of each shape, about", "TIME")
      ->capture_default_str();
  add("--seed", options->seed, "Of the inputs and of the rows that are checked", "N")
      ->capture_default_str();
  add("--out", options->out, "Also write the result, all rounds, to this file", "FILE");
  add("--costs", options->costs, "Write tile costs for xstage plan to this file", "FILE");
  app.add_flag("--force", options->force, "Replace files that exist");
  app.footer("example: xstage bench attention --shapes 1x4608x24 --out result.json");
  return [options](Console& console) { return run_bench(*options, console); };
}

}  // namespace xstage::cli
