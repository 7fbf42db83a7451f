// The expert-parallel MoE layer for Python: a buffer owns this process's membership, its peer
// memory and one layer for each set of weights it has seen. Tensors come by DLPack; nothing here
// waits for the GPU except making and closing a buffer.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "bindings.hpp"
#include "xstage/error.hpp"
#include "xstage/group.hpp"
#ifdef XSTAGE_HAS_MOE
#include "moe/layout.hpp"
#include "moe/weights.hpp"
#include "xstage/moe.hpp"
#endif

namespace nb = nanobind;

namespace xstage::python {
namespace {

using Array = nb::ndarray<nb::device::cuda>;

#ifdef XSTAGE_HAS_MOE

DataType data_type_of(const std::string& name) {
  if (name == "bf16") return DataType::bf16;
  if (name == "fp8") return DataType::fp8;
  throw Error(ErrorCategory::usage, "dtype is " + name + ": legal bf16, fp8");
}

MoeTransfer transfer_of(const char* what, const std::string& name) {
  if (name == "pull") return MoeTransfer::pull;
  if (name == "push") return MoeTransfer::push;
  throw Error(ErrorCategory::usage, std::string(what) + " is " + name + ": legal pull, push");
}

Stream stream_of(std::uintptr_t handle) {
  return {reinterpret_cast<void*>(handle)};
}

void check_bytes(const char* name, const Array& array, std::size_t bytes) {
  if (array.nbytes() >= bytes) return;
  throw Error(ErrorCategory::usage, std::string(name) + " has " + std::to_string(array.nbytes()) +
                                        " bytes: legal " + std::to_string(bytes) + " and more");
}

class MoeBuffer {
 public:
  // Collective over the launcher's ranks.
  MoeBuffer(int num_experts, int max_tokens, int top_k, int hidden, int intermediate,
            int num_shared, const std::string& dtype, const std::string& dispatch,
            const std::string& combine, bool send_once, int device, double deadline_s)
      : group_(Group::join(read_launch())) {
    shape_ = {max_tokens, hidden,     intermediate,       num_experts,
              top_k,      num_shared, data_type_of(dtype)};
    options_.dispatch = transfer_of("dispatch", dispatch);
    options_.combine = transfer_of("combine", combine);
    options_.send_once = send_once;
    if (!(deadline_s > 0)) {
      throw Error(ErrorCategory::usage,
                  "deadline is " + std::to_string(deadline_s) + " s: legal are positive numbers");
    }
    PeerOptions peer;
    peer.device = device;
    peer.deadline_ns = static_cast<std::uint64_t>(deadline_s * 1e9);
    const std::size_t bytes = MoeLayer::buffer_bytes(shape_, group_.num_ranks(), options_);
    memory_.emplace(PeerMemory::create(group_, bytes, peer));
  }

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int num_ranks() const { return group_.num_ranks(); }
  [[nodiscard]] nb::tuple experts() const {
    const ExpertRange range = moe_experts_of(shape_, group_.num_ranks(), group_.rank());
    return nb::make_tuple(range.first, range.count);
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return MoeLayer::workspace_bytes(shape_, group_.num_ranks(), options_);
  }

  // Staged rows as bytes, [max_tokens, pitch]: elements first, then scales. They live as long as
  // `owner`, this buffer's Python object.
  [[nodiscard]] nb::object rows(const nb::object& owner) const {
    const moe::Geometry g = moe::make_geometry(shape_, group_.num_ranks());
    char* base = static_cast<char*>(memory_->table().bases[group_.rank()]);
    const std::size_t shape[2] = {static_cast<std::size_t>(shape_.max_tokens),
                                  static_cast<std::size_t>(g.x_pitch)};
    return nb::cast(nb::ndarray<nb::pytorch, std::uint8_t>(
        base + moe::peer_layout(g, options_).x, 2, shape, owner, nullptr, nb::dtype<std::uint8_t>(),
        nb::device::cuda::value, memory_->device()));
  }

