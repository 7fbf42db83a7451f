// Tile costs as files. The schema is in docs/planning.md.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "io/file_io.hpp"
#include "io/json_reader.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/tile_costs.hpp"

namespace xstage {
namespace {

namespace fs = std::filesystem;
using io::Json;
using io::JsonCursor;

constexpr std::string_view kSchemaName = "xstage.costs";
constexpr std::string_view kDefaultName = "h200";
constexpr double kMaxTimeNs = 1e12;

DataType read_type(const JsonCursor& json) {
  const JsonCursor word = json.at("dtype");
  try {
    return parse_data_type(word.text());
  } catch (const Error& error) {
    word.fail(error.what());
  }
}

bool estimated_or(const JsonCursor& json, bool otherwise) {
  const auto value = json.find("estimated");
  return value ? value->boolean() : otherwise;
}

AttentionCost read_attention(const JsonCursor& json, bool estimated) {
  json.known({"dtype", "head_dim", "block_rows", "block_keys", "step_ns", "tile_ns", "part_ns",
              "estimated"});
  AttentionCost cost;
  cost.estimated = estimated_or(json, estimated);
  cost.dtype = read_type(json);
  cost.head_dim = json.at("head_dim").whole(1, 1024);
  cost.block_rows = json.at("block_rows").whole(1, 4096);
  cost.block_keys = json.at("block_keys").whole(1, 4096);
  cost.step_ns = json.at("step_ns").number(1, kMaxTimeNs);
  cost.tile_ns = json.at("tile_ns").number(0, kMaxTimeNs);
  if (const auto part = json.find("part_ns")) cost.part_ns = part->number(0, kMaxTimeNs);
  return cost;
}

MoeCost read_moe(const JsonCursor& json, bool estimated) {
  json.known({"dtype", "block_m", "block_n", "block_k", "step_ns", "tile_ns", "estimated"});
  MoeCost cost;
  cost.estimated = estimated_or(json, estimated);
  cost.dtype = read_type(json);
  cost.block_m = json.at("block_m").whole(1, 4096);
  cost.block_n = json.at("block_n").whole(1, 4096);
  cost.block_k = json.at("block_k").whole(1, 4096);
  cost.step_ns = json.at("step_ns").number(1, kMaxTimeNs);
  cost.tile_ns = json.at("tile_ns").number(0, kMaxTimeNs);
  return cost;
}

ExchangeCost read_exchange(const JsonCursor& json) {
  json.known({"name", "link", "source", "points"});
  ExchangeCost cost;
  cost.name = json.at("name").text();
  cost.link = json.at("link").text();
  if (const auto source = json.find("source")) cost.source = source->text();
  for (const auto& entry : json.at("points").elements()) {
    entry.known({"bytes", "added_ns"});
    const ExchangePoint point{entry.at("bytes").number(1, 1e15),
                              entry.at("added_ns").number(0, kMaxTimeNs)};
    if (!cost.points.empty() && point.bytes <= cost.points.back().bytes)
      entry.at("bytes").fail("not above the point before");
    cost.points.push_back(point);
  }
  if (cost.points.empty()) json.at("points").fail("at least one point is needed");
  return cost;
}

std::vector<fs::path> costs_in_shipped_directories() {
  std::vector<fs::path> found;
  for (const fs::path& profiles : shipped_profile_directories()) {
    std::error_code error;
    for (fs::directory_iterator it(profiles / "costs", error), end; !error && it != end;
         it.increment(error)) {
      if (it->path().extension() == ".json") found.push_back(it->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

TileCosts parse_costs(std::string_view text, std::string_view file_name,
                      std::vector<std::string>* warnings) {
  std::vector<std::string> ignored;
  const Json json = io::parse_json(text, file_name);
  const JsonCursor root(json, file_name, warnings != nullptr ? *warnings : ignored);
  if (root.at("schema").text() != kSchemaName) {
    root.at("schema").fail(fmt::format("'{}', these are not tile costs ('{}')",
                                       io::printable(root.at("schema").text()), kSchemaName));
  }
  const int version = root.at("version").whole(0, std::numeric_limits<int>::max());
  if (version != TileCosts::kSchemaVersion) {
    root.at("version").fail(
        fmt::format("schema version {}; this xstage reads {}", version, TileCosts::kSchemaVersion));
  }
  root.known({"schema", "version", "name", "gpu", "num_sms", "memory_rate", "launch_ns",
              "barrier_ns", "estimated", "source", "attention", "moe", "exchanges"});
  TileCosts costs;
  costs.name = root.at("name").text();
  if (const auto gpu = root.find("gpu")) costs.gpu = gpu->text();
  costs.num_sms = root.at("num_sms").whole(1, 1024);
  costs.memory_rate = root.at("memory_rate").number(1e-3, 1e6);
  costs.launch_ns = root.at("launch_ns").number(0, kMaxTimeNs);
  costs.barrier_ns = root.at("barrier_ns").number(0, kMaxTimeNs);
  costs.estimated = root.at("estimated").boolean();
  costs.source = root.at("source").text();
  if (const auto list = root.find("attention")) {
    for (const auto& entry : list->elements())
      costs.attention.push_back(read_attention(entry, costs.estimated));
  }
  if (const auto list = root.find("moe")) {
    for (const auto& entry : list->elements())
      costs.moe.push_back(read_moe(entry, costs.estimated));
  }
  if (const auto list = root.find("exchanges")) {
    for (const auto& entry : list->elements()) costs.exchanges.push_back(read_exchange(entry));
  }
  costs.hash = sha256_hex(text);
  return costs;
}

TileCosts read_costs(const fs::path& path, std::vector<std::string>* warnings) {
  return parse_costs(io::read_file(path, io::kMaxProfileBytes), path.string(), warnings);
}

std::string format_costs(const TileCosts& costs) {
  Json json;
  json["schema"] = kSchemaName;
  json["version"] = TileCosts::kSchemaVersion;
  json["name"] = costs.name;
  json["gpu"] = costs.gpu;
  json["num_sms"] = costs.num_sms;
  json["memory_rate"] = costs.memory_rate;
  json["launch_ns"] = costs.launch_ns;
  json["barrier_ns"] = costs.barrier_ns;
  json["estimated"] = costs.estimated;
  json["source"] = costs.source;
  json["attention"] = Json::array();
  for (const AttentionCost& c : costs.attention) {
    json["attention"].push_back({{"dtype", to_string(c.dtype)},
                                 {"head_dim", c.head_dim},
                                 {"block_rows", c.block_rows},
                                 {"block_keys", c.block_keys},
                                 {"step_ns", c.step_ns},
                                 {"tile_ns", c.tile_ns},
                                 {"part_ns", c.part_ns},
                                 {"estimated", c.estimated}});
  }
  json["moe"] = Json::array();
  for (const MoeCost& c : costs.moe) {
    json["moe"].push_back({{"dtype", to_string(c.dtype)},
                           {"block_m", c.block_m},
                           {"block_n", c.block_n},
                           {"block_k", c.block_k},
                           {"step_ns", c.step_ns},
                           {"tile_ns", c.tile_ns},
                           {"estimated", c.estimated}});
  }
  json["exchanges"] = Json::array();
  for (const ExchangeCost& c : costs.exchanges) {
    Json points = Json::array();
    for (const ExchangePoint& p : c.points)
      points.push_back({{"bytes", p.bytes}, {"added_ns", p.added_ns}});
    json["exchanges"].push_back(
        {{"name", c.name}, {"link", c.link}, {"source", c.source}, {"points", points}});
  }
  return io::format_json(json);
}

fs::path find_costs(std::string_view name_or_path) {
  const std::string text(name_or_path.empty() ? kDefaultName : name_or_path);
  if (text.find('/') != std::string::npos || text.ends_with(".json")) return text;
  std::string names;
  for (const auto& path : costs_in_shipped_directories()) {
    if (path.stem() == text) return path;
    names += (names.empty() ? "" : ", ") + path.stem().string();
  }
  throw Error(ErrorCategory::usage,
              fmt::format("no tile costs '{}': there are {}; or give a path to a file",
                          io::printable(text), names.empty() ? "none" : names));
}

}  // namespace xstage
