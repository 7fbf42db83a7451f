// What paced stores cost the loads of the same SM, from the measured table. Pure.
#include <algorithm>
#include <map>

#include "model/robust.hpp"
#include "xstage/probe.hpp"

namespace xstage {
namespace {

using Cell = std::variant<std::string, double>;

std::map<std::string, Cell> named(const Table& table, const std::vector<Cell>& row) {
  std::map<std::string, Cell> cells;
  for (std::size_t i = 0; i < std::min(row.size(), table.columns.size()); ++i) {
    cells[table.columns[i]] = row[i];
  }
  return cells;
}

bool says(const std::map<std::string, Cell>& cells, const char* column, std::string_view word) {
  const auto cell = cells.find(column);
  if (cell == cells.end()) return false;
  const auto* text = std::get_if<std::string>(&cell->second);
  return text != nullptr && *text == word;
}

double number(const std::map<std::string, Cell>& cells, const char* column) {
  const auto cell = cells.find(column);
  if (cell == cells.end()) return kUnmeasured;
  const auto* value = std::get_if<double>(&cell->second);
  return value != nullptr ? *value : kUnmeasured;
}

}  // namespace

std::optional<double> load_rate_loss(const std::vector<Table>& tables, StoreKind kind,
                                     int num_sms) {
  constexpr double kInFlight = 4;
  constexpr double kBurstBytes = 8192;
  constexpr double kDemand = 0.83;
  double alone = kUnmeasured;
  double beside = kUnmeasured;
  double stores = kUnmeasured;
  for (const Table& table : tables) {
    if (table.name != "load_interference") continue;
    for (const auto& row : table.rows) {
      const auto cells = named(table, row);
      if (number(cells, "in_flight") != kInFlight) continue;
      if (says(cells, "kind", "none")) alone = number(cells, "load_gb_s_per_sm");
      if (says(cells, "kind", to_string(kind)) && says(cells, "phase", "drifting") &&
          number(cells, "bytes") == kBurstBytes && number(cells, "demand") == kDemand) {
        beside = number(cells, "load_gb_s_per_sm");
        stores = number(cells, "store_gb_s") / num_sms;
      }
    }
  }
  if (!(stores > 0) || !measured(alone) || !measured(beside)) return std::nullopt;
  return std::max(0.0, (alone - beside) / stores);
}

std::optional<double> load_bypass_bytes(const std::vector<Table>& tables, StoreKind kind,
                                        int num_sms, double drain_rate) {
  constexpr double kInFlight = 4;
  double alone = kUnmeasured;
  std::vector<double> own;
  std::vector<double> bulk;
  const auto collect = [&](const std::map<std::string, Cell>& cells, std::vector<double>& found) {
    const double volume = number(cells, "bytes") * num_sms;
    const double period = volume / number(cells, "store_gb_s");
    const double lost = (1.0 - number(cells, "load_gb_s_per_sm") / alone) * period;
    if (measured(lost) && lost >= 0) found.push_back(std::max(0.0, volume - drain_rate * lost));
  };
  for (const bool wants_alone : {true, false}) {
    for (const Table& table : tables) {
      if (table.name != "load_interference") continue;
      for (const auto& row : table.rows) {
        const auto cells = named(table, row);
        if (number(cells, "in_flight") != kInFlight) continue;
        if (wants_alone) {
          if (says(cells, "kind", "none")) alone = number(cells, "load_gb_s_per_sm");
        } else if (says(cells, "phase", "lockstep") && number(cells, "demand") > 0) {
          if (says(cells, "kind", to_string(kind))) collect(cells, own);
          if (says(cells, "kind", to_string(StoreKind::bulk))) collect(cells, bulk);
        }
      }
    }
  }
  std::vector<double>& values = own.empty() && kind == StoreKind::tensor ? bulk : own;
  if (values.empty() || !measured(alone)) return std::nullopt;
  return model::median(values);
}

}  // namespace xstage
