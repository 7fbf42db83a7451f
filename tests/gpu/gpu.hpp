// What the GPU tests share: is there a GPU, where may bytes go, which seed. Nothing here touches
// CUDA before a test runs, so the cases can be listed on any machine.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "probe/cuda.hpp"

namespace xstage::test {

using probing::Buffer;
using probing::check;
using probing::Stream;

// Streams that share a hardware queue wait for each other, and there are 8 unless the driver is
// told before it starts: ranks that share a GPU and wait for each other need one each.
struct HardwareQueues {
  HardwareQueues() { (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }
};
inline const HardwareQueues kHardwareQueues;

// Where a destination lies, seen from GPU 0, which stores.
enum class Place { local, host, peer };

inline const char* name_of(Place place) {
  return place == Place::local ? "local" : place == Place::host ? "host" : "peer";
}

inline int num_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

// Empty if GPU 0 can run the copy engine's store kinds; else why not.
inline std::string why_no_gpu() {
  if (num_gpus() == 0) return "no GPU or no driver here";
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "GPU attribute");
  return major >= 9 ? "" : "GPU 0 is older than compute capability 9.0: no bulk copy engine";
}

// Empty if GPU 0 and GPU 1 reach each other's memory; else why not. Opens the way.
inline std::string why_no_peer() {
  if (num_gpus() < 2) return "one GPU here: nothing to store into";
  for (int gpu = 0; gpu < 2; ++gpu) {
    int reaches = 0;
    check(cudaDeviceCanAccessPeer(&reaches, gpu, 1 - gpu), "peer access");
    if (reaches == 0) return "GPU 0 and GPU 1 cannot reach each other's memory";
    check(cudaSetDevice(gpu), "cudaSetDevice");
    const cudaError_t status = cudaDeviceEnablePeerAccess(1 - gpu, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      check(status, "peer access");
    }
  }
  check(cudaSetDevice(0), "cudaSetDevice");
  return "";
}

inline std::string why_absent(Place place) {
  std::string why = why_no_gpu();
  if (why.empty() && place == Place::peer) why = why_no_peer();
  return why;
}

inline Buffer allocate(Place place, std::size_t bytes) {
  return place == Place::host ? Buffer(Buffer::Place::pinned_host, 0, bytes)
                              : Buffer(Buffer::Place::device, place == Place::peer ? 1 : 0, bytes);
}

template <typename T>
Buffer upload(const std::vector<T>& values, int gpu = 0) {
  Buffer buffer(Buffer::Place::device, gpu, values.empty() ? 1 : values.size() * sizeof(T));
  check(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
        "upload");
  return buffer;
}

template <typename T>
std::vector<T> download(const Buffer& buffer) {
  std::vector<T> values(buffer.size() / sizeof(T));
  check(cudaMemcpy(values.data(), buffer.data(), values.size() * sizeof(T), cudaMemcpyDefault),
        "download");
  return values;
}

// --gtest_random_seed=N repeats a run; without it each run is new. Printed by who uses it.
inline std::uint32_t choose_seed() {
  const int given = ::testing::GTEST_FLAG(random_seed);
  return given != 0 ? static_cast<std::uint32_t>(given) : std::random_device{}() % 99999 + 1;
}

}  // namespace xstage::test
