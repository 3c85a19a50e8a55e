#pragma once
// Writes an epilogue, the text between a convolution's sums and memory. For the files that make it:
// epilogue.cpp has the whole, coordinates and operands, epilogue_values.cpp values in registers,
// epilogue_store.cpp what leaves them, epilogue_windows.cpp how windows of rows do.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/cuda/epilogue.h"

namespace upweave::cuda {

// Loops over the phases and the columns that a thread has of a row.
inline constexpr const char* kEach = "_Pragma(\"unroll\") for (int ph = 0; ph < PH; ++ph)\n";
inline constexpr const char* kColumns = "_Pragma(\"unroll\") for (int i = 0; i < G::kN / 4; ++i) ";

// By which function a pool, and a reduction, joins two values; what a reduction begins with.
const char* pool_combine(const Node& node);
const char* reduction_combine(const Node& node);
const char* reduction_start(const Node& node);

// A value is one array y<id>[phase][column] a row, one number y<id>[phase] if it was reduced over channels. A
// row lies in four lanes, so a sum over channels is two shuffles.
class EpilogueWriter {
 public:
  EpilogueWriter(Lowering& l, const Fusion& f, const Convolution& conv, const EpilogueForm& form,
                 const Partials& partials)
      : l_(l),
        f_(f),
        conv_(conv),
        form_(form),
        partials_(partials),
        padded_(conv_.n * conv_.column_blocks != conv_.c_out) {}

  EpilogueText write();

 private:
  // --- The row's place (epilogue.cpp)
  // Outputs side by side that a thread has of a row.
  int phases() const { return f_.store_phases * form_.windows; }
  int phases(Id id) const { return f_.behind_pool[id] ? 1 : phases(); }
  // The convolution's sum at (ph, i), with its scale still in.
  const char* sum() const { return form_.sum; }
  std::string load_sums();
  // Where this row's value lies in the output; rows outside read from place 0 and write nothing.
  std::string coordinates(bool behind) const;
  int64_t pooled_extent(size_t axis) const;
  // A function from phase and column to coordinates.
  std::string at_text(int ph, Id id) const;
  std::string raw_column() const { return "column0 + 8 * (i / 2) + i % 2"; }
  std::string column() const;
  // `x` where the column exists, `other` where it only fills the tile.
  std::string masked(const std::string& x, const char* other) const;

  // --- Operands (epilogue.cpp). What is one number a column for all of a block lies in shared memory.
  bool one_a_column(Id id, const Shape& shape) const;
  // `expression` of a column's coordinates `at`, computed once.
  std::string constant(const std::string& expression);
  // What fills them, before the loop.
  std::string column_constants() const;
  // Some schedules, and tiles of many columns, have registers for the outputs of one column at a time: there
  // a value is not an array but a function, which the column's store calls.
  bool lazy() const { return form_.recomputes || (conv_.n > 64 && f_.pool == kNone); }
  std::string function(Id id, const std::string& expression);
  static std::string at_needed(const std::string& expression);
  // A value in registers at (ph, i).
  std::string element(Id id) const;
  // A value in registers, in memory, or a parameter, as seen at (ph, i).
  std::string read(Id id, const Shape& shape);

  // --- Values (epilogue_values.cpp)
  bool fast() const { return l_.options.precision == Precision::kFast; }
  std::string value(Id id);
  // A pointwise node's result, with what is constant over a block's columns computed ahead: a division
  // becomes a multiplication, a norm one difference and one product.
  std::string pointwise_value(const Node& node, const std::string& x);
  // What a product with, or a quotient by, one number a column multiplies with; empty for other nodes.
  std::string column_factor(const Node& node) const;
  // exp(a z + b) of a value z in registers: sums and products with numbers before it are taken into the
  // exponent.
  std::string exponential(const Node& node, const std::string& x);
  // rms_norm -> gelu and nobody else: the norm's factor takes gelu's along, and |x| < sqrt(C) needs no clamp.
  bool feeds_gelu(Id id) const;
  // join(a, b) over the row's columns, then over its four lanes.
  std::string quad(const char* name, const std::string& start, const std::string& term,
                   const char* combine) const;
  // Where values are computed again: puts `x`, of which `id` is made, in the place of the sums, if nobody
  // behind `id` reads what stands before it. Otherwise each pass over the channels computes it again.
  std::string replace_sums(Id id, std::string& x) const;
  // Norms, softmax and reductions over channels of `x`.
  bool norms_sums(const Node& node) const;  // scale-only, right behind the convolution
  std::string norm_value(Id id, const std::string& x);
  std::string softmax_value(Id id, const std::string& x);
  std::string channel_value(Id id, const std::string& x) const;

  // --- Pools (epilogue_store.cpp)
  // A channel whose sign is negative takes the other extreme: flip before and after.
  std::string flip(Id id);
  std::string pool_start(Id id) const;
  std::string pool_update(Id id);
  // A pool right behind the convolution, of sums with the scale still in.
  bool pools_sums(Id id) const { return form_.parts_by_block && l_.graph[id].in[0] == f_.conv; }
  std::string pool_row(Id id);
  std::string pool_result(Id id);

  // --- Whole lines (epilogue_windows.cpp): rows wait in shared memory until the unit's are there; then
  // windows of rows leave, or a tile's part of them.
  std::string keep_row() const;
  void combine_rows(EpilogueText& text);
  // Stores the windows of a unit, or what they are reduced to over channels, from an expression of one's
  // value.
  std::string put_windows(const std::string& value) const;

  // --- Stores (epilogue_store.cpp)
  int64_t voxels_of(Id id) const;
  std::string voxel_at(Id id) const;
  bool blocked(Id id) const { return l_.source.places[id].blocked; }
  bool divided(Id id) const { return !l_.source.places[id].divided.empty(); }
  // Where value `id` of the row lies: of column i, store_at behind store_to, by what store_base declares.
  std::string store_base(Id id) const;
  std::string store_to(Id id) const;
  std::string store_at(Id id) const;
  std::string column_exists() const;
  std::string store(Id id);
  std::string staged_store(Id id) const;  // by TMA
  // 16-bit values behind a pool: windows side by side are in neighbouring rows, which store two at a time.
  bool pairs_rows(Id id) const;

  // --- Reductions over space (epilogue_store.cpp): each thread keeps its columns' partial results, the block
  // joins them.
  std::string reduction_state(Id id) const;
  // Moments of the convolution itself are taken with its scale in; combine_reductions takes it out.
  bool moments_of_sums(Id id) const;
  std::string moments_update(Id id) const;
  std::string reduction_update(Id id) const;
  std::string reduction_flush(Id id);

  Lowering& l_;
  const Fusion& f_;
  const Convolution& conv_;
  const EpilogueForm form_;
  const Partials& partials_;
  bool padded_;
  std::string norm_state_;              // what a norm right behind the convolution declares before the loop
  std::set<Id> functions_;              // values that are functions of phase and column
  std::vector<std::string> constants_;  // by their text, so that equal ones are one
};

}  // namespace upweave::cuda
