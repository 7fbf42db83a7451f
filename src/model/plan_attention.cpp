// Plans for attention with its output exchange.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <future>
#include <limits>
#include <vector>

#include "model/plan_parts.hpp"
#include "xstage/error.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage::planning {
namespace {

struct Spec {
  std::string name;
  TileOrder order = TileOrder::remote_first;
  bool split_tail = false;
  SimSender sender;
  bool runnable = true;
};

// What one rank has to do, the busiest one.
struct Shape {
  int num_heads = 0;
  int num_tiles = 0;
  int key_blocks = 0;
  double tile_bytes = 0;
  double sent_bytes = 0;
};

class AttentionPlanner {
 public:
  AttentionPlanner(const AttentionWorkload& workload, const TileCosts& costs,
                   const Setting& setting, const PlanOptions& options, Plan& plan)
      : w_(workload), costs_(costs), setting_(setting), options_(options), plan_(plan) {
    check();
    base_.workload = w_;
    base_.cost = costs.attention_for(w_.dtype, w_.head_dim);
    plan.estimated = base_.cost.estimated;
    base_.num_ranks = plan.num_ranks;
    rate_ = setting.machine.link.drain_rate * setting.machine.link.both_directions_factor;
    latency_ns_ = setting.machine.link.visible_latency_ns.value_or(0);
    measure_shape();
    total_tiles_ = static_cast<std::int64_t>(shape_.num_tiles) * plan.num_ranks;
    simulate_ = setting.can_simulate && total_tiles_ <= options.max_simulated_tiles;
  }

  void run() {
    describe();
    // Beside each other: a simulation reads nothing that another one writes.
    std::vector<std::future<Candidate>> candidates;
    for (const Spec& spec : specs()) {
      candidates.push_back(std::async(std::launch::async, [this, spec] { return evaluate(spec); }));
    }
    for (auto& candidate : candidates) plan_.candidates.push_back(candidate.get());
    if (plan_.num_ranks > 1) add_serial();
    choose(plan_, 0.003);
    if (plan_.num_ranks == 1) plan_.compute_ns = plan_.chosen().compute_ns;
    explain();
  }

 private:
  void check() const {
    if (plan_.num_ranks > w_.num_heads) {
      throw Error(ErrorCategory::usage,
                  "ranks " + std::to_string(plan_.num_ranks) + ": legal 1.." +
                      std::to_string(std::min(w_.num_heads, Workload::kMaxRanks)) +
                      " (attention is spread over heads, and there are " +
                      std::to_string(w_.num_heads) + ")");
    }
  }

  void measure_shape() {
    const int rank = 0;  // the first ranks hold the larger shares of heads
    const AttentionOrder order = attention_order(base_, rank, setting_.machine.num_sms);
    const SequenceShards shards = attention_shards(base_, rank);
    shape_.num_heads = even_split(w_.num_heads, plan_.num_ranks, 1);
    shape_.num_tiles = order.num_tiles();
    shape_.key_blocks = order.key_blocks(order.num_query_blocks() - 1);
    const double row_bytes = w_.head_dim * element_bytes(w_.dtype);
    shape_.tile_bytes = base_.cost.block_rows * row_bytes;
    double rows = 0;
    for (int b = 0; b < order.num_query_blocks(); ++b) rows += order.remote_rows({0, 0, b}, shards);
    shape_.sent_bytes = rows * row_bytes * shape_.num_heads * w_.batch;
    plan_.sent_bytes = shape_.sent_bytes;
    plan_.drain_ns = shape_.sent_bytes / rate_;
  }

  void describe() {
    char text[256];
    const double waves = static_cast<double>(shape_.num_tiles) / setting_.machine.num_sms;
    std::snprintf(text, sizeof text,
                  "attention %dx%dx%dx%d %s%s; a rank: %d heads, %d tiles = %.2f waves of %d SMs, "
                  "sends %s (%s at R)",
                  w_.batch, w_.sequence, w_.num_heads, w_.head_dim,
                  std::string(to_string(w_.dtype)).c_str(), w_.causal ? " causal" : "",
                  shape_.num_heads, shape_.num_tiles, waves, setting_.machine.num_sms,
                  in_mb(shape_.sent_bytes).c_str(), in_us(plan_.drain_ns).c_str());
    plan_.shape = text;
  }

