// Launches of the attention exchange: tensor maps of every owner, flags, kernels.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention/exchange_host.cuh"
#include "attention/exchange_kernel.cuh"
#include "attention/forward_host.cuh"
#include "attention/push.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {
namespace {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCategory::runtime, std::string("attention exchange: ") + what +
                                          " failed: " + cudaGetErrorString(status));
}

template <typename Element>
using FusedTraits = ForwardTraits<Element, 128, false>;

template <typename Element>
constexpr int kSharedBytes = static_cast<int>(sizeof(ExchangeShared<FusedTraits<Element>>));

template <typename Element>
void prepare() {
  static_assert(kSharedBytes<Element> <= 227 * 1024);
  check_cuda(
      cudaFuncSetAttribute(attention_exchange_kernel<FusedTraits<Element>>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Element>),
      "cudaFuncSetAttribute");
}

// Carriers wait for computing CTAs: all of them have to be resident.
void launch_with_carriers(const ExchangeParams& params, int num_ctas, Stream stream) {
  using Element = __nv_bfloat16;
  const auto kernel = attention_exchange_kernel<FusedTraits<Element>, true>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes<Element>),
             "cudaFuncSetAttribute");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(kNumThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(kSharedBytes<Element>);
  config.stream = static_cast<cudaStream_t>(stream.handle);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "launch");
}

template <typename Element>
void launch(const ExchangeParams& params, int num_ctas, Stream stream) {
  prepare<Element>();
  attention_exchange_kernel<FusedTraits<Element>>
      <<<static_cast<unsigned>(std::max(num_ctas, 1)), kNumThreads, kSharedBytes<Element>,
         static_cast<cudaStream_t>(stream.handle)>>>(params);
  check_cuda(cudaGetLastError(), "launch");
}

ExchangeOwner make_owner(const ExchangeProblem& problem, const ExchangePlace& place, int owner) {
  const int rank = place.table.rank;
  ExchangeHeader* header = header_of(place.table, owner, place.offset);
  ExchangeOwner result{};
  result.rows = static_cast<char*>(destination(problem, owner, out_of(place, owner)).data);
  if (problem.lse) result.lse = lse_of(place, owner) + lse_destination(problem, owner).first;
  result.arrived = &header->arrived[rank];
  result.released = &header->released[rank];
  result.expected = static_cast<std::uint32_t>(expected_rows(problem, owner));
  result.num_rows = problem.shards.owner_rows(owner);
  return result;
}

void enqueue_release(const ExchangePlace& place, Stream stream) {
  ReleaseParams params{};
  const int rank = place.table.rank;
  params.header = header_of(place.table, rank, place.offset);
  params.num_ranks = place.table.num_ranks;
  for (int peer = 0; peer < params.num_ranks; ++peer) {
    if (peer == rank) continue;
    params.released[peer] = &header_of(place.table, peer, place.offset)->released[rank];
  }
  exchange_release_kernel<<<1, kMaxRanks, 0, static_cast<cudaStream_t>(stream.handle)>>>(params);
  check_cuda(cudaGetLastError(), "launch");
}

void enqueue_lse(const ExchangeProblem& problem, const ExchangePlace& place, Stream stream) {
  const Problem& p = problem.attention;
  if (p.num_batches == 0 || p.num_heads == 0 || p.num_query_rows == 0) return;
  LsePush push{};
  push.own = place.own_lse;
  push.shards = problem.shards;
  push.num_heads = p.num_heads;
  push.num_heads_all = problem.num_heads;
  for (int owner = 0; owner < place.table.num_ranks; ++owner) {
    push.owners[owner] = lse_of(place, owner) + lse_destination(problem, owner).first;
  }
  const dim3 grid(static_cast<unsigned>(p.num_batches * p.num_heads),
                  static_cast<unsigned>(place.table.num_ranks));
  exchange_lse_kernel<<<grid, 256, 0, static_cast<cudaStream_t>(stream.handle)>>>(push);
  check_cuda(cudaGetLastError(), "launch");
}

}  // namespace

void* out_of(const ExchangePlace& place, int rank) {
  return region_of(place.table, rank, place.offset) + place.layout.out_offset[place.slot];
}

float* lse_of(const ExchangePlace& place, int rank) {
  return reinterpret_cast<float*>(region_of(place.table, rank, place.offset) +
                                  place.layout.lse_offset[place.slot]);
}

