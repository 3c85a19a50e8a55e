#pragma once
// A transposed convolution as matrix products on tensor cores: which rows of the fp16 copy a tile needs, in
// which order the kernel's slices are used, and where everything lies. Pure arithmetic on the host; the
// kernels get it as constants.
//
// Per axis, outputs are o = P J + s u + e: window J, variant u < f = P / s, phase e < s. Tap k reaches o from
// the input i = f J + u + (e + padding - k dilation) / s where that division is exact. Writing i = f a + b
// splits the input into f *residues* b, each a dense array over a, so that a step of J is a step of one row:
// rows are windows, and the rows of a tile for any tap are the tile's own rows moved by a constant.
//
// The fp16 copy: [residue][channel block][row][CK], rows flattened over (n, a_d, a_h, a_w) with shared gaps
// of zeros between lines, planes and samples, so that a shift never meets foreign data.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/ops/conv_transpose.h"

namespace upweave::cuda {

struct Axis {
  int in = 1, kernel = 1, stride = 1, padding = 0, dilation = 1, out = 1;
  int window = 1;      // P: the pool's window, or the stride
  int f = 1;           // P / stride
  int once = 1;        // variants u whose sums are in registers at once: f, or 1
  int classes = 1;     // s u + e over the others: stride, or P
  int windows = 1;     // how many J
  int stored = 1;      // how many a of each residue lie in memory
  int lo = 0, hi = 0;  // the shifts a - J that taps need
  int pitch = 1;       // rows from one a to the same a of the next line, in units of the next axis
};

struct Step {                             // one tap of one block of channels
  int block = 0;                          // of channels
  int owner = 0;                          // whose chunks it reads
  std::array<int, 3> tap{};               // k
  std::vector<int> row_offset;            // per variant: shared-memory row of the tile's row 0
  std::vector<std::array<int, 3>> delta;  // per variant: i - f J per axis
};

struct Chunk {                                // a run of rows that a tile loads
  int residue = 0, block = 0, first_row = 0;  // rows m0 + first_row ...
};

// Who computes a share of the phases for some of the tiles, with that share's weights in shared memory for
// good. Without held weights there is one owner of everything.
struct Owner {
  std::vector<int> groups;                // of phases that are stored together
  int blocks = 1;                         // that do this share
  int first_chunk = 0, chunks = 0;        // what its taps read
  std::vector<std::array<int, 2>> slabs;  // runs of steps in the stream: first, count
  int depth = 0, line = 0;                // sweeps: the lowest shifts of its taps
  int planes = 1;                         // sweeps: that they read
  int first_slot = 0, slots = 0;  // sweeps: of a sample's parts, one for each block that meets the sample
};

// Sweeps: windows of the copy two by two, w = first + 2 pair + parity, as a tile has them in shared memory.
struct PairView {
  int first = 0;  // the lowest shift along the width that it serves; others are multiples of two away
  int pairs = 0;  // of a line; 0: no tap needs this view
  int at = 0;     // bytes from a plane's first
};

// Tiles by line: what one launch does of them, from the first to the end in line_order.
struct LineLeg {
  int first = 0, end = 0;
  int plain_turns = 0;                       // in which block b takes the b-th of the next tiles
  std::vector<std::vector<int>> last_tiles;  // per block: its tiles in the turns after those
};

struct ConvTiles {
  std::array<Axis, 3> axis;  // d, h, w; missing ones have extent 1
  int batch = 1, c_in = 1, c_out = 1;
  // Channels
  int ck = 16, blocks = 1;        // channels of a row, and how many such rows make all of c_in
  int n = 16, column_blocks = 1;  // columns of a block's tile
  // Rows
  int plane = 8;     // rows from a_d to a_d + 1, a multiple of 8
  int64_t rows = 0;  // of one residue and block
  int guard = 8;     // zero rows before and after them, a multiple of 8
  int residues = 1;
  // Tile
  bool boxes = false;        // rows of a 64-row piece are 8 lines of 8 instead of 64 in a row
  int lines = 0, width = 0;  // boxes: the tile's extent in h and w
  // Whole lines: the rows of `lines` lines with the gaps between them, m in a row. Then windows of that many
  // rows along h and w lie in one tile, and along d in a unit of that many tiles: they are pooled once more
  // before they leave.
  std::array<int, 3> join{1, 1, 1};
  int whole = 0;                   // units that a block does; of the others each tile has a block
  int m = 64;                      // rows of a tile
  int warpgroups = 1, pieces = 1;  // m = 64 * warpgroups * pieces
  int resident = 1;                // blocks that a multiprocessor is meant to hold
  int tiles = 1, tiles_per_plane = 1, tiles_across = 1;  // boxes: per (n, d); of those, along the width
  int chunk_rows = 8;                                    // rows of a chunk in shared memory
  std::vector<Chunk> chunks;
  std::vector<Owner> owners;
  int buffers = 1;    // tiles in shared memory
  bool held = false;  // a block keeps its weights and computes many tiles
  int takers = 1;     // held: into how many sets the warpgroups fall that take turns
  // Products
  int store_phases = 1;
  int variants = 1;  // in registers at once
  bool input_lo = false, weights_lo = false;
  std::vector<std::array<int, 3>> phases;  // e of class c; width's phases run fastest
  std::vector<Step> steps;                 // in the order of use
  std::vector<int> class_begin;            // groups of class c: [class_begin[c], class_begin[c + 1])
  std::vector<int> group_begin;            // steps of group g
  int stages = 3, group_max = 1;
  bool settles = false;  // strict sums are complete before anything else begins
  bool scratch = false;  // shared memory for reductions over space, beside the tiles
  // Sweeps through the depth (sweep_tiles.cpp): weights stay, planes of the input go through a ring.
  bool swept = false;
  int planes = 1;                 // that the taps of one depth read, of the owner with most
  int run = 1;                    // depths of a column that a block goes through in a row
  bool abreast = false;           // blocks go through the volume side by side; otherwise each has its part
  int tile_lines = 1;             // of a plane that a tile has in shared memory: its own and those around
  std::array<PairView, 2> views;  // for even and for odd shifts along the width
  int lines_before = 0;           // of zeros that the views begin with
  int part_bytes = 0;             // a plane's rows of one channel block, hi or lo, in shared memory
  int staging = 0;                // bytes a warp in which outputs wait for the copy engine; 0: none
  std::vector<int> stream;        // which step is at each place of the packed weights; empty: in order
  std::vector<int> shared_taps;   // per group of phases: how many of its steps both width phases have
  // Tiles by line (line_tiles.cpp): rows are (line, sample, window); group g of steps is one line of taps.
  bool by_line = false;
  std::vector<int> line_shift;  // per group: the line that it reads, counted from the tile's window
  std::vector<int> line_order;  // lines of windows: those of a leg together, most work first
  int launched = 1;             // blocks, each for many tiles
  std::vector<LineLeg> legs;
  bool pool_in_memory = false;  // running values of the pool lie where the pooled ones will
  // Pooled values of 16-bit pipelines (divide_lines): of the first own_lines lines in the output's memory, of
  // the others in the copy's planes: rest_samples of all samples in each, from `spare` rows before its first.
  int pooled_lines = 0, pooled_width = 0, own_lines = 0, rest_samples = 0;
  int64_t spare = 0;

