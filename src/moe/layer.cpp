// MoeLayer: the phases in order.
#include "moe/layer.hpp"

#include <utility>

#include "moe/grouped_gemm.hpp"
#include "moe/problem.hpp"
#include "peers/cuda_check.hpp"

namespace xstage {
namespace moe {
namespace {

// What both products of a call have in common.
GroupedGemm gemm_of(const Exchange& exchange, std::size_t workspace_offset, int num_tokens) {
  const MoeShape& shape = exchange.shape();
  const Geometry& g = exchange.geometry();
  GroupedGemm gemm;
  gemm.type = shape.dtype == DataType::fp8 ? GemmType::fp8 : GemmType::bf16;
  gemm.num_experts = exchange.num_local();
  gemm.pool_rows = g.pool_rows;
  gemm.a_scale_stride = g.pool_rows;
  gemm.first_row = exchange.tables()->first_row;
  gemm.num_rows = exchange.tables()->num_rows;
  gemm.workspace = exchange.local(workspace_offset);
  gemm.num_sms = exchange.num_sms();
  // Rows of an expert if all ranks have this rank's tokens and routing is even, and half as many
  // again. A guess: it chooses the faster kernel, not the result.
  const std::int64_t rows = static_cast<std::int64_t>(num_tokens) * g.experts.num_ranks * g.top_k;
  gemm.max_expert_rows = rows * 3 / 2 / g.experts.num_experts + 1;
  if (shape.num_shared_experts > 0 && gemm.max_expert_rows < num_tokens) {
    gemm.max_expert_rows = num_tokens;
  }
  return gemm;
}

}  // namespace

Layer::Layer(PeerMemory& memory, const MoeShape& shape, const MoeWeights& weights,
             const Workspace& workspace, const MoeOptions& options)
    : exchange_(memory, shape, workspace, options), weights_(weights) {
  check_weights(shape, weights);
  const peers::DeviceScope scope(memory.device());
  load_grouped_gemm(shape.dtype == DataType::fp8 ? GemmType::fp8 : GemmType::bf16);
}

void Layer::linear1(const MoeCall& call, Stream stream) const {
  const MoeShape& shape = exchange_.shape();
  GroupedGemm gemm = gemm_of(exchange_, exchange_.local_layout().gemm1, call.num_tokens);
  gemm.output = GemmOutput::swiglu;
  gemm.n = 2 * shape.intermediate;
  gemm.k = shape.hidden;
  gemm.a = exchange_.pool();
  gemm.a_scales = exchange_.pool_scales();
  gemm.w = weights_.w1;
  gemm.w_scales = weights_.w1_scales;
  gemm.out = exchange_.local(exchange_.local_layout().middle);
  if (shape.dtype == DataType::fp8) {
    gemm.out_scales =
        reinterpret_cast<float*>(exchange_.local(exchange_.local_layout().middle_scales));
    gemm.out_scale_stride = exchange_.geometry().pool_rows;
  }
  gemm.clamp = exchange_.options().clamp;
  grouped_gemm(gemm, stream);
}

void Layer::linear2(const MoeCall& call, Stream stream) const {
  const MoeShape& shape = exchange_.shape();
  GroupedGemm gemm = gemm_of(exchange_, exchange_.local_layout().gemm2, call.num_tokens);
  gemm.output = GemmOutput::plain;
  gemm.n = shape.hidden;
  gemm.k = shape.intermediate;
  gemm.a = exchange_.local(exchange_.local_layout().middle);
  if (shape.dtype == DataType::fp8) {
    gemm.a_scales =
        reinterpret_cast<const float*>(exchange_.local(exchange_.local_layout().middle_scales));
  }
  gemm.w = weights_.w2;
  gemm.w_scales = weights_.w2_scales;
  gemm.out = exchange_.outputs();
  grouped_gemm(gemm, stream);
}

void Layer::run(const MoeCall& call, Stream stream) const {
  check_call(exchange_.shape(), call);
  exchange_.stage(call, stream);
  exchange_.route(call, stream);
  exchange_.dispatch(call, stream);
  linear1(call, stream);
  linear2(call, stream);
  exchange_.scatter(stream);
  exchange_.meet(stream);
  exchange_.sum(call, stream);
}

}  // namespace moe

struct MoeLayer::Impl {
  explicit Impl(moe::Layer made) : layer(std::move(made)) {}

  moe::Layer layer;
};

std::size_t MoeLayer::buffer_bytes(const MoeShape& shape, int num_ranks,
                                   const MoeOptions& options) {
  moe::check_shape(shape, num_ranks, options);
  return moe::peer_layout(moe::make_geometry(shape, num_ranks), options).bytes;
}

std::size_t MoeLayer::workspace_bytes(const MoeShape& shape, int num_ranks,
                                      const MoeOptions& options) {
  moe::check_shape(shape, num_ranks, options);
  return moe::local_layout(moe::make_geometry(shape, num_ranks), options,
                           moe::grouped_gemm_workspace_bytes())
      .bytes;
}

MoeLayer::MoeLayer(PeerMemory& memory, const MoeShape& shape, const MoeWeights& weights,
                   const Workspace& workspace, const MoeOptions& options)
    : impl_(std::make_unique<Impl>(moe::Layer(memory, shape, weights, workspace, options))) {}

MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;
MoeLayer::~MoeLayer() = default;

MoeInput MoeLayer::input() const noexcept {
  return impl_->layer.exchange().input();
}

void MoeLayer::run(const MoeCall& call, Stream stream) {
  impl_->layer.run(call, stream);
}

MoeStatus MoeLayer::status() const {
  return impl_->layer.exchange().status();
}

ExpertRange moe_experts_of(const MoeShape& shape, int num_ranks, int rank) {
  moe::check_shape(shape, num_ranks, {});
  const moe::Partition experts{shape.num_experts, num_ranks};
  if (rank < 0 || rank >= num_ranks) return {};
  return {experts.first(rank), experts.count(rank)};
}

}  // namespace xstage
