// link.json: a LinkProfile as text. The schema is in docs/measuring.md.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "io/file_io.hpp"
#include "io/json_reader.hpp"
#include "io/metadata.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"

namespace xstage {
namespace {

using io::Json;
using io::JsonCursor;

constexpr std::string_view kSchemaName = "xstage.link";
constexpr std::string_view kUnbounded =
    "unbounded";  // a stage without a limit: JSON has no infinity

// ---- writing ----

// Whole numbers are written without a fraction; what is not finite is null.
Json number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < kExact) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

std::string why_missing(const KindFit& fit, std::string_view quantity) {
  for (const auto& entry : fit.unidentified) {
    if (entry.quantity == quantity) return entry.reason;
  }
  return "not measured";
}

Json format_quantity(const KindFit& fit, std::string_view name, std::string_view unit,
                     std::optional<double> value, const std::optional<Interval>& interval) {
  Json json;
  if (value && std::isinf(*value)) {
    json["value"] = kUnbounded;
  } else {
    json["value"] = value ? number(*value) : Json(nullptr);
  }
  json["unit"] = unit;
  if (!value) json["reason"] = why_missing(fit, name);
  if (interval) {
    json["low"] = number(interval->low);
    json["high"] = number(interval->high);
  }
  return json;
}

Json format_errors(const ErrorSummary& errors) {
  return {{"num_points", errors.num_points},
          {"median", number(errors.median)},
          {"p95", number(errors.p95)},
          {"worst", number(errors.worst)},
          {"worst_point", errors.worst_point}};
}

Json format_estimate(const std::optional<CapacityEstimate>& estimate) {
  if (!estimate) return nullptr;
  return {{"bytes", number(estimate->bytes)},
          {"low", number(estimate->interval.low)},
          {"high", number(estimate->interval.high)}};
}

Json format_kind(const KindFit& fit) {
  const LinkParams& params = fit.params;
  Json json;
  json["kind"] = to_string(params.kind);
  json["num_samples"] = fit.num_samples;
  const auto quantity = [&](std::string_view name, std::string_view unit,
                            std::optional<double> value,
                            const std::optional<Interval>& interval = std::nullopt) {
    json[std::string(name)] = format_quantity(fit, name, unit, value, interval);
  };
  quantity("drain_rate", "B/ns", params.drain_rate, fit.drain_rate_interval);
  quantity("injection_rate", "B/ns", params.injection_rate, fit.injection_rate_interval);
  quantity("capacity_mean_bytes", "bytes", params.capacity_mean_bytes, fit.capacity_mean_interval);
  quantity("capacity_slowest_bytes", "bytes", params.capacity_slowest_bytes,
           fit.capacity_slowest_interval);
  quantity("share_spread", "1", params.share_spread, fit.share_spread_interval);
  quantity("visible_latency_ns", "ns", params.visible_latency_ns);
  quantity("load_rate_loss", "1", params.load_rate_loss);
  quantity("load_bypass_bytes", "bytes", params.load_bypass_bytes);
  quantity("both_directions_factor", "1", params.both_directions_factor);
  json["issue_curve"] = Json::array();
  for (const auto& point : params.issue_curve) {
    json["issue_curve"].push_back(
        {{"bytes", number(point.bytes)}, {"issue_ns", number(point.issue_ns)}});
  }
  json["capacity_at_k"] = Json::array();
  for (const auto& row : fit.capacity_at_k) {
    json["capacity_at_k"].push_back(
        {{"num_producers", row.num_producers},
         {"num_points", row.num_points},
         {"by_mean", format_estimate(row.by_mean)},
         {"by_slowest", format_estimate(row.by_slowest)},
         {"by_mean_equal_shares", format_estimate(row.by_mean_equal_shares)},
         {"by_slowest_equal_shares", format_estimate(row.by_slowest_equal_shares)},
         {"share_spread", row.share_spread ? number(*row.share_spread) : Json(nullptr)}});
  }
  json["residuals"] = format_errors(fit.residuals);
  if (fit.held_out) {
    json["held_out"] = {{"burst_gap", format_errors(fit.held_out->burst_gap)},
                        {"coupled", format_errors(fit.held_out->coupled)},
                        {"unbounded", format_errors(fit.held_out->unbounded)},
                        {"alpha_beta", format_errors(fit.held_out->alpha_beta)},
                        {"period", format_errors(fit.held_out->period)},
                        {"isolated_slowest", format_errors(fit.held_out->isolated_slowest)},
                        {"near_onset_share", number(fit.held_out->near_onset_share)}};
  } else {
    json["held_out"] = nullptr;
  }
  json["unidentified"] = Json::array();
  for (const auto& entry : fit.unidentified) {
    json["unidentified"].push_back({{"quantity", entry.quantity}, {"reason", entry.reason}});
  }
  return json;
}

void put_metadata(Json& json, LinkProfile& profile) {
  for (const auto& field : io::metadata_fields(profile.name, profile.link, profile.source,
                                               profile.destination, profile.provenance)) {
    const std::size_t dot = field.name.find('.');
    Json& parent =
        dot == std::string_view::npos ? json : json[std::string(field.name.substr(0, dot))];
    Json& value =
        parent[std::string(field.name.substr(dot == std::string_view::npos ? 0 : dot + 1))];
    if (auto* const* text = std::get_if<std::string*>(&field.value)) {
      value = (*text)->empty() ? Json(nullptr) : Json(**text);
    } else if (auto* const* type = std::get_if<Endpoint::Type*>(&field.value)) {
      value = io::to_string(**type);
    } else if (auto* const* whole = std::get_if<int*>(&field.value)) {
      value = **whole == 0 ? Json(nullptr) : Json(**whole);
    } else {
      const double amount = *std::get<double*>(field.value);
      value = amount == 0 ? Json(nullptr) : number(amount);
    }
  }
}

// ---- reading ----

class Reader {
 public:
  Reader(const Json& json, std::string_view file_name) : root_(json, file_name, file_.warnings) {}

