// One rank of the exchange over memory that somebody else mapped, behind a C call: for
// peers_torch.py, whose symmetric memory it adopts.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>

#include "peers_rank.cuh"
#include "xstage/error.hpp"

namespace {

using xstage::gpu_test::Options;
using xstage::gpu_test::RankRun;

int note(char* text, std::size_t room, const std::exception& error) {
  std::strncpy(text, error.what(), room - 1);
  const auto* ours = dynamic_cast<const xstage::Error*>(&error);
  return ours == nullptr ? 4 : ours->exit_code();
}

}  // namespace

extern "C" {

struct XstageAdopted {
  std::uint64_t num_wrong;    // vectors of 16 bytes
  std::uint64_t num_checked;  // bytes
  char error[256];
};

// Adopts `bytes` at each of `bases`. The caller makes sure that all ranks have returned before any
// of them runs. Null, with the error's text, if it fails.
void* xstage_adopt(void* const* bases, int rank, int num_ranks, std::uint64_t bytes, int device,
                   XstageAdopted* call) {
  try {
    xstage::PeerOptions options;
    options.device = device;
    options.deadline_ns = 30'000'000'000;
    auto run = std::make_unique<RankRun>(xstage::PeerMemory::adopt(
        {bases, static_cast<std::size_t>(num_ranks)}, rank, bytes, options));
    run->set_num_ctas(16);
    return run.release();
  } catch (const std::exception& error) {
    (void)note(call->error, sizeof call->error, error);
    return nullptr;
  }
}

// Rounds of random sizes to every rank, all bytes checked. Zero or the error's category.
int xstage_exchange(void* adopted, int num_rounds, std::uint32_t seed, XstageAdopted* call) {
  try {
    auto& run = *static_cast<RankRun*>(adopted);
    Options options;
    options.seed = seed;
    run.launch_exchange(options, num_rounds);
    run.finish();
    run.memory().check();
    const RankRun::Counters counters = run.counters();
    call->num_wrong = counters.num_wrong;
    call->num_checked = counters.num_checked;
    return 0;
  } catch (const std::exception& error) {
    return note(call->error, sizeof call->error, error);
  }
}

void xstage_release(void* adopted) {
  delete static_cast<RankRun*>(adopted);
}
}
