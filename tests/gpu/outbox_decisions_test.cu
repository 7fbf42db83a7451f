// The outbox's decisions one by one, on a store that moves nothing and writes down what it is told:
// the order of chunks, when a slot is granted, which group each copy belongs to.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "device/outbox.cuh"
#include "gpu.hpp"

namespace xstage::test {
namespace {

enum class Event : std::uint32_t {
  posted,    // parcel
  acquired,  // parcel that may be filled next
  issued,    // parcel, offset, bytes
  committed,
  read,  // groups that may still be reading
  completed,
  visible,
  published,
  pumped,  // 1: has sent
  stepped,
  drained,
};

struct Record {
  Event event;
  std::uint32_t a, b, c;
};

constexpr std::uint32_t kMaxRecords = 2048;

struct Journal {
  std::uint32_t count;
  Record records[kMaxRecords];
};

// One warp writes it, by its first lane.
__device__ inline Journal& journal() {
  __shared__ Journal shared_journal;
  return shared_journal;
}

__device__ inline void record(const device::Role& role, Event event, std::uint32_t a = 0,
                              std::uint32_t b = 0, std::uint32_t c = 0) {
  if (!role.is_leader()) return;
  Journal& to = journal();
  if (to.count < kMaxRecords) to.records[to.count++] = {event, a, b, c};
}

// A copy engine that moves nothing and writes down what it is told.
struct RecordingStore {
  struct Destination {
    std::uint32_t parcel;
  };
  static constexpr bool kUsesCopyEngine = true;

  static __device__ void issue(const device::Role& role, const Destination& destination,
                               const char*, std::uint32_t offset, std::uint32_t bytes) {
    record(role, Event::issued, destination.parcel, offset, bytes);
  }
  static __device__ void commit(const device::Role& role) { record(role, Event::committed); }
  template <int kPending>
  static __device__ void wait_read(const device::Role& role) {
    record(role, Event::read, kPending);
  }
  static __device__ void wait_complete(const device::Role& role) { record(role, Event::completed); }
  static __device__ void make_visible(const device::Role& role) { record(role, Event::visible); }
  static __device__ void publish(const device::Role& role, std::uint32_t*, std::uint32_t) {
    record(role, Event::published);
  }
};

struct ScriptArgs {
  Send send;
  const std::uint32_t* script;
  std::uint32_t num_calls;
  Journal* journal;
};

// A script's word: 0 step, 1 pump, 2 drain, else acquire and post a parcel of so many bytes.
constexpr std::uint32_t kStep = 0, kPump = 1, kDrain = 2;

template <int kNumSlots>
__global__ void script_kernel(const ScriptArgs args) {
  using Box = device::Outbox<RecordingStore, kNumSlots>;
  __shared__ typename Box::Storage storage;
  const device::Role role{threadIdx.x, 32, 1};
  if (role.is_leader()) journal().count = 0;
  __syncwarp();
  Box outbox(role, args.send, storage);
  std::uint32_t parcel = 0;
  for (std::uint32_t i = 0; i < args.num_calls; ++i) {
    const std::uint32_t call = args.script[i];
    if (call == kStep) {
      outbox.step();
      record(role, Event::stepped);
    } else if (call == kPump) {
      record(role, Event::pumped, outbox.pump());
    } else if (call == kDrain) {
      outbox.drain();
      record(role, Event::drained);
    } else {
      outbox.acquire();
      record(role, Event::acquired, parcel);
      outbox.post(nullptr, call, {parcel});
      record(role, Event::posted, parcel, call);
      ++parcel;
    }
  }
  outbox.drain();
  outbox.publish(nullptr, 1);
  outbox.wait_complete();
  __syncwarp();
  if (role.is_leader()) *args.journal = journal();
}

// Replays a journal against the promises in outbox.cuh.
class Replay {
 public:
  Replay(const Send& send, std::uint32_t num_slots) : send_(send), num_slots_(num_slots) {}

  void check(const Journal& journal) {
    ASSERT_LT(journal.count, kMaxRecords) << "the journal was too short";
    for (std::uint32_t i = 0; i < journal.count; ++i) {
      SCOPED_TRACE("record " + std::to_string(i));
      apply(journal.records[i], i + 1 < journal.count ? &journal.records[i + 1] : nullptr);
      if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) return;
    }
    EXPECT_TRUE(published_);
  }

 private:
  struct Chunk {
    std::uint32_t parcel;
    std::uint32_t group;
  };

  void apply(const Record& record, const Record* next) {
    switch (record.event) {
      case Event::posted:
        parcel_bytes_.push_back(record.b);
        break;
      case Event::acquired:
        acquired(record.a);
        break;
      case Event::issued:
        issued(record);
        break;
      case Event::committed:
        ++num_groups_;
        ends_wait(next);
        break;
      case Event::read:
      case Event::completed:
      case Event::visible:
        // Groups end in order: the newest `a` of those that are closed may go on.
        while (!reading_.empty() && reading_.front().group + record.a < num_groups_) {
          reading_.pop_front();
        }
        break;
      case Event::pumped:
        EXPECT_EQ(record.a != 0, sent_since_call_ == 1) << "pump() sends one chunk or none";
        break;
      case Event::drained:
        EXPECT_EQ(next_parcel_, parcel_bytes_.size()) << "drain() has left something";
        break;
      case Event::published:
        published_ = true;
        EXPECT_EQ(next_parcel_, parcel_bytes_.size());
        for (const Chunk& chunk : reading_) {
          EXPECT_LT(chunk.group, num_groups_) << "a chunk in no closed group: nobody waits for it";
        }
        break;
      case Event::stepped:
        break;
    }
    const bool ends_call = record.event == Event::pumped || record.event == Event::acquired ||
                           record.event == Event::drained;
    if (ends_call) sent_since_call_ = 0;
  }

