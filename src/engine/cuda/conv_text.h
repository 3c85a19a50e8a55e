#pragma once
// The text of a convolution's kernel: the tiling as constants, the products with every address a literal, and
// the loops around them and the epilogue.
#include <functional>
#include <string>
#include <vector>

#include "engine/cuda/fuse.h"

namespace upweave::cuda {

// struct G0 {...}: the tiling's constants, and tables beside it.
std::string geometry_text(const std::string& g, const ConvTiles& t, const Prepared& p);
// The function that multiplies: `products` a class, or `held_products` a group of phases.
std::string products_text(const std::string& g, const ConvTiles& t);
// What stands between the kernel's braces; `fma` for data that fp16 cannot hold.
std::string conv_text(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                      const std::string& g, bool fma);
// The same for tiles by line, and the kernel's parameter LegTurns for one of the legs (lines_sm90.cuh).
std::vector<int> leg_numbers(const ConvTiles& tiles, size_t which);
std::string line_text(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                      const std::string& g, bool fma);
// The same for sweeps, and the function of its products. `role` declares the owner for which the block works,
// the block's number, of how many, and their jobs (`owner`, `block`, `blocks`, `job0`, `jobs`); empty: all of
// the grid does all of the tiles.
std::string sweep_text(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                       const std::string& g, bool fma, const std::string& role = "");
std::string swept_products(const std::string& g, const ConvTiles& t);
// A function of n, c, d, h, w that gives value `id` there. Where tiles go by line, d is the height, and h the
// sample of an input.
enum class Mapped { kNo, kInput, kKernel };
std::string input_value(const Lowering& l, Id id, Mapped mapped = Mapped::kNo);

// Where weights stay: which owner this block works for, and as a function of `owner` what `value` (a member
// of Owner, say) is for it, or for those before it together.
std::string owner_of_block(const ConvTiles& t);
std::string by_owner(const std::vector<int>& values);  // owner == 0 ? a : owner == 1 ? b : c
template <class F>
std::string by_owner(const ConvTiles& t, F value) {
  std::vector<int> values;
  for (const Owner& o : t.owners) values.push_back(static_cast<int>(std::invoke(value, o)));
  return by_owner(values);
}
template <class F>
std::string before_owner(const ConvTiles& t, F value) {
  std::vector<int> values{0};
  for (const Owner& o : t.owners) values.push_back(values.back() + static_cast<int>(std::invoke(value, o)));
  values.pop_back();
  return by_owner(values);
}
inline size_t group_count(const Owner& o) { return o.groups.size(); }  // and of lists of slabs

unsigned convert_blocks(const ConvTiles& t);  // of the pre-pass
int64_t weight_columns(const ConvTiles& t);   // columns of all taps, whose extremes packing looks at

}  // namespace upweave::cuda