void enqueue_fused(const ExchangeProblem& problem, const BoxSend& send, const ExchangePlace& place,
                   const ExchangeInputs& inputs, const ExchangeEvents& events,
                   const ExchangeCarriers& carriers, Stream stream) {
  ExchangeParams params{};
  params.forward = make_forward_params(problem.attention, inputs.q, inputs.k, inputs.v,
                                       {problem.lse ? place.own_lse : nullptr}, inputs.workspace);
  params.shards = problem.shards;
  for (int owner = 0; owner < problem.shards.num_ranks; ++owner) {
    params.owners[owner] = make_owner(problem, place, owner);
    if (params.owners[owner].expected == 0) continue;
    const TensorView view = destination(problem, owner, out_of(place, owner));
    params.out[owner] = make_tensor_map(view, view.num_rows, send.box_rows);
  }
  params.header = header_of(place.table, place.table.rank, place.offset);
  params.sent = place.sent;
  params.num_done = place.num_done;
  params.events = events.data;
  params.max_events = events.max_items;
  params.wait = place.wait;
  params.send = send.send;
  params.box_bytes = static_cast<std::uint32_t>(send.box_rows) * kSwizzleColumns * 2;
  params.pitch_bytes =
      static_cast<std::uint32_t>(problem.num_heads * problem.attention.head_dim * 2);
  params.num_heads_all = problem.num_heads;
  params.slot = place.slot;
  params.wait_for_rows = problem.wait;
  if (carriers.num_sms > 0) {
    params.forward.out = make_tensor_map(carriers.rows, carriers.rows.num_rows, kGroupRows);
    params.num_carriers = carriers.num_sms;
    params.staged = carriers.staged;
    params.send.steps_per_chunk = 0;  // no main loop runs beside a carrier's sends
    launch_with_carriers(params, problem.attention.num_ctas + carriers.num_sms, stream);
  } else if (problem.attention.dtype == DataType::bf16) {
    launch<__nv_bfloat16>(params, problem.attention.num_ctas, stream);
  } else {
    launch<__half>(params, problem.attention.num_ctas, stream);
  }
}

void enqueue_serial(const ExchangeProblem& problem, const ExchangePlace& place,
                    const ExchangeInputs& inputs, const TensorView& scratch, int num_sms,
                    Stream stream) {
  enqueue_release(place, stream);
  enqueue_forward(problem.attention, inputs.q, inputs.k, inputs.v, scratch,
                  {problem.lse ? place.own_lse : nullptr}, inputs.workspace, stream);
  if (problem.lse) enqueue_lse(problem, place, stream);
  std::vector<TensorView> owners;
  PushSync sync;
  ExchangeHeader* header = header_of(place.table, place.table.rank, place.offset);
  for (int owner = 0; owner < place.table.num_ranks; ++owner) {
    owners.push_back(destination(problem, owner, out_of(place, owner)));
    const bool is_own = owner == place.table.rank;
    sync.owners.push_back({&header_of(place.table, owner, place.offset)->arrived[place.table.rank],
                           is_own ? nullptr : &header->released[owner]});
  }
  sync.wait = place.wait;
  sync.epoch = &header->epoch;
  sync.last_use = &header->last_use[place.slot];
  sync.counter = place.num_done;
  PushOptions options;
  options.num_sms = num_sms;
  push(gather_plan(problem.shards, scratch, owners), sync, options, stream);
  if (problem.wait) enqueue_wait(place, stream);
}

void enqueue_wait(const ExchangePlace& place, Stream stream) {
  exchange_wait_kernel<<<1, kMaxRanks, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      header_of(place.table, place.table.rank, place.offset), place.table.num_ranks, place.wait);
  check_cuda(cudaGetLastError(), "launch");
}

void load_exchange_kernels() {
  prepare<__nv_bfloat16>();
  prepare<__half>();
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, exchange_wait_kernel), "cudaFuncGetAttributes");
  check_cuda(cudaFuncGetAttributes(&attributes, exchange_release_kernel), "cudaFuncGetAttributes");
  check_cuda(cudaFuncGetAttributes(&attributes, exchange_lse_kernel), "cudaFuncGetAttributes");
  check_cuda(
      cudaFuncGetAttributes(&attributes, attention_exchange_kernel<FusedTraits<__nv_bfloat16>>),
      "cudaFuncGetAttributes");
  check_cuda(cudaFuncGetAttributes(&attributes,
                                   attention_exchange_kernel<FusedTraits<__nv_bfloat16>, true>),
             "cudaFuncGetAttributes");
  check_cuda(cudaFuncGetAttributes(&attributes, attention_exchange_kernel<FusedTraits<__half>>),
             "cudaFuncGetAttributes");
  load_forward_kernels();
  load_push_kernels();
}

}  // namespace xstage::attention
