#include "model/exchange_prediction.hpp"

#include <algorithm>
#include <cmath>

#include "xstage/error.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage::planning {
namespace {

// The kernel splits the last wave where it becomes shorter by this many key blocks.
constexpr int kMinSavedBlocks = 6;
// One for each consumer group; each sends its own rows of a tile.
constexpr std::uint32_t kSendersPerSm = 2;
// Above this many tiles of all ranks the link is cut into coarser pieces.
constexpr std::int64_t kManyTiles = 4000;

class Predictor {
 public:
  Predictor(const AttentionWorkload& workload, int num_ranks, ExchangePeers peers,
            const LinkProfile* link, const TileCosts& costs)
      : link_(link), costs_(costs), peers_(peers) {
    run_.workload = workload;
    run_.num_ranks = num_ranks;
    run_.cost = costs.attention_for(workload.dtype, workload.head_dim);
    AttentionRun local = run_;
    local.local_only = true;
    local.order = TileOrder::linear;
    local.split_tail = splits(local);
    alone_ns_ = total_ns(local, {}, StoreKind::bulk);
  }

  ExchangePrediction predict(const ExchangeCandidate& candidate) {
    ExchangePrediction p;
    p.name = candidate.name;
    p.alone_ns = alone_ns_;
    const bool crosses = link_ != nullptr && run_.num_ranks > 1 && !candidate.local_owners &&
                         candidate.way != ExchangeWay::alone;
    if (!crosses) return p;
    const StoreKind kind =
        candidate.way == ExchangeWay::fused ? candidate.send.kind : StoreKind::bulk;
    const LinkParams& params = params_of(kind);
    const double rate = rate_of(params);
    const double latency = params.visible_latency_ns.value_or(0);
    const double drain = sent_bytes() / rate;
    // The exchange of q, k and v is serial in either way, and three times as much.
    const double inputs =
        candidate.with_inputs ? input_bytes() / rate + costs_.launch_ns + latency : 0;
    p.coupled_ns = drain + waves() * latency + inputs;
    if (candidate.way == ExchangeWay::chunked) {
      p.increment_ns = chunked_ns(candidate, drain, latency) - p.alone_ns;
      return p;
    }
    if (candidate.way != ExchangeWay::fused) {
      p.increment_ns = costs_.launch_ns + drain + latency + inputs;
      p.coupled_ns = p.increment_ns;
      return p;
    }
    AttentionRun fused = run_;
    fused.order = candidate.order;
    fused.split_tail = splits(fused);
    p.increment_ns =
        total_ns(fused, candidate.send, kind, candidate.num_sending_sms) - p.alone_ns + inputs;
    return p;
  }

