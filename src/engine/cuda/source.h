#pragma once
// CUDA C++ for the values of a graph: one inlined device function a value, which reads it from memory where
// it is stored and computes it from its operands where it is not.
#include <string>
#include <vector>

#include "plan/plan.h"

namespace upweave::cuda {

struct Location {
  enum class Kind { kNone, kInline, kInput, kOutput, kWorkspace, kPacked };  // kInput: by the node's id
  Kind kind = Kind::kNone;
  int64_t offset = 0;    // behind the pointer of its kind
  bool element = false;  // of the program's element type; otherwise float
  // Laid out [n][c / 16][voxel][16]: what tensor cores leave in neighbouring lanes is stored in whole
  // sectors.
  bool blocked = false;
  // The same, some lines in the output's memory and some in the workspace: of which convolution's tiles (see
  // divide_lines). Empty: all in one place.
  std::string divided = {};
};

// "1.5f", "kInf": a number as the device code writes it.
std::string number(double v);
// Dims<2, 64, 8, 8, 1>
std::string dims(const Shape& shape);
// The pipeline's element type in device code.
const char* type_name(Dtype dtype);

class Source {
 public:
  Source(const Graph& graph, const std::vector<bool>& weights, Dtype dtype)
      : graph_(graph), weights_(weights), dtype_(dtype) {
    places.resize(graph.nodes.size());
  }

  std::vector<Location> places;

  const Graph& graph() const { return graph_; }
  const char* type(Id id) const { return places[id].element ? type_name(dtype_) : "float"; }
  std::string address(Id id) const;  // "a.ws + 4096"
  // Operand `id` as seen from an element of a value of `shape` at coordinates `at` (an At).
  std::string operand(Id id, const Shape& shape, const std::string& at) const;
  // What a pointwise node makes of its operands' values; x is operand 0. Empty if the node is not pointwise.
  std::string pointwise(const Node& node, const std::string& x, const std::string& at,
                        const std::string& other = "") const;
  // The mean (0) or the variance (1) that a normalize node reads at `at`.
  std::string moment(const Node& node, const std::string& at, int which) const;
  // "float v7(const Args& a, At i) {...}" for every node whose place says inline, stored or input.
  std::string functions() const;
  // The body that computes node `id` at `i`: for inlined nodes and for elementwise kernels.
  std::string compute(Id id) const;
  // What takes j.x[axis], maybe beyond the ends of an axis of conv or pad, to where it is read, or sets
  // `inside` to false.
  static std::string border(const Node& node, size_t axis, int64_t extent);

 private:
  std::string move(const Node& node) const;
  std::string linear(const Node& node) const;  // an upsampling

  const Graph& graph_;
  const std::vector<bool>& weights_;
  Dtype dtype_;
};

// Whether `compute` knows the node: pointwise functions, pools and what packing computes.
bool computable(const Node& node);
bool is_pointwise(const Node& node);

}  // namespace upweave::cuda
