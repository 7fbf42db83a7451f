// Measures the attention forward operator of one GPU beside the rate of its tensor cores. No CUDA
// header.
//
// Every shape: random normal inputs, an output poisoned with not-a-numbers, calls captured in a
// graph, rounds that replay that graph and a graph of plain matrix products in turn, so that both
// see the same clocks. Chosen rows of the result are compared with float64 on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/data_type.hpp"

namespace xstage::attention {

struct BenchShape {
  DataType dtype = DataType::bf16;
  std::int64_t num_batches = 1;
  std::int64_t num_rows = 0;  // of queries and keys
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 128;
  bool causal = false;
};

// Operations that count: 4 B H S^2 D, half of it if causal.
[[nodiscard]] double num_operations(const BenchShape& shape) noexcept;

// What the busiest SM is given, by the order that the kernel executes.
struct BenchWork {
  int num_steps = 0;  // key blocks
  int num_tiles = 0;  // whole ones and parts
  int num_parts = 0;  // parts of split tiles
  int block_rows = 0;
  int block_keys = 0;
};
[[nodiscard]] BenchWork busiest_sm(const BenchShape& shape, int num_sms);

struct BenchOptions {
  int device = 0;
  int num_rounds = 0;      // 0: as many as fit `seconds`, 5 to 40
  double seconds = 1.0;    // of measuring, for each shape, about
  std::uint64_t seed = 1;  // of the inputs and of the rows that are checked
  std::function<void(std::string_view what)> progress;
};

struct BenchRow {
  BenchShape shape;
  BenchWork work;
  int num_repeats = 0;  // calls in a graph
  // One entry a round.
  std::vector<double> call_ns;
  std::vector<double> dense_tflops;  // plain matrix products from shared memory, random operands
  std::vector<double> sm_mhz;        // while the calls ran: cycles that the SMs counted, over time
  std::vector<double> nvml_mhz;      // what the driver says, once a round; empty if it says nothing
  std::vector<double> watts;
  int num_checked_rows = 0;
  double relative_error = 0;  // norm of the difference over norm of the exact rows
  double error_bound = 0;
};

struct BenchMachine {
  std::string gpu;
  std::string uuid;
  int num_sms = 0;
  std::string driver;  // highest CUDA version of the driver
  std::string runtime;
};

// Throw Error(not_possible) without an sm_90 GPU, Error(usage) for shapes that the operator
// refuses, Error(runtime) if CUDA fails.
[[nodiscard]] BenchMachine bench_machine(int device);
[[nodiscard]] BenchRow bench_attention(const BenchShape& shape, const BenchOptions& options);

}  // namespace xstage::attention
