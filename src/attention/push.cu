// Host side of the serial exchange: launches, copies, and whether stores are possible at all.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "attention/push.hpp"
#include "attention/push_kernel.cuh"
#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

// Most calls have few peers; a small parameter block is launched faster.
using SmallParams = PushParams<24, 8>;
using LargeParams = PushParams<kMaxPushTensors * kMaxRanks, kMaxRanks>;
static_assert(sizeof(LargeParams) <= 32764, "the limit of kernel parameters");

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(ErrorCategory::runtime,
              std::string("exchange: ") + what + ": " + cudaGetErrorString(status));
}

cudaStream_t handle(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

int current_num_sms() {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  return value;
}

void check_sync(const PushPlan& plan, const PushSync& sync) {
  if (sync.epoch == nullptr) return;
  if (static_cast<int>(sync.owners.size()) != plan.num_owners || sync.last_use == nullptr ||
      sync.counter == nullptr) {
    throw Error(ErrorCategory::usage, "exchange: flags of " + std::to_string(sync.owners.size()) +
                                          " owners given, " + std::to_string(plan.num_owners) +
                                          " are needed, and last_use and counter");
  }
}

template <class Params>
Params make_params(const PushPlan& plan, const PushSync& sync) {
  Params params{};
  std::copy(plan.parts.begin(), plan.parts.end(), params.parts);
  params.num_parts = static_cast<std::int32_t>(plan.parts.size());
  params.num_tasks = plan.num_tasks;
  params.flags = {sync.wait, sync.epoch, sync.last_use, sync.counter,
                  sync.epoch != nullptr ? plan.num_owners : 0};
  for (std::size_t i = 0; i < sync.owners.size() && sync.epoch != nullptr; ++i) {
    params.arrived[i] = sync.owners[i].arrived;
    params.released[i] = sync.owners[i].released;
  }
  return params;
}

// Calls `use` with the smallest parameter block that holds the plan.
template <typename Use>
void with_params(const PushPlan& plan, const PushSync& sync, Use use) {
  check_sync(plan, sync);
  if (plan.parts.size() <= SmallParams::kMaxParts && plan.num_owners <= SmallParams::kMaxOwners) {
    use(make_params<SmallParams>(plan, sync));
  } else {
    use(make_params<LargeParams>(plan, sync));
  }
}

template <class Params>
void launch_bulk(const Params& params, int num_sms, cudaStream_t stream) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(PushShared));
  static_assert(kSharedBytes <= 227 * 1024);
  const auto kernel = push_bulk_kernel<Params>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  const int ctas = std::clamp(ceil_div(params.num_tasks, kBulkMovers), 1, num_sms);
  kernel<<<static_cast<unsigned>(ctas), kBulkMovers * 32, kSharedBytes, stream>>>(params);
}

template <class Params>
void launch_register(const Params& params, int num_sms, cudaStream_t stream) {
  const int ctas = std::clamp(ceil_div(params.num_tasks, kRegisterMovers), 1, num_sms);
  push_register_kernel<<<static_cast<unsigned>(ctas), kRegisterMovers * 32, 0, stream>>>(params);
}

// Heads that lie beside each other on both sides are one copy, however many there are.
bool heads_adjacent(const PushPart& part, std::int64_t head_bytes) {
  return part.source_head == head_bytes && part.destination_head == head_bytes;
}

void copy_rows(const PushPart& part, const RowMove& move, int batch, int group, std::int64_t bytes,
               cudaStream_t stream) {
  const std::int64_t head = std::int64_t{group} * part.heads_per_group;
  const char* from = part.source + batch * part.source_batch + head * part.source_head +
                     move.from * part.source_row;
  char* to = part.destination + batch * part.destination_batch + head * part.destination_head +
             move.to * part.destination_row;
  const auto width = static_cast<std::size_t>(bytes);
  // The pitch of a single row is never used, but has to be legal.
  const auto pitch = [&](std::int64_t stride) {
    return move.num_rows > 1 ? static_cast<std::size_t>(stride) : width;
  };
  check_cuda(cudaMemcpy2DAsync(to, pitch(part.destination_row), from, pitch(part.source_row), width,
                               static_cast<std::size_t>(move.num_rows), cudaMemcpyDefault, stream),
             "cudaMemcpy2DAsync");
}