 private:
  [[nodiscard]] const LinkParams& params_of(StoreKind kind) const {
    for (const StoreKind wanted : {kind, StoreKind::tensor, StoreKind::bulk}) {
      for (const KindFit& fit : link_->kinds) {
        if (fit.params.kind == wanted) return fit.params;
      }
    }
    return link_->kind(kind).params;  // says what there is
  }
  [[nodiscard]] double rate_of(const LinkParams& params) const {
    const bool both = peers_ == ExchangePeers::real;
    return params.drain_rate * (both ? params.both_directions_factor : 1);
  }
  [[nodiscard]] bool splits(AttentionRun run) const {
    if (run.workload.causal) return false;
    run.split_tail = true;
    const AttentionOrder order = attention_order(run, 0, costs_.num_sms);
    if (order.num_tail_ctas() == 0) return false;
    const int blocks = ceil_div(run.workload.sequence, run.cost.block_keys);
    return blocks - ceil_div(order.num_tail_tiles() * blocks, order.num_tail_ctas()) >=
           kMinSavedBlocks;
  }
  [[nodiscard]] double waves() const {
    const AttentionOrder order = attention_order(run_, 0, costs_.num_sms);
    return std::ceil(static_cast<double>(order.num_tiles()) / costs_.num_sms);
  }
  // Chunk by chunk on fewer SMs, each chunk sent beside the next one; the last has nothing to hide
  // behind.
  [[nodiscard]] double chunked_ns(const ExchangeCandidate& c, double drain, double latency) const {
    const double chunks = c.num_chunks;
    const double slower = static_cast<double>(costs_.num_sms) / (costs_.num_sms - c.num_send_sms);
    const double compute = (alone_ns_ - costs_.launch_ns) * slower + chunks * costs_.launch_ns;
    return std::max(compute + drain / chunks, compute / chunks + drain) + costs_.launch_ns +
           latency;
  }
  // q, k and v of the own rows that other ranks compute with.
  [[nodiscard]] double input_bytes() const {
    const AttentionWorkload& w = run_.workload;
    const SequenceShards shards = attention_shards(run_, 0);
    const double rows = shards.first_row[1] - shards.first_row[0];
    const double heads = w.num_heads + 2.0 * (w.num_kv_heads > 0 ? w.num_kv_heads : w.num_heads);
    const double share = 1.0 - 1.0 / run_.num_ranks;
    return rows * heads * share * w.batch * w.head_dim * element_bytes(w.dtype);
  }
  [[nodiscard]] double sent_bytes() const {
    const SequenceShards shards = attention_shards(run_, 0);
    const AttentionWorkload& w = run_.workload;
    double rows = 0;
    for (int p = 1; p < run_.num_ranks; ++p) rows += shards.owner_rows(p);
    return rows * w.batch * even_split(w.num_heads, run_.num_ranks, 1) * w.head_dim *
           element_bytes(w.dtype);
  }

  // SMs that only send are simulated as computing ones that are not there.
  [[nodiscard]] double total_ns(const AttentionRun& run, const Send& send, StoreKind kind,
                                int num_sending_sms = 0) const {
    SimMachine machine;
    machine.num_sms = costs_.num_sms - num_sending_sms;
    machine.barrier_ns = costs_.barrier_ns;
    machine.both_directions = peers_ == ExchangePeers::real;
    if (link_ != nullptr) {
      machine.link = params_of(kind);
    } else {  // never used: nothing is sent
      machine.link.issue_curve = {{1024, 100}};
      machine.link.injection_rate = 50;
      machine.link.drain_rate = 1000;
      machine.link.capacity_mean_bytes = 1 << 20;
    }
    SimSender sender;
    sender.send = send;
    sender.send.chunk_bytes *= kSendersPerSm;  // in step with each other
    // The coupled kernel does not load the next tile's values before its rows have arrived.
    if (send.completion == Completion::visible) sender.owner = SendOwner::main_role;
    sender.outbox_bytes = static_cast<std::int64_t>(run.cost.block_rows) * run.workload.head_dim *
                          element_bytes(run.workload.dtype);
    SimOptions options;
    const std::int64_t tiles =
        static_cast<std::int64_t>(attention_order(run, 0, costs_.num_sms).num_tiles()) *
        run.num_ranks;
    if (tiles > kManyTiles) options.segment_bytes = 4096;
    return costs_.launch_ns + simulate_attention(machine, sender, run, options).total_ns;
  }

  const LinkProfile* link_;
  const TileCosts& costs_;
  ExchangePeers peers_;
  AttentionRun run_;
  double alone_ns_ = 0;
};

}  // namespace

std::vector<ExchangePrediction> predict_exchange(const AttentionWorkload& workload, int num_ranks,
                                                 ExchangePeers peers,
                                                 const std::vector<ExchangeCandidate>& candidates,
                                                 const LinkProfile* link, const TileCosts& costs) {
  Predictor predictor(workload, num_ranks, peers, link, costs);
  std::vector<ExchangePrediction> predictions;
  for (const ExchangeCandidate& c : candidates) predictions.push_back(predictor.predict(c));
  return predictions;
}

}  // namespace xstage::planning
