// The operator: checks, memory of its own, which path a call takes.
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/exchange_host.cuh"
#include "attention/forward_host.cuh"
#include "attention/forward_shape.hpp"
#include "attention/push.hpp"
#include "attention/ulysses_impl.cuh"
#include "xstage/error.hpp"

namespace xstage {
namespace attention {
namespace {

// Ghosts of an emulated group have put everything there, and have read everything, for the next
// 2^31 calls.
constexpr std::uint32_t kGhostEpoch = 0x7fffffffu;

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCategory::runtime, std::string("attention exchange: ") + what +
                                          " failed: " + cudaGetErrorString(status));
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCategory::usage, "attention exchange: " + message);
}

// Every rank throws the same, or none does.
void check_agreement(Group& group, const std::string& mine) {
  const std::vector<std::string> all = group.all_gather(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    refuse("ranks were created differently: rank 0 with {" + all[0] + "}, rank " +
           std::to_string(rank) + " with {" + all[rank] + "}; legal is the same on all");
  }
}

bool has_carriers(const UlyssesOptions& options, const ExchangeProblem& call) {
  return options.num_sending_sms > 0 && call.attention.num_ctas > 0;
}

}  // namespace

OwnMemory::OwnMemory(std::size_t size) : bytes(size) {
  if (bytes == 0) return;
  check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
  // cudaMemset() returns before the zeros are written, and no stream that does not block waits for
  // them: they would land on what a first call has written. The default stream may be waiting for a
  // rank that has not been called yet, hence one for the zeros alone.
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const cudaError_t enqueued = cudaMemsetAsync(data, 0, bytes, stream);
  const cudaError_t written = cudaStreamSynchronize(stream);
  (void)cudaStreamDestroy(stream);
  check_cuda(enqueued, "cudaMemsetAsync");
  check_cuda(written, "cudaMemsetAsync");
}
OwnMemory::~OwnMemory() {
  if (data != nullptr) (void)cudaFree(data);
}

}  // namespace attention

using namespace attention;

UlyssesAttention::Impl::Impl(PeerMemory& peers, const AttentionShape& shape, std::size_t offset)
    : memory(peers), max(shape) {
  const int device = hopper_device();
  if (device != memory.device()) {
    refuse("the current device is GPU " + std::to_string(device) + ": legal is the rank's own, " +
           std::to_string(memory.device()));
  }
  place.table = memory.table();
  place.wait = memory.wait_context();
  place.offset = offset;
  place.layout = exchange_layout(max, memory.num_ranks());
  int all_sms = 0;
  check_cuda(cudaDeviceGetAttribute(&all_sms, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  num_sms = sm_share(all_sms, memory.num_co_located(), memory.co_located_idx());

  counters = std::make_unique<OwnMemory>((kMaxFusedOwners + 1) * sizeof(std::uint32_t));
  place.sent = static_cast<std::uint32_t*>(counters->data);
  place.num_done = place.sent + kMaxFusedOwners;
  workspace = std::make_unique<OwnMemory>(max_workspace_bytes(num_sms, max.head_dim));
  if (max.lse) {
    own_lse = std::make_unique<OwnMemory>(
        static_cast<std::size_t>(max.num_batches * max.max_rows * max.num_heads) * sizeof(float));
    place.own_lse = static_cast<float*>(own_lse->data);
  }
  for (int ghost = memory.num_computing_ranks(); ghost < memory.num_ranks(); ++ghost) {
    const std::size_t at = static_cast<std::size_t>(ghost) * sizeof(std::uint32_t);
    memory.write(memory.rank(), offset + offsetof(ExchangeHeader, arrived) + at, &kGhostEpoch,
                 sizeof kGhostEpoch);
    memory.write(memory.rank(), offset + offsetof(ExchangeHeader, released) + at, &kGhostEpoch,
                 sizeof kGhostEpoch);
  }
  load_exchange_kernels();
  check_cuda(cudaDeviceSynchronize(), "setting up");
}

void* UlyssesAttention::Impl::room(std::vector<std::unique_ptr<OwnMemory>>& memory_of_calls,
                                   std::size_t bytes, Stream stream) {
  if (memory_of_calls.empty() || memory_of_calls.back()->bytes < bytes) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle), &status),
               "cudaStreamIsCapturing");
    if (status != cudaStreamCaptureStatusNone) {
      refuse("this path needs " + std::to_string(bytes) +
             " bytes of its own, which a call of this size allocates: legal is such a call before "
             "the stream is captured");
    }
    // Calls in flight and captured ones keep what they were given.
    memory_of_calls.push_back(std::make_unique<OwnMemory>(std::max<std::size_t>(bytes, 16)));
  }
  return memory_of_calls.back()->data;
}

