// The smallest use of the model: what 132 SMs that store 32 KiB every 8 us have to expect.
#include <cstdio>

#include "xstage/model.hpp"
#include "xstage/version.hpp"

int main() {
  xstage::LinkParams link;
  link.kind = xstage::StoreKind::register16;
  link.issue_curve = {{32768, 520}};
  link.injection_rate = 50;
  link.drain_rate = 372;
  const auto prediction =
      xstage::predict(link, {.num_producers = 132, .bytes = 32768, .gap_ns = 8000});
  std::printf("xstage %s: issue %.0f ns\n", xstage::version().data(), prediction.issue_ns);
  return prediction.issue_ns > 520 ? 0 : 1;
}
