// The host's steps of an attention call, for operators that build on the forward kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/forward_params.cuh"
#include "attention/problem.hpp"
#include "xstage/attention.hpp"

namespace xstage::attention {

// The current device. Throws Error(not_possible) if the kernels cannot run there.
[[nodiscard]] int hopper_device();

// Loads all kernels on the current device: before any rank waits for another one.
void load_forward_kernels();

// Throws Error(usage) unless the address, if any, is memory of that GPU.
void check_device(const char* name, const void* pointer, int device);

// Boxes of `box_rows` rows of 64 elements of one head. Rows end at num_rows; what a load asks for
// beyond is zero, what a store puts there is dropped.
[[nodiscard]] CUtensorMap make_tensor_map(const TensorView& t, std::int64_t num_rows, int box_rows);

struct ForwardOutputs {
  float* lse = nullptr;
};

// All parameters but the map of the output. The problem may be empty.
[[nodiscard]] ForwardParams make_forward_params(const Problem& problem, const TensorView& q,
                                                const TensorView& k, const TensorView& v,
                                                const ForwardOutputs& outputs,
                                                const Workspace& workspace);

// One launch of the plain kernel, by the problem's own order. Everything has been checked.
void enqueue_forward(const Problem& problem, const TensorView& q, const TensorView& k,
                     const TensorView& v, const TensorView& out, const ForwardOutputs& outputs,
                     const Workspace& workspace, Stream stream);

}  // namespace xstage::attention
