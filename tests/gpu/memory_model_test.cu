// The memory model of docs/memory-model.md, a test a row: message passing with both sides running
// at once, many rounds, random delays, data and flags in every memory.
#include <gtest/gtest.h>

#include "gpu.hpp"
#include "messages.cuh"
#include "probe/tensor_map.hpp"

namespace xstage::test {
namespace {

// --- the host's side -----------------------------------------------------------------------------

// Memory of GPU 0, of GPU 1, or of the host.
enum class Memory { gpu0, gpu1, host };

struct Setting {
  int receiver_gpu;  // the sender is on GPU 0
  Memory data;
  Memory flags;
};

const char* name_of(Memory memory) {
  return memory == Memory::gpu0 ? "gpu0" : memory == Memory::gpu1 ? "gpu1" : "host";
}

Buffer zeroed(Memory memory, std::size_t bytes) {
  Buffer buffer = memory == Memory::host
                      ? Buffer(Buffer::Place::pinned_host, 0, bytes)
                      : Buffer(Buffer::Place::device, memory == Memory::gpu1 ? 1 : 0, bytes);
  const std::vector<char> zeros(bytes, 0);
  check(cudaMemcpy(buffer.data(), zeros.data(), bytes, cudaMemcpyDefault), "zero");
  check(cudaDeviceSynchronize(), "zero");
  return buffer;
}

enum class Writer { bulk, tensor, registers };

using Kernel = void (*)(MessageArgs, CUtensorMap);

Kernel kernel_of(Writer writer) {
  switch (writer) {
    case Writer::bulk:
      return message_kernel<device::BulkStore<>>;
    case Writer::tensor:
      return message_kernel<device::TensorStore>;
    case Writer::registers:
      break;
  }
  return message_kernel<device::RegisterStore<uint4>>;
}

struct Message {
  Writer writer = Writer::bulk;
  bool reads_by_tma = false;
  bool reads_twice = false;
  std::uint32_t num_rounds = 0;
  std::uint32_t max_delay_ns = 0;
  Omit omit = Omit::nothing;
};

// Starts the kernel's side on a GPU. The grid is small enough to be resident as a whole, and is
// launched cooperatively to be sure.
void start(Kernel kernel, int gpu, const Stream& stream, std::uint32_t num_ctas, MessageArgs args,
           CUtensorMap map) {
  check(cudaSetDevice(gpu), "cudaSetDevice");
  void* parameters[] = {&args, &map};
  check(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(num_ctas),
                                    dim3(kNumThreads), parameters, 0, stream.get()),
        "launch");
}

// Runs all rounds; returns the number of wrong words.
std::uint64_t pass_messages(const Setting& setting, const Message& message) {
  const std::uint32_t seed = choose_seed();
  std::cout << "seed " << seed << ": repeat with --gtest_random_seed=" << seed << "\n";
  constexpr std::size_t kDataBytes = std::size_t{kNumPairs} * kNumBuffers * kMessageBytes;
  const Buffer data = zeroed(setting.data, kDataBytes);
  const Buffer flags = zeroed(setting.flags, kNumPairs * kWordStride * 4);
  const Buffer free = zeroed(Memory::gpu0, kNumPairs * kWordStride * 4);
  const Buffer abort = zeroed(Memory::host, 4);
  const Buffer num_wrong =
      zeroed(setting.receiver_gpu == 0 ? Memory::gpu0 : Memory::gpu1, kNumPairs * 4);
  const Buffer done =
      zeroed(setting.receiver_gpu == 0 ? Memory::gpu0 : Memory::gpu1, kNumPairs * 4);
  const CUtensorMap map = probing::make_row_box_map(data.data(), kRowBytes, kDataBytes / kRowBytes,
                                                    kRowBytes, kRowBytes, kChunkBytes / kRowBytes);
  MessageArgs args{data.data(),
                   flags.as<std::uint32_t>(),
                   free.as<std::uint32_t>(),
                   message.num_rounds,
                   seed,
                   message.max_delay_ns,
                   true,
                   setting.receiver_gpu == 0,
                   message.reads_by_tma,
                   message.reads_twice,
                   message.omit,
                   num_wrong.as<std::uint32_t>(),
                   done.as<std::uint32_t>(),
                   device::WaitContext{abort.as<std::uint32_t>(), kDeadline_ns, nullptr}};
  const Kernel kernel = kernel_of(message.writer);
  // A kernel is loaded before the other side starts to wait for it.
  for (int gpu = setting.receiver_gpu; gpu >= 0; --gpu) {
    check(cudaSetDevice(gpu), "cudaSetDevice");
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "load");
  }
  const Stream senders(0);
  const Stream receivers(setting.receiver_gpu);
  const bool one_gpu = setting.receiver_gpu == 0;
  start(kernel, 0, senders, one_gpu ? 2 * kNumPairs : kNumPairs, args, map);
  if (!one_gpu) {
    args.sends = false;
    args.receives = true;
    start(kernel, 1, receivers, kNumPairs, args, map);
  }
  senders.synchronize();
  receivers.synchronize();
  EXPECT_EQ(download<std::uint32_t>(abort)[0], 0u) << "a wait gave up";
  for (const std::uint32_t rounds : download<std::uint32_t>(done)) {
    EXPECT_EQ(rounds, message.num_rounds);
  }
  std::uint64_t wrong = 0;
  for (const std::uint32_t count : download<std::uint32_t>(num_wrong)) wrong += count;
  return wrong;
}

