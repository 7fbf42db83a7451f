#include "peers/nvml.hpp"

#include <dlfcn.h>

namespace xstage::peers {
namespace {

// Declared here after the library's documented interface; all functions return 0 for success.
using InitFunction = int (*)();
using HandleFunction = int (*)(const char* uuid, void** device);
using LinkStateFunction = int (*)(void* device, unsigned link, unsigned* active);
using MigFunction = int (*)(void* device, unsigned* current, unsigned* pending);
using ClockFunction = int (*)(void* device, int type, unsigned* mhz);
using PowerFunction = int (*)(void* device, unsigned* milliwatts);
using P2pFunction = int (*)(void* a, void* b, int capability, int* status);
struct Memory {
  unsigned long long total, free, used;
};
using MemoryFunction = int (*)(void* device, Memory* memory);

constexpr unsigned kMaxLinks = 18;
constexpr int kClockSm = 1;
constexpr int kP2pCapabilityNvlink = 2;

}  // namespace

template <typename Function>
Function Nvml::symbol(const char* name) const {
  if (library_ == nullptr) return nullptr;
  return reinterpret_cast<Function>(dlsym(library_, name));
}

Nvml::Nvml() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  const auto init = symbol<InitFunction>("nvmlInit_v2");
  if (init != nullptr && init() == 0) return;
  if (library_ != nullptr) dlclose(library_);
  library_ = nullptr;
}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  if (const auto shutdown = symbol<InitFunction>("nvmlShutdown")) shutdown();
  dlclose(library_);
}

void* Nvml::device(const std::string& uuid) const {
  const auto find = symbol<HandleFunction>("nvmlDeviceGetHandleByUUID");
  void* device = nullptr;
  if (find == nullptr || find(uuid.c_str(), &device) != 0) return nullptr;
  return device;
}

std::optional<int> Nvml::num_active_nvlinks(const std::string& uuid) const {
  const auto state = symbol<LinkStateFunction>("nvmlDeviceGetNvLinkState");
  void* handle = device(uuid);
  if (state == nullptr || handle == nullptr) return std::nullopt;
  int num_active = 0;
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    unsigned active = 0;
    if (state(handle, link, &active) == 0 && active != 0) ++num_active;
  }
  return num_active;
}

std::optional<std::uint64_t> Nvml::free_bytes(const std::string& uuid) const {
  const auto info = symbol<MemoryFunction>("nvmlDeviceGetMemoryInfo");
  void* handle = device(uuid);
  Memory memory{};
  if (info == nullptr || handle == nullptr || info(handle, &memory) != 0) return std::nullopt;
  return memory.free;
}

std::optional<bool> Nvml::mig_enabled(const std::string& uuid) const {
  const auto mode = symbol<MigFunction>("nvmlDeviceGetMigMode");
  void* handle = device(uuid);
  unsigned current = 0;
  unsigned pending = 0;
  if (mode == nullptr || handle == nullptr || mode(handle, &current, &pending) != 0) {
    return std::nullopt;
  }
  return current != 0;
}

std::optional<double> Nvml::sm_clock_mhz(const std::string& uuid) const {
  const auto clock = symbol<ClockFunction>("nvmlDeviceGetClockInfo");
  void* handle = device(uuid);
  unsigned mhz = 0;
  if (clock == nullptr || handle == nullptr || clock(handle, kClockSm, &mhz) != 0) {
    return std::nullopt;
  }
  return mhz;
}

std::optional<double> Nvml::power_watts(const std::string& uuid) const {
  const auto usage = symbol<PowerFunction>("nvmlDeviceGetPowerUsage");
  void* handle = device(uuid);
  unsigned milliwatts = 0;
  if (usage == nullptr || handle == nullptr || usage(handle, &milliwatts) != 0) return std::nullopt;
  return milliwatts / 1e3;
}

std::optional<bool> Nvml::nvlink_between(const std::string& a, const std::string& b) const {
  const auto query = symbol<P2pFunction>("nvmlDeviceGetP2PStatus");
  void* first = device(a);
  void* second = device(b);
  int status = 0;
  if (query == nullptr || first == nullptr || second == nullptr ||
      query(first, second, kP2pCapabilityNvlink, &status) != 0) {
    return std::nullopt;
  }
  return status == 0;
}

}  // namespace xstage::peers