TensorView UlyssesAttention::Impl::scratch_for(const ExchangeProblem& call, Stream stream) {
  const Problem& p = call.attention;
  const std::size_t bytes = static_cast<std::size_t>(p.num_batches) *
                            static_cast<std::size_t>(p.num_query_rows) *
                            static_cast<std::size_t>(p.num_heads * p.head_dim) * 2;
  return TensorView::bshd(room(scratch, bytes, stream), p.dtype, p.num_batches, p.num_query_rows,
                          p.num_heads, p.head_dim);
}

std::uint32_t* UlyssesAttention::Impl::staged_for(const ExchangeProblem& call, Stream stream) {
  const auto tiles = static_cast<std::size_t>(call.attention.order.num_tiles());
  return static_cast<std::uint32_t*>(
      room(staged, tiles * kNumGroups * sizeof(std::uint32_t), stream));
}

ExchangeProblem UlyssesAttention::Impl::problem_of(const TensorView& q, const TensorView& k,
                                                   const TensorView& v,
                                                   const AttentionCall& call) const {
  return make_exchange_problem({memory.rank(), memory.num_ranks(), share_of_sms()}, max, options, q,
                               k, v, call);
}

void UlyssesAttention::Impl::reserve(const TensorView& q, const TensorView& k, const TensorView& v,
                                     const AttentionCall& call) {
  const ExchangeProblem next = problem_of(q, k, v, call);
  if (next.path == ExchangePath::serial) {
    (void)scratch_for(next, {});
  } else if (has_carriers(options, next)) {
    (void)scratch_for(next, {});
    (void)staged_for(next, {});
  }
}

void UlyssesAttention::Impl::run(const TensorView& q, const TensorView& k, const TensorView& v,
                                 const AttentionCall& call, Stream stream) {
  const ExchangeProblem next = problem_of(q, k, v, call);
  const int device = hopper_device();
  if (device != memory.device()) {
    refuse("the current device is GPU " + std::to_string(device) + ": legal is the rank's own, " +
           std::to_string(memory.device()));
  }
  if (next.attention.num_ctas > 0) {
    check_device("q.data", q.data, device);
    if (next.attention.num_keys > 0) {
      check_device("k.data", k.data, device);
      check_device("v.data", v.data, device);
    }
  }
  if (events.data != nullptr) {
    check_cuda(cudaMemsetAsync(events.data, 0, event_memory.back()->bytes,
                               static_cast<cudaStream_t>(stream.handle)),
               "cudaMemsetAsync");
  }
  ExchangePlace at = place;
  at.slot = next_slot;
  ExchangeInputs inputs{q, k, v, {workspace->data, workspace->bytes}};
  if (next.path == ExchangePath::fused) {
    ExchangeCarriers carriers;
    if (has_carriers(options, next)) {
      carriers = {options.num_sending_sms, scratch_for(next, stream), staged_for(next, stream)};
    }
    enqueue_fused(next, box_send(options.send, max.head_dim), at, inputs, events, carriers, stream);
  } else {
    enqueue_serial(next, at, inputs, scratch_for(next, stream), share_of_sms(), stream);
  }
  place.slot = next_slot;
  next_slot = (next_slot + 1) % kNumSlots;
  problem = next;
  ++num_calls;
}