std::string why_absent(const Setting& setting) {
  std::string why = why_no_gpu();
  const bool needs_peer =
      setting.receiver_gpu != 0 || setting.data == Memory::gpu1 || setting.flags == Memory::gpu1;
  if (why.empty() && needs_peer) why = why_no_peer();
  return why;
}

struct ModelCase {
  Setting setting;
  std::uint32_t num_rounds;
};

// Rows about messages between CTAs: the data and the flags each in the sender's memory, in the
// receiver's, in the host's; both GPUs the same or not.
class Messages : public testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    if (const std::string why = why_absent(GetParam().setting); !why.empty()) GTEST_SKIP() << why;
  }

  // Twice: as fast as it goes, and with random delays on both sides.
  static void expect_no_stale_word(Message message) {
    for (const std::uint32_t max_delay_ns : {0u, 1500u}) {
      message.max_delay_ns = max_delay_ns;
      message.num_rounds = GetParam().num_rounds;
      EXPECT_EQ(pass_messages(GetParam().setting, message), 0u)
          << "words that were not this round's, delays up to " << max_delay_ns << " ns";
    }
  }
};

TEST_P(Messages, BulkStoresThenFlagThenLoads) {
  expect_no_stale_word({Writer::bulk, false, false});
}
TEST_P(Messages, TensorStoresThenFlagThenLoads) {
  expect_no_stale_word({Writer::tensor, false, false});
}
TEST_P(Messages, BulkStoresThenFlagThenTma) {
  expect_no_stale_word({Writer::bulk, true, false});
}
TEST_P(Messages, TensorStoresThenFlagThenTma) {
  expect_no_stale_word({Writer::tensor, true, false});
}
TEST_P(Messages, RegisterStoresThenFlagThenLoads) {
  expect_no_stale_word({Writer::registers, false, false});
}
TEST_P(Messages, RegisterStoresThenFlagThenTma) {
  expect_no_stale_word({Writer::registers, true, false});
}
TEST_P(Messages, BulkDestinationIsKeptUntilItIsFreed) {
  expect_no_stale_word({Writer::bulk, false, true});
}
TEST_P(Messages, TensorDestinationIsKeptUntilItIsFreed) {
  expect_no_stale_word({Writer::tensor, true, true});
}
TEST_P(Messages, RegisterDestinationIsKeptUntilItIsFreed) {
  expect_no_stale_word({Writer::registers, true, true});
}

constexpr Setting kOneGpu[] = {{0, Memory::gpu0, Memory::gpu0},
                               {0, Memory::host, Memory::host},
                               {0, Memory::gpu0, Memory::host},
                               {0, Memory::host, Memory::gpu0}};
