#pragma once
// Values as the engine sees them: always N C D H W, missing axes of extent 1, lying in one of five places.
#include <string>

#include "base/dtype.h"
#include "engine/cpu/conv.h"
#include "graph/operation.h"

namespace upweave::cpu {

struct Dims {
  int64_t n = 1, c = 1;
  Extents space = {1, 1, 1};
  int64_t voxels() const { return space[0] * space[1] * space[2]; }
  int64_t count() const { return n * c * voxels(); }
  friend bool operator==(const Dims&, const Dims&) = default;
};

// Of an N C ... shape; a vector is a value per channel.
inline Dims dims_of(const Shape& shape) {
  Dims d;
  if (shape.size() == 1) {
    d.c = shape[0];
    return d;
  }
  if (!shape.empty()) d.n = shape[0];
  if (shape.size() > 1) d.c = shape[1];
  for (size_t a = 2; a < shape.size(); ++a) d.space[a + 5 - shape.size() - 2] = shape[a];
  return d;
}

// A per-axis attribute of `spatial` axes with the missing leading ones filled in.
inline Extents extents_of(const Shape& values, int64_t missing) {
  Extents e = {missing, missing, missing};
  for (size_t a = 0; a < values.size(); ++a) e[a + 3 - values.size()] = values[a];
  return e;
}

struct Bases {
  const char* input = nullptr;
  char* output = nullptr;
  char* workspace = nullptr;
  const char* packed = nullptr;
};

// Where a value lies between launches, dense and row-major.
struct Memory {
  enum class Where { kNowhere, kInput, kOutput, kWorkspace, kPacked };
  Where where = Where::kNowhere;
  int64_t offset = 0;  // bytes
  Dtype type = Dtype::kF32;
  Dims dims;
  // Not row-major but tile after tile, each channels last as it was computed, for a launch that goes through
  // the same tiles.
  bool tiled = false;
  Extents tile = {0, 0, 0};  // their extents, once they are known

  bool exists() const { return where != Where::kNowhere; }
  const char* read(const Bases& b) const {
    switch (where) {
      case Where::kInput:
        return b.input;
      case Where::kOutput:
        return b.output;
      case Where::kWorkspace:
        return b.workspace + offset;
      case Where::kPacked:
        return b.packed + offset;
      case Where::kNowhere:
        break;
    }
    return nullptr;
  }
  char* write(const Bases& b) const { return where == Where::kOutput ? b.output : b.workspace + offset; }
};

// Elements of a typed array, as float64.
struct Reader {
  const char* data;
  Dtype type;
  double operator[](int64_t i) const { return load_element(data, type, i); }
};

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// One sweep over memory. Immutable; run() allocates nothing.
class Launch {
 public:
  virtual ~Launch() = default;
  virtual int64_t scratch_bytes(int threads) const = 0;  // alignment 64; contents need not survive
  // `again`: the run before had the same input and scratch.
  virtual void run(const Bases& bases, char* scratch, int threads, bool again) const = 0;
  virtual std::string describe() const = 0;
  virtual Extents tile() const { return {0, 0, 0}; }  // of a sweep over tiles of positions
};

}  // namespace upweave::cpu