void UlyssesAttention::Impl::record(int max_tiles) {
  if (max_tiles < 0) {
    refuse("max_tiles is " + std::to_string(max_tiles) + ": legal from 1 on, and 0 for none");
  }
  events = {};
  if (max_tiles == 0) return;
  const std::size_t count =
      static_cast<std::size_t>(num_sms) * kNumGroups * static_cast<std::size_t>(max_tiles);
  event_memory.push_back(std::make_unique<OwnMemory>(count * sizeof(ExchangeEvent)));
  events = {static_cast<ExchangeEvent*>(event_memory.back()->data), max_tiles};
}

Timeline UlyssesAttention::Impl::timeline() const {
  if (events.data == nullptr) refuse("nothing is recorded: legal after record() and a call");
  std::vector<ExchangeEvent> copy(event_memory.back()->bytes / sizeof(ExchangeEvent));
  check_cuda(cudaDeviceSynchronize(), "the recorded call");
  check_cuda(cudaMemcpy(copy.data(), events.data, copy.size() * sizeof(ExchangeEvent),
                        cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  return exchange_timeline(copy, kNumGroups, events.max_items, memory.rank());
}

UlyssesAttention::UlyssesAttention(PeerMemory& memory, const AttentionShape& max,
                                   const UlyssesOptions& options, std::size_t offset,
                                   Group* group) {
  if (group != nullptr) check_agreement(*group, describe_operator(max, options, offset));
  const std::size_t bytes = buffer_bytes(max, memory.num_ranks());
  if (offset % kLayoutAlignment != 0) {
    refuse("offset is " + std::to_string(offset) + ": legal are multiples of " +
           std::to_string(kLayoutAlignment));
  }
  if (offset > memory.bytes() || bytes > memory.bytes() - offset) {
    refuse("the peer memory has " + std::to_string(memory.bytes()) +
           " bytes: " + std::to_string(offset + bytes) + " are needed, " + std::to_string(bytes) +
           " from byte " + std::to_string(offset) + " on");
  }
  impl_ = std::make_unique<Impl>(memory, max, offset);
  set_options(options);
  if (group != nullptr) group->barrier();  // no call before everybody's flags are set
}

UlyssesAttention::UlyssesAttention(UlyssesAttention&&) noexcept = default;
UlyssesAttention& UlyssesAttention::operator=(UlyssesAttention&&) noexcept = default;
UlyssesAttention::~UlyssesAttention() = default;

std::size_t UlyssesAttention::buffer_bytes(const AttentionShape& max, int num_ranks) {
  check_shape(max, num_ranks);
  return exchange_layout(max, num_ranks).bytes;
}

void UlyssesAttention::run(const TensorView& q, const TensorView& k, const TensorView& v,
                           const AttentionCall& call, Stream stream) {
  impl_->run(q, k, v, call, stream);
}

void UlyssesAttention::reserve(const TensorView& q, const TensorView& k, const TensorView& v,
                               const AttentionCall& call) {
  impl_->reserve(q, k, v, call);
}

void UlyssesAttention::wait(Stream stream) {
  if (!impl_->problem.wait) enqueue_wait(impl_->place, stream);
}

TensorView UlyssesAttention::out() const {
  if (impl_->num_calls == 0) return {};
  const int rank = impl_->memory.rank();
  return owner_view(impl_->problem, rank, out_of(impl_->place, rank));
}

const float* UlyssesAttention::lse() const {
  return impl_->problem.lse ? lse_of(impl_->place, impl_->memory.rank()) : nullptr;
}

void UlyssesAttention::record(int max_tiles) {
  impl_->record(max_tiles);
}

Timeline UlyssesAttention::timeline() const {
  return impl_->timeline();
}

void UlyssesAttention::set_options(const UlyssesOptions& options) {
  check_options(options, impl_->num_sms);
  impl_->options = options;
}

const UlyssesOptions& UlyssesAttention::options() const noexcept {
  return impl_->options;
}

UlyssesStatus UlyssesAttention::status() const {
  UlyssesStatus status;
  if (impl_->num_calls > 0) {
    status.path = impl_->problem.path;
    status.reason = impl_->problem.reason;
  }
  status.num_calls = impl_->num_calls;
  status.peers = impl_->memory.status();
  return status;
}

}  // namespace xstage
