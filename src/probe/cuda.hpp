// The CUDA runtime behind our error type and owning handles. Host code of the probe only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <utility>

#include "xstage/error.hpp"

namespace xstage::probing {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // leave no sticky error for the next call
  throw Error(ErrorCategory::runtime, std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                                          cudaGetErrorName(status) + ")");
}

// Memory of one of three places, freed on destruction.
class Buffer {
 public:
  enum class Place { device, pinned_host };

  Buffer() = default;
  Buffer(Place place, int device_idx, std::size_t bytes)
      : place_(place), device_idx_(device_idx), bytes_(bytes) {
    check(cudaSetDevice(device_idx), "cudaSetDevice");
    if (place == Place::device) {
      check(cudaMalloc(&data_, bytes), "cudaMalloc");
    } else {
      check(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
            "cudaHostAlloc");
    }
  }
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      release();
      place_ = other.place_;
      device_idx_ = other.device_idx_;
      bytes_ = other.bytes_;
      data_ = std::exchange(other.data_, nullptr);
    }
    return *this;
  }

  [[nodiscard]] char* data() const noexcept { return static_cast<char*>(data_); }
  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] Place place() const noexcept { return place_; }
  [[nodiscard]] int device_idx() const noexcept { return device_idx_; }

 private:
  void release() noexcept {
    if (data_ == nullptr) return;
    (void)cudaSetDevice(device_idx_);
    (void)(place_ == Place::device ? cudaFree(data_) : cudaFreeHost(data_));
    data_ = nullptr;
  }

  Place place_ = Place::device;
  int device_idx_ = 0;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

class Stream {
 public:
  explicit Stream(int device_idx) : device_idx_(device_idx) {
    check(cudaSetDevice(device_idx), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() {
    (void)cudaSetDevice(device_idx_);
    (void)cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  [[nodiscard]] int device_idx() const noexcept { return device_idx_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "kernel"); }

 private:
  int device_idx_;
  cudaStream_t stream_ = nullptr;
};

// Elapsed time between two points of a stream.
class EventPair {
 public:
  EventPair() {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~EventPair() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  void begin(const Stream& stream) const { check(cudaEventRecord(begin_, stream.get()), "event"); }
  void end(const Stream& stream) const { check(cudaEventRecord(end_, stream.get()), "event"); }
  // Waits for the end.
  [[nodiscard]] double elapsed_ns() const {
    check(cudaEventSynchronize(end_), "kernel");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e6;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace xstage::probing
