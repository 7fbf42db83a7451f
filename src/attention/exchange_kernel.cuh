// Attention fused with the exchange of its output: the forward kernel, with senders that store to
// the owners of the rows. No further SM, warpgroup or copy in global memory is involved.
#pragma once

#include <cstdint>

#include "attention/exchange_carrier.cuh"
#include "attention/exchange_sender.cuh"
#include "attention/forward_kernel.cuh"

namespace xstage::attention {

template <class Traits, bool kHasCarriers = false>
__global__ void __launch_bounds__(kNumThreads, 1)
    attention_exchange_kernel(const __grid_constant__ ExchangeParams params) {
  extern __shared__ __align__(1024) char shared_bytes[];
  auto& shared = *reinterpret_cast<ExchangeShared<Traits>*>(shared_bytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    shared.num_steps = 0;
    dev::mbarrier_init(&shared.gate, 1);
    init_barriers(shared.forward);
    dev::prefetch_tensor_map(&params.forward.q);
    dev::prefetch_tensor_map(&params.forward.k);
    dev::prefetch_tensor_map(&params.forward.v);
  }
  __syncthreads();
  const int carrier =
      kHasCarriers ? static_cast<int>(blockIdx.x - gridDim.x) + params.num_carriers : -1;
  if (warp < kWarpgroupThreads / 32) {
    dev::shrink_registers<Traits::kProducerRegisters>();
    if (warp == 0) {
      if (kHasCarriers && carrier >= 0) {
        if (threadIdx.x == 0) run_feeder(params, shared, carrier);
      } else if (threadIdx.x == 0) {
        run_loader(params.forward, shared.forward, ExchangeHooks<Traits>{params, shared});
      }
    } else if (warp <= kNumGroups) {
      if (kHasCarriers && carrier < 0) {
        run_stager(params, shared, warp - 1);
      } else {
        Sender<Traits>(params, shared, warp - 1).run();
      }
    } else {
      run_gatekeeper(params, shared);
    }
  } else {
    dev::grow_registers<Traits::kConsumerRegisters>();
    if (kHasCarriers && carrier >= 0) {
      look_on(shared);
      return;
    }
    const int group = warp / 4 - 1;
    Consumer<Traits>(params.forward, shared.forward, group,
                     static_cast<int>(threadIdx.x) % kWarpgroupThreads)
        .run();
  }
}

// Ahead of the serial path's kernels, what the fused kernel's gatekeeper does: one thread a rank
// tells its owner that this rank has done with earlier results.
struct ReleaseParams {
  std::uint32_t* released[kMaxRanks];  // in each rank's memory; null: the own rank's
  const ExchangeHeader* header;
  std::int32_t num_ranks;
};
__global__ void exchange_release_kernel(const __grid_constant__ ReleaseParams params) {
  const int rank = static_cast<int>(threadIdx.x);
  if (rank >= params.num_ranks || params.released[rank] == nullptr) return;
  dev::raise_flag(params.released[rank], params.header->epoch);
}

// Until every rank's rows of this rank's latest call are here; one thread a rank.
__global__ void exchange_wait_kernel(const ExchangeHeader* header, int num_ranks,
                                     WaitContext wait) {
  const int rank = static_cast<int>(threadIdx.x);
  if (rank >= num_ranks) return;
  (void)dev::wait_flag(wait, &header->arrived[rank], header->epoch, rank,
                       static_cast<std::uint32_t>(ExchangeTag::arrived));
}

// The log-sum-exp of the serial path: one block a (batch, local head) and owner.
struct LsePush {
  const float* own;          // [batch, local head, row]
  float* owners[kMaxRanks];  // of this rank's heads; null: no rows
  SequenceShards shards;
  std::int32_t num_heads;
  std::int32_t num_heads_all;
};
__global__ void exchange_lse_kernel(const __grid_constant__ LsePush push) {
  const int owner = static_cast<int>(blockIdx.y);
  const int batch = static_cast<int>(blockIdx.x) / push.num_heads;
  const int head = static_cast<int>(blockIdx.x) % push.num_heads;
  const int num_rows = push.shards.owner_rows(owner);
  float* to = push.owners[owner] + (std::int64_t{batch} * push.num_heads_all + head) * num_rows;
  const float* from = push.own + std::int64_t{blockIdx.x} * push.shards.num_rows();
  RowRunCursor cursor(push.shards, 0, push.shards.num_rows());
  RowRun run;
  while (cursor.next(run)) {
    if (run.owner != owner) continue;
    for (int i = static_cast<int>(threadIdx.x); i < run.num_rows;
         i += static_cast<int>(blockDim.x)) {
      to[run.owner_row + i] = from[run.first_row + i];
    }
  }
}

}  // namespace xstage::attention
