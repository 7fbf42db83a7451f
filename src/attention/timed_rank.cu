#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "attention/exchange_reference.hpp"
#include "attention/ghosts.hpp"
#include "attention/timed_data.cuh"
#include "attention/timed_rank.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::attention {
TimedEvent::TimedEvent() {
  probing::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}
TimedEvent::~TimedEvent() {
  (void)cudaEventDestroy(event_);
}

namespace {

using probing::Buffer;
using probing::check;

constexpr std::size_t kAlignment = 4096;
constexpr int kPoison = 0xff;  // not a number in either type

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

AttentionShape operator_shape(const TimedShape& shape) {
  const AttentionWorkload& w = shape.workload;
  AttentionShape max;
  max.dtype = w.dtype;
  max.num_batches = w.batch;
  max.max_rows = w.sequence;
  max.max_rows_per_rank = shape.max_owner_rows();
  max.num_heads = w.num_heads;
  max.num_kv_heads = w.num_kv_heads;
  max.head_dim = w.head_dim;
  return max;
}

UlyssesOptions operator_options(const ExchangeCandidate& candidate) {
  UlyssesOptions o;
  o.send = candidate.send;
  o.num_sending_sms = candidate.num_sending_sms;
  return o;
}

// Where a chunk of rows begins: whole tiles, except at the end.
std::int32_t chunk_begin(std::int32_t rows, int num_chunks, int chunk) {
  constexpr std::int32_t kTileRows = 128;
  const std::int32_t tiles = even_split(ceil_div(rows, kTileRows), num_chunks, chunk);
  return std::min(rows, tiles * kTileRows);
}

TensorView rows_from(TensorView t, std::int32_t begin, std::int32_t end) {
  t.data = static_cast<char*>(t.data) + begin * t.row_stride * 2;
  t.num_rows = end - begin;
  return t;
}

bool any_fused(const std::vector<ExchangeCandidate>& candidates) {
  return std::any_of(candidates.begin(), candidates.end(),
                     [](const auto& c) { return c.way == ExchangeWay::fused; });
}
bool any_block(const TimedShape& shape, const std::vector<ExchangeCandidate>& candidates) {
  return TimedInputs::why_not(shape).empty() &&
         std::any_of(candidates.begin(), candidates.end(),
                     [](const auto& c) { return c.with_inputs; });
}

Buffer device_buffer(int device, std::size_t bytes) {
  return Buffer(Buffer::Place::device, device, std::max<std::size_t>(bytes, 256));
}

}  // namespace

TimedLayout timed_layout(const TimedShape& shape,
                         const std::vector<ExchangeCandidate>& candidates) {
  TimedLayout layout;
  if (any_fused(candidates)) {
    layout.serial_flags =
        aligned(UlyssesAttention::buffer_bytes(operator_shape(shape), shape.num_ranks));
  }
  layout.serial_out = layout.serial_flags + kTimedFlagBytes;
  layout.inputs = layout.serial_out +
                  aligned(shape.tensor_bytes(shape.max_owner_rows(), shape.workload.num_heads));
  layout.bytes = layout.inputs + (any_block(shape, candidates) ? TimedInputs::bytes(shape) : 0);
  return layout;
}

// The operator on one peer memory: the rank's own, or a twin's whose ghosts are local.
struct TimedRank::Fused {
  std::optional<PeerMemory> twin_memory;  // the operator's own, if this is the twin
  PeerMemory& memory;
  UlyssesAttention op;

  Fused(PeerMemory& shared, const TimedShape& shape, Group* group)
      : memory(shared), op(memory, operator_shape(shape), {}, 0, group) {}
  Fused(PeerMemory&& own, const TimedShape& shape)
      : twin_memory(std::move(own)), memory(*twin_memory), op(memory, operator_shape(shape)) {}
};

