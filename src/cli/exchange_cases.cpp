#include "cli/exchange_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <variant>

#include "cli/values.hpp"
#include "io/file_io.hpp"
#include "io/json_reader.hpp"
#include "xstage/error.hpp"
#include "xstage/workload.hpp"

namespace xstage::cli {
namespace {

using planning::ExchangePrediction;

constexpr int kPredictionsVersion = 1;
constexpr double kMaxNs = 1e12;

bool is_sizes(const std::string& word) {
  return word.find('x') != std::string::npos &&
         std::all_of(word.begin(), word.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0 || c == 'x'; });
}

AttentionWorkload parse_sizes(const std::string& word) {
  std::vector<std::string> parts(1);
  for (const char c : word) {
    if (c == 'x') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (parts.size() < 2 || parts.size() > 4) {
    throw Error(
        ErrorCategory::usage,
        fmt::format("'{}': legal are ROWSxHEADS, BATCHxROWSxHEADS, BATCHxROWSxHEADSxDIM", word));
  }
  if (parts.size() == 2) parts.insert(parts.begin(), "1");
  if (parts.size() == 3) parts.emplace_back("128");
  const auto number = [&](std::size_t idx, const char* what, double max) {
    return parse_count(what, parts[idx], {1, max, ""});
  };
  AttentionWorkload w;
  w.batch = number(0, "batch", 1024);
  w.sequence = number(1, "rows", 4e6);
  w.num_heads = number(2, "heads", 1024);
  w.head_dim = number(3, "head_dim", 128);
  return w;
}

ExchangeCandidate fused(const char* name, const Send& send, TileOrder order) {
  ExchangeCandidate c;
  c.name = name;
  c.way = ExchangeWay::fused;
  c.send = send;
  c.order = order;
  return c;
}

}  // namespace

std::string ExchangeCase::key() const {
  return fmt::format("{}, {} ranks, {}", name, num_ranks, to_string(peers));
}

ExchangeCase parse_exchange_case(const std::string& word) {
  ExchangeCase result;
  if (is_sizes(word)) {
    result.workload = parse_sizes(word);
    const AttentionWorkload& w = result.workload;
    result.name = fmt::format("{}x{}x{}x{}", w.batch, w.sequence, w.num_heads, w.head_dim);
    validate(Workload{result.name, "", "", w});
    return result;
  }
  const Workload workload = read_workload(find_workload(word));
  const auto* attention = std::get_if<AttentionWorkload>(&workload.op);
  if (attention == nullptr) {
    throw Error(ErrorCategory::usage,
                fmt::format("workload '{}' is no attention: nothing to exchange", workload.name));
  }
  result.name = workload.name;
  result.workload = *attention;
  return result;
}

ExchangePeers parse_exchange_peers(std::string_view word) {
  if (word == "host") return ExchangePeers::host_ghosts;
  if (word == "local") return ExchangePeers::local_ghosts;
  if (word == "peer") return ExchangePeers::peer_ghosts;
  if (word == "real") return ExchangePeers::real;
  fail_value("--peers", word, "host, local, peer (where ghosts lie) and real (GPUs that compute)");
}

std::vector<ExchangeCandidate> exchange_candidates(const AttentionWorkload& workload,
                                                   const std::vector<std::string>& words) {
  const int key_blocks = ceil_div(workload.sequence, workload.head_dim == 64 ? 192 : 160);
  Send burst;
  burst.kind = StoreKind::tensor;
  burst.chunk_bytes = 16 * 1024;
  Send paced = burst;
  paced.chunk_bytes = 8 * 1024;
  paced.steps_per_chunk = static_cast<std::uint32_t>(std::max(1, key_blocks / 4));
  Send fine = burst;  // eight chunks over four fifths of the next tile
  fine.chunk_bytes = 2 * 1024;
  fine.steps_per_chunk = static_cast<std::uint32_t>(std::max(1, key_blocks / 10));
  Send coupled = burst;
  coupled.completion = Completion::visible;
  Send registers = burst;
  registers.kind = StoreKind::register16;

  std::vector<ExchangeCandidate> all(4);
  all[0].name = "alone";
  all[1].name = "push";
  all[1].way = ExchangeWay::push;
  all[2].name = "copy-engine";
  all[2].way = ExchangeWay::copy_engine;
  all[3].name = "chunked";
  all[3].way = ExchangeWay::chunked;
  all.push_back(fused("burst", burst, TileOrder::remote_first));
  all.push_back(fused("burst-local", burst, TileOrder::remote_first));
  all.back().local_owners = true;
  all.push_back(fused("paced", paced, TileOrder::remote_first));
  all.push_back(fused("fine", fine, TileOrder::remote_first));
  all.push_back(fused("coupled", coupled, TileOrder::remote_first));
  all.push_back(fused("linear", burst, TileOrder::linear));
  all.push_back(fused("senders", burst, TileOrder::linear));
  all.back().num_sending_sms = 8;
  all.push_back(fused("registers", registers, TileOrder::remote_first));
  all.push_back(all[1]);
  all.back().name = "block-push";
  all.back().with_inputs = true;
  all.push_back(fused("block-burst", burst, TileOrder::remote_first));
  all.back().with_inputs = true;
  if (words.empty()) {
    std::erase_if(all, [](const auto& c) { return c.num_sending_sms > 0; });
    return all;
  }
  std::vector<ExchangeCandidate> some = {all.front()};  // everything is compared with it
  for (const std::string& word : words) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.name == word; });
    if (found == all.end()) {
      std::string legal;
      for (const auto& c : all) legal += (legal.empty() ? "" : ", ") + c.name;
      fail_value("--ways", word, legal);
    }
    if (word != "alone") some.push_back(*found);
  }
  return some;
}

