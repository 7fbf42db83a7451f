// Host side of the data movement: sizes, launches.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "moe/combine.cuh"
#include "moe/dispatch.cuh"
#include "moe/layer.hpp"
#include "moe/problem.hpp"
#include "moe/route.cuh"
#include "peers/cuda_check.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {
namespace {

using peers::check_cuda;
using peers::DeviceScope;

constexpr std::size_t kMaxSharedBytes = 227 * 1024;

cudaStream_t handle(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

// As many warps as have room for their rows.
std::uint32_t num_warps_for(std::size_t fixed_bytes, std::size_t bytes_per_warp,
                            std::uint32_t most) {
  const std::size_t fit = (kMaxSharedBytes - fixed_bytes) / bytes_per_warp;
  return std::clamp<std::uint32_t>(static_cast<std::uint32_t>(fit), 1, most);
}

template <typename Kernel>
void allow_shared(Kernel kernel) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kMaxSharedBytes)),
             "moe: cudaFuncSetAttribute");
}

// Loading a kernel may wait for running ones, which may wait for this rank: all are loaded first.
void load_kernels() {
  allow_shared(dispatch_kernel<false>);
  allow_shared(dispatch_kernel<true>);
  allow_shared(scatter_kernel);
  check_cuda(cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(route_shared_bytes(kMaxExperts))),
             "moe: cudaFuncSetAttribute");
  cudaFuncAttributes attributes{};
  for (const void* kernel :
       {reinterpret_cast<const void*>(&stage_kernel), reinterpret_cast<const void*>(&meet_kernel),
        reinterpret_cast<const void*>(&transpose_scales_kernel),
        reinterpret_cast<const void*>(&sum_kernel)}) {
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "moe: loading kernels");
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "moe: cudaDeviceGetAttribute");
  return value;
}

void check_gpu(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  if (major == 9 && minor == 0) return;
  throw Error(ErrorCategory::not_possible, "moe: GPU " + std::to_string(device) + " is sm_" +
                                               std::to_string(major) + std::to_string(minor) +
                                               ": the kernels need sm_90 (Hopper)");
}

}  // namespace

PinnedNote::PinnedNote() {
  check_cuda(
      cudaHostAlloc(&note_, sizeof(BadInputNote), cudaHostAllocMapped | cudaHostAllocPortable),
      "moe: cudaHostAlloc");
  *note_ = {};
}
PinnedNote::~PinnedNote() {
  (void)cudaFreeHost(note_);
}

Exchange::Exchange(PeerMemory& memory, const MoeShape& shape, const Workspace& workspace,
                   const MoeOptions& options)
    : memory_(&memory), shape_(shape), options_(options) {
  check_shape(shape, memory.num_ranks(), options);
  geometry_ = make_geometry(shape, memory.num_ranks());
  peer_ = moe::peer_layout(geometry_, options);
  local_ = moe::local_layout(geometry_, options, grouped_gemm_workspace_bytes());
  check_room("peer memory", memory.bytes(), peer_.bytes);
  check_room("workspace", workspace.data == nullptr ? 0 : workspace.bytes, local_.bytes);
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kLayoutAlign != 0) {
    throw Error(ErrorCategory::usage, "moe: workspace.data is not a multiple of 256 bytes");
  }
  const DeviceScope scope(memory.device());
  check_gpu(memory.device());
  const int share = sm_share(attribute(cudaDevAttrMultiProcessorCount, memory.device()),
                             memory.num_co_located(), memory.co_located_idx());
  if (options.num_sms > share) {
    throw Error(ErrorCategory::usage, "moe: num_sms is " + std::to_string(options.num_sms) +
                                          ": legal 1.." + std::to_string(share) +
                                          " (this rank's share of its GPU), and 0 for all");
  }
  num_sms_ = options.num_sms > 0 ? options.num_sms : share;
  workspace_ = static_cast<char*>(workspace.data);
  table_ = memory.table();
  wait_ = memory.wait_context();
  agreement_ = moe::agreement(shape, memory.num_ranks(), options);
  note_ = std::make_unique<PinnedNote>();
  load_kernels();
}

void Exchange::stage(const MoeCall& call, Stream stream) const {
  if (call.x == nullptr || call.num_tokens == 0) return;
  StageParams params{};
  params.geometry = geometry_;
  params.num_tokens = call.num_tokens;
  params.x = static_cast<const char*>(call.x);
  params.x_scales = call.x_scales;
  params.staged = mine(peer_.x);
  stage_kernel<<<static_cast<unsigned>(num_sms_) * 8, 256, 0, handle(stream)>>>(params);
  check_cuda(cudaGetLastError(), "moe: launching stage");
}

void Exchange::route(const MoeCall& call, Stream stream) const {
  RouteParams params{};
  params.table = table_;
  params.wait = wait_;
  params.geometry = geometry_;
  params.layout = peer_;
  params.topk_ids = call.topk_ids;
  params.ids_are_64_bit = call.ids_are_64_bit;
  params.num_tokens = call.num_tokens;
  params.agreement = agreement_;
  params.tables = tables();
  params.note = note_->get();
  route_kernel<<<1, kRouteThreads, route_shared_bytes(shape_.num_experts), handle(stream)>>>(
      params);
  check_cuda(cudaGetLastError(), "moe: launching route");
}

