#include "io/metadata.hpp"

namespace xstage::io {

std::string_view to_string(Endpoint::Type type) noexcept {
  switch (type) {
    case Endpoint::Type::gpu:
      return "gpu";
    case Endpoint::Type::host_memory:
      return "host_memory";
    case Endpoint::Type::local_memory:
      return "local_memory";
  }
  return "unknown";
}

bool parse_endpoint_type(std::string_view word, Endpoint::Type& type) noexcept {
  for (const auto candidate :
       {Endpoint::Type::gpu, Endpoint::Type::host_memory, Endpoint::Type::local_memory}) {
    if (word == to_string(candidate)) {
      type = candidate;
      return true;
    }
  }
  return false;
}

}  // namespace xstage::io
