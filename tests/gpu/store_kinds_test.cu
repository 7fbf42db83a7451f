// Every store kind into every place and layout it can reach, at sizes around its edges: what must
// arrive arrives, what lies beside it stays, and additions add once.
#include "device/store.cuh"
#include "parcels.cuh"

namespace xstage::test {
namespace {

using device::RowsDestination;

struct KindCase {
  const char* name;
  StoreKind kind;
  Layout layout;
  std::uint32_t unit;
  void (*launch)(const ParcelJob&, const ParcelArgs&, const CUtensorMap&);
};

const KindCase kKinds[] = {
    {"register16", StoreKind::register16, Layout::linear, 16,
     launch_parcels<device::RegisterStore<uint4>, 1>},
    {"register16_rows", StoreKind::register16, Layout::rows, 16,
     launch_parcels<device::RegisterStore<uint4, RowsDestination>, 1>},
    {"register8", StoreKind::register8, Layout::linear, 8,
     launch_parcels<device::RegisterStore<uint2>, 1>},
    {"register8_rows", StoreKind::register8, Layout::rows, 8,
     launch_parcels<device::RegisterStore<uint2, RowsDestination>, 1>},
    {"register4", StoreKind::register4, Layout::linear, 4,
     launch_parcels<device::RegisterStore<std::uint32_t>, 1>},
    {"register4_rows", StoreKind::register4, Layout::rows, 4,
     launch_parcels<device::RegisterStore<std::uint32_t, RowsDestination>, 1>},
    {"bulk", StoreKind::bulk, Layout::linear, 16, launch_parcels<device::BulkStore<>, 1>},
    {"bulk_rows", StoreKind::bulk, Layout::rows, 16,
     launch_parcels<device::BulkStore<RowsDestination>, 1>},
    {"tensor", StoreKind::tensor, Layout::tensor, kRowBytes,
     launch_parcels<device::TensorStore, 1>},
    {"bulk_reduce", StoreKind::bulk_reduce, Layout::linear, 16,
     launch_parcels<device::BulkReduce, 1>},
    {"red", StoreKind::red, Layout::linear, 4, launch_parcels<device::RedStore, 1>},
};

struct StoreCase {
  KindCase kind;
  Place place;
};

class StoreKinds : public testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override {
    if (const std::string why = why_absent(GetParam().place); !why.empty()) GTEST_SKIP() << why;
  }