  [[nodiscard]] std::vector<Spec> specs() const {
    const std::string kind(to_string(setting_.machine.link.kind));
    SimSender burst;
    burst.send.kind = setting_.machine.link.kind;
    burst.send.chunk_bytes = static_cast<std::uint32_t>(shape_.tile_bytes);
    burst.outbox_bytes = static_cast<std::int64_t>(shape_.tile_bytes);
    if (burst.send.kind == StoreKind::register16) burst.owner = SendOwner::main_role;
    SimSender paced = burst;
    const double capacity = setting_.machine.link.capacity_mean_bytes.value_or(8192);
    paced.send.chunk_bytes = capacity >= 16384 ? 16384 : 8192;
    const auto chunks = num_chunks(burst.send.chunk_bytes, paced.send.chunk_bytes);
    paced.send.steps_per_chunk = std::max<std::uint32_t>(
        1, static_cast<std::uint32_t>(shape_.key_blocks) / std::max(1u, chunks + 1));
    SimSender coupled = burst;
    coupled.owner = SendOwner::main_role;
    coupled.send.completion = Completion::visible;

    std::vector<Spec> list;
    if (plan_.num_ranks == 1) {
      list.push_back({w_.causal ? "longest-first" : "linear",
                      w_.causal ? TileOrder::longest_first : TileOrder::linear, false, burst,
                      true});
      if (!w_.causal) list.push_back({"last wave split", TileOrder::linear, true, burst, true});
      return list;
    }
    if (w_.causal) {
      list.push_back(
          {"fused " + kind + " longest-first", TileOrder::longest_first, false, burst, true});
      list.push_back(
          {"fused " + kind + " remote-first", TileOrder::remote_first, false, burst, true});
      list.push_back({"fused " + kind + " longest-first, paced", TileOrder::longest_first, false,
                      paced, true});
      list.push_back({"completion-coupled", TileOrder::longest_first, false, coupled, false});
      return list;
    }
    list.push_back(
        {"fused " + kind + " remote-first", TileOrder::remote_first, false, burst, true});
    list.push_back({"fused " + kind + " remote-first, last wave split", TileOrder::remote_first,
                    true, burst, true});
    list.push_back({"fused " + kind + " remote-first, split, paced", TileOrder::remote_first, true,
                    paced, true});
    list.push_back(
        {"fused " + kind + " rank-rotated", TileOrder::rank_rotated, false, burst, true});
    list.push_back({"fused " + kind + " linear", TileOrder::linear, false, burst, true});
    list.push_back({"completion-coupled", TileOrder::linear, false, coupled, false});
    return list;
  }

  // The kernel alone: the longest of all SMs' work, summed.
  [[nodiscard]] double compute_closed_form(const AttentionRun& run) const {
    double longest = 0;
    const AttentionOrder order = attention_order(run, 0, setting_.machine.num_sms);
    for (int cta = 0; cta < setting_.machine.num_sms; ++cta) {
      double sum = 0;
      const int num_items = order.num_items(cta);
      for (int i = 0; i < num_items; ++i) {
        const AttentionItem item = order.item(cta, i);
        sum += item.num_key_blocks * run.cost.step_ns + run.cost.tile_ns +
               (item.tail_idx >= 0 ? run.cost.part_ns : 0);
      }
      longest = std::max(longest, sum);
    }
    return costs_.launch_ns + longest;
  }

  // When the first tile of the last wave can be done; 0 for causal, whose waves are not alike.
  [[nodiscard]] double last_wave_ns(const AttentionRun& run, const AttentionOrder& order) const {
    if (w_.causal) return 0;
    int waves = order.num_full_waves();
    if (order.num_tail_tiles() == 0) --waves;
    const double tile_ns = shape_.key_blocks * run.cost.step_ns + run.cost.tile_ns;
    int least = shape_.key_blocks;
    if (order.num_tail_ctas() > 0) {
      for (int cta = 0; cta < order.num_tail_ctas(); ++cta) {
        least = std::min(least, order.item(cta, order.num_full_waves()).num_key_blocks);
      }
    }
    return costs_.launch_ns + waves * tile_ns + least * run.cost.step_ns + run.cost.tile_ns;
  }

