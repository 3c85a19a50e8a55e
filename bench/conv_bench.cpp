// The convolution kernels alone, on the convolutions of conv_cases.cpp: how near the direct one comes to
// the machine's peak, and how far past it the transforms go. Contenders take turns, and the peak of
// multiply-adds is measured before and after every sample; times are the threads' own, so that a busy
// neighbour costs little.
//
//   conv_bench [part of a case's name] [repetitions] [part of an algorithm's name] [bytes of a box]
//              [instruction set] [most threads]
// clang-format off
#include "engine/cpu/kernels/simd_targets.h"  // before Highway
// clang-format on
#include <fmt/format.h>
#include <hwy/highway.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "conv_cases.h"
#include "engine/cpu/conv/conv.h"
#include "fma_peak.h"

namespace {
using namespace upweave;
using namespace upweave::cpu;

using Case = bench::ConvCase;

// Memory as an engine should ask for it: large buffers on huge pages, where the system has them.
struct Aligned {
  explicit Aligned(size_t bytes) {
    const size_t page = bytes < (1 << 20) ? 4096 : 2 << 20, rounded = (bytes + page) / page * page;
    data = std::aligned_alloc(page, rounded);
#ifdef MADV_HUGEPAGE
    if (page > 4096) madvise(data, rounded, MADV_HUGEPAGE);
#endif
    std::memset(data, 0, bytes);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  void* data;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// One sample of the batch, all its boxes, on `threads` cores; every thread writes its own tile again and
// again.
class Runner {
 public:
  Runner(const Case& c, std::unique_ptr<ConvKernel> kernel, int samples, int64_t box_bytes)
      : case_(c), kernel_(std::move(kernel)), samples_(samples), packed_(kernel_->packed_bytes()) {
    box_.extent = box_extent(*kernel_, c.shape, box_bytes);
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    const ConvShape& s = c.shape;
    std::vector<double> weights(s.c_in * s.c_out / s.groups * s.kernel[0] * s.kernel[1] * s.kernel[2]);
    for (double& w : weights) w = 0.05 * normal(random);
    kernel_->pack(weights.data(), packed_.data);
    for (int i = 0; i < 3; ++i) {
      for (int64_t lo = 0; lo < s.out[i]; lo += box_.extent[i]) starts_[i].push_back(lo);
    }
    Box whole;
    whole.extent = s.out;
    input_.box = kernel_->input_box(whole);
    input_.ld = kernel_->channels_in();
    const int64_t floats = input_.box.count() * input_.ld;
    in_ = std::make_unique<Aligned>(floats * 4);
    if (kernel_->input_type() == Dtype::kF32) {
      for (int64_t i = 0; i < floats; ++i)
        static_cast<float*>(in_->data)[i] = static_cast<float>(normal(random));
    } else {
      for (int64_t i = 0; i < floats; ++i) {
        const float v = static_cast<float>(normal(random));
        std::memcpy(static_cast<uint16_t*>(in_->data) + i, reinterpret_cast<const char*>(&v) + 2, 2);
      }
    }
    input_.data = in_->data;
    for (int t = 0; t < 2; ++t) {
      out_.push_back(std::make_unique<Aligned>(box_.count() * kernel_->channels_out() * 4));
      scratch_.push_back(std::make_unique<Aligned>(kernel_->scratch_bytes()));
    }
  }

  double flop() const { return flop(case_.shape) * samples_; }
  // Of one sample: taps that reach the tensor alone.
  static double flop(const ConvShape& s) {
    double taps = 1;
    for (int a = 0; a < 3; ++a) {
      int64_t pairs = 0;
      for (int64_t o = 0; o < s.out[a]; ++o) {
        for (int64_t k = 0; k < s.kernel[a]; ++k) {
          const int64_t i = o * s.step[a] + s.padding[a] - k * s.dilation[a];
          pairs += i >= 0 && i % s.stride[a] == 0 && i / s.stride[a] < s.in[a];
        }
      }
      taps *= static_cast<double>(pairs);
    }
    return 2 * taps * static_cast<double>(s.c_in * s.c_out / s.groups);
  }

  // Mean over the threads of the time that each spent on its share.
  double run(int threads) const {
    double seconds = 0;
    const int64_t boxes = static_cast<int64_t>(starts_[0].size() * starts_[1].size() * starts_[2].size());
#pragma omp parallel num_threads(threads) reduction(+ : seconds)
    {
      const double start = bench::thread_seconds();
#pragma omp for schedule(static) nowait
      for (int64_t i = 0; i < boxes * samples_; ++i) {
        const int64_t b = i % boxes;
        ConvOutput output;
        output.box = box_;
        output.box.lo = {starts_[0][b / (starts_[1].size() * starts_[2].size())],
                         starts_[1][b / starts_[2].size() % starts_[1].size()],
                         starts_[2][b % starts_[2].size()]};
        for (int a = 0; a < 3; ++a) {
          const int64_t step = output.box.step[a];
          output.box.extent[a] =
              std::min(output.box.extent[a], (case_.shape.out[a] - output.box.lo[a] + step - 1) / step);
        }
        const int t = thread_number();
        output.data = static_cast<float*>(out_[t]->data);
        output.ld = kernel_->channels_out();
        kernel_->compute(packed_.data, input_, output, scratch_[t]->data);
      }
      seconds += bench::thread_seconds() - start;
    }
    return seconds / threads;
  }
  const ConvKernel& kernel() const { return *kernel_; }
  const Extents& box() const { return box_.extent; }

 private:
  static int thread_number();
  const Case& case_;
  Box box_;
  std::unique_ptr<ConvKernel> kernel_;
  int samples_;
  Aligned packed_;
  std::array<std::vector<int64_t>, 3> starts_;
  ConvInput input_;
  std::unique_ptr<Aligned> in_;
  std::vector<std::unique_ptr<Aligned>> out_, scratch_;
};

}  // namespace

#include <omp.h>
int Runner::thread_number() { return omp_get_thread_num(); }

int main(int argc, char** argv) {
  const std::string want = argc > 1 ? argv[1] : "";
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  const std::string algorithm = argc > 3 ? argv[3] : "";
  const int64_t box_bytes = argc > 4 ? std::atol(argv[4]) : 1 << 20;
  const int most_threads = argc > 6 ? std::atoi(argv[6]) : 2;
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (argc > 5 && hwy::TargetName(target) == std::string(argv[5])) hwy::SetSupportedTargetsForTest(target);
  }
  for (const Case& c : bench::conv_cases()) {
    if (c.name.find(want) == std::string::npos) continue;
    const int samples = static_cast<int>(std::clamp(3e8 / Runner::flop(c.shape), 1.0, 64.0));
    std::vector<std::unique_ptr<Runner>> runners;
    auto add = [&](auto make) {
      try {
        auto kernel = make();
        if (kernel->describe().find(algorithm) == std::string::npos) return;
        runners.push_back(std::make_unique<Runner>(c, std::move(kernel), samples, box_bytes));
      } catch (const Error& e) {
        fmt::print("{}: {}\n", c.name, e.what());
      }
    };
    add([&] { return make_direct_conv(c.shape); });
    add([&] { return make_bf16_conv(c.shape); });
    for (const Extents& tile : c.tiles) add([&] { return make_toom_conv(c.shape, tile); });
    double cost = 0;
    add([&] { return make_conv_kernel(c.shape, Dtype::kF32, Algorithm::kAuto, Precision::kStrict, &cost); });
    for (int threads = 1; threads <= most_threads; ++threads) {
      std::vector<std::vector<double>> times(runners.size()), ratios(runners.size());
      for (int r = 0; r < repetitions + 1; ++r) {
        for (size_t i = 0; i < runners.size(); ++i) {
          const double before = bench::fma_peak(threads);
          const double t = runners[i]->run(threads);
          const double peak = (before + bench::fma_peak(threads)) / 2;
          if (r == 0) continue;
          times[i].push_back(t * 1e3 / samples);
          ratios[i].push_back(runners[i]->flop() / t / peak);
        }
      }
      for (size_t i = 0; i < runners.size(); ++i) {
        fmt::print(
            "{} | {} threads | {:.3f} ms | {:.3f} of the direct peak, at best {:.3f} | boxes {}x{}x{} | "
            "{}{}\n",
            c.name, threads, median(times[i]), median(ratios[i]),
            *std::max_element(ratios[i].begin(), ratios[i].end()), runners[i]->box()[0], runners[i]->box()[1],
            runners[i]->box()[2], runners[i]->kernel().describe(),
            i + 1 < runners.size() ? ""
                                   : fmt::format(", predicted {:.3f}", Runner::flop(c.shape) / (32 * cost)));
      }
    }
  }
}
