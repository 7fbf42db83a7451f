// Attention on tensors of any library that speaks DLPack. Who allocates and which stream is current
// is decided in Python; nothing here waits for the GPU.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "bindings.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"

#ifdef XSTAGE_HAS_ATTENTION
#include <cuda_runtime_api.h>
#endif

namespace nb = nanobind;

namespace xstage::python {
namespace {

using Array = nb::ndarray<nb::device::cuda>;

#ifdef XSTAGE_HAS_ATTENTION

// [batch, row, head, element], or [batch, head, row, element] if `head_major`.
TensorView view(const char* name, const Array& array, bool head_major) {
  if (array.ndim() != 4) {
    throw Error(ErrorCategory::usage, std::string(name) + " has " + std::to_string(array.ndim()) +
                                          " dimensions: legal 4");
  }
  const bool is_bf16 =
      array.dtype() ==
      nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  const bool is_fp16 =
      array.dtype() ==
      nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
  if (!is_bf16 && !is_fp16) {
    throw Error(ErrorCategory::usage,
                std::string(name) + ": the element type has to be bfloat16 or float16");
  }
  const int row = head_major ? 2 : 1;
  const int head = head_major ? 1 : 2;
  const auto size = [&array](int i) { return static_cast<std::int64_t>(array.shape(i)); };
  return {array.data(),
          is_bf16 ? DataType::bf16 : DataType::fp16,
          size(0),
          size(row),
          size(head),
          size(3),
          array.stride(0),
          array.stride(row),
          array.stride(head),
          array.stride(3)};
}

// The device of the tensors while a call is made.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
      (void)cudaGetLastError();
      throw Error(ErrorCategory::runtime, "GPU " + std::to_string(device) + " cannot be used");
    }
  }
  ~DeviceScope() { (void)cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

AttentionOptions options_of(bool causal, std::optional<float> scale,
                            std::optional<std::int64_t> kv_len, const std::optional<Array>& lse,
                            const TensorView& q, bool split_last_wave, float rescale_threshold) {
  AttentionOptions options;
  options.causal = causal;
  if (scale) {
    if (!(*scale > 0.f)) {
      throw Error(ErrorCategory::usage,
                  "scale is " + std::to_string(*scale) + ": legal are positive numbers");
    }
    options.scale = *scale;
  }
  if (kv_len) {
    if (*kv_len < 0) {
      throw Error(ErrorCategory::usage,
                  "kv_len is " + std::to_string(*kv_len) + ": legal 0 to the rows of k");
    }
    options.kv_len = *kv_len;
  }
  options.split_last_wave = split_last_wave;
  options.rescale_threshold = rescale_threshold;
  if (lse) {
    const bool is_float = lse->dtype() == nb::dtype<float>();
    const auto count = static_cast<std::int64_t>(lse->size());
    if (!is_float || count != q.num_batches * q.num_heads * q.num_rows) {
      throw Error(ErrorCategory::usage,
                  "lse: legal is a contiguous float32 tensor [batch, head, row]");
    }
    options.lse = static_cast<float*>(lse->data());
  }
  return options;
}

std::size_t workspace_bytes(const Array& q, const Array& k, const Array& v, bool causal,
                            bool head_major, bool split_last_wave) {
  const DeviceScope scope(q.device_id());
  int num_sms = 0;
  if (cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, q.device_id()) !=
      cudaSuccess) {
    throw Error(ErrorCategory::runtime, "cudaDeviceGetAttribute failed");
  }
  AttentionOptions options;
  options.causal = causal;
  options.split_last_wave = split_last_wave;
  return attention_workspace_bytes(view("q", q, head_major), view("k", k, head_major),
                                   view("v", v, head_major), options, num_sms);
}

void forward(const Array& q, const Array& k, const Array& v, const Array& out,
             const Array& workspace, std::uintptr_t stream, bool causal, std::optional<float> scale,
             std::optional<std::int64_t> kv_len, const std::optional<Array>& lse, bool head_major,
             bool split_last_wave, float rescale_threshold) {
  const TensorView q_view = view("q", q, head_major);
  const DeviceScope scope(q.device_id());
  attention_forward(
      q_view, view("k", k, head_major), view("v", v, head_major), view("out", out, head_major),
      options_of(causal, scale, kv_len, lse, q_view, split_last_wave, rescale_threshold),
      {workspace.data(), workspace.nbytes()}, {reinterpret_cast<void*>(stream)});
}

#else

[[noreturn]] void not_built() {
  throw Error(ErrorCategory::not_possible,
              "this build of xstage has no CUDA support and cannot run kernels");
}
std::size_t workspace_bytes(const Array&, const Array&, const Array&, bool, bool, bool) {
  not_built();
}
void forward(const Array&, const Array&, const Array&, const Array&, const Array&, std::uintptr_t,
             bool, std::optional<float>, std::optional<std::int64_t>, const std::optional<Array>&,
             bool, bool, float) {
  not_built();
}

#endif

}  // namespace

void bind_attention(nb::module_& module) {
  module.attr("attention_counter_bytes") = kAttentionCounterBytes;
  module.attr("default_rescale_threshold") = AttentionOptions{}.rescale_threshold;
#ifdef XSTAGE_HAS_ATTENTION
  module.attr("has_cuda") = true;
#else
  module.attr("has_cuda") = false;
#endif
  module.def("attention_workspace_bytes", &workspace_bytes, nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("causal"), nb::arg("head_major"), nb::arg("split_last_wave"));
  module.def("attention_forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("workspace"), nb::arg("stream"), nb::arg("causal"),
             nb::arg("scale").none(), nb::arg("kv_len").none(), nb::arg("lse").none(),
             nb::arg("head_major"), nb::arg("split_last_wave"), nb::arg("rescale_threshold"));
}

}  // namespace xstage::python
