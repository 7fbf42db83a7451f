// The mock attention tile by tile and SM by SM: how a burst delays the main loops of all SMs, and
// whether they stay in step. The samples behind the simulator's rule of late loads.
//
//   mock_tiles host|local|GPU [SOURCE_GPU] > mock_tiles.csv
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "probe/mock_attention.hpp"
#include "xstage/error.hpp"

namespace {

using namespace xstage;
using namespace xstage::probing;

constexpr int kTiles = 12;
constexpr int kRepeats = 3;

int rounds_of_step(const Link& link, double step_ns) {
  MockSpec spec;
  spec.owner = MockSpec::Owner::none;
  spec.num_tiles = 4;
  spec.rounds_per_step = 256;
  (void)run_mock_attention(link, spec);
  const double measured = run_mock_attention(link, spec).main_loop_ns / (4 * spec.steps_per_tile);
  return std::max(1, static_cast<int>(std::lround(256 * step_ns / measured)));
}

int run(const std::string& peer, int source) {
  Target target{Endpoint::Type::host_memory, source};
  if (peer == "local") {
    target = {Endpoint::Type::local_memory, source};
  } else if (peer != "host") {
    target = {Endpoint::Type::gpu, std::atoi(peer.c_str())};
  }
  const Link link(source, target, 60);
  const int rounds = rounds_of_step(link, 2000);
  std::printf("case,steps_per_tile,repeat,sm,tile,tile_ns\n");
  struct Case {
    const char* name;
    std::uint32_t chunk_bytes;
    bool sends;
  };
  for (const int steps : {8, 34, 69}) {
    for (const Case& c :
         {Case{"none", 0, false}, Case{"burst", 32768, true}, Case{"paced 16K", 16384, true},
          Case{"paced 8K", 8192, true}, Case{"paced 4K", 4096, true}}) {
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        MockSpec spec;
        spec.owner = c.sends ? MockSpec::Owner::spare_warp : MockSpec::Owner::none;
        spec.send.chunk_bytes = c.chunk_bytes;
        if (c.chunk_bytes < kTileSendBytes && c.chunk_bytes > 0) {
          spec.send.steps_per_chunk =
              std::max(1u, static_cast<std::uint32_t>(steps) * c.chunk_bytes / kTileSendBytes);
        }
        spec.num_tiles = kTiles;
        spec.steps_per_tile = steps;
        spec.rounds_per_step = rounds;
        spec.seed = static_cast<std::uint32_t>(steps * 10 + repeat + 1);
        const MockRun result = run_mock_attention(link, spec);
        for (int sm = 0; sm < link.num_sms(); ++sm) {
          for (int tile = 0; tile < kTiles; ++tile) {
            std::printf("%s,%d,%d,%d,%d,%.0f\n", c.name, steps, repeat, sm, tile,
                        static_cast<double>(
                            result.sm_tile_ns[static_cast<std::size_t>(sm * kTiles + tile)]));
          }
        }
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: mock_tiles host|local|GPU [SOURCE_GPU]\n");
    return 2;
  }
  try {
    return run(argv[1], argc == 3 ? std::atoi(argv[2]) : 0);
  } catch (const xstage::Error& error) {
    std::fprintf(stderr, "mock_tiles: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mock_tiles: error: %s\n", error.what());
    return 4;
  }
}