constexpr Setting kTwoGpus[] = {
    {1, Memory::gpu1, Memory::gpu1},  // the usual one: all in the receiver's memory
    {1, Memory::gpu1, Memory::gpu0},  // the receiver polls a flag in the sender's
    {1, Memory::gpu0, Memory::gpu1},  // the receiver fetches the data from the sender
    {1, Memory::gpu1, Memory::host},
    {1, Memory::host, Memory::gpu1},
    {1, Memory::host, Memory::host},
    {0, Memory::gpu1, Memory::gpu0},  // both CTAs on one GPU, the data on the other
};

template <typename Settings>
std::vector<ModelCase> cases(const Settings& settings, std::uint32_t num_rounds) {
  std::vector<ModelCase> all;
  for (const Setting& setting : settings) all.push_back({setting, num_rounds});
  return all;
}

std::string name_of_case(const testing::TestParamInfo<ModelCase>& info) {
  const Setting& setting = info.param.setting;
  return "to_gpu" + std::to_string(setting.receiver_gpu) + "_data_" + name_of(setting.data) +
         "_flags_" + name_of(setting.flags);
}

INSTANTIATE_TEST_SUITE_P(Quick, Messages, testing::ValuesIn(cases(kOneGpu, 20)), name_of_case);
INSTANTIATE_TEST_SUITE_P(OneGpu, Messages, testing::ValuesIn(cases(kOneGpu, 2000)), name_of_case);
INSTANTIATE_TEST_SUITE_P(TwoGpus, Messages, testing::ValuesIn(cases(kTwoGpus, 2000)), name_of_case);

// --- within one SM -------------------------------------------------------------------------------

struct SameSmArgs {
  char* scratch;  // [cta] messages in this GPU's memory
  std::uint32_t num_rounds;
  std::uint32_t seed;
  std::uint32_t* num_wrong;
  device::WaitContext wait;
};

// Ordinary stores to global memory, then a bulk load of them by the same CTA: a fence at the
// writers, a barrier, a fence at the thread that issues the load.
__global__ void __launch_bounds__(kNumThreads) write_then_tma_kernel(const SameSmArgs args) {
  __shared__ SharedTile tile;
  if (threadIdx.x == 0) {
    device::mbarrier_init(&tile.barrier, 1);
    device::mbarrier_init_fence();
  }
  __syncthreads();
  char* const scratch = args.scratch + static_cast<std::uint64_t>(blockIdx.x) * kMessageBytes;
  std::uint32_t wrong = 0;
  for (std::uint32_t round = 0; round < args.num_rounds; ++round) {
    for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
      device::store_global(scratch + i * 4, probing::payload(args.seed + round, blockIdx.x, i));
    }
    device::fence_async_global();
    __syncthreads();
    if (threadIdx.x == 0) {
      device::fence_async_global();
      device::fence_async_shared();
      device::mbarrier_arrive_expect_bytes(&tile.barrier, kMessageBytes);
      device::bulk_load(tile.bytes, scratch, kMessageBytes, &tile.barrier);
    }
    device::wait_barrier(args.wait, &tile.barrier, round & 1);
    // Backwards, so that each thread reads words that others wrote.
    for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
      const std::uint32_t at = kMessageBytes / 4 - 1 - i;
      wrong += reinterpret_cast<const std::uint32_t*>(tile.bytes)[at] !=
               probing::payload(args.seed + round, blockIdx.x, at);
    }
    __syncthreads();
  }
  if (wrong != 0) atomicAdd(args.num_wrong, wrong);
}

// Ordinary stores to shared memory, a bulk store of them, full completion, a barrier: the CTA's
// other threads read the result by ordinary loads.
__global__ void __launch_bounds__(kNumThreads) tma_then_read_kernel(const SameSmArgs args) {
  __shared__ SharedTile tile;
  char* const scratch = args.scratch + static_cast<std::uint64_t>(blockIdx.x) * kMessageBytes;
  auto* words = reinterpret_cast<std::uint32_t*>(tile.bytes);
  std::uint32_t wrong = 0;
  for (std::uint32_t round = 0; round < args.num_rounds; ++round) {
    for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
      words[i] = probing::payload(args.seed + round, blockIdx.x, i);
    }
    device::fence_async_shared();
    device::fence_async_global();  // the last round's ordinary loads of the destination
    __syncthreads();
    if (threadIdx.x == 0) {
      device::bulk_store(scratch, tile.bytes, kMessageBytes);
      device::bulk_commit();
      device::bulk_wait_complete<0>();
    }
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < kMessageBytes / 4; i += kNumThreads) {
      wrong += load_weak(scratch + i * 4) != probing::payload(args.seed + round, blockIdx.x, i);
    }
    __syncthreads();
  }
  if (wrong != 0) atomicAdd(args.num_wrong, wrong);
}