  [[nodiscard]] Candidate evaluate(const Spec& spec) const {
    AttentionRun run = base_;
    run.order = spec.order;
    run.split_tail = spec.split_tail;
    AttentionRun local = run;
    local.local_only = true;

    Candidate c;
    c.name = spec.name;
    c.runnable = spec.runnable;
    c.send = spec.sender.send;
    c.tile_order = spec.order;
    c.split_tail = spec.split_tail;
    c.compute_ns = compute_closed_form(local);
    const AttentionOrder order = attention_order(run, 0, setting_.machine.num_sms);
    const double last_bytes = static_cast<double>(
        order.last_wave_bytes(attention_shards(run, 0), w_.head_dim * element_bytes(w_.dtype)));
    const bool sends = shape_.sent_bytes > 0;
    c.bound_ns = c.compute_ns;
    if (sends) {
      const double first_tile_ns = costs_.launch_ns + base_.cost.tile_ns + base_.cost.step_ns;
      c.bound_ns = std::max(c.bound_ns, first_tile_ns + plan_.drain_ns + latency_ns_);
      if (last_bytes > 0) {
        c.bound_ns = std::max({c.bound_ns, c.compute_ns + latency_ns_,
                               last_wave_ns(run, order) + last_bytes / rate_ + latency_ns_});
      }
    }
    if (simulate_ && sends) {
      SimOptions options;
      if (total_tiles_ > 4000) options.segment_bytes = 4096;
      options.keep_timeline = options_.keep_timelines;
      SimReport report = simulate_attention(setting_.machine, spec.sender, run, options);
      c.total_ns = costs_.launch_ns + report.total_ns;
      c.evidence = Evidence::simulated;
      c.timeline = std::move(report.timeline);
      c.timeline.name = c.name;
      const double num_sms = static_cast<double>(setting_.machine.num_sms) * plan_.num_ranks;
      held_by(c, last_bytes,
              {report.links[0].busy_share, report.main.wait_send_ns / num_sms,
               report.main.wait_load_ns / num_sms});
    } else {
      c.total_ns = c.bound_ns;
      if (c.send.completion == Completion::visible) {
        // Every wave waits for its own drain.
        const double waves =
            std::ceil(static_cast<double>(shape_.num_tiles) / setting_.machine.num_sms);
        c.total_ns = c.compute_ns + plan_.drain_ns + waves * latency_ns_;
      }
      c.evidence = Evidence::closed_form;
      held_by(c, last_bytes, {sends ? plan_.drain_ns / c.total_ns : 0, 0, 0});
    }
    c.exposed_ns = std::max(0.0, c.total_ns - c.compute_ns);
    return c;
  }

  // What a simulation says about one SM, on average.
  struct Held {
    double link_share = 0;
    double send_ns = 0;
    double load_ns = 0;
  };

  void held_by(Candidate& c, double last_bytes, const Held& held) const {
    if (shape_.sent_bytes <= 0) {
      c.held_by = "tensor cores";
    } else if (plan_.drain_ns > c.compute_ns) {
      c.held_by = "link: " + in_us(plan_.drain_ns) + " for the bytes alone";
    } else if (c.send.completion == Completion::visible) {
      c.held_by = "each tile waits until it is visible: " + in_us(held.send_ns) + " per SM";
    } else if (last_bytes > 0) {
      c.held_by =
          "a tail of " + in_us(last_bytes / rate_) + ": the last wave sends " + in_mb(last_bytes);
    } else if (held.load_ns > 0.003 * c.compute_ns || held.send_ns > 0.003 * c.compute_ns) {
      c.held_by = held.load_ns > held.send_ns
                      ? "aligned bursts delay loads: " + in_us(held.load_ns) + " per SM; no tail"
                      : "full stage at tile ends: " + in_us(held.send_ns) + " per SM; no tail";
    } else {
      c.held_by = "tensor cores; the last wave is local, no tail";
    }
    if (held.link_share > 0.95) c.held_by += "; link busy " + in_percent(held.link_share);
  }

