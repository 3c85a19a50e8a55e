#pragma once
// Runs the steps of a tile program on one tile, in a thread's scratch.
#include "engine/cpu/tile/grid.h"
#include "engine/cpu/tile/tile.h"

namespace upweave::cpu {

// One cut of a program into tiles: where its buffers and its tiles' shares of reductions lie.
class TileSteps {
 public:
  TileSteps(const TileProgram& program, const TileGrid& grid);  // both outlive it

  void run(const Bases& bases, const Tile& t, double* partials, char* mine) const;
  // A slot's values in this tile, channels last: in a buffer, or in their place among the tiles that are
  // kept.
  float* value(const Bases& bases, const Tile& t, char* mine, int s) const;

  int64_t thread_bytes() const { return thread_bytes_; }
  float* stage(char* mine) const { return reinterpret_cast<float*>(mine) + stage_; }  // for packing
  char* conv_scratch(char* mine) const { return mine + conv_scratch_; }

  // Channels last: one share a tile. Channels first: one a sample, for a tile holds all of a channel's space.
  int64_t shares() const { return last() ? grid_.per_sample : 1; }
  int64_t partial_bytes() const;
  double* share(double* partials, size_t r, int64_t n, int64_t i) const;

 private:
  struct Segment {  // of steps that a few rows go through together
    size_t begin, end;
  };

  bool last() const { return p_.layout == Layout::kChannelsLast; }
  const Slot& slot(int s) const { return p_.slots[static_cast<size_t>(s)]; }
  int level_of(const Step& step) const { return slot(step.out).level; }
  bool chunked(const Step& step) const;
  void size_buffers();
  void find_segments();

  float* buffer(char* mine, int s) const;
  int64_t kept_at(const Tile& t) const;
  int64_t alias_at(const Tile& t, int64_t r) const;

  void run_rows(const Bases& bases, const Segment& segment, const Tile& t, char* mine) const;
  void run_columns(const Bases& bases, const Segment& segment, const Tile& t, char* mine) const;
  void run_step(const Bases& bases, const Step& s, const Tile& t, double* partials, char* mine) const;
  void load(const Bases& bases, const Step& s, const Tile& t, char* mine, float* stage) const;
  void store(const Bases& bases, const Step& s, const Tile& t, char* mine, float* stage) const;
  void norm_last(const Step& s, const Tile& t, const float* x, float* out, char* mine) const;
  void partial(const Step& s, const Tile& t, const float* x, int64_t ld, double* partials, char* mine) const;

  const TileProgram& p_;
  const TileGrid& grid_;
  std::vector<int64_t> offset_;
  std::vector<Segment> segments_;
  int64_t stage_ = 0, columns_scratch_ = 0, conv_scratch_ = 0, thread_bytes_ = 0;
};

// Statistics over the batch may be complete, or not counted in this run.
bool of_batch(const Reduction& reduction);
bool counts(const Bases& bases, const Reduction& reduction);

}  // namespace upweave::cpu