  void run(const Array& y, std::int64_t num_tokens, const Array& ids, const Array& topk_weights,
           const Array& w1, const std::optional<Array>& w1_scales, const Array& w2,
           const std::optional<Array>& w2_scales, const Array& workspace, float clamp,
           std::uintptr_t stream) {
    const bool is_wide = ids.itemsize() == 8;
    if (!is_wide && ids.itemsize() != 4) {
      throw Error(ErrorCategory::usage, "topk_idx: legal are elements of 32 or 64 bits");
    }
    if (num_tokens < 0 || num_tokens > shape_.max_tokens) {
      throw Error(ErrorCategory::usage, "y has " + std::to_string(num_tokens) + " rows: legal 0.." +
                                            std::to_string(shape_.max_tokens));
    }
    const auto tokens = static_cast<std::size_t>(num_tokens);
    const std::size_t entries = tokens * static_cast<std::size_t>(shape_.top_k);
    check_bytes("y", y, tokens * static_cast<std::size_t>(shape_.hidden) * 2);
    check_bytes("topk_idx", ids, entries * ids.itemsize());
    check_bytes("topk_weights", topk_weights, entries * 4);
    const auto [first, count] = moe_experts_of(shape_, group_.num_ranks(), group_.rank());
    const auto matrices = static_cast<std::size_t>(count + shape_.num_shared_experts);
    const std::size_t matrix =
        static_cast<std::size_t>(shape_.hidden) * shape_.intermediate * element_bytes(shape_.dtype);
    check_bytes("l1", w1, 2 * matrices * matrix);
    check_bytes("l2", w2, matrices * matrix);
    MoeWeights weights{w1.data(), nullptr, w2.data(), nullptr};
    if (shape_.dtype == DataType::fp8) {
      if (!w1_scales || !w2_scales) {
        throw Error(ErrorCategory::usage, "l1, l2: fp8 weights are pairs of tensor and scales");
      }
      const auto blocks = [](int size) { return static_cast<std::size_t>((size + 127) / 128); };
      const std::size_t scales = matrices * blocks(shape_.hidden) * blocks(shape_.intermediate) * 4;
      check_bytes("l1 scales", *w1_scales, 2 * scales);
      check_bytes("l2 scales", *w2_scales, scales);
      weights.w1_scales = static_cast<const float*>(w1_scales->data());
      weights.w2_scales = static_cast<const float*>(w2_scales->data());
    }
    MoeCall call;
    call.num_tokens = static_cast<int>(num_tokens);
    call.topk_ids = ids.data();
    call.ids_are_64_bit = is_wide;
    call.topk_weights = static_cast<const float*>(topk_weights.data());
    call.y = y.data();
    layer_of(weights, workspace, clamp).run(call, stream_of(stream));
  }

  // Throws what went wrong in calls that have run; does not wait.
  void check() const {
    memory_->check();
    for (const auto& [key, layer] : layers_) {
      const MoeStatus status = layer->status();
      if (!status.fine) throw Error(ErrorCategory::check_failed, status.text);
    }
  }

  void close() {
    layers_.clear();
    if (memory_) memory_->close();
    group_.leave();
  }

 private:
  using Key = std::tuple<const void*, const void*, const void*, const void*, const void*, float>;

  MoeLayer& layer_of(const MoeWeights& w, const Array& workspace, float clamp) {
    const Key key{w.w1, w.w1_scales, w.w2, w.w2_scales, workspace.data(), clamp};
    auto& layer = layers_[key];
    if (layer == nullptr) {
      check_bytes("workspace", workspace, workspace_bytes());
      MoeOptions options = options_;
      options.clamp = clamp;
      layer = std::make_unique<MoeLayer>(*memory_, shape_, w,
                                         Workspace{workspace.data(), workspace.nbytes()}, options);
    }
    return *layer;
  }