  // The usual ways, after the best kernel that there is.
  void add_serial() {
    double alone = std::numeric_limits<double>::infinity();
    for (const Candidate& c : plan_.candidates) {
      if (c.runnable) alone = std::min(alone, c.compute_ns);
    }
    plan_.compute_ns = alone;
    Candidate c;
    c.runnable = false;
    c.compute_ns = alone;
    c.bound_ns = alone + plan_.drain_ns;
    bool has_copy = false;
    for (const ExchangeCost& exchange : costs_.exchanges) {
      if (exchange.link != setting_.link_name) continue;  // measured on another link
      has_copy = true;
      c.name = "serial, " + exchange.name;
      c.evidence = Evidence::measured;
      c.exposed_ns = exchange_ns(exchange, shape_.sent_bytes);
      c.total_ns = alone + c.exposed_ns;
      c.held_by = exchange.source;
      plan_.candidates.push_back(c);
    }
    if (has_copy) return;
    c.name = "serial copy at R";
    c.evidence = Evidence::closed_form;
    c.exposed_ns = costs_.launch_ns + plan_.drain_ns + latency_ns_;
    c.total_ns = alone + c.exposed_ns;
    c.held_by = "launch and link: no measured exchange for this link";
    plan_.candidates.push_back(c);
  }

  void compare() {
    double slowest = 0;
    for (const Candidate& c : plan_.candidates) {
      if (c.name.rfind("serial", 0) != 0) continue;
      char text[160];
      std::snprintf(text, sizeof text, "%s%.2fx over %s (perfect hiding: %.2fx)",
                    slowest > 0 ? ", " : "", c.total_ns / plan_.chosen().total_ns, c.name.c_str(),
                    c.total_ns / plan_.compute_ns);
      plan_.comparison += text;
      slowest = c.total_ns;
    }
  }

  void explain() {
    const Candidate& best = plan_.chosen();
    if (plan_.num_ranks == 1) {
      plan_.reason = "one rank: nothing to exchange";
      return;
    }
    plan_.reason =
        best.name + ": " +
        (best.exposed_ns < 50 ? "all " + in_us(plan_.drain_ns) + " of exchange are hidden"
                              : in_us(best.exposed_ns) + " of " + in_us(plan_.drain_ns) +
                                    " of exchange stay exposed");
    compare();
    char text[160];
    const int num_sms = setting_.machine.num_sms;
    if (shape_.num_tiles < num_sms) {
      plan_.notes.emplace_back("less than a wave: " + std::to_string(shape_.num_tiles) +
                               " tiles on " + std::to_string(num_sms) +
                               " SMs leave nothing to hide behind; " + in_us(best.exposed_ns) +
                               " of " + in_us(best.total_ns) + " stay exposed");
    }
    if (plan_.drain_ns > best.compute_ns) {
      plan_.notes.emplace_back(
          "demand above R: the exchange takes longer than attention, no order hides it");
    } else if (plan_.drain_ns < 0.01 * best.compute_ns) {
      plan_.notes.emplace_back("compute-bound: the exchange is " +
                               in_percent(plan_.drain_ns / best.compute_ns) +
                               " of attention, little can be gained over an ideal copy");
    }
    if (w_.num_heads % plan_.num_ranks != 0) {
      std::snprintf(text, sizeof text, "%d heads on %d ranks: the busiest has %d, the mean is %.2f",
                    w_.num_heads, plan_.num_ranks, shape_.num_heads,
                    static_cast<double>(w_.num_heads) / plan_.num_ranks);
      plan_.notes.emplace_back(text);
    }
    if (w_.num_kv_heads > 0 && w_.num_kv_heads < plan_.num_ranks) {
      plan_.notes.emplace_back(std::to_string(w_.num_kv_heads) + " key/value heads on " +
                               std::to_string(plan_.num_ranks) + " ranks: each is held by several");
    }
    if (!simulate_ && setting_.can_simulate) {
      plan_.notes.emplace_back("more than " + std::to_string(options_.max_simulated_tiles) +
                               " tiles: closed forms only");
    }
  }

  const AttentionWorkload& w_;
  const TileCosts& costs_;
  const Setting& setting_;
  const PlanOptions& options_;
  Plan& plan_;
  AttentionRun base_;
  Shape shape_;
  double rate_ = 0;
  double latency_ns_ = 0;
  std::int64_t total_tiles_ = 0;  // of all ranks
  bool simulate_ = true;
};

}  // namespace

void plan_attention(const AttentionWorkload& workload, const TileCosts& costs,
                    const Setting& setting, const PlanOptions& options, Plan& plan) {
  AttentionPlanner(workload, costs, setting, options, plan).run();
}

}  // namespace xstage::planning
