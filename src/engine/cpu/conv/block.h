#pragma once
// The product that every float32 algorithm is made of: a few positions by a few vectors of output channels,
// held in registers while taps and input channels go by.
#include <cstdint>

namespace upweave::cpu {

// Positions of the widest block: with 4 vectors of channels, 24 accumulators of 32 registers. Narrower ones
// have up to kMaxRows.
constexpr int kBlockRows = 6, kMaxRows = 12;

// For each product i, row r and column c, with weights of i following those of i - 1:
//   out[r][i*out_next + c] = sum over s < segments, k < depth of
//                            rows[r][i*rows_next + offsets[s] + k] * W(i, s)[k*width + c]
// summed in the order of s and k, each step one fused multiply-add where the machine has them. W(i, s) lies
// skips[s] floats behind the end of what was used before it. `width` is `columns` rounded up to whole
// vectors; columns beyond `columns` are computed but not stored.
struct BlockProduct {
  const float* rows[kMaxRows];
  float* out[kMaxRows];
  const int64_t *offsets, *skips;
  int64_t segments, depth;
  const float* weights;
  int columns;
  bool resume = false;  // sums go on from what is in `out`, as if they had never been stored
  int64_t products = 1, rows_next = 0, out_next = 0;
  int64_t ahead =
      0;  // floats ahead of use at which weights are called in from farther caches; 0: they are near
};

constexpr int kPanelVectors = 4;  // at most
struct BlockOps {
  int lanes;          // floats of a vector
  int panel_vectors;  // vectors of the widest block
  // Most rows of a block, by its vectors - 1; and the products, by rows - 1, of any number of columns up to
  // panel_vectors*lanes that may have so many rows.
  int rows[kPanelVectors];
  void (*product[kMaxRows])(const BlockProduct&);
  const char* name;  // of the instruction set

  int64_t most_rows(int64_t columns) const { return rows[(columns + lanes - 1) / lanes - 1]; }
};

const BlockOps& block_ops();  // of the best instruction set here

// Few columns: vectors hold input channels, and a sum's lanes are added in the end. `lanes` is 1, W(i, s) is
// [columns][depth], depth a multiple of 16. One product, no resuming.
const BlockOps& dot_block_ops();
// Each channel by itself: out[r][c] = sum over s of rows[r][offsets[s] + c] * W(s)[c]. One product, no
// resuming; whole vectors of rows are read.
const BlockOps& depthwise_block_ops();

// The same over pairs: rows and weights hold two bfloat16 values where the float would be, depth and offsets
// count pairs. One product only. Null where the machine has no such dot product.
//
// Dot products take subnormal operands and subnormal sums for zero. Without them, two fused multiply-adds
// serve each pair at half the speed, with the same bits for any sums that meet nothing subnormal.
enum class Pairs { kDotProducts, kMultiplyAdds };
const BlockOps* bf16_block_ops(Pairs pairs = Pairs::kDotProducts);

// Whether one of `n` bfloat16 values, zeros apart, is smaller than the one whose bits are `least`. Only where
// there are dot products.
bool bf16_any_below(const uint16_t* data, int64_t n, uint16_t least);

}  // namespace upweave::cpu