TimedRank::TimedRank(const TimedShape& shape, PeerMemory memory, std::uint64_t seed,
                     const std::vector<ExchangeCandidate>& candidates, Group* group)
    : shape_(shape),
      memory_(std::move(memory)),
      rank_(memory_.rank()),
      seed_(seed),
      stream_(memory_.device()),
      side_(memory_.device()),
      layout_(timed_layout(shape, candidates)) {
  const AttentionWorkload& w = shape.workload;
  std::int32_t heads = 0;  // the most of any rank: the reference computes them all in turn
  std::int32_t kv_heads = 0;
  for (int r = 0; r < shape.num_ranks; ++r) {
    heads = std::max(heads, shape.heads_of(r));
    kv_heads = std::max(kv_heads, shape.kv_heads_of(r));
  }
  q_ = device_buffer(device(), shape.tensor_bytes(w.sequence, heads));
  k_ = device_buffer(device(), shape.tensor_bytes(w.sequence, kv_heads));
  v_ = device_buffer(device(), shape.tensor_bytes(w.sequence, kv_heads));
  out_ = device_buffer(device(), shape.tensor_bytes(w.sequence, heads));
  check(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, device()), "SMs");
  const auto make_room = [&](const TensorView& q, int r, int num_sms) {
    AttentionOptions o = options();
    o.num_sms = num_sms;
    workspace_bytes_ =
        std::max(workspace_bytes_, attention_workspace_bytes(q, key(r), value(r), o, num_sms_));
  };
  for (int r = 0; r < shape.num_ranks; ++r) make_room(query(r), r, 0);
  for (const ExchangeCandidate& c : candidates) {
    for (int i = 0; c.way == ExchangeWay::chunked && i < c.num_chunks; ++i) {
      make_room(rows_from(query(rank_), chunk_begin(w.sequence, c.num_chunks, i),
                          chunk_begin(w.sequence, c.num_chunks, i + 1)),
                rank_, num_sms_ - c.num_send_sms);
    }
  }
  workspace_ = device_buffer(device(), workspace_bytes_);
  check(cudaMemset(workspace_.data(), 0, workspace_.size()), "cudaMemset");
  fill_inputs(rank_);
  std::vector<TensorView> destinations;
  for (int p = 0; p < shape.num_ranks; ++p) {
    destinations.push_back(
        heads_of(owner_view(static_cast<char*>(memory_.table().bases[p]) + layout_.serial_out, p),
                 shape.first_head(rank_), shape.heads_of(rank_)));
  }
  serial_plan_ = gather_plan(shape.shards(rank_), result(rank_), destinations);
  load_push_kernels();
  if (any_fused(candidates)) fused_ = std::make_unique<Fused>(memory_, shape, group);
  for (const ExchangeCandidate& c : candidates) {  // no rank may allocate while another one waits
    if (c.way != ExchangeWay::fused || c.local_owners) continue;
    try {
      fused_->op.set_options(operator_options(c));
      fused_->op.reserve(query(rank_), key(rank_), value(rank_), call(c));
    } catch (const Error& error) {  // enqueue() refuses it again, and is asked why
      if (error.category() != ErrorCategory::usage) throw;
    }
  }
  if (any_block(shape, candidates)) {
    inputs_ = std::make_unique<TimedInputs>(
        shape, memory_, layout_.inputs,
        [&](int r) {
          fill_inputs(r);
          return inputs_of(r);
        },
        xstage::Stream{stream_.get()});
  }
  check(cudaDeviceSynchronize(), "inputs");
}

TimedRank::~TimedRank() = default;

void TimedRank::make_local_twin() {
  if (twin_ != nullptr) return;
  const std::size_t bytes =
      UlyssesAttention::buffer_bytes(operator_shape(shape_), shape_.num_ranks);
  twin_ = std::make_unique<Fused>(
      with_ghosts(GhostPlace::local, device(), -1, shape_.num_ranks, bytes), shape_);
}

TensorView TimedRank::view(const Buffer& buffer, std::int64_t heads) const {
  const AttentionWorkload& w = shape_.workload;
  return TensorView::bshd(buffer.data(), w.dtype, w.batch, w.sequence, heads, w.head_dim);
}
TensorView TimedRank::query(int rank) const {
  return view(q_, shape_.heads_of(rank));
}
TensorView TimedRank::key(int rank) const {
  return view(k_, shape_.kv_heads_of(rank));
}
TensorView TimedRank::value(int rank) const {
  return view(v_, shape_.kv_heads_of(rank));
}
TensorView TimedRank::result(int rank) const {
  return view(out_, shape_.heads_of(rank));
}

AttentionOptions TimedRank::options() const {
  AttentionOptions o;
  o.causal = shape_.workload.causal;
  return o;
}

TensorView TimedRank::owner_view(void* data, int owner) const {
  const AttentionWorkload& w = shape_.workload;
  return TensorView::bshd(data, w.dtype, w.batch, shape_.shards(rank_).owner_rows(owner),
                          w.num_heads, w.head_dim);
}

void TimedRank::fill_inputs(int rank) {
  const bool is_fp16 = shape_.workload.dtype == DataType::fp16;
  std::uint64_t seed = seed_ * 1000 + static_cast<std::uint64_t>(rank) * 3;
  for (const Buffer* buffer : {&q_, &k_, &v_}) {
    fill_normal_kernel<<<1024, 256, 0, stream_.get()>>>(
        buffer->as<std::uint16_t>(), static_cast<std::int64_t>(buffer->size() / 2), is_fp16,
        seed++);
    check(cudaGetLastError(), "fill");
  }
}

