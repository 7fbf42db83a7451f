// Workload files. The schema is in docs/planning.md.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "io/file_io.hpp"
#include "io/json_reader.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/workload.hpp"

namespace xstage {
namespace {

namespace fs = std::filesystem;
using io::Json;
using io::JsonCursor;

constexpr std::string_view kSchemaName = "xstage.workload";
constexpr int kMaxRows = 16'777'216;

int whole_or(const JsonCursor& json, std::string_view key, int min, int max, int otherwise) {
  const auto value = json.find(key);
  return value ? value->whole(min, max) : otherwise;
}

DataType read_type(const JsonCursor& json, DataType otherwise,
                   std::initializer_list<DataType> legal) {
  const auto word = json.find("dtype");
  if (!word) return otherwise;
  std::string words;
  for (const DataType type : legal) {
    if (word->text() == to_string(type)) return type;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", to_string(type));
  }
  word->fail(fmt::format("'{}': legal are {}", io::printable(word->text()), words));
}

AttentionWorkload read_attention(const JsonCursor& json) {
  json.known({"batch", "sequence", "heads", "kv_heads", "head_dim", "dtype", "causal",
              "replicated_prefix", "replicated_suffix"});
  AttentionWorkload w;
  w.batch = whole_or(json, "batch", 1, 65536, 1);
  w.sequence = json.at("sequence").whole(1, kMaxRows);
  w.num_heads = json.at("heads").whole(1, 1024);
  w.num_kv_heads = whole_or(json, "kv_heads", 1, w.num_heads, 0);
  if (w.num_kv_heads != 0 && w.num_heads % w.num_kv_heads != 0) {
    json.at("kv_heads")
        .fail(fmt::format("{}: legal are divisors of the {} heads", w.num_kv_heads, w.num_heads));
  }
  w.head_dim = json.at("head_dim").whole(1, 1024);
  if (w.head_dim != 64 && w.head_dim != 128)
    json.at("head_dim").fail(fmt::format("{}: legal are 64, 128", w.head_dim));
  w.dtype = read_type(json, DataType::bf16, {DataType::bf16, DataType::fp16});
  if (const auto causal = json.find("causal")) w.causal = causal->boolean();
  w.replicated_prefix = whole_or(json, "replicated_prefix", 0, w.sequence, 0);
  w.replicated_suffix = whole_or(json, "replicated_suffix", 0, w.sequence - w.replicated_prefix, 0);
  return w;
}

MoeWorkload read_moe(const JsonCursor& json) {
  json.known({"tokens_per_rank", "hidden", "intermediate", "experts", "top_k", "shared_experts",
              "dtype", "skew", "seed"});
  MoeWorkload w;
  w.tokens_per_rank = json.at("tokens_per_rank").whole(0, 1'048'576);
  w.hidden = json.at("hidden").whole(64, 65'536);
  w.intermediate = json.at("intermediate").whole(64, 65'536);
  w.num_experts = json.at("experts").whole(1, 4096);
  w.top_k = json.at("top_k").whole(1, 4096);
  const int most = std::min(w.num_experts, 32);
  if (w.top_k > most)
    json.at("top_k").fail(
        fmt::format("{}: legal 1 to {} with {} experts", w.top_k, most, w.num_experts));
  w.num_shared_experts = whole_or(json, "shared_experts", 0, 8, 0);
  w.dtype = read_type(json, DataType::fp8, {DataType::fp8, DataType::bf16});
  if (const auto skew = json.find("skew")) w.skew = skew->number(0, 2);
  w.seed =
      static_cast<std::uint64_t>(whole_or(json, "seed", 0, std::numeric_limits<int>::max(), 1));
  return w;
}

std::vector<fs::path> workloads_in_shipped_directories() {
  std::vector<fs::path> found;
  for (const fs::path& profiles : shipped_profile_directories()) {
    std::error_code error;
    for (fs::directory_iterator it(profiles.parent_path() / "workloads", error), end;
         !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".json") found.push_back(it->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Workload parse_workload(std::string_view text, std::string_view file_name,
                        std::vector<std::string>* warnings) {
  std::vector<std::string> ignored;
  const Json json = io::parse_json(text, file_name);
  const JsonCursor root(json, file_name, warnings != nullptr ? *warnings : ignored);
  if (root.at("schema").text() != kSchemaName) {
    root.at("schema").fail(fmt::format("'{}', this is not a workload ('{}')",
                                       io::printable(root.at("schema").text()), kSchemaName));
  }
  const int version = root.at("version").whole(0, std::numeric_limits<int>::max());
  if (version != Workload::kSchemaVersion) {
    root.at("version").fail(
        fmt::format("schema version {}; this xstage reads {}", version, Workload::kSchemaVersion));
  }
  root.known({"schema", "version", "name", "description", "source", "attention", "moe"});
  Workload workload;
  workload.name = root.at("name").text();
  if (workload.name.empty()) root.at("name").fail("a workload needs a name");
  if (const auto description = root.find("description")) workload.description = description->text();
  if (const auto source = root.find("source")) workload.source = source->text();
  const auto attention = root.find("attention");
  const auto moe = root.find("moe");
  if (attention.has_value() == moe.has_value())
    root.fail("exactly one of 'attention' and 'moe' is needed");
  if (attention) {
    workload.op = read_attention(*attention);
  } else {
    workload.op = read_moe(*moe);
  }
  try {
    validate(workload);  // what goes beyond single fields
  } catch (const Error& error) {
    root.fail(error.what());
  }
  return workload;
}

Workload read_workload(const fs::path& path, std::vector<std::string>* warnings) {
  return parse_workload(io::read_file(path, io::kMaxProfileBytes), path.string(), warnings);
}

std::string format_workload(const Workload& workload) {
  Json json;
  json["schema"] = kSchemaName;
  json["version"] = Workload::kSchemaVersion;
  json["name"] = workload.name;
  json["description"] = workload.description;
  json["source"] = workload.source;
  if (const auto* a = std::get_if<AttentionWorkload>(&workload.op)) {
    json["attention"] = {{"batch", a->batch},
                         {"sequence", a->sequence},
                         {"heads", a->num_heads},
                         {"head_dim", a->head_dim},
                         {"dtype", to_string(a->dtype)}};
    if (a->num_kv_heads != 0) json["attention"]["kv_heads"] = a->num_kv_heads;
    if (a->causal) json["attention"]["causal"] = true;
    if (a->replicated_prefix != 0) json["attention"]["replicated_prefix"] = a->replicated_prefix;
    if (a->replicated_suffix != 0) json["attention"]["replicated_suffix"] = a->replicated_suffix;
  } else {
    const auto& m = std::get<MoeWorkload>(workload.op);
    json["moe"] = {{"tokens_per_rank", m.tokens_per_rank},
                   {"hidden", m.hidden},
                   {"intermediate", m.intermediate},
                   {"experts", m.num_experts},
                   {"top_k", m.top_k},
                   {"shared_experts", m.num_shared_experts},
                   {"dtype", to_string(m.dtype)},
                   {"skew", m.skew},
                   {"seed", m.seed}};
  }
  return io::format_json(json);
}

std::vector<std::string> shipped_workloads() {
  std::vector<std::string> names;
  for (const auto& path : workloads_in_shipped_directories()) names.push_back(path.stem().string());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path find_workload(std::string_view name_or_path) {
  const std::string text(name_or_path);
  if (text.find('/') != std::string::npos || text.ends_with(".json")) return text;
  for (const auto& path : workloads_in_shipped_directories()) {
    if (path.stem() == text) return path;
  }
  throw Error(ErrorCategory::usage,
              fmt::format("no workload '{}': there are {}; or give a path to a file",
                          io::printable(text), fmt::join(shipped_workloads(), ", ")));
}

}  // namespace xstage
