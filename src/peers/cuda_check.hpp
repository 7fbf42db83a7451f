// CUDA runtime results as xstage errors. Private to sources that include CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "xstage/error.hpp"

namespace xstage::peers {

// Throws Error{runtime} unless the call succeeded; clears the sticky state of the last error.
inline void check_cuda(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  std::string text =
      what + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
  if (status == cudaErrorSystemNotReady) {
    text += "; the fabric manager is not ready: wait for it or restart nvidia-fabricmanager";
  }
  throw Error(ErrorCategory::runtime, text);
}

// Makes a device current and restores the one before.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
  }
  ~DeviceScope() { (void)cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

// A driver entry point of the given CUDA version, looked up through the runtime so that nothing
// links to the driver. Throws Error{not_possible} if the driver does not have it.
template <typename Function>
Function driver_entry(const char* name, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || address == nullptr) {
    (void)cudaGetLastError();
    throw Error(ErrorCategory::not_possible,
                std::string(name) + ": not in this driver, or there is no driver");
  }
  return reinterpret_cast<Function>(address);
}

}  // namespace xstage::peers