TimedInputs::Tensors TimedRank::inputs_of(int rank) const {
  return {query(rank), key(rank), value(rank)};
}

void TimedRank::compute_attention(int rank, const TimedInputs::Tensors& inputs) {
  attention_forward(inputs.q, inputs.k, inputs.v, result(rank), options(),
                    {workspace_.data(), workspace_bytes_}, {stream_.get()});
}

void TimedRank::enqueue(const ExchangeCandidate& candidate) {
  if (candidate.with_inputs && inputs_ == nullptr) {
    throw Error(ErrorCategory::not_possible, TimedInputs::why_not(shape_));
  }
  const int computed_rank =
      candidate.way == ExchangeWay::fused && candidate.local_owners ? 0 : rank_;
  const TimedInputs::Tensors in =
      candidate.with_inputs ? inputs_->tensors() : inputs_of(computed_rank);
  if (candidate.with_inputs) inputs_->enqueue({stream_.get()});
  if (candidate.way == ExchangeWay::fused) {
    Fused& fused = candidate.local_owners ? *twin_ : *fused_;
    fused.op.set_options(operator_options(candidate));
    fused.op.run(in.q, in.k, in.v, call(candidate), {stream_.get()});
    // Calls take two buffers in turn; a captured one keeps its own.
    fused_offsets_[candidate.name] =
        static_cast<char*>(fused.op.out().data) -
        static_cast<char*>(fused.memory.table().bases[fused.memory.rank()]);
    return;
  }
  if (candidate.way == ExchangeWay::chunked) {
    enqueue_chunks(candidate);
    return;
  }
  compute_attention(rank_, in);
  if (candidate.way == ExchangeWay::push)
    push(serial_plan_, flags_in(memory_, layout_.serial_flags), {}, {stream_.get()});
  if (candidate.way == ExchangeWay::copy_engine) {
    copy_by_engine(serial_plan_, flags_in(memory_, layout_.serial_flags), {stream_.get()});
  }
}

// Attention of a chunk beside the push of the one before, which has SMs and a stream of its own.
void TimedRank::enqueue_chunks(const ExchangeCandidate& candidate) {
  const std::int32_t rows = shape_.workload.sequence;
  if (shape_.workload.causal) {
    throw Error(ErrorCategory::not_possible,
                "chunks of rows see different keys under a causal mask");
  }
  AttentionOptions o = options();
  o.num_sms = num_sms_ - candidate.num_send_sms;
  PushOptions push_options;
  push_options.num_sms = candidate.num_send_sms;
  std::int32_t begin = 0;
  for (int chunk = 0; chunk < candidate.num_chunks; ++chunk) {
    const bool is_last = chunk + 1 == candidate.num_chunks;
    const std::int32_t end = chunk_begin(rows, candidate.num_chunks, chunk + 1);
    attention_forward(rows_from(query(rank_), begin, end), key(rank_), value(rank_),
                      rows_from(result(rank_), begin, end), o,
                      {workspace_.data(), workspace_bytes_}, {stream_.get()});
    check(cudaEventRecord(computed_.get(), stream_.get()), "event");
    check(cudaStreamWaitEvent(side_.get(), computed_.get()), "event");
    push(rows_of_plan(serial_plan_, begin, end),
         is_last ? flags_in(memory_, layout_.serial_flags) : PushSync{}, push_options,
         {side_.get()});
    begin = end;
  }
  check(cudaEventRecord(computed_.get(), side_.get()), "event");
  check(cudaStreamWaitEvent(stream_.get(), computed_.get()), "event");
}

void TimedRank::enqueue_wait(const ExchangeCandidate& candidate) {
  if (candidate.way == ExchangeWay::alone) return;
  if (candidate.way == ExchangeWay::fused) {
    (candidate.local_owners ? *twin_ : *fused_).op.wait({stream_.get()});
    return;
  }
  wait_for_rows(memory_.wait_context(), flags_in(memory_, layout_.serial_flags).epoch,
                arrivals_in(memory_, layout_.serial_flags), memory_.num_computing_ranks(),
                {stream_.get()});
}

AttentionCall TimedRank::call(const ExchangeCandidate& candidate) const {
  AttentionCall c;
  c.causal = shape_.workload.causal;
  c.prefix_rows = shape_.workload.replicated_prefix;
  c.suffix_rows = shape_.workload.replicated_suffix;
  c.order = candidate.order;
  c.wait = true;  // one launch less
  return c;
}

std::string TimedRank::fell_back(const ExchangeCandidate& candidate) const {
  if (candidate.way != ExchangeWay::fused) return "";
  const UlyssesStatus status = (candidate.local_owners ? *twin_ : *fused_).op.status();
  return status.path == ExchangePath::fused ? "" : status.reason;
}