  LinkFile read() {
    if (root_.at("schema").text() != kSchemaName) {
      root_.at("schema").fail(fmt::format("'{}', this is not a link profile ('{}')",
                                          io::printable(root_.at("schema").text()), kSchemaName));
    }
    const JsonCursor version = root_.at("version");
    const int number = version.whole(0, std::numeric_limits<int>::max());
    if (number != LinkProfile::kSchemaVersion) {
      version.fail(fmt::format("schema version {}; this xstage reads {}", number,
                               LinkProfile::kSchemaVersion));
    }
    root_.known({"schema", "version", "name", "link", "source", "destination", "provenance",
                 "samples_file", "kinds", "measurements"});
    LinkProfile& profile = file_.profile;
    read_metadata(profile);
    if (const auto samples = root_.find("samples_file")) profile.samples_file = samples->text();
    std::set<StoreKind> seen;
    for (const auto& kind : root_.at("kinds").elements()) {
      profile.kinds.push_back(read_kind(kind));
      if (!seen.insert(profile.kinds.back().params.kind).second) kind.fail("this kind twice");
    }
    if (profile.kinds.empty()) root_.at("kinds").fail("no store kind");
    if (const auto measurements = root_.find("measurements")) {
      for (const auto& entry : measurements->elements()) {
        profile.measurements.push_back(read_measurement(entry));
      }
    }
    return std::move(file_);
  }

 private:
  void read_metadata(LinkProfile& profile) {
    for (const auto* const end : {"source", "destination"}) {
      root_.at(end).known({"type", "name", "uuid", "num_sms", "sm_clock_mhz"});
    }
    root_.at("provenance")
        .known({"date", "tool_version", "commit", "command_line", "driver", "runtime", "host",
                "note"});
    for (const auto& field : io::metadata_fields(profile.name, profile.link, profile.source,
                                                 profile.destination, profile.provenance)) {
      const std::size_t dot = field.name.find('.');
      const bool nested = dot != std::string_view::npos;
      const JsonCursor parent = nested ? root_.at(field.name.substr(0, dot)) : root_;
      const auto value = parent.find(field.name.substr(nested ? dot + 1 : 0));
      if (!value) continue;
      if (auto* const* text = std::get_if<std::string*>(&field.value)) {
        **text = value->text();
      } else if (auto* const* type = std::get_if<Endpoint::Type*>(&field.value)) {
        if (!io::parse_endpoint_type(value->text(), **type)) {
          value->fail(
              fmt::format("'{}': legal are {}", io::printable(value->text()), io::kEndpointWords));
        }
      } else if (auto* const* whole = std::get_if<int*>(&field.value)) {
        **whole = value->whole(0, static_cast<int>(field.max));
      } else {
        *std::get<double*>(field.value) = value->number(0, field.max);
      }
    }
    if (profile.name.empty()) root_.at("name").fail("a profile needs a name");
  }

  struct Quantity {
    std::optional<double> value;
    std::optional<Interval> interval;
  };

