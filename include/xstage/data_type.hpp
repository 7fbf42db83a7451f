// The number formats that workloads, tensors and costs speak of.
#pragma once

#include <cstdint>
#include <string_view>

namespace xstage {

enum class DataType : std::uint8_t { bf16, fp16, fp8 };

[[nodiscard]] constexpr std::string_view to_string(DataType type) noexcept {
  switch (type) {
    case DataType::bf16:
      return "bf16";
    case DataType::fp16:
      return "fp16";
    case DataType::fp8:
      return "fp8";
  }
  return "";
}

[[nodiscard]] constexpr int element_bytes(DataType type) noexcept {
  return type == DataType::fp8 ? 1 : 2;
}

// Throws Error(usage) naming the legal words.
[[nodiscard]] DataType parse_data_type(std::string_view word);

}  // namespace xstage
