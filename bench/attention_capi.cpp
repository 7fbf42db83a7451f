// The attention operator behind a C call, for bench/attention.py: raw pointers, one struct, the
// error's category as result and its text in the caller's buffer.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>

#include "xstage/attention.hpp"
#include "xstage/error.hpp"

extern "C" {

struct XstageAttentionCall {
  void* q;
  void* k;
  void* v;
  void* out;
  float* lse;
  void* workspace;
  std::uint64_t workspace_bytes;
  void* stream;
  std::int64_t num_batches;
  std::int64_t num_query_rows;
  std::int64_t num_key_rows;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t kv_len;
  std::int32_t is_fp16;
  std::int32_t is_head_major;  // [batch, head, row, element] instead of [batch, row, head, element]
  std::int32_t causal;
  std::int32_t split_last_wave;
  std::int32_t num_sms;
  float scale;
  float rescale_threshold;
  char error[256];
};

int xstage_attention_forward(XstageAttentionCall* call);
std::int64_t xstage_attention_workspace_bytes(XstageAttentionCall* call, int num_sms);
}

namespace {

xstage::TensorView view(const XstageAttentionCall& call, void* data, std::int64_t rows,
                        std::int64_t heads) {
  const auto dtype = call.is_fp16 != 0 ? xstage::DataType::fp16 : xstage::DataType::bf16;
  const auto make = call.is_head_major != 0 ? xstage::TensorView::bhsd : xstage::TensorView::bshd;
  return make(data, dtype, call.num_batches, rows, heads, call.head_dim);
}

xstage::AttentionOptions options(const XstageAttentionCall& call) {
  xstage::AttentionOptions o;
  o.causal = call.causal != 0;
  o.scale = call.scale;
  o.kv_len = call.kv_len;
  o.lse = call.lse;
  o.split_last_wave = call.split_last_wave != 0;
  o.rescale_threshold = call.rescale_threshold;
  o.num_sms = call.num_sms;
  return o;
}

// Runs `work`; 0 or the category of what it threw.
template <typename Work>
int guarded(XstageAttentionCall* call, Work work) {
  const auto note = [&](const char* text) {
    const std::size_t length = std::min(std::strlen(text), sizeof(call->error) - 1);
    std::memcpy(call->error, text, length);
    call->error[length] = '\0';
  };
  try {
    work();
    note("");
    return 0;
  } catch (const xstage::Error& error) {
    note(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    note(error.what());
    return static_cast<int>(xstage::ErrorCategory::runtime);
  }
}

}  // namespace

int xstage_attention_forward(XstageAttentionCall* call) {
  return guarded(call, [&] {
    xstage::attention_forward(view(*call, call->q, call->num_query_rows, call->num_heads),
                              view(*call, call->k, call->num_key_rows, call->num_kv_heads),
                              view(*call, call->v, call->num_key_rows, call->num_kv_heads),
                              view(*call, call->out, call->num_query_rows, call->num_heads),
                              options(*call), {call->workspace, call->workspace_bytes},
                              {call->stream});
  });
}

// Bytes, or minus the error's category.
std::int64_t xstage_attention_workspace_bytes(XstageAttentionCall* call, int num_sms) {
  std::size_t bytes = 0;
  const int code = guarded(call, [&] {
    bytes = xstage::attention_workspace_bytes(
        view(*call, call->q, call->num_query_rows, call->num_heads),
        view(*call, call->k, call->num_key_rows, call->num_kv_heads),
        view(*call, call->v, call->num_key_rows, call->num_kv_heads), options(*call), num_sms);
  });
  return code == 0 ? static_cast<std::int64_t>(bytes) : -code;
}