void copy_part(const PushPlan& plan, const PushPart& part, const RowMove& move, int batch,
               cudaStream_t stream) {
  if (part.num_groups > 0 && heads_adjacent(part, plan.head_bytes)) {
    const std::int64_t all =
        std::int64_t{part.num_groups - 1} * part.unit_bytes + part.last_unit_bytes;
    copy_rows(part, move, batch, 0, all, stream);
    return;
  }
  for (int group = 0; group < part.num_groups; ++group) {
    copy_rows(part, move, batch, group, part.unit_bytes, stream);
  }
}

template <class Params>
void load_kernels() {
  cudaFuncAttributes attributes{};
  const void* const kernels[] = {reinterpret_cast<const void*>(push_bulk_kernel<Params>),
                                 reinterpret_cast<const void*>(push_register_kernel<Params>),
                                 reinterpret_cast<const void*>(wait_for_release_kernel<Params>),
                                 reinterpret_cast<const void*>(publish_rows_kernel<Params>)};
  for (const void* kernel : kernels) {
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

}  // namespace

void load_push_kernels() {
  load_kernels<SmallParams>();
  load_kernels<LargeParams>();
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, wait_for_rows_kernel), "cudaFuncGetAttributes");
}

void push(const PushPlan& plan, const PushSync& sync, const PushOptions& options, Stream stream) {
  if (plan.num_tasks == 0 && sync.epoch == nullptr) return;
  const int num_sms = options.num_sms > 0 ? options.num_sms : current_num_sms();
  with_params(plan, sync, [&](const auto& params) {
    if (options.kind == PushOptions::Kind::bulk) {
      launch_bulk(params, num_sms, handle(stream));
    } else {
      launch_register(params, num_sms, handle(stream));
    }
  });
  check_cuda(cudaGetLastError(), "launch");
}

void copy_by_engine(const PushPlan& plan, const PushSync& sync, Stream stream) {
  with_params(plan, sync, [&](const auto& params) {
    using Params = std::remove_cvref_t<decltype(params)>;
    if (sync.epoch != nullptr) {
      wait_for_release_kernel<Params><<<1, 32, 0, handle(stream)>>>(params);
      check_cuda(cudaGetLastError(), "launch");
    }
    for (const PushPart& part : plan.parts) {
      for (const RowMove& move : part.moves) {
        if (move.num_rows == 0) continue;
        for (int batch = 0; batch < plan.num_batches; ++batch) {
          copy_part(plan, part, move, batch, handle(stream));
        }
      }
    }
    if (sync.epoch != nullptr) {
      publish_rows_kernel<Params><<<1, 32, 0, handle(stream)>>>(params);
      check_cuda(cudaGetLastError(), "launch");
    }
  });
}

void wait_for_rows(const WaitContext& wait, const std::uint32_t* epoch,
                   const std::uint32_t* arrived, int num_ranks, Stream stream) {
  wait_for_rows_kernel<<<1, 32, 0, handle(stream)>>>(wait, epoch, arrived, num_ranks);
  check_cuda(cudaGetLastError(), "launch");
}

std::string why_not_storable(const PeerTable& table, int device) {
  for (int rank = 0; rank < table.num_ranks; ++rank) {
    const std::string name = "the memory of rank " + std::to_string(rank);
    if (table.bases[rank] == nullptr) return name + " is not mapped here";
    cudaPointerAttributes attributes{};
    const cudaError_t status = cudaPointerGetAttributes(&attributes, table.bases[rank]);
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      return name + " is unknown to CUDA: " + cudaGetErrorString(status);
    }
    if (attributes.type == cudaMemoryTypeUnregistered) {
      return name + " is ordinary host memory, which GPUs cannot store into";
    }
    if (attributes.type != cudaMemoryTypeDevice || attributes.device == device) continue;
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, device, attributes.device) != cudaSuccess || can == 0) {
      (void)cudaGetLastError();
      return name + " is on GPU " + std::to_string(attributes.device) + ", which GPU " +
             std::to_string(device) + " cannot reach";
    }
  }
  return "";
}

}  // namespace xstage::attention
