#include "xstage/samples.hpp"

#include <array>
#include <utility>

#include "xstage/error.hpp"

namespace xstage {
namespace {

constexpr std::array<std::pair<StoreKind, std::string_view>, kNumStoreKinds> kStoreKinds{{
    {StoreKind::register16, "register16"},
    {StoreKind::bulk, "bulk"},
    {StoreKind::tensor, "tensor"},
    {StoreKind::register8, "register8"},
    {StoreKind::register4, "register4"},
    {StoreKind::bulk_reduce, "bulk_reduce"},
    {StoreKind::red, "red"},
    {StoreKind::load, "load"},
}};

constexpr std::array<std::pair<Experiment, std::string_view>, 2> kExperiments{{
    {Experiment::isolated, "isolated"},
    {Experiment::periodic, "periodic"},
}};

template <typename Table>
auto parse(const Table& table, std::string_view word, std::string_view what) {
  std::string legal;
  for (const auto& [value, name] : table) {
    if (name == word) return value;
    legal += (legal.empty() ? "" : ", ") + std::string(name);
  }
  throw Error(ErrorCategory::usage,
              std::string(what) + " '" + std::string(word) + "': legal are " + legal);
}

template <typename Table, typename Value>
std::string_view name_of(const Table& table, Value value) noexcept {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

}  // namespace

std::string_view to_string(StoreKind kind) noexcept {
  return name_of(kStoreKinds, kind);
}
std::string_view to_string(Experiment experiment) noexcept {
  return name_of(kExperiments, experiment);
}

StoreKind parse_store_kind(std::string_view word) {
  return parse(kStoreKinds, word, "store kind");
}
Experiment parse_experiment(std::string_view word) {
  return parse(kExperiments, word, "experiment");
}

}  // namespace xstage
