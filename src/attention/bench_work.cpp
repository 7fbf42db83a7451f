// The busiest SM of a benchmark's shape. Pure: no CUDA.
#include <cstdint>

#include "attention/benchmark.hpp"
#include "attention/forward_shape.hpp"
#include "attention/problem.hpp"

namespace xstage::attention {

BenchWork busiest_sm(const BenchShape& s, int num_sms) {
  // The plan of a call looks at sizes alone, but wants aligned pointers.
  void* anywhere = reinterpret_cast<void*>(std::uintptr_t{256});
  const auto view = [&](std::int64_t heads) {
    return TensorView::bshd(anywhere, s.dtype, s.num_batches, s.num_rows, heads, s.head_dim);
  };
  AttentionOptions options;
  options.causal = s.causal;
  const TensorView k = view(s.num_kv_heads);
  const Problem problem = make_problem(view(s.num_heads), k, k, options, num_sms);
  BenchWork busiest;
  std::int64_t total_steps = 0;
  for (int cta = 0; cta < problem.num_ctas; ++cta) {
    BenchWork work;
    for (int i = 0; i < problem.order.num_items(cta); ++i) {
      const AttentionItem item = problem.order.item(cta, i);
      work.num_steps += item.num_key_blocks;
      work.num_tiles += 1;
      work.num_parts += item.tail_idx >= 0 ? 1 : 0;
    }
    total_steps += work.num_steps;
    if (work.num_steps > busiest.num_steps) busiest = work;
  }
  // Causal tiles go to whoever is ready: nobody has more than his share.
  if (s.causal) {
    busiest.num_steps = static_cast<int>(total_steps / problem.num_ctas);
    busiest.num_tiles = problem.order.num_tiles() / problem.num_ctas;
  }
  busiest.block_rows = kTileRows;
  busiest.block_keys = block_keys(static_cast<int>(s.head_dim), s.causal);
  return busiest;
}

}  // namespace xstage::attention
