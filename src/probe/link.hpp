// One directed link under test: the GPU that stores, the memory it stores into, and the scratch
// memory of the experiments. Owns everything; the kernels see plain pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "probe/burst.hpp"
#include "probe/cuda.hpp"
#include "xstage/link_profile.hpp"

namespace xstage::probing {

// Where the bytes go.
struct Target {
  Endpoint::Type type = Endpoint::Type::gpu;
  int device_idx = 0;  // of the destination GPU; of the source for host and local memory
};

class Link {
 public:
  // Enables peer access where needed. Throws Error(not_possible) with the reason.
  Link(int source_idx, Target target, double timeout_s);
  ~Link();
  Link(Link&&) noexcept;

  [[nodiscard]] int source_idx() const noexcept { return source_idx_; }
  [[nodiscard]] const Target& target() const noexcept { return target_; }
  [[nodiscard]] int num_sms() const noexcept { return num_sms_; }
  [[nodiscard]] int max_burst_bytes() const noexcept { return max_burst_bytes_; }
  [[nodiscard]] bool has_copy_engine_stores() const noexcept { return has_tma_; }
  [[nodiscard]] const Stream& stream() const noexcept { return *stream_; }
  [[nodiscard]] const Buffer& destination() const noexcept { return destination_; }
  [[nodiscard]] double timeout_s() const noexcept { return timeout_s_; }

  // prepare() poisons the destination and sets everything up; start() only launches the kernel, so
  // that several links can start close together; collect() waits, reads the samples and checks
  // every byte that the producers were to write and the guard zones between them. One run at a
  // time.
  //
  // With `others`, links of the same source, the producers take this link's destination and theirs
  // in turn, and all of them are checked: fan-out, contiguous register and bulk stores only.
  void prepare(const BurstSpec& spec, const std::vector<Link*>& others = {});
  void start();
  [[nodiscard]] BurstRun collect();
  [[nodiscard]] BurstRun run(const BurstSpec& spec) {
    prepare(spec);
    start();
    return collect();
  }

  // What collect() checks at the destinations of the run in flight, or of the last one.
  struct Checked {
    std::uint64_t num_words = 0;
    std::uint64_t num_wrong = 0;
  };
  [[nodiscard]] Checked check_destinations() const;

  // Memory of the source GPU that experiments may use as they like.
  [[nodiscard]] char* local_source() const noexcept { return gap_source_.data(); }
  [[nodiscard]] std::size_t local_source_bytes() const noexcept { return gap_source_.size(); }
  // Scratch memory of the source GPU for one experiment, kArenaBytes, zeroed by this call.
  static constexpr std::size_t kArenaBytes = 8u << 20;
  [[nodiscard]] char* arena() const;
  // On the destination's GPU (of the source for host memory): a counter for checks.
  [[nodiscard]] char* check_counter() const noexcept { return check_counter_.data(); }
  [[nodiscard]] std::uint32_t* abort_word() const noexcept { return abort_.as<std::uint32_t>(); }
  // Throws Error(timeout) if a device wait ran into its deadline since the last call.
  void check_abort(const char* what) const;

 private:
  int source_idx_;
  Target target_;
  double timeout_s_;
  int num_sms_ = 0;
  int max_burst_bytes_ = 0;
  bool has_tma_ = false;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<EventPair> events_;
  Buffer destination_;
  Buffer gap_source_;
  Buffer scratch_;  // device: samples, start times, counters
  Buffer arena_;    // device: whatever an experiment needs
  Buffer abort_;    // device: the abort word
  Buffer check_counter_;
  Buffer row_order_;  // device: permutation of rows
  std::vector<std::uint32_t> row_order_host_;
  BurstSpec spec_;             // of the run in flight
  std::vector<Link*> others_;  // of the same
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

// SMs that store, for K producers: spread over TPCs (pairs of neighbouring SMs), or pairs filled
// first. Entry [sm] is the producer's index or -1. Pure.
[[nodiscard]] std::vector<std::int32_t> place_producers(int num_sms, int num_producers,
                                                        bool two_per_tpc);

}  // namespace xstage::probing
