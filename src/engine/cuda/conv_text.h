#pragma once
// The text of a convolution's kernel: the tiling as constants, the products with every address a literal, and
// the loops around them and the epilogue.
#include <string>

#include "engine/cuda/fuse.h"

namespace upweave::cuda {

// struct G0 {...}: the tiling's constants, and tables beside it.
std::string geometry_text(const std::string& g, const ConvTiles& t, const Prepared& p);
// The function that multiplies: `products` a class, or `held_products` a group of phases.
std::string products_text(const std::string& g, const ConvTiles& t);
// What stands between the kernel's braces; `fma` for data that fp16 cannot hold.
std::string conv_text(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                      const std::string& g, bool fma);
// The same for tiles by line.
std::string line_text(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                      const std::string& g, bool fma);
// A function of n, c, d, h, w that gives value `id` there. Where tiles go by line, d is the height, and h the
// sample of an input.
enum class Mapped { kNo, kInput, kKernel };
std::string input_value(const Lowering& l, Id id, Mapped mapped = Mapped::kNo);

unsigned convert_blocks(const ConvTiles& t);  // of the pre-pass
int64_t weight_columns(const ConvTiles& t);   // columns of all taps, whose extremes packing looks at

}  // namespace upweave::cuda
