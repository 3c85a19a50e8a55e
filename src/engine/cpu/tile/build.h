#pragma once
// Builds a tile program node by node: add() takes a node if the program's layout can serve it from what is in
// memory or already in the tile, and leaves everything as it was if not.
#include <functional>
#include <optional>
#include <vector>

#include "engine/cpu/tile/tile.h"
#include "plan/plan.h"

namespace upweave::cpu {

std::optional<Fn> pointwise_fn(const Node& node);  // if it has a vector form

class TileBuilder {
 public:
  // `memory(id)` says where a value lies that this program does not compute; it may not exist.
  // `result(id)` allocates the place of a reduction that ends with the sweep.
  using Lookup = std::function<Memory(Id)>;
  // `is_private(id)`: nobody outside of this program wants the value.
  TileBuilder(const Graph& graph, Layout layout, int64_t cache_bytes, Lookup memory, Lookup result,
              std::function<bool(Id)> is_private);

  void begin_with(Id conv, std::unique_ptr<ConvStage> stage);
  bool add(Id id);
  void store(Id id, const Memory& to);  // `id` was added, or lies in memory (a copy)
  bool computes(Id id) const {
    return slots_[static_cast<size_t>(id)] >= 0 || reduced_[static_cast<size_t>(id)];
  }
  bool reduces(Id id) const { return reduced_[static_cast<size_t>(id)]; }
  bool empty() const { return names_.empty(); }
  TileProgram finish();

 private:
  struct Undo;
  bool try_add(Id id);
  bool add_pointwise(Id id);
  void join_clamped_exp(Id exp);
  void join_scale(Id mul);
  bool add_pool(Id id);
  bool join_norm(Id norm, const Step& pool);
  bool add_channel_op(Id id);
  bool add_norm_last(Id id);
  bool add_axis_fold(Id id);
  bool add_space_op(Id id);
  bool add_space_norm(Id id);
  bool add_normalize(Id id, int stats, const Memory& memory, size_t weight);
  bool add_softmax_apply(Id id);

  bool start(const Dims& dims);
  // The slot of an operand against a value of `dims`, loading it if it lies in memory; -1 if it cannot be
  // had.
  int operand(Id id, const Shape& against);
  // The same of one that a node takes alone, if it varies along positions and channels.
  int full_operand(Id id);
  int load(const Memory& from);
  int new_slot(Kind kind, int level);
  int level_with(const Extents& extent) const;
  std::optional<Kind> kind_of(const Dims& dims, int* level) const;
  Step& push(Step::What what, int x, int out);
  // Whether a channels-last tile may hold all of these axes; if so, it will.
  bool keep_whole(size_t first, size_t last);
  bool affine(Id id, int x, size_t weight, int out);
  void alias_memory();
  void assign_buffers();

  const Graph& graph_;
  int64_t cache_;
  Lookup memory_, result_;
  std::function<bool(Id)> private_;
  TileProgram p_;
  std::vector<int> slots_;      // of each node, -1
  std::vector<bool> reduced_;   // nodes whose result is complete only behind the sweep
  std::vector<bool> absorbed_;  // nodes that a later step computes along with its own
  std::vector<int> loaded_;     // slots of nodes read from memory, -1
  std::vector<Step> loads_, steps_, stores_;
  std::vector<std::string> names_;
};

}  // namespace upweave::cpu
