// Plans for an expert-parallel MoE layer in one kernel.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/plan_parts.hpp"
#include "xstage/error.hpp"
#include "xstage/simulate_kernels.hpp"

namespace xstage::planning {
namespace {

constexpr double kOutputBytes = 2;  // bf16

struct Spec {
  std::string name;
  MoeSchedule schedule = MoeSchedule::interleaved;
  bool unique_tokens = false;
  SimSender sender;
  bool runnable = true;
};

// The busiest rank in closed form.
struct Shape {
  double rows = 0;  // that its experts receive
  double tasks = 0;
  double compute_ns = 0;  // of all tasks, spread evenly over the SMs
  double scatter_bytes = 0;
  double dispatch_bytes = 0;  // through its egress, for the others
  double linear2_ns = 0;      // a full tile
  double round_drain_ns = 0;  // of one Linear2 tile of every SM
};

class MoePlanner {
 public:
  MoePlanner(const MoeWorkload& workload, const TileCosts& costs, const Setting& setting,
             const PlanOptions& options, Plan& plan)
      : w_(workload), costs_(costs), setting_(setting), options_(options), plan_(plan) {
    check();
    run_.workload = w_;
    run_.cost = costs.moe_for(w_.dtype);
    plan.estimated = run_.cost.estimated;
    run_.num_ranks = plan.num_ranks;
    run_.memory_rate = costs.memory_rate;
    run_.num_sms = setting.machine.num_sms;
    routing_ = route(w_, plan.num_ranks);
    rate_ = setting.machine.link.drain_rate * setting.machine.link.both_directions_factor;
    remote_ = static_cast<double>(plan.num_ranks - 1) / plan.num_ranks;
    pick_ranks();
    measure_shape();
    simulate_ = setting.can_simulate &&
                shape_.tasks <= 10.0 * static_cast<double>(options.max_simulated_tiles);
  }

  void run() {
    describe();
    for (const Spec& spec : specs()) plan_.candidates.push_back(evaluate(spec));
    choose(plan_, 0.005);
    plan_.compute_ns = plan_.chosen().compute_ns;
    explain();
  }

 private:
  void check() const {
    if (w_.num_experts % plan_.num_ranks == 0) return;
    std::string legal;
    for (int n = 1; n <= std::min(w_.num_experts, Workload::kMaxRanks); ++n) {
      if (w_.num_experts % n == 0) legal += (legal.empty() ? "" : ", ") + std::to_string(n);
    }
    throw Error(ErrorCategory::usage, "ranks " + std::to_string(plan_.num_ranks) + ": legal " +
                                          legal + " (" + std::to_string(w_.num_experts) +
                                          " experts must divide by the ranks)");
  }

  // Two ranks stand for all: the busiest and the next. Their egress carries what all ranks' would.
  void pick_ranks() {
    std::vector<int> order(static_cast<std::size_t>(plan_.num_ranks));
    std::iota(order.begin(), order.end(), 0);
    const auto load = [&](int rank) {
      const auto first =
          routing_.tokens.begin() + static_cast<std::ptrdiff_t>(rank) * routing_.experts_per_rank;
      return std::accumulate(first, first + routing_.experts_per_rank, std::int64_t{0});
    };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load(a) > load(b); });
    shape_.rows = static_cast<double>(load(order[0]));
    busiest_ = order[0];
    if (plan_.num_ranks > 2) run_.computing_ranks = {order[0], order[1]};
  }

  void measure_shape() {
    const MoeCost& cost = run_.cost;
    const auto columns = [&](int width) { return (width + cost.block_n - 1) / cost.block_n; };
    const auto steps = [&](int depth) { return (depth + cost.block_k - 1) / cost.block_k; };
    const double n1 = columns(2 * w_.intermediate);
    const double n2 = columns(w_.hidden);
    shape_.linear2_ns = steps(w_.intermediate) * cost.step_ns + cost.tile_ns;
    const double block_steps = n1 * steps(w_.hidden) + n2 * steps(w_.intermediate);
    double work_ns = 0;
    int touched = 0;
    const auto add_expert = [&](int tokens) {
      const double blocks = std::ceil(static_cast<double>(tokens) / cost.block_m);
      const int rest = tokens % cost.block_m;  // a block that is half full takes half the steps
      const double halves = rest > 0 && 2 * rest <= cost.block_m ? 0.5 : 0.0;
      work_ns += (blocks - halves) * block_steps * cost.step_ns + blocks * (n1 + n2) * cost.tile_ns;
      shape_.tasks += blocks * (n1 + n2);
      touched += tokens > 0 ? 1 : 0;
    };
    for (int s = 0; s < w_.num_shared_experts; ++s) add_expert(w_.tokens_per_rank);
    for (int e = 0; e < routing_.experts_per_rank; ++e) {
      add_expert(
          routing_.tokens[static_cast<std::size_t>(busiest_ * routing_.experts_per_rank + e)]);
    }
    const double weight_bytes =
        3.0 * w_.hidden * w_.intermediate * element_bytes(w_.dtype) * touched;
    shape_.compute_ns =
        std::max(work_ns / setting_.machine.num_sms, weight_bytes / costs_.memory_rate);
    const double row_in =
        w_.hidden * (element_bytes(w_.dtype) + (w_.dtype == DataType::fp8 ? 4.0 / 128 : 0.0));
    shape_.scatter_bytes = shape_.rows * remote_ * w_.hidden * kOutputBytes;
    shape_.dispatch_bytes = static_cast<double>(w_.tokens_per_rank) * w_.top_k * remote_ * row_in;
    shape_.round_drain_ns = setting_.machine.num_sms * static_cast<double>(cost.block_m) *
                            cost.block_n * kOutputBytes * remote_ / rate_;
    plan_.sent_bytes = shape_.scatter_bytes + shape_.dispatch_bytes;
    plan_.drain_ns = plan_.sent_bytes / rate_;
  }

