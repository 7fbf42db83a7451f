// The few questions that only the management library answers, asked at run time: the library need
// not exist, and no header of it is needed to build.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace xstage::peers {

class Nvml {
 public:
  Nvml();  // never throws; without the library every answer is empty
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] std::optional<int> num_active_nvlinks(const std::string& uuid) const;
  [[nodiscard]] std::optional<std::uint64_t> free_bytes(const std::string& uuid) const;
  [[nodiscard]] std::optional<bool> mig_enabled(const std::string& uuid) const;
  // What the SMs run at now, and what the board draws (a mean of the last second on some boards).
  [[nodiscard]] std::optional<double> sm_clock_mhz(const std::string& uuid) const;
  [[nodiscard]] std::optional<double> power_watts(const std::string& uuid) const;
  // Whether the two are joined by NVLink, whatever peer access says.
  [[nodiscard]] std::optional<bool> nvlink_between(const std::string& a,
                                                   const std::string& b) const;

 private:
  [[nodiscard]] void* device(const std::string& uuid) const;  // nullptr if not known
  template <typename Function>
  [[nodiscard]] Function symbol(const char* name) const;

  void* library_ = nullptr;  // set only while initialised
};

}  // namespace xstage::peers
