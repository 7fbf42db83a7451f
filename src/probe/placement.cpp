#include <vector>

#include "probe/link.hpp"

namespace xstage::probing {

std::vector<std::int32_t> place_producers(int num_sms, int num_producers, bool two_per_tpc) {
  // SM 2i and 2i+1 are taken to be one TPC, as on all parts since Volta.
  std::vector<std::int32_t> producer_of_sm(static_cast<std::size_t>(num_sms), -1);
  const int num_tpcs = (num_sms + 1) / 2;
  int placed = 0;
  const auto place = [&](int sm) {
    if (placed < num_producers && sm < num_sms && producer_of_sm[sm] < 0) {
      producer_of_sm[sm] = placed++;
    }
  };
  const int wanted_tpcs =
      two_per_tpc ? (num_producers + 1) / 2 : (num_producers < num_tpcs ? num_producers : num_tpcs);
  for (int i = 0; i < wanted_tpcs; ++i) {
    const int tpc = static_cast<int>(static_cast<long>(i) * num_tpcs / wanted_tpcs);
    place(2 * tpc);
    if (two_per_tpc) place(2 * tpc + 1);
  }
  for (int sm = 1; sm < num_sms; sm += 2) place(sm);  // second SMs of TPCs, then whatever is left
  for (int sm = 0; sm < num_sms; ++sm) place(sm);
  return producer_of_sm;
}

}  // namespace xstage::probing