  void describe() {
    char text[320];
    std::snprintf(text, sizeof text,
                  "MoE %d tokens x %d, %d experts of %d, top-%d%s, %s%s; a rank: %d experts, %.0f "
                  "rows, sends %s of results and %s of tokens (%s at R)",
                  w_.tokens_per_rank, w_.hidden, w_.num_experts, w_.intermediate, w_.top_k,
                  w_.num_shared_experts > 0
                      ? (" + " + std::to_string(w_.num_shared_experts) + " shared").c_str()
                      : "",
                  std::string(to_string(w_.dtype)).c_str(), w_.skew > 0 ? ", skewed" : "",
                  routing_.experts_per_rank, shape_.rows, in_mb(shape_.scatter_bytes).c_str(),
                  in_mb(shape_.dispatch_bytes).c_str(), in_us(plan_.drain_ns).c_str());
    plan_.shape = text;
  }

  [[nodiscard]] std::vector<Spec> specs() const {
    const MoeCost& cost = run_.cost;
    SimSender sender;
    sender.send.kind = setting_.machine.link.kind;
    const auto tile =
        static_cast<std::uint32_t>(cost.block_m * cost.block_n * static_cast<int>(kOutputBytes));
    sender.send.chunk_bytes = tile;
    sender.outbox_bytes = tile;
    if (sender.send.kind == StoreKind::register16) sender.owner = SendOwner::main_role;
    SimSender held = sender;
    held.owner = SendOwner::main_role;
    std::vector<Spec> list;
    list.push_back({"wave", MoeSchedule::wave, false, sender, true});
    list.push_back({"interleaved", MoeSchedule::interleaved, false, sender, true});
    list.push_back({"lag", MoeSchedule::lag, false, sender, true});
    if (plan_.num_ranks > 1) {
      list.push_back({"wave, main role sends", MoeSchedule::wave, false, held, false});
      list.push_back(
          {"interleaved, main role sends", MoeSchedule::interleaved, false, held, false});
      list.push_back(
          {"interleaved, tokens once per rank", MoeSchedule::interleaved, true, sender, false});
    }
    return list;
  }

  [[nodiscard]] Candidate evaluate(const Spec& spec) const {
    Candidate c;
    c.name = spec.name;
    c.runnable = spec.runnable;
    c.schedule = spec.schedule;
    c.send = spec.sender.send;
    const double fixed_ns = costs_.launch_ns + (plan_.num_ranks > 1 ? 2 * costs_.barrier_ns : 0);
    const double crossing = spec.unique_tokens ? routing_.unique_share : 1.0;
    const double combine_ns = static_cast<double>(w_.tokens_per_rank) * w_.hidden * kOutputBytes *
                              (w_.top_k * crossing + 1) / costs_.memory_rate;
    c.bound_ns = std::max(shape_.compute_ns, crossing * plan_.drain_ns) + combine_ns + fixed_ns;
    if (!simulate_) {
      c.evidence = Evidence::closed_form;
      c.compute_ns = shape_.compute_ns + combine_ns + fixed_ns;
      // In a wave the stores of a round must leave while the next round computes.
      const double rounds = shape_.rows / run_.cost.block_m *
                            std::ceil(static_cast<double>(w_.hidden) / run_.cost.block_n) /
                            setting_.machine.num_sms;
      const double late =
          spec.schedule == MoeSchedule::wave
              ? rounds * std::max(0.0, shape_.round_drain_ns * crossing - shape_.linear2_ns)
              : 0.0;
      c.total_ns = std::max(c.bound_ns, c.compute_ns + late);
    } else {
      MoeRun run = run_;
      run.schedule = spec.schedule;
      run.unique_tokens = spec.unique_tokens;
      MoeRun local = run;
      local.local_only = true;
      SimOptions options;
      options.segment_bytes = 4096;
      // The machine's barrier comes once, before the combine step; the first is added here.
      const double before_ns = costs_.launch_ns + (plan_.num_ranks > 1 ? costs_.barrier_ns : 0);
      c.compute_ns = before_ns +
                     simulate_moe(setting_.machine, spec.sender, local, routing_, options).total_ns;
      if (plan_.num_ranks == 1) {
        c.total_ns = c.compute_ns;
      } else {
        options.keep_timeline = options_.keep_timelines;
        SimReport report = simulate_moe(setting_.machine, spec.sender, run, routing_, options);
        c.total_ns = before_ns + report.total_ns;
        c.timeline = std::move(report.timeline);
        c.timeline.name = c.name;
      }
    }
    c.exposed_ns = std::max(0.0, c.total_ns - c.compute_ns);
    held_by(c, crossing);
    return c;
  }