void Exchange::dispatch(const MoeCall&, Stream stream) const {
  const bool is_push = options_.dispatch == MoeTransfer::push;
  DispatchParams params{};
  params.table = table_;
  params.wait = wait_;
  params.geometry = geometry_;
  params.layout = peer_;
  params.tables = tables();
  params.pool = pool();
  params.pool_scales = pool_scales();
  params.wants_origins = options_.combine == MoeTransfer::push;
  params.origins = reinterpret_cast<std::uint32_t*>(local(local_.origins));
  params.send_once = options_.send_once || is_push;
  const auto pitch = static_cast<std::size_t>(geometry_.x_pitch);
  const std::uint32_t num_warps =
      num_warps_for(dispatch_shared_bytes(0, pitch), kRowBuffers * pitch, kMaxCopyWarps);
  const auto kernel = is_push ? dispatch_kernel<true> : dispatch_kernel<false>;
  kernel<<<static_cast<unsigned>(num_sms_), num_warps * 32, dispatch_shared_bytes(num_warps, pitch),
           handle(stream)>>>(params);
  check_cuda(cudaGetLastError(), "moe: launching dispatch");
  if (!is_push) return;
  meet(stream);
  if (geometry_.num_scales == 0) return;
  TransposeParams transpose{};
  transpose.geometry = geometry_;
  transpose.tables = tables();
  transpose.row_scales = mine(peer_.pool_scales);
  transpose.pool_scales = pool_scales();
  transpose.num_local = num_local();
  transpose_scales_kernel<<<static_cast<unsigned>(num_local()), 256, 0, handle(stream)>>>(
      transpose);
  check_cuda(cudaGetLastError(), "moe: launching transpose");
}

void Exchange::scatter(Stream stream) const {
  if (options_.combine != MoeTransfer::push) return;
  ScatterParams params{};
  params.table = table_;
  params.wait = wait_;
  params.geometry = geometry_;
  params.layout = peer_;
  params.tables = tables();
  params.outputs = outputs();
  params.origins = reinterpret_cast<const std::uint32_t*>(
      options_.dispatch == MoeTransfer::push ? mine(peer_.origins) : local(local_.origins));
  params.num_local = num_local();
  params.send = options_.send;
  const std::size_t row_bytes = geometry_.output_row_bytes();
  const std::uint32_t num_warps =
      num_warps_for(kScatterStorageBytes, 2 * row_bytes, kMaxScatterWarps);
  scatter_kernel<<<static_cast<unsigned>(num_sms_), num_warps * 32,
                   scatter_shared_bytes(num_warps, row_bytes), handle(stream)>>>(params);
  check_cuda(cudaGetLastError(), "moe: launching scatter");
}

void Exchange::meet(Stream stream) const {
  meet_kernel<<<1, 32, 0, handle(stream)>>>(table_, wait_);
  check_cuda(cudaGetLastError(), "moe: launching meet");
}

void Exchange::sum(const MoeCall& call, Stream stream) const {
  if (call.num_tokens == 0) return;
  SumParams params{};
  params.table = table_;
  params.geometry = geometry_;
  params.layout = peer_;
  params.tables = tables();
  params.reads_slots = options_.combine == MoeTransfer::push;
  params.num_tokens = call.num_tokens;
  params.topk_weights = call.topk_weights;
  params.y = static_cast<char*>(call.y);
  constexpr unsigned kCtasPerSm = 2048 / kSumThreads;
  sum_kernel<<<static_cast<unsigned>(num_sms_) * kCtasPerSm, kSumThreads, 0, handle(stream)>>>(
      params);
  check_cuda(cudaGetLastError(), "moe: launching sum");
}

int Exchange::num_local() const noexcept {
  return geometry_.experts.count(table_.rank) + geometry_.num_shared;
}
char* Exchange::local(std::size_t offset) const noexcept {
  return workspace_ + offset;
}
char* Exchange::mine(std::size_t offset) const noexcept {
  return static_cast<char*>(table_.bases[table_.rank]) + offset;
}
RouteTables* Exchange::tables() const noexcept {
  return reinterpret_cast<RouteTables*>(local(local_.tables));
}
char* Exchange::pool() const noexcept {
  return options_.dispatch == MoeTransfer::push ? mine(peer_.pool) : local(local_.pool);
}
float* Exchange::pool_scales() const noexcept {
  return geometry_.num_scales > 0 ? reinterpret_cast<float*>(local(local_.pool_scales)) : nullptr;
}
char* Exchange::outputs() const noexcept {
  return options_.combine == MoeTransfer::push ? local(local_.outputs) : mine(peer_.outputs);
}

MoeInput Exchange::input() const noexcept {
  MoeInput input;
  char* rows = mine(peer_.x);
  input.x = rows;
  input.row_bytes = static_cast<std::size_t>(geometry_.x_pitch);
  if (geometry_.num_scales > 0) {
    input.scales = reinterpret_cast<float*>(rows + geometry_.row_bytes);
    input.scale_row_bytes = input.row_bytes;
  }
  return input;
}

MoeStatus Exchange::status() const {
  const PeerStatus peers = memory_->status();
  if (!peers.fine) return {false, peers.text};
  const volatile BadInputNote* seen = note_->get();
  BadInputNote note{};
  note.what = seen->what;
  if (note.what == static_cast<std::uint32_t>(BadInput::none)) return {};
  note.value = seen->value;
  note.peer = seen->peer;
  note.entry = seen->entry;
  return {false, describe(note, shape_)};
}

}  // namespace xstage::moe
