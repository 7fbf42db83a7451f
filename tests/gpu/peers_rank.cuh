// One rank of a test with its stream and counters, and how its kernels are launched.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peers/cuda_check.hpp"
#include "peers_harness.hpp"
#include "peers_kernels.cuh"
#include "xstage/peers.hpp"

namespace xstage::gpu_test {

using peers::check_cuda;

class RankRun {
 public:
  explicit RankRun(PeerMemory memory) : memory_(std::move(memory)) {
    check_cuda(cudaSetDevice(memory_.device()), "cudaSetDevice");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaMalloc(&counters_, sizeof(Counters)), "cudaMalloc");
    check_cuda(cudaMemset(counters_, 0, sizeof(Counters)), "cudaMemset");
    int num_sms = 0;
    check_cuda(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, memory_.device()),
               "cudaDeviceGetAttribute");
    num_ctas_ = static_cast<unsigned>(
        sm_share(num_sms, memory_.num_co_located(), memory_.co_located_idx()));
    load_kernels();
  }
  ~RankRun() {
    (void)cudaStreamDestroy(stream_);
    (void)cudaFree(counters_);
  }
  RankRun(const RankRun&) = delete;
  RankRun& operator=(const RankRun&) = delete;

  [[nodiscard]] PeerMemory& memory() { return memory_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  void set_num_ctas(unsigned num_ctas) { num_ctas_ = num_ctas; }
  void set_shared_bytes(std::size_t bytes) {
    check_cuda(cudaFuncSetAttribute(exchange_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
    shared_bytes_ = bytes;
  }
  void set_stop_when_dead(bool stop) { stop_when_dead_ = stop; }

  [[nodiscard]] ExchangeArgs exchange_args(const Options& options, int num_rounds) const {
    ExchangeArgs args;
    args.seed = options.seed;
    args.num_rounds = static_cast<std::uint32_t>(num_rounds);
    args.section_vectors = static_cast<std::uint32_t>(memory_.bytes() / 16 /
                                                      static_cast<unsigned>(memory_.num_ranks()));
    args.stop_when_dead = stop_when_dead_;
    args.round = &counters_->round;
    args.num_wrong = &counters_->num_wrong;
    args.num_checked = &counters_->num_checked;
    return args;
  }

  void launch_exchange(const Options& options, int num_rounds) {
    check_cuda(cudaSetDevice(memory_.device()), "cudaSetDevice");
    PeerTable table = memory_.table();
    WaitContext context = memory_.wait_context();
    ExchangeArgs args = exchange_args(options, num_rounds);
    int num_senders = memory_.num_computing_ranks();
    void* pointers[] = {&table, &context, &args, &num_senders};
    const auto kernel = reinterpret_cast<const void*>(&exchange_kernel);
    check_cuda(options.cooperative ? cudaLaunchCooperativeKernel(kernel, dim3(num_ctas_), dim3(256),
                                                                 pointers, shared_bytes_, stream_)
                                   : cudaLaunchKernel(kernel, dim3(num_ctas_), dim3(256), pointers,
                                                      shared_bytes_, stream_),
               "launching the exchange");
  }

  // The exchange as a graph, captured from this rank's stream and uploaded; `meanwhile` runs while
  // the stream is being captured. The caller destroys it.
  [[nodiscard]] cudaGraphExec_t capture_exchange(const Options& options, int num_rounds,
                                                 const std::function<void()>& meanwhile = {}) {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    launch_exchange(options, num_rounds);
    if (meanwhile) meanwhile();
    check_cuda(cudaStreamEndCapture(stream_, &captured), "capture");
    check_cuda(cudaGraphInstantiate(&graph, captured, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphDestroy(captured), "cudaGraphDestroy");
    check_cuda(cudaGraphUpload(graph, stream_), "cudaGraphUpload");
    finish();
    return graph;
  }

  void finish() { check_cuda(cudaStreamSynchronize(stream_), "waiting for a kernel"); }

  struct Counters {
    unsigned long long num_wrong;
    unsigned long long num_checked;
    std::uint32_t round;
  };
  [[nodiscard]] Counters counters() const {
    Counters host{};
    check_cuda(cudaMemcpyAsync(&host, counters_, sizeof host, cudaMemcpyDefault, stream_), "copy");
    check_cuda(cudaStreamSynchronize(stream_), "copy");
    return host;
  }

 private:
  // Loading a kernel may wait for running ones, so all are loaded before the first wait.
  static void load_kernels() {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, exchange_kernel), "loading");
    check_cuda(cudaFuncGetAttributes(&attributes, barrier_kernel), "loading");
    check_cuda(cudaFuncGetAttributes(&attributes, occupy_kernel), "loading");
  }

  PeerMemory memory_;
  cudaStream_t stream_ = nullptr;
  Counters* counters_ = nullptr;
  unsigned num_ctas_ = 1;
  std::size_t shared_bytes_ = 0;
  bool stop_when_dead_ = true;
};

[[nodiscard]] inline PeerOptions peer_options(const Options& options, double deadline_seconds = 0,
                                              int rank = 0) {
  if (deadline_seconds == 0) deadline_seconds = options.deadline;
  PeerOptions peer;
  peer.device = options.device_of(rank);
  peer.placement = options.placement == "host" ? Placement::host : Placement::device;
  peer.deadline_ns = static_cast<std::uint64_t>(deadline_seconds * 1e9);
  return peer;
}

}  // namespace xstage::gpu_test
