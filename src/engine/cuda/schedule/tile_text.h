#pragma once
// Parts of kernels' texts that several schedules have.
#include <string>
#include <vector>

#include "engine/cuda/epilogue.h"
#include "engine/cuda/schedule/row_segments.h"

namespace upweave::cuda {

// Members of struct G0.
struct ConstantsText {
  std::string text;

  void put(const char* name, int64_t value) {
    text += fmt::format("  static constexpr int {} = {};\n", name, value);
  }
  void put_long(const char* name, int64_t value) {
    text += fmt::format("  static constexpr i64 {} = {}ll;\n", name, value);
  }
};

// __constant__ const int G0_taps[2] = {0, 1};
template <class T>
std::string table(const std::string& name, const char* type, const std::vector<T>& values) {
  return fmt::format("__constant__ const {} {}[{}] = {{{}}};\n", type, name,
                     std::max<size_t>(1, values.size()), fmt::join(values, ", "));
}

// A function of n, c, d, h, w that gives value `id` there. Where rows go by line, d is the height, and h the
// sample of an input.
enum class Mapped { kNo, kInput, kKernel };
std::string input_value(const Lowering& l, Id id, Mapped mapped = Mapped::kNo);

// --- Kernels with a tile at a time: Boxes, WholeLines, WeightStationary

// Scales, and whether this kernel is the one for the data at hand; lanes.
std::string start_text(const std::string& g, bool fma);
std::string fma_operands(const Lowering& l, const Fusion& fusion);
std::string tensor_start();
// Which windows the thread's rows of a tile are.
std::string rows_text(const char* tile);
// The products of each phase through the ring of weights, every address a literal.
std::string ring_products(const Convolution& conv, const RowSegments& segments, bool completes_sums,
                          const std::string& g);
// One group of phases after the other, up to where its sums are declared.
std::string group_loop(const Fusion& fusion, const std::string& count, const std::string& group);
std::string fma_sums(const Fusion& fusion, const std::string& g);
std::string ring_sums(const Fusion& fusion);
// The epilogue of a group's sums, which ends the loop; and of the windows.
std::string point_text(const Convolution& conv, const Fusion& fusion, const EpilogueText& e);
std::string window_text(const EpilogueText& e);
// What a tile leaves; the scratch of others is where the tile was, so everyone must have left it.
std::string finish_text(const EpilogueText& e);
// All of the kernel with float32 products.
std::string fma_text(const Lowering& l, const Fusion& fusion, const Convolution& conv, const EpilogueText& e,
                     const std::string& g);

}  // namespace upweave::cuda
