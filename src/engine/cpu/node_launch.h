#pragma once
// One node on its own, from memory to memory, element by element in float64: what no tile program takes, and
// the engine's own cross-check for what they do.
#include <memory>
#include <vector>

#include "engine/cpu/values.h"

namespace upweave::cpu {

// `operands` and `shapes` are the node's inputs, in order; absent ones do not exist.
std::unique_ptr<Launch> make_node_launch(const Node& node, std::vector<Memory> operands,
                                         std::vector<Shape> shapes, const Memory& result);

// mean_conv: the mean over space of a convolution, without the convolution.
std::unique_ptr<Launch> make_mean_conv_launch(const Node& node, const std::vector<Memory>& operands,
                                              const std::vector<Shape>& shapes, const Memory& result);

// conv and matmul of any stride, padding and groups.
std::unique_ptr<Launch> make_plain_conv_launch(const Node& node, const std::vector<Memory>& operands,
                                               const std::vector<Shape>& shapes, const Memory& result);

// cat, pad, crop, upsample, pixel_shuffle, pixel_unshuffle, glu: rows are copied where they can be.
std::unique_ptr<Launch> make_move_launch(const Node& node, const std::vector<Memory>& operands,
                                         const std::vector<Shape>& shapes, const Memory& result);

}  // namespace upweave::cpu