  void acquired(std::uint32_t parcel) {
    EXPECT_EQ(parcel, parcel_bytes_.size());
    if (parcel < num_slots_) return;
    for (const Chunk& chunk : reading_) {
      EXPECT_GT(chunk.parcel, parcel - num_slots_)
          << "the slot of parcel " << chunk.parcel << " was granted while it is still read";
    }
    EXPECT_GT(next_parcel_, parcel - num_slots_) << "a slot was granted that is not yet sent";
  }

  // Chunks leave in the order of post(), each parcel from its first byte to its last.
  void issued(const Record& record) {
    ASSERT_LT(next_parcel_, parcel_bytes_.size()) << "sent before it was posted";
    EXPECT_EQ(record.a, next_parcel_);
    EXPECT_EQ(record.b, offset_);
    const std::uint32_t left = parcel_bytes_[next_parcel_] - offset_;
    const std::uint32_t whole = send_.chunk_bytes == 0 ? left : send_.chunk_bytes;
    EXPECT_EQ(record.c, std::min(left, whole));
    reading_.push_back({next_parcel_, num_groups_});
    offset_ += record.c;
    ++sent_since_call_;
    if (offset_ == parcel_bytes_[next_parcel_]) {
      offset_ = 0;
      ++next_parcel_;
    }
  }

  // What Send::completion asks for follows each chunk at once.
  void ends_wait(const Record* next) const {
    if (send_.completion == Completion::accepted) return;
    ASSERT_NE(next, nullptr);
    if (send_.completion == Completion::read) {
      EXPECT_EQ(next->event, Event::read);
      EXPECT_EQ(next->a, 0u);
    } else {
      EXPECT_EQ(next->event, Event::visible);
    }
  }

  Send send_;
  std::uint32_t num_slots_;
  std::vector<std::uint32_t> parcel_bytes_;
  std::uint32_t next_parcel_ = 0;
  std::uint32_t offset_ = 0;
  std::uint32_t num_groups_ = 0;
  std::uint32_t sent_since_call_ = 0;
  std::deque<Chunk> reading_;  // oldest first
  bool published_ = false;
};

void run_script(const Send& send, std::uint32_t num_slots,
                const std::vector<std::uint32_t>& script) {
  const Buffer calls = upload(script);
  const Buffer result(Buffer::Place::device, 0, sizeof(Journal));
  const ScriptArgs args{send, calls.as<std::uint32_t>(), static_cast<std::uint32_t>(script.size()),
                        result.as<Journal>()};
  switch (num_slots) {
    case 1:
      script_kernel<1><<<1, 32>>>(args);
      break;
    case 2:
      script_kernel<2><<<1, 32>>>(args);
      break;
    case 3:
      script_kernel<3><<<1, 32>>>(args);
      break;
    default:
      script_kernel<4><<<1, 32>>>(args);
      break;
  }
  check(cudaGetLastError(), "launch");
  check(cudaDeviceSynchronize(), "kernel");
  const auto journal = download<Journal>(result);
  SCOPED_TRACE(std::to_string(num_slots) + " slots, chunk " + std::to_string(send.chunk_bytes) +
               ", steps " + std::to_string(send.steps_per_chunk) + ", completion " +
               std::to_string(static_cast<int>(send.completion)));
  Replay(send, num_slots).check(journal.at(0));
}

class Decisions : public testing::TestWithParam<std::uint32_t> {};

TEST_P(Decisions, KeepOrderSlotsAndGroupsOnRandomScripts) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  const std::uint32_t seed = choose_seed();
  std::cout << "seed " << seed << ": repeat with --gtest_random_seed=" << seed << "\n";
  std::mt19937 random(seed);
  const auto up_to = [&](std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(0, most)(random);
  };
  for (int i = 0; i < 120 && !HasFailure(); ++i) {
    Send send{StoreKind::bulk, 16 * (4 + up_to(12)), up_to(4), static_cast<Completion>(up_to(2))};
    if (up_to(7) == 0) send.chunk_bytes = 0;
    const std::uint32_t post_share = 1 + up_to(5);
    std::vector<std::uint32_t> script;
    for (int call = 0; call < 120; ++call) {
      const std::uint32_t pick = up_to(11);
      script.push_back(pick < post_share ? 16 * (1 + up_to(31))
                       : pick == 11      ? (up_to(3) == 0 ? kDrain : kStep)
                       : pick % 2 == 0   ? kStep
                                         : kPump);
    }
    run_script(send, GetParam(), script);
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, Decisions, testing::Values(1u, 2u, 3u, 4u));

}  // namespace
}  // namespace xstage::test