// Where the candidate's rows lie in an owner's memory.
char* TimedRank::owner_data(const ExchangeCandidate& candidate, int owner) const {
  const Fused* fused = candidate.local_owners ? twin_.get() : fused_.get();
  const bool is_fused = candidate.way == ExchangeWay::fused;
  const PeerTable table = is_fused ? fused->memory.table() : memory_.table();
  auto* base = static_cast<char*>(table.bases[owner]);
  if (!is_fused) return base + layout_.serial_out;
  return base + fused_offsets_.at(candidate.name);
}

void TimedRank::poison(const ExchangeCandidate& candidate) {
  check(cudaSetDevice(device()), "cudaSetDevice");
  const auto fill = [&](void* data, std::size_t bytes) {
    check(cudaMemsetAsync(data, kPoison, bytes, stream_.get()), "cudaMemsetAsync");
  };
  fill(out_.data(), out_.size());
  if (candidate.with_inputs) inputs_->poison(kPoison, {stream_.get()});
  if (candidate.way == ExchangeWay::alone) return;
  for (int p = 0; p < shape_.num_ranks; ++p) {
    if (memory_.num_computing_ranks() > 1 && !candidate.local_owners && p != rank_) continue;
    const TensorView owned = owner_view(nullptr, p);
    fill(owner_data(candidate, p), shape_.tensor_bytes(owned.num_rows, owned.num_heads));
  }
}

std::int64_t TimedRank::count_wrong(const void* a, const void* b, std::size_t bytes, bool exact) {
  Buffer count = device_buffer(device(), sizeof(std::uint64_t));
  check(cudaMemsetAsync(count.data(), 0, sizeof(std::uint64_t), stream_.get()), "cudaMemsetAsync");
  if (exact) {
    count_different_bytes(a, b, static_cast<std::int64_t>(bytes), count.as<std::uint64_t>(),
                          {stream_.get()});
  } else {
    // Rows of S random values have a spread of about 1 / sqrt(S).
    const float absolute = 0.05f / std::sqrt(static_cast<float>(shape_.workload.sequence));
    count_wrong_kernel<<<1024, 256, 0, stream_.get()>>>(
        static_cast<const std::uint16_t*>(a), static_cast<const std::uint16_t*>(b),
        static_cast<std::int64_t>(bytes / 2), shape_.workload.dtype == DataType::fp16, 0.02f,
        absolute, count.as<unsigned long long>());
    check(cudaGetLastError(), "compare");
  }
  std::uint64_t wrong = 0;
  check(cudaMemcpyAsync(&wrong, count.data(), sizeof wrong, cudaMemcpyDefault, stream_.get()),
        "count");
  stream_.synchronize();
  return static_cast<std::int64_t>(wrong);
}

std::int64_t TimedRank::wrong_bytes(const ExchangeCandidate& candidate) {
  check(cudaSetDevice(device()), "cudaSetDevice");
  if (candidate.way == ExchangeWay::alone) return 0;
  const int num_computing = candidate.local_owners ? 1 : memory_.num_computing_ranks();
  std::vector<int> owners = {rank_};
  if (num_computing == 1) {
    owners.clear();
    for (int p = 0; p < shape_.num_ranks; ++p) owners.push_back(p);
  }
  const int first = num_computing == 1 ? (candidate.local_owners ? 0 : rank_) : 0;
  std::int64_t wrong = 0;
  for (const int owner : owners) {
    const TensorView sizes = owner_view(nullptr, owner);
    const std::size_t bytes = shape_.tensor_bytes(sizes.num_rows, sizes.num_heads);
    Buffer expected = device_buffer(device(), bytes);
    check(cudaMemsetAsync(expected.data(), kPoison, bytes, stream_.get()), "cudaMemsetAsync");
    for (int r = first; r < first + num_computing; ++r) {
      // The twin computes as rank 0, on this rank's inputs.
      if (num_computing > 1) fill_inputs(r);
      compute_attention(r, inputs_of(r));
      reference_gather(
          shape_.shards(r), owner, result(r),
          heads_of(owner_view(expected.data(), owner), shape_.first_head(r), shape_.heads_of(r)),
          {stream_.get()});
    }
    // Other ways split the last wave at other keys, which rounds differently.
    const bool same_plan =
        candidate.way == ExchangeWay::push || candidate.way == ExchangeWay::copy_engine;
    wrong += count_wrong(owner_data(candidate, owner), expected.data(), bytes, same_plan);
  }
  if (num_computing > 1) fill_inputs(rank_);
  stream_.synchronize();
  return wrong;
}

}  // namespace xstage::attention
