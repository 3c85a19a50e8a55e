#pragma once
// From a plan to kernels: which values are in memory, the text of every kernel, and the launches of packing
// and running.
#include <array>
#include <map>
#include <string>
#include <vector>

#include "engine/cuda/source.h"
#include "plan/plan.h"

namespace upweave::cuda {

// What kernels are generated for.
struct Chip {
  int major = 9, minor = 0;
  int shared_bytes = 227 << 10;
  int multiprocessors = 132;
  bool wgmma = true;  // Hopper's own matrix instructions and tensor copies; false: mma.sync, which every chip
                      // since sm_80 has
  std::string arch() const;
};

// A tensor that TMA goes through by boxes: what the driver makes a map of when a run's pointers are known.
struct TensorView {
  bool used = false, output = false;  // in the output's memory; otherwise in the workspace
  int64_t offset = 0;
  bool floats = false;                     // of float32; otherwise fp16
  int swizzle = 0;                         // bytes: 32, 64 or 128
  std::vector<uint64_t> extents, strides;  // strides in bytes, of all axes but the first
  std::vector<uint32_t> box;
};

// What a launch must do, for explain.
struct Work {
  double products = 0, operations = 0, bytes = 0;  // on tensor cores, beside them, to and from memory
  // Seconds on an H200 of what none of those rates describes: values that go one by one (work.cpp).
  double value_seconds = 0;
  bool overlaps = false;  // some warpgroups are in their epilogue while others multiply

  void add(const Work& other, double share);
};

struct Launch {
  std::string kernel;
  unsigned grid[2] = {1, 1};
  unsigned block = 256;
  unsigned shared = 0;
  std::vector<TensorView> views = {};  // what its parameter `maps` holds; empty: it has none
  std::vector<int> numbers = {};       // its last parameter, likewise
  Work work = {};
};
using LaunchId = size_t;  // its place among those of a run, or of packing; none is moved once it is there

struct Lowered {
  struct Copy {
    size_t parameter;  // its index among parameter_names(plan.source)
    int64_t offset, bytes;
  };
  struct Given {
    int64_t offset, bytes;
  };
  std::string source;
  std::vector<std::string> inputs;
  std::vector<Copy> copies;  // parameters into the packed block
  std::vector<Given> extra;  // where the extra outputs lie in the workspace when all kernels are done
  std::vector<Launch> pack, run;
  int64_t packed_bytes = 0, workspace_bytes = 0;
  int output_alignment = 1;        // bytes; more where vectors are stored in the output's memory
  std::vector<std::string> notes;  // for explain
};

Lowered lower(const FusedPlan& plan, const Options& options, const Chip& chip);

// Where a convolution's operands lie in the form that its kernel reads: bytes into the workspace and the
// packed block.
struct Prepared {
  int64_t copy = 0, scale = 0, extremes = 0;                  // the input's fp16 copy and how it is scaled
  int64_t stream = 0, weight_scale = 0, weight_extremes = 0;  // the same of the kernel
  bool fresh = true;  // made for this convolution, not shared with an earlier one
};

// --- Shared by the files that make it
struct Lowering {
  Lowering(const FusedPlan& plan, const Options& options, const Chip& chip);

  const FusedPlan& plan;
  const Options& options;
  const Chip& chip;
  Graph graph;  // the plan's, with pools split where a kernel takes them in two steps
  std::vector<bool> weights;
  std::vector<Pass> passes;
  Source source;
  std::string kernels;  // text that follows the value functions
  Lowered out;
  int convs = 0;
  // fp16 copies and packed weights that exist already: places by what they hold and how.
  std::map<std::string, Prepared> prepared;

  int64_t reserve(int64_t bytes);  // in the workspace, aligned
  int64_t reserve_packed(int64_t bytes);
  void keep(Id id);  // gives a value a place in memory, unless it has one
  bool stored(Id id) const;
  // The text of a kernel with `body` between its braces, behind `begin`; `resident` blocks of it must fit a
  // multiprocessor; 0: as the compiler likes.
  void write_kernel(const std::string& name, unsigned block, unsigned resident, const std::string& body,
                    const std::string& parameters = "", const std::string& begin = "await_previous();");
  // The same, and a launch of it by so many blocks.
  Launch kernel(const std::string& name, const std::string& body, int64_t blocks, unsigned block,
                unsigned resident = 0);
  LaunchId run(Launch launch);
};

}  // namespace upweave::cuda