  static Quantity read_quantity(const JsonCursor& kind, std::string_view name,
                                std::string_view unit, double min, double max) {
    const auto json = kind.find(name);
    if (!json) return {};
    json->known({"value", "unit", "low", "high", "reason"});
    if (const auto said = json->find("unit"); said && said->text() != unit) {
      said->fail(fmt::format("'{}', expected '{}'", io::printable(said->text()), unit));
    }
    Quantity quantity;
    if (const auto value = json->find("value")) {
      if (value->is_text() && value->text() == kUnbounded) {
        quantity.value = std::numeric_limits<double>::infinity();
      } else {
        quantity.value = value->number(min, max);
      }
    }
    const auto low = json->find("low");
    const auto high = json->find("high");
    if (low && high) {
      quantity.interval = Interval{low->number(-max, max), high->number(-max, max)};
      if (quantity.interval->low > quantity.interval->high) low->fail("above 'high'");
    }
    return quantity;
  }

  static double required(const JsonCursor& kind, std::string_view name, const Quantity& quantity) {
    if (!quantity.value) kind.fail(fmt::format("'{}' has no value", name));
    if (std::isinf(*quantity.value)) kind.fail(fmt::format("'{}' must be finite", name));
    return *quantity.value;
  }

  static ErrorSummary read_errors(const JsonCursor& json) {
    json.known({"num_points", "median", "p95", "worst", "worst_point"});
    ErrorSummary errors;
    errors.num_points = json.at("num_points").whole(0, std::numeric_limits<int>::max());
    const auto number = [&json](std::string_view key) {
      const auto value = json.find(key);
      return value ? value->number(0, 1e12) : std::numeric_limits<double>::quiet_NaN();
    };
    errors.median = number("median");
    errors.p95 = number("p95");
    errors.worst = number("worst");
    if (const auto point = json.find("worst_point")) errors.worst_point = point->text();
    return errors;
  }

  static std::vector<IssuePoint> read_issue_curve(const JsonCursor& json) {
    std::vector<IssuePoint> curve;
    for (const auto& entry : json.elements()) {
      entry.known({"bytes", "issue_ns"});
      const IssuePoint point{entry.at("bytes").number(1, io::kMaxBytes),
                             entry.at("issue_ns").number(0, io::kMaxTimeNs)};
      if (!curve.empty() && point.bytes <= curve.back().bytes) {
        entry.at("bytes").fail("not above the point before");
      }
      curve.push_back(point);
    }
    if (curve.empty()) json.fail("at least one point is needed");
    return curve;
  }

  static std::optional<CapacityEstimate> read_estimate(const JsonCursor& row,
                                                       std::string_view name) {
    const auto json = row.find(name);
    if (!json) return std::nullopt;
    json->known({"bytes", "low", "high"});
    const auto bytes = [&json](std::string_view key) {
      return json->at(key).number(-io::kMaxBytes, io::kMaxBytes);
    };
    return CapacityEstimate{bytes("bytes"), {bytes("low"), bytes("high")}};
  }

  static CapacityAtK read_capacity(const JsonCursor& json) {
    json.known({"num_producers", "num_points", "by_mean", "by_slowest", "by_mean_equal_shares",
                "by_slowest_equal_shares", "share_spread"});
    CapacityAtK row;
    row.num_producers = json.at("num_producers").whole(1, io::kMaxProducers);
    row.num_points = json.at("num_points").whole(0, std::numeric_limits<int>::max());
    row.by_mean = read_estimate(json, "by_mean");
    row.by_slowest = read_estimate(json, "by_slowest");
    row.by_mean_equal_shares = read_estimate(json, "by_mean_equal_shares");
    row.by_slowest_equal_shares = read_estimate(json, "by_slowest_equal_shares");
    if (const auto spread = json.find("share_spread")) row.share_spread = spread->number(0, 1);
    return row;
  }