  // Whether hi and lo should have one scale, so that their products meet in one sum.
  bool one_scale() const { return (by_line || swept) && weights_lo; }
  int row_bytes() const { return ck * 2; }
  int slab_bytes() const { return n * ck * 2 * (weights_lo ? 2 : 1); }
  int stage_bytes() const { return slab_bytes() * group_max; }
  int chunk_bytes() const { return chunk_rows * row_bytes(); }
  int tile_half() const;  // bytes of the tile's hi, or of its lo
  int tile_shared() const { return (tile_half() * (input_lo ? 2 : 1) + 1023) / 1024 * 1024; }
  int weight_shared() const;
  int scratch_bytes() const { return scratch ? warpgroups * 4 * n * 12 : 0; }
  int shared_bytes() const {  // aligned, and barriers
    return 1024 + buffers * tile_shared() + weight_shared() + scratch_bytes() + staging * warpgroups * 4 +
           256;
  }
  bool one_sample() const { return boxes || lines > 0; }  // of a tile's rows
  bool joins() const { return join[1] * join[2] > 1; }
  int units() const { return batch * ((axis[0].windows + join[0] - 1) / join[0]) * tiles_per_plane; }
  int split_units() const { return units() - whole; }
  // A column's pooled rows in shared memory: lanes that hold other columns meet other banks.
  int joined_pitch() const { return m + 5; }
  int joined_bytes() const { return joins() ? n * joined_pitch() * 4 : 0; }
  // Windows of a unit, in all columns.
  int joined_windows() const { return n * (lines / join[1]) * (axis[2].windows / join[2]); }
  int parts() const { return static_cast<int>(owners.size()) * warpgroups; }  // of a tile's reductions
  int64_t partials() const {                                                  // of all of them
    return swept ? int64_t{batch} * sample_slots() * warpgroups
                 : int64_t{by_line ? launched : tiles} * parts();
  }
  std::vector<int> blocks_by_owner() const {
    std::vector<int> result;
    for (const Owner& o : owners) result.push_back(o.blocks);
    return result;
  }
  int sample_slots() const { return owners.back().first_slot + owners.back().slots; }
  int copy_planes() const { return residues * blocks * (input_lo ? 2 : 1); }
  // Of one residue and block of channels.
  int64_t plane_bytes() const { return (spare + rows + 2 * guard) * row_bytes(); }
  int64_t copy_bytes() const { return plane_bytes() * copy_planes(); }
  int64_t stream_bytes() const { return static_cast<int64_t>(steps.size()) * slab_bytes() * column_blocks; }
  double efficiency() const;                // useful rows over rows computed
  double row_steps() const;                 // rows that are multiplied, over all steps and variants
  int lines_at(int window, int cls) const;  // by line: groups of a class that meet the input
};

struct TileWish {
  std::array<int, 3> pool{1, 1, 1};  // window of the pool behind the convolution; 1: none
  std::array<int, 3> rest{1, 1, 1};  // windows that a second pool makes one of, if one follows
  bool input_lo = false, weights_lo = false;
  bool whole_columns = true;  // all of c_out in one tile: something reduces over channels
  bool all_outputs = false;   // also those that floor division leaves out of the pool's windows
  bool one_sample = false;    // a tile lies in one sample: something reduces over space
  int shared_limit = 227 << 10;
  int store_phases = 1;  // phases along the width whose sums live at once, to be stored together
  bool pooled = false;   // a pool's running values live beside them
  bool wgmma = true;     // operands come from shared memory; mma.sync has them in registers too
  bool reduces = false;  // something reduces over space
  int multiprocessors = 132;
  bool by_line = false;      // lines of several samples may share a tile: only pooled values leave it
  bool pool_leaves = false;  // the pool's values are stored, and nothing else is made of them here
  bool stores = true;        // outputs, not only what they are reduced to
  bool sweeps = false;       // no other kernel reads the same copy of the input in another form
  bool float_rows = false;   // what is stored is one float32 value of all channels, in rows of whole 16 bytes
};

// The tiling, or none: `why` says why the convolution must go the general way.
bool tile_conv(const ConvGeometry& geometry, const TileWish& wish, ConvTiles& tiles, std::string& why);

// The same by line, where that is possible.
bool tile_by_line(const ConvGeometry& geometry, const TileWish& wish, ConvTiles& tiles);

// By line: places for the float32 pooled values of a pipeline whose output has 16 bits an element, without
// memory of the output's size. Half of them fit where the output will be. The others take the place of input
// that nobody reads any more: a first launch does half of the lines, and the second stores over what only
// the first has read. False if that is no less than memory of their own. There are so many lines of so many
// windows, beside which tiles may have others whose outputs no window holds.
bool divide_lines(ConvTiles& tiles, int64_t lines, int64_t width);

// The same with sweeps, from a tiling whose steps are listed; at least `least` of its rows are useful.
bool tile_sweep(const ConvTiles& base, const TileWish& wish, double least, ConvTiles& tiles);

// Gives groups of phases to `count` owners, the largest to whom has least.
void share_phases(ConvTiles& t, int count);
// Blocks to owners in proportion to their work.
void share_blocks(ConvTiles& t, const TileWish& wish);
// Sweeps: jobs and the blocks that share them.
struct Share {
  int jobs, blocks;
};
// Sweeps: blocks go through the volume side by side, so that what they write lies close together and what
// they read is still in the cache; or each through its part, if otherwise some had much more to do than
// others.
void go_abreast(ConvTiles& t, const std::vector<Share>& shares);
// Sweeps: room for the parts of every block that can meet a sample, if `samples` of them are shared by so
// many blocks of each owner; beside what there is already.
void reserve_slots(ConvTiles& t, const std::vector<int>& blocks, int samples);

// Row r of the copy is (n, a_d, a_h, a_w); -1s where it is a gap.
struct RowAt {
  int n, a[3];
};
RowAt row_at(const ConvTiles& t, int64_t row);

}  // namespace upweave::cuda