  void held_by(Candidate& c, double crossing) const {
    const double drain = crossing * plan_.drain_ns;
    if (drain > shape_.compute_ns) {
      c.held_by = "link: " + in_us(drain) + " for the bytes alone, tensor cores " +
                  in_us(shape_.compute_ns);
      return;
    }
    const double round = crossing * shape_.round_drain_ns;
    if (c.schedule == MoeSchedule::wave && round > shape_.linear2_ns) {
      c.held_by = "bursts: a round of Linear2 drains in " + in_us(round) + ", computes in " +
                  in_us(shape_.linear2_ns);
      return;
    }
    c.held_by = c.exposed_ns > 0.02 * c.total_ns
                    ? "tokens arrive late at first, results late at last"
                    : "tensor cores";
  }

  [[nodiscard]] const Candidate* find(const std::string& name) const {
    for (const Candidate& c : plan_.candidates) {
      if (c.name == name) return &c;
    }
    return nullptr;
  }

  void explain() {
    const Candidate& best = plan_.chosen();
    const Candidate* wave = find("wave");
    if (plan_.num_ranks == 1) {
      plan_.reason = best.name + ": one rank, nothing to exchange";
      return;
    }
    const std::string round = "a Linear2 tile takes " + in_us(shape_.linear2_ns) +
                              ", a round of them drains in " + in_us(shape_.round_drain_ns);
    char text[64];
    if (best.schedule == MoeSchedule::wave) {
      plan_.reason = "wave: " + round + "; no other order is more than 0.5 % faster";
    } else {
      std::snprintf(text, sizeof text,
                    "%.2fx over wave: ", wave != nullptr ? wave->total_ns / best.total_ns : 1.0);
      plan_.reason = best.name + ", " + text + round;
    }
    if (plan_.drain_ns > shape_.compute_ns) {
      plan_.notes.emplace_back("demand above R: the bytes need " + in_us(plan_.drain_ns) +
                               " at R, the tensor cores " + in_us(shape_.compute_ns) +
                               "; only fewer bytes help (a token once per rank: " +
                               in_percent(routing_.unique_share) + " of them)");
    } else if (plan_.drain_ns < 0.01 * shape_.compute_ns) {
      plan_.notes.emplace_back("compute-bound: the exchange is " +
                               in_percent(plan_.drain_ns / shape_.compute_ns) + " of the work");
    }
    if (shape_.tasks < 2.0 * setting_.machine.num_sms) {
      plan_.notes.emplace_back("few tasks: " + std::to_string(static_cast<long>(shape_.tasks)) +
                               " on " + std::to_string(setting_.machine.num_sms) +
                               " SMs, nothing to hide behind");
    }
    if (plan_.num_ranks > 2 && simulate_) {
      plan_.notes.emplace_back("the two busiest ranks are simulated, with the traffic of all");
    }
    if (!simulate_ && setting_.can_simulate)
      plan_.notes.emplace_back("too many tasks to simulate: closed forms only");
  }

  const MoeWorkload& w_;
  const TileCosts& costs_;
  const Setting& setting_;
  const PlanOptions& options_;
  Plan& plan_;
  MoeRun run_;
  MoeRouting routing_;
  Shape shape_;
  int busiest_ = 0;
  double rate_ = 0;
  double remote_ = 0;
  bool simulate_ = true;
};

}  // namespace

void plan_moe(const MoeWorkload& workload, const TileCosts& costs, const Setting& setting,
              const PlanOptions& options, Plan& plan) {
  MoePlanner(workload, costs, setting, options, plan).run();
}

}  // namespace xstage::planning