  static KindFit read_kind(const JsonCursor& json) {
    json.known({"kind", "num_samples", "drain_rate", "injection_rate", "capacity_mean_bytes",
                "capacity_slowest_bytes", "share_spread", "visible_latency_ns", "load_rate_loss",
                "load_bypass_bytes", "both_directions_factor", "issue_curve", "capacity_at_k",
                "residuals", "held_out", "unidentified"});
    KindFit fit;
    LinkParams& params = fit.params;
    try {
      params.kind = parse_store_kind(io::printable(json.at("kind").text()));
    } catch (const Error& error) {
      if (error.category() != ErrorCategory::usage) throw;
      json.at("kind").fail(error.what());
    }
    if (const auto count = json.find("num_samples")) {
      fit.num_samples = count->whole(0, std::numeric_limits<int>::max());
    }
    constexpr double kTiny = 1e-9;  // rates: zero would divide
    const auto drain = read_quantity(json, "drain_rate", "B/ns", kTiny, io::kMaxRate);
    params.drain_rate = required(json, "drain_rate", drain);
    fit.drain_rate_interval = drain.interval;
    const auto injection = read_quantity(json, "injection_rate", "B/ns", kTiny, io::kMaxRate);
    params.injection_rate = required(json, "injection_rate", injection);
    fit.injection_rate_interval = injection.interval;
    const auto mean = read_quantity(json, "capacity_mean_bytes", "bytes", 0, io::kMaxBytes);
    params.capacity_mean_bytes = mean.value;
    fit.capacity_mean_interval = mean.interval;
    const auto slowest = read_quantity(json, "capacity_slowest_bytes", "bytes", 0, io::kMaxBytes);
    params.capacity_slowest_bytes = slowest.value;
    fit.capacity_slowest_interval = slowest.interval;
    const auto spread = read_quantity(json, "share_spread", "1", 0, 1);
    params.share_spread = spread.value.value_or(0.0);
    fit.share_spread_interval = spread.interval;
    params.visible_latency_ns =
        read_quantity(json, "visible_latency_ns", "ns", 0, io::kMaxTimeNs).value;
    params.load_rate_loss = read_quantity(json, "load_rate_loss", "1", 0, 1e6).value;
    params.load_bypass_bytes =
        read_quantity(json, "load_bypass_bytes", "bytes", 0, io::kMaxBytes).value;
    params.both_directions_factor =
        read_quantity(json, "both_directions_factor", "1", 1e-6, 2).value.value_or(1.0);
    params.issue_curve = read_issue_curve(json.at("issue_curve"));
    if (const auto rows = json.find("capacity_at_k")) {
      for (const auto& row : rows->elements()) fit.capacity_at_k.push_back(read_capacity(row));
      use_capacity_at_k(fit);
    }
    if (const auto errors = json.find("residuals")) fit.residuals = read_errors(*errors);
    if (const auto held_out = json.find("held_out")) {
      held_out->known({"burst_gap", "coupled", "unbounded", "alpha_beta", "period",
                       "isolated_slowest", "near_onset_share"});
      fit.held_out.emplace();
      fit.held_out->burst_gap = read_errors(held_out->at("burst_gap"));
      fit.held_out->coupled = read_errors(held_out->at("coupled"));
      fit.held_out->unbounded = read_errors(held_out->at("unbounded"));
      fit.held_out->alpha_beta = read_errors(held_out->at("alpha_beta"));
      fit.held_out->period = read_errors(held_out->at("period"));
      fit.held_out->isolated_slowest = read_errors(held_out->at("isolated_slowest"));
      fit.held_out->near_onset_share = held_out->at("near_onset_share").number(0, 1);
    }
    if (const auto entries = json.find("unidentified")) {
      for (const auto& entry : entries->elements()) {
        entry.known({"quantity", "reason"});
        fit.unidentified.push_back({entry.at("quantity").text(), entry.at("reason").text()});
      }
    }
    return fit;
  }

  static Measurement read_measurement(const JsonCursor& json) {
    json.known({"name", "unit", "value", "low", "high"});
    Measurement measurement;
    measurement.name = json.at("name").text();
    measurement.unit = json.at("unit").text();
    measurement.value = json.at("value").number(-1e18, 1e18);
    const auto low = json.find("low");
    const auto high = json.find("high");
    if (low && high) {
      measurement.interval = Interval{low->number(-1e18, 1e18), high->number(-1e18, 1e18)};
    }
    return measurement;
  }

  LinkFile file_;
  JsonCursor root_;
};

}  // namespace

std::string format_link(const LinkProfile& profile) {
  Json json;
  json["schema"] = kSchemaName;
  json["version"] = LinkProfile::kSchemaVersion;
  LinkProfile copy = profile;
  put_metadata(json, copy);
  json["samples_file"] = profile.samples_file.empty() ? Json(nullptr) : Json(profile.samples_file);
  json["kinds"] = Json::array();
  for (const auto& kind : profile.kinds) json["kinds"].push_back(format_kind(kind));
  json["measurements"] = Json::array();
  for (const auto& measurement : profile.measurements) {
    Json entry = {{"name", measurement.name},
                  {"unit", measurement.unit},
                  {"value", number(measurement.value)}};
    if (measurement.interval) {
      entry["low"] = number(measurement.interval->low);
      entry["high"] = number(measurement.interval->high);
    }
    json["measurements"].push_back(entry);
  }
  return io::format_json(json);
}

LinkFile parse_link(std::string_view text, std::string_view file_name) {
  const Json json = io::parse_json(text, file_name);
  LinkFile file = Reader(json, file_name).read();
  file.profile.hash = sha256_hex(text);
  return file;
}

LinkFile read_link(const std::filesystem::path& path) {
  LinkFile file = parse_link(io::read_file(path, io::kMaxProfileBytes),
                             path == "-" ? "standard input" : path.string());
  file.path = path;
  return file;
}

}  // namespace xstage