  Group group_;
  MoeShape shape_;
  MoeOptions options_;
  std::optional<PeerMemory> memory_;
  std::map<Key, std::unique_ptr<MoeLayer>> layers_;
};

void interleave(const Array& source, const Array& destination, int intermediate,
                std::uintptr_t stream) {
  if (source.ndim() != 3 || source.shape(1) != 2 * static_cast<std::size_t>(intermediate)) {
    throw Error(ErrorCategory::usage, "l1: legal is [experts, 2 * intermediate, hidden]");
  }
  check_bytes("destination", destination, source.nbytes());
  moe::interleave_gate_up(source.data(), destination.data(),
                          static_cast<std::int32_t>(source.shape(0)), intermediate,
                          static_cast<std::int32_t>(source.shape(2)),
                          static_cast<int>(source.itemsize()), stream_of(stream));
}

void quantise(const Array& source, const Array& destination, const Array& scales,
              std::int64_t num_matrices, int rows, int k, std::uintptr_t stream) {
  const auto blocks = [](int size) { return static_cast<std::size_t>((size + 127) / 128); };
  const auto matrices = static_cast<std::size_t>(num_matrices);
  const std::size_t count = matrices * static_cast<std::size_t>(rows) * static_cast<std::size_t>(k);
  check_bytes("source", source, count * 2);
  check_bytes("destination", destination, count);
  check_bytes("scales", scales, matrices * blocks(rows) * blocks(k) * 4);
  moe::quantise_weights(source.data(), destination.data(), static_cast<float*>(scales.data()),
                        num_matrices, rows, k, stream_of(stream));
}

void quantise_tokens(const Array& source, const Array& destination, const Array& scales,
                     std::int64_t num_rows, int k, std::uintptr_t stream) {
  const auto count = static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(k);
  const auto blocks = static_cast<std::size_t>((k + 127) / 128);
  check_bytes("source", source, count * 2);
  check_bytes("destination", destination, count);
  check_bytes("scales", scales, static_cast<std::size_t>(num_rows) * blocks * 4);
  moe::quantise_rows(source.data(), destination.data(), static_cast<float*>(scales.data()),
                     num_rows, num_rows, k, stream_of(stream));
}

#endif

}  // namespace

void bind_moe(nb::module_& module) {
#ifdef XSTAGE_HAS_MOE
  module.attr("has_moe") = true;
  nb::class_<MoeBuffer>(module, "MoeBuffer")
      .def(nb::init<int, int, int, int, int, int, const std::string&, const std::string&,
                    const std::string&, bool, int, double>(),
           nb::arg("num_experts"), nb::arg("max_tokens"), nb::arg("top_k"), nb::arg("hidden"),
           nb::arg("intermediate"), nb::arg("num_shared"), nb::arg("dtype"), nb::arg("dispatch"),
           nb::arg("combine"), nb::arg("send_once"), nb::arg("device"), nb::arg("deadline_s"))
      .def_prop_ro("rank", &MoeBuffer::rank)
      .def_prop_ro("num_ranks", &MoeBuffer::num_ranks)
      .def_prop_ro("experts", &MoeBuffer::experts, "First expert of this rank, and how many.")
      .def_prop_ro("workspace_bytes", &MoeBuffer::workspace_bytes)
      .def("rows",
           [](const nb::object& self) { return nb::cast<const MoeBuffer&>(self).rows(self); })
      .def("run", &MoeBuffer::run, nb::arg("y"), nb::arg("num_tokens"), nb::arg("topk_idx"),
           nb::arg("topk_weights"), nb::arg("w1"), nb::arg("w1_scales").none(), nb::arg("w2"),
           nb::arg("w2_scales").none(), nb::arg("workspace"), nb::arg("clamp"), nb::arg("stream"))
      .def("check", &MoeBuffer::check)
      .def("close", &MoeBuffer::close);
  module.def("moe_interleave", &interleave, nb::arg("source"), nb::arg("destination"),
             nb::arg("intermediate"), nb::arg("stream"));
  module.def("moe_quantise_weights", &quantise, nb::arg("source"), nb::arg("destination"),
             nb::arg("scales"), nb::arg("num_matrices"), nb::arg("rows"), nb::arg("k"),
             nb::arg("stream"));
  module.def("moe_quantise_rows", &quantise_tokens, nb::arg("source"), nb::arg("destination"),
             nb::arg("scales"), nb::arg("num_rows"), nb::arg("k"), nb::arg("stream"));
#else
  module.attr("has_moe") = false;
#endif
}

}  // namespace xstage::python
