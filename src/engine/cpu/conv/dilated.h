#pragma once
// A dilated convolution by transforms. Where the stride is 1 and the dilation d, output d*j + e reads inputs
// d*(j - k) + e + padding: outputs of one residue e read inputs of one residue rho = (e + padding) mod d, as
// an undilated convolution of
//   padding floor((e + padding)/d), inputs ceil((in - rho)/d), outputs ceil((out - e)/d)
// does. All residues share one form of the weights; none moves a value.
#include <memory>
#include <vector>

#include "engine/cpu/conv/geometry.h"

namespace upweave::cpu {

// The distance on each axis between outputs that share their inputs: the dilation where residues serve it.
Extents residue_periods(const ConvShape& shape);
// The convolution of the outputs `residue` of these periods.
ConvShape residue_shape(const ConvShape& shape, const Extents& period, const Extents& residue);

// Beyond so many residues (of all axes) a dilated convolution is left to direct sums.
constexpr int64_t kMaxResidues = 1024;
inline bool few_residues(const Extents& period) {
  int64_t residues = 1;
  for (const int64_t d : period) residues *= std::min(d, kMaxResidues + 1);
  return residues <= kMaxResidues;
}

class DilatedConv final : public ConvKernel {
 public:
  template <class Make>  // makes the kernel of an undilated shape
  DilatedConv(const ConvShape& shape, Make&& make)
      : period_(residue_periods(shape)), padding_(shape.padding) {
    for (int64_t i = 0; i < period_[0] * period_[1] * period_[2]; ++i)
      kernels_.push_back(make(residue_shape(shape, period_, residue(i))));
  }

  int64_t channels_in() const override { return kernels_[0]->channels_in(); }
  int64_t channels_out() const override { return kernels_[0]->channels_out(); }
  Extents tile_quantum() const override;
  Box input_box(const Box& output) const override;
  size_t packed_bytes() const override { return kernels_[0]->packed_bytes(); }
  void pack(const double* kernel, void* packed, int threads) const override {
    kernels_[0]->pack(kernel, packed, threads);
  }
  size_t scratch_bytes() const override { return kernels_[0]->scratch_bytes(); }
  void compute(const void* packed, const ConvInput& input, const ConvOutput& output,
               void* scratch) const override;
  double products_per_output() const override { return kernels_[0]->products_per_output(); }
  std::string describe() const override;

 private:
  Extents residue(int64_t i) const {
    return {i / (period_[1] * period_[2]), i / period_[2] % period_[1], i % period_[2]};
  }
  // The residue of the inputs that outputs of residue e read.
  int64_t input_residue(int axis, int64_t e) const;
  // The outputs of a box that have the residue e, counted among those alone; false if there are none.
  bool outputs_of(const Box& output, const Extents& e, Box* own) const;

  Extents period_, padding_;
  std::vector<std::unique_ptr<ConvKernel>> kernels_;  // of each residue, width fastest
};

}  // namespace upweave::cpu