const ExchangePrediction* ExchangePredictions::find(const std::string& key,
                                                    const std::string& candidate) const {
  const auto at = cases.find(key);
  if (at == cases.end()) return nullptr;
  for (const auto& p : at->second) {
    if (p.name == candidate) return &p;
  }
  return nullptr;
}

ExchangePredictions predict_cases(const std::vector<ExchangeCase>& cases, const LinkProfile& link,
                                  const TileCosts& costs, Console& console) {
  ExchangePredictions predictions;
  predictions.link_sha256 = link.hash;
  predictions.costs_sha256 = costs.hash;
  for (const ExchangeCase& c : cases) {
    console.progress(fmt::format("predicting {}", c.key()));
    const bool crosses = c.peers != ExchangePeers::local_ghosts;
    predictions.cases[c.key()] = planning::predict_exchange(
        c.workload, c.num_ranks, c.peers, c.candidates, crosses ? &link : nullptr, costs);
  }
  return predictions;
}

Json predictions_json(const ExchangePredictions& predictions) {
  Json cases = Json::array();
  for (const auto& [key, list] : predictions.cases) {
    Json rows = Json::array();
    for (const ExchangePrediction& p : list) {
      rows.push_back({{"way", p.name},
                      {"alone_ns", p.alone_ns},
                      {"increment_ns", p.increment_ns},
                      {"unbounded_ns", p.unbounded_ns},
                      {"coupled_ns", p.coupled_ns}});
    }
    cases.push_back({{"case", key}, {"ways", std::move(rows)}});
  }
  return {{"schema", "xstage.exchange_predictions"},
          {"version", kPredictionsVersion},
          {"link_sha256", predictions.link_sha256},
          {"costs_sha256", predictions.costs_sha256},
          {"cases", std::move(cases)}};
}

ExchangePredictions read_predictions(const std::string& path) {
  const std::string text = io::read_file(path, io::kMaxProfileBytes);
  const Json json = io::parse_json(text, path);
  std::vector<std::string> warnings;
  const io::JsonCursor root(json, path, warnings);
  if (root.at("schema").text() != "xstage.exchange_predictions") {
    root.at("schema").fail("is no file of exchange predictions");
  }
  (void)root.at("version").whole(kPredictionsVersion, kPredictionsVersion);
  ExchangePredictions predictions;
  predictions.file = path;
  predictions.link_sha256 = root.at("link_sha256").text();
  predictions.costs_sha256 = root.at("costs_sha256").text();
  for (const io::JsonCursor& entry : root.at("cases").elements()) {
    auto& list = predictions.cases[entry.at("case").text()];
    for (const io::JsonCursor& way : entry.at("ways").elements()) {
      ExchangePrediction p;
      p.name = way.at("way").text();
      p.alone_ns = way.at("alone_ns").number(0, kMaxNs);
      p.increment_ns = way.at("increment_ns").number(-kMaxNs, kMaxNs);
      p.unbounded_ns = way.at("unbounded_ns").number(-kMaxNs, kMaxNs);
      p.coupled_ns = way.at("coupled_ns").number(-kMaxNs, kMaxNs);
      list.push_back(p);
    }
  }
  return predictions;
}

}  // namespace xstage::cli