class SameSm : public testing::TestWithParam<std::uint32_t> {
 protected:
  static void expect_no_stale_word(void (*kernel)(SameSmArgs)) {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    constexpr std::uint32_t kNumCtas = 64;
    const std::uint32_t seed = choose_seed();
    std::cout << "seed " << seed << ": repeat with --gtest_random_seed=" << seed << "\n";
    const Buffer scratch = zeroed(Memory::gpu0, std::size_t{kNumCtas} * kMessageBytes);
    const Buffer num_wrong = zeroed(Memory::gpu0, 4);
    const Buffer abort = zeroed(Memory::gpu0, 4);
    kernel<<<kNumCtas, kNumThreads>>>(
        SameSmArgs{scratch.data(), GetParam(), seed, num_wrong.as<std::uint32_t>(),
                   device::WaitContext{abort.as<std::uint32_t>(), kDeadline_ns, nullptr}});
    check(cudaGetLastError(), "launch");
    check(cudaDeviceSynchronize(), "kernel");
    EXPECT_EQ(download<std::uint32_t>(abort)[0], 0u) << "a wait gave up";
    EXPECT_EQ(download<std::uint32_t>(num_wrong)[0], 0u) << "stale words";
  }
};

TEST_P(SameSm, OrdinaryStoresThenTma) {
  expect_no_stale_word(write_then_tma_kernel);
}
TEST_P(SameSm, TmaThenOrdinaryLoads) {
  expect_no_stale_word(tma_then_read_kernel);
}

INSTANTIATE_TEST_SUITE_P(Quick, SameSm, testing::Values(20u));
INSTANTIATE_TEST_SUITE_P(Full, SameSm, testing::Values(5000u));

// --- what happens without ------------------------------------------------------------------------

// Not a condition of anything: a machine may hide the omission. Run with
// --gtest_also_run_disabled_tests to see which omissions this machine punishes.
TEST(Omissions, DISABLED_AreSeenAsStaleWords) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  struct Omission {
    const char* what;
    Message message;
  };
  const Omission omissions[] = {
      {"bulk, flag after the source was read",
       {Writer::bulk, false, false, 0, 0, Omit::completion}},
      {"tensor, flag after the source was read",
       {Writer::tensor, false, false, 0, 0, Omit::completion}},
      {"bulk, flag without release", {Writer::bulk, false, false, 0, 0, Omit::release}},
      {"registers, flag without fence", {Writer::registers, false, false, 0, 0, Omit::release}},
      {"bulk, receiver without acquire", {Writer::bulk, false, false, 0, 0, Omit::acquire}},
      {"registers, receiver without acquire",
       {Writer::registers, false, false, 0, 0, Omit::acquire}},
      {"registers, TMA without async fence",
       {Writer::registers, true, false, 0, 0, Omit::async_fence}},
  };
  const auto try_all = [&](const Setting& setting) {
    for (Omission omission : omissions) {
      omission.message.num_rounds = 2000;
      const std::uint64_t wrong = pass_messages(setting, omission.message);
      std::cout << "omission: to GPU " << setting.receiver_gpu << ", data " << name_of(setting.data)
                << ", flags " << name_of(setting.flags) << ", " << omission.what << ": " << wrong
                << " stale words of " << std::uint64_t{2000} * kNumPairs * kMessageBytes / 4
                << "\n";
    }
  };
  for (const Setting& setting : kOneGpu) try_all(setting);
  if (why_no_peer().empty()) {
    for (const Setting& setting : kTwoGpus) try_all(setting);
  }
}

}  // namespace
}  // namespace xstage::test