  static ParcelJob job_of(std::uint32_t num_owners) {
    const StoreCase& param = GetParam();
    ParcelJob job;
    job.place = param.place;
    job.layout = param.kind.layout;
    job.send = {param.kind.kind, 0, 0, Completion::accepted};
    job.num_owners = num_owners;
    job.num_producers = 0;
    job.max_steps = 0;
    job.seed = 12345 + num_owners;
    return job;
  }
};

class Sizes : public StoreKinds {};  // kinds that take any size
class Boxes : public StoreKinds {};  // tensor stores: a chunk is exactly a box

// One unit, one more or less than a round of all threads, one more or less than an unrolled round,
// and a whole tile; each size is a CTA of its own.
TEST_P(Sizes, MoveEverySizeExactly) {
  const KindCase& kind = GetParam().kind;
  for (const std::uint32_t num_owners : {32u, 96u, 256u}) {
    ParcelJob job = job_of(num_owners);
    job.pitch_bytes = 1024;
    const std::uint32_t round = num_owners * kind.unit;
    for (const std::uint32_t units :
         {1u, 2u, 3u, round / kind.unit - 1, round / kind.unit, round / kind.unit + 1,
          4 * round / kind.unit - 1, 4 * round / kind.unit, 4 * round / kind.unit + 1,
          (48u * 1024) / kind.unit}) {
      job.parcel_bytes.push_back({units * kind.unit});
    }
    job.num_ctas = static_cast<std::uint32_t>(job.parcel_bytes.size());
    run_and_check(job, kind.launch);
  }
}

// Chunks that end within a row, at its end, and one past it.
TEST_P(Sizes, CutParcelsAnywhere) {
  const KindCase& kind = GetParam().kind;
  for (const std::uint32_t chunk : {kind.unit, 3 * kind.unit, kRowBytes - kind.unit, kRowBytes,
                                    kRowBytes + kind.unit, 5 * kRowBytes}) {
    for (const bool random_rows : {false, true}) {
      ParcelJob job = job_of(32);
      job.pitch_bytes = 6144;
      job.random_rows = random_rows;
      job.send.chunk_bytes = chunk;
      job.parcel_bytes = {{8 * kRowBytes}, {7 * kRowBytes + kind.unit}, {kind.unit}};
      job.num_ctas = 3;
      run_and_check(job, kind.launch);
    }
  }
}

// Boxes of rows of 256 bytes; the last ends past the tensor's end, or begins at its last row.
TEST_P(Boxes, ClipBoxesAtTheTensorsEnd) {
  const KindCase& kind = GetParam().kind;
  for (const std::uint32_t box_rows : {1u, 2u, 16u, 64u, 128u}) {
    for (const std::uint32_t clip_rows : {0u, 1u, box_rows / 2, box_rows - 1}) {
      if (clip_rows >= box_rows) continue;
      ParcelJob job = job_of(32);
      job.send.chunk_bytes = box_rows * kRowBytes;
      job.clip_rows = clip_rows;
      job.num_ctas = 5;
      job.pitch_bytes = 5 * kRowBytes + 16;
      job.parcel_bytes.assign(5, {box_rows * kRowBytes, box_rows * kRowBytes});
      run_and_check(job, kind.launch);
    }
  }
}

// A box that lies past the tensor's end as a whole writes nothing.
TEST_P(Boxes, DropBoxesPastTheTensorsEnd) {
  const KindCase& kind = GetParam().kind;
  ParcelJob job = job_of(32);
  job.send.chunk_bytes = 8 * kRowBytes;
  job.clip_rows = 20;  // of five boxes of eight rows, two are lost and half of the third
  job.num_ctas = 2;
  job.pitch_bytes = 1024;
  job.parcel_bytes.assign(2, std::vector<std::uint32_t>(5, 8 * kRowBytes));
  run_and_check(job, kind.launch);
}

// All completions, many CTAs at once, the same destination written by neighbours side by side.
TEST_P(StoreKinds, HoldUnderEveryCompletion) {
  const KindCase& kind = GetParam().kind;
  for (const Completion completion :
       {Completion::accepted, Completion::read, Completion::visible}) {
    ParcelJob job = job_of(256);
    job.send.chunk_bytes = 4096;
    job.send.completion = completion;
    job.num_ctas = 64;
    job.pitch_bytes = kind.layout == Layout::tensor ? 64 * kRowBytes : kRowBytes;
    job.parcel_bytes.assign(64, std::vector<std::uint32_t>(4, 16 * 1024));
    run_and_check(job, kind.launch);
  }
}

template <typename Wanted>
std::vector<StoreCase> cases(Wanted wanted) {
  std::vector<StoreCase> all;
  for (const Place place : {Place::local, Place::host, Place::peer}) {
    for (const KindCase& kind : kKinds) {
      if (wanted(kind)) all.push_back({kind, place});
    }
  }
  return all;
}
bool is_tensor(const KindCase& kind) {
  return kind.layout == Layout::tensor;
}
bool takes_any_size(const KindCase& kind) {
  return !is_tensor(kind);
}

std::string name_of_case(const testing::TestParamInfo<StoreCase>& info) {
  return std::string(info.param.kind.name) + "_" + name_of(info.param.place);
}

INSTANTIATE_TEST_SUITE_P(All, Sizes, testing::ValuesIn(cases(takes_any_size)), name_of_case);
INSTANTIATE_TEST_SUITE_P(All, Boxes, testing::ValuesIn(cases(is_tensor)), name_of_case);
INSTANTIATE_TEST_SUITE_P(All, StoreKinds,
                         testing::ValuesIn(cases([](const KindCase&) { return true; })),
                         name_of_case);

// --- remote loads, the contrast ------------------------------------------------------------------

__global__ void load_kernel(const char* source, std::uint32_t bytes, std::uint32_t seed,
                            std::uint32_t* num_wrong) {
  using Box = device::Outbox<device::RemoteLoad, 1>;
  extern __shared__ __align__(1024) char sink[];
  __shared__ Box::Storage storage;
  const device::Role role{threadIdx.x, blockDim.x, 1};
  Box outbox(role, Send{StoreKind::load, 4096, 0, Completion::accepted}, storage);
  outbox.acquire();
  outbox.post(sink, bytes, {const_cast<char*>(source)});
  outbox.drain();
  std::uint32_t wrong = 0;
  for (std::uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
    wrong += reinterpret_cast<const std::uint32_t*>(sink)[i] != parcel_word(seed, 0, i);
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

class RemoteLoads : public testing::TestWithParam<Place> {};

TEST_P(RemoteLoads, BringEveryWord) {
  if (const std::string why = why_absent(GetParam()); !why.empty()) GTEST_SKIP() << why;
  constexpr std::uint32_t kBytes = 40 * 1024;
  std::vector<std::uint32_t> words(kBytes / 4);
  for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = parcel_word(99, 0, i);
  const Buffer source = allocate(GetParam(), kBytes);
  check(cudaMemcpy(source.data(), words.data(), kBytes, cudaMemcpyDefault), "upload");
  check(cudaDeviceSynchronize(), "upload");
  const Buffer num_wrong = upload(std::vector<std::uint32_t>(1, 0));
  for (const std::uint32_t num_threads : {32u, 256u}) {
    load_kernel<<<1, num_threads, kBytes>>>(source.data(), kBytes, 99,
                                            num_wrong.as<std::uint32_t>());
    check(cudaGetLastError(), "launch");
    check(cudaDeviceSynchronize(), "kernel");
    EXPECT_EQ(download<std::uint32_t>(num_wrong)[0], 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RemoteLoads, testing::Values(Place::local, Place::host, Place::peer),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace xstage::test
