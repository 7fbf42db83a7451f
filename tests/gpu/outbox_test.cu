// The outbox under random use: every byte of the destination, the number of chunks and the pace of
// each run are checked; and its decisions one by one, on a store that only records.
#include <deque>

#include "device/outbox.cuh"
#include "parcels.cuh"

namespace xstage::test {
namespace {

// --- random parcels, every byte checked ----------------------------------------------------------

struct Kind {
  const char* name;
  StoreKind kind;
  Layout layout;
  std::uint32_t unit;  // parcels and chunks are multiples of it
};

constexpr Kind kKinds[] = {
    {"register16", StoreKind::register16, Layout::linear, 16},
    {"register16_rows", StoreKind::register16, Layout::rows, 16},
    {"register8", StoreKind::register8, Layout::linear, 8},
    {"register4", StoreKind::register4, Layout::linear, 4},
    {"bulk", StoreKind::bulk, Layout::linear, 16},
    {"bulk_rows", StoreKind::bulk, Layout::rows, 16},
    {"tensor", StoreKind::tensor, Layout::tensor, kRowBytes},
    {"bulk_reduce", StoreKind::bulk_reduce, Layout::linear, 16},
    {"red", StoreKind::red, Layout::linear, 4},
};

void launch(const ParcelJob& job, const ParcelArgs& args, const CUtensorMap& map) {
  using device::RowsDestination;
  const bool rows = job.layout == Layout::rows;
  switch (job.send.kind) {
    case StoreKind::register16:
      return rows ? launch_parcels<device::RegisterStore<uint4, RowsDestination>>(job, args, map)
                  : launch_parcels<device::RegisterStore<uint4>>(job, args, map);
    case StoreKind::register8:
      return launch_parcels<device::RegisterStore<uint2>>(job, args, map);
    case StoreKind::register4:
      return launch_parcels<device::RegisterStore<std::uint32_t>>(job, args, map);
    case StoreKind::bulk:
      return rows ? launch_parcels<device::BulkStore<RowsDestination>>(job, args, map)
                  : launch_parcels<device::BulkStore<>>(job, args, map);
    case StoreKind::tensor:
      return launch_parcels<device::TensorStore>(job, args, map);
    case StoreKind::bulk_reduce:
      return launch_parcels<device::BulkReduce>(job, args, map);
    case StoreKind::red:
      return launch_parcels<device::RedStore>(job, args, map);
    case StoreKind::load:
      break;
  }
  FAIL() << "a kind that moves no bytes";
}

constexpr std::uint32_t kMaxParcelBytes = 32 * 1024;

ParcelJob random_job(Place place, const Kind& kind, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto up_to = [&](std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(0, most)(random);
  };
  // Multiples of `unit`, small ones as often as large ones.
  const auto size = [&](std::uint32_t unit, std::uint32_t most) {
    std::uint32_t limit = most / unit;
    while (limit > 1 && up_to(2) == 0) limit /= 4;
    return unit * (1 + up_to(std::max(limit, 1u) - 1));
  };
  ParcelJob job;
  job.place = place;
  job.layout = kind.layout;
  job.seed = seed;
  job.num_slots = 1 + up_to(3);
  job.num_ctas = 1 + up_to(23);
  job.num_owners = up_to(1) == 0 ? 32 : 256;
  const bool copy_engine = kind.kind == StoreKind::bulk || kind.kind == StoreKind::tensor ||
                           kind.kind == StoreKind::bulk_reduce;
  if (copy_engine && up_to(2) == 0) job.num_owners = 1;
  job.num_producers = job.num_owners != 1 && up_to(2) == 0 ? 0 : 128;
  job.max_steps = up_to(12);
  job.random_rows = up_to(1) == 0;
  constexpr std::uint32_t kPitches[] = {kRowBytes, kRowBytes + 16, 1024, 6144};
  job.pitch_bytes = kPitches[up_to(3)];
  if (job.pitch_bytes > 1024) job.num_ctas = 1 + job.num_ctas % 4;  // keep the image small
  job.send.kind = kind.kind;
  job.send.steps_per_chunk = up_to(5);
  job.send.completion = static_cast<Completion>(up_to(2));
  const std::uint32_t least_chunk = job.send.completion == Completion::visible ? 1024 : kind.unit;
  job.send.chunk_bytes = std::max(size(kind.unit, kMaxParcelBytes), least_chunk);
  if (up_to(5) == 0) job.send.chunk_bytes = 0;
  std::uint32_t parcel_unit = kind.unit;
  if (kind.layout == Layout::tensor) {
    constexpr std::uint32_t kBoxRows[] = {1, 8, 32, 64};
    job.send.chunk_bytes = parcel_unit = kBoxRows[up_to(3)] * kRowBytes;
    job.pitch_bytes = job.num_ctas * kRowBytes + 64;
    job.clip_rows = up_to(parcel_unit / kRowBytes - 1);
  }
  const std::uint32_t num_parcels = 2 + up_to(9);
  job.parcel_bytes.resize(job.num_ctas);
  for (auto& cta : job.parcel_bytes) {
    for (std::uint32_t i = 0; i < num_parcels; ++i) {
      cta.push_back(size(parcel_unit, kMaxParcelBytes));
    }
  }
  return job;
}

struct RandomCase {
  Kind kind;
  Place place;
  int num_jobs;
};

class RandomParcels : public testing::TestWithParam<RandomCase> {};

TEST_P(RandomParcels, ArriveOnceInPlaceAndOnPace) {
  const RandomCase& param = GetParam();
  if (const std::string why = why_absent(param.place); !why.empty()) GTEST_SKIP() << why;
  const std::uint32_t seed = choose_seed();
  std::cout << "seed " << seed << ": repeat with --gtest_random_seed=" << seed << "\n";
  for (int i = 0; i < param.num_jobs && !HasFailure(); ++i) {
    run_and_check(random_job(param.place, param.kind, seed + 7919u * static_cast<std::uint32_t>(i)),
                  launch);
  }
}

std::vector<RandomCase> random_cases(std::vector<Place> places, int num_jobs) {
  std::vector<RandomCase> cases;
  for (const Place place : places) {
    for (const Kind& kind : kKinds) cases.push_back({kind, place, num_jobs});
  }
  return cases;
}

std::string name_of_case(const testing::TestParamInfo<RandomCase>& info) {
  return std::string(info.param.kind.name) + "_" + name_of(info.param.place);
}

INSTANTIATE_TEST_SUITE_P(Quick, RandomParcels,
                         testing::ValuesIn(random_cases({Place::local, Place::host}, 2)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Full, RandomParcels,
                         testing::ValuesIn(random_cases({Place::local, Place::host, Place::peer},
                                                        40)),
                         name_of_case);

}  // namespace
}  // namespace xstage::test
