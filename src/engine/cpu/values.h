#pragma once
// Values as the engine sees them: always N C D H W, missing axes of extent 1, lying in one of six places.
#include <bit>
#include <cstring>
#include <string>

#include "base/dtype.h"
#include "engine/cpu/conv/conv.h"
#include "engine/cpu/predict.h"
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
  const void* const* inputs = nullptr;  // all of them, of all samples
  char* output = nullptr;
  char* workspace = nullptr;
  const char* packed = nullptr;
  char* kept = nullptr;            // statistics over the batch
  void* const* outputs = nullptr;  // all of them, of all samples
  int64_t first = 0;               // where only some samples are run, the first of them
  // Where only some samples are run, what statistics over the batch make of them.
  int64_t before = 0;  // samples that they hold already
  int64_t skip = 0;    // the first of these samples that are among those
  bool counts = true;  // false: they are complete
  bool closes = true;  // these samples are the last
};

// Where a value lies between launches: dense and row-major, or channels last.
struct Memory {
  enum class Where { kNowhere, kInput, kOutput, kExtraOutput, kWorkspace, kPacked, kKept };
  Where where = Where::kNowhere;
  int64_t offset = 0;  // bytes; kInput, kExtraOutput: which of Bases::inputs or outputs
  Dtype type = Dtype::kF32;
  Dims dims;
  // Not row-major but tile after tile, each channels last as it was computed, for a launch that goes through
  // the same tiles.
  bool tiled = false;
  Extents tile = {0, 0, 0};  // their extents, once they are known
  // Not negative: a float32 value whose upper halves lie in a 16-bit output, and the lower halves from here
  // on in the workspace.
  int64_t low = -1;
  int64_t sample_bytes = 0;  // kInput, kExtraOutput: 0 for what is of all samples
  // Not 0: float32, channels last, the rows of so many elements: those behind the channels mean nothing.
  int64_t ld = 0;

  bool exists() const { return where != Where::kNowhere; }
  bool split() const { return low >= 0; }
  bool channels_last() const { return ld > 0; }
  // Element i of the row-major order, counted in elements from the start.
  int64_t element_at(int64_t i) const {
    if (!channels_last()) return i;
    const int64_t row = i / dims.voxels(), position = i % dims.voxels();
    return (row / dims.c * dims.voxels() + position) * ld + row % dims.c;
  }
  int64_t element_bytes() const { return split() ? 2 : size_of(type); }
  double bytes() const {  // that are moved when all of it is
    return static_cast<double>(dims.n * dims.voxels() * (channels_last() ? ld : dims.c)) *
           static_cast<double>(element_bytes());
  }
  const char* read(const Bases& b) const {
    switch (where) {
      case Where::kInput:
        return static_cast<const char*>(b.inputs[offset]) + b.first * sample_bytes;
      case Where::kOutput:
        return b.output;
      case Where::kWorkspace:
        return b.workspace + offset;
      case Where::kPacked:
        return b.packed + offset;
      case Where::kKept:
        return b.kept + offset;
      case Where::kExtraOutput:  // nobody reads it
      case Where::kNowhere:
        break;
    }
    return nullptr;
  }
  char* write(const Bases& b) const {
    if (where == Where::kOutput) return b.output;
    if (where == Where::kExtraOutput) return static_cast<char*>(b.outputs[offset]) + b.first * sample_bytes;
    return (where == Where::kKept ? b.kept : b.workspace) + offset;
  }
  char* lower(const Bases& b) const { return split() ? b.workspace + low : nullptr; }
};

// Elements of a value in memory by their row-major number, as float64.
struct Reader {
  const char* data;
  Dtype type;
  const char* lower;   // of a value in two halves
  const Memory* last;  // of a value channels last

  Reader(const Memory& memory, const Bases& bases)
      : data(memory.read(bases)),
        type(memory.type),
        lower(memory.lower(bases)),
        last(memory.channels_last() ? &memory : nullptr) {}
  double operator[](int64_t i) const {
    if (last) return load_element(data, type, last->element_at(i));
    if (!lower) return load_element(data, type, i);
    uint16_t halves[2];
    std::memcpy(halves, lower + 2 * i, 2);
    std::memcpy(halves + 1, data + 2 * i, 2);
    return std::bit_cast<float>(static_cast<uint32_t>(halves[1]) << 16 | halves[0]);
  }
};
struct Writer {
  char* data;
  Dtype type;
  char* lower;
  const Memory* last;

  Writer(const Memory& memory, const Bases& bases)
      : data(memory.write(bases)),
        type(memory.type),
        lower(memory.lower(bases)),
        last(memory.channels_last() ? &memory : nullptr) {}
  void store(int64_t i, double value) const {
    if (last) return store_element(data, type, last->element_at(i), value);
    if (!lower) return store_element(data, type, i, value);
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    const uint16_t halves[2] = {static_cast<uint16_t>(bits), static_cast<uint16_t>(bits >> 16)};
    std::memcpy(lower + 2 * i, halves, 2);
    std::memcpy(data + 2 * i, halves + 1, 2);
  }
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
  virtual Work work() const = 0;
  virtual Extents tile() const { return {0, 0, 0}; }  // of a sweep over tiles of positions
  virtual bool over_batch() const { return false; }   // leaves statistics of all samples behind
};

}  // namespace upweave::cpu
