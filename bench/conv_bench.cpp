// The convolution kernels alone, on the convolutions of the five pipelines: how near the direct one comes to
// the machine's peak, and how far past it the transforms go. Contenders take turns, and the peak of
// multiply-adds is measured before and after every sample; times are the threads' own, so that a busy
// neighbour costs little.
//
//   conv_bench [part of a case's name] [repetitions] [part of an algorithm's name] [bytes of a box]
//   [instruction set]
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

#include "engine/cpu/conv/conv.h"
#include "fma_peak.h"

namespace {
using namespace upweave;
using namespace upweave::cpu;

struct Case {
  const char* name;
  ConvShape shape;
  std::vector<Extents> tiles;  // of the transforms tried
};

const std::vector<Case> kCases = {
    {"k3 s2 32->64 16x32x32",
     {32, 64, 1, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {16, 32, 32}, {32, 64, 64}},
     {{2, 4, 4}, {4, 4, 4}}},
    {"k4 s2 32->64 16x32x32",
     {32, 64, 1, {4, 4, 4}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {16, 32, 32}, {32, 64, 64}},
     {{2, 4, 4}, {4, 4, 4}}},
    {"k5 s2 32->64 32x32x32 pool 6",
     {32, 64, 1, {5, 5, 5}, {2, 2, 2}, {1, 1, 1}, {2, 2, 2}, {32, 32, 32}, {60, 60, 60}, {6, 6, 6}},
     {{3, 3, 3}}},
    {"2d k5 s1 64->128 32x32 pool 2",
     {64, 128, 1, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {1, 32, 32}, {1, 34, 34}, {1, 2, 2}},
     {{1, 2, 2}, {1, 4, 4}}},
    {"2d k4 s2 64->64 32x32",
     {64, 64, 1, {1, 4, 4}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 32, 32}, {1, 64, 64}},
     {{1, 4, 4}}},
    {"2d k3 s2 64->64 32x32",
     {64, 64, 1, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 32, 32}, {1, 64, 64}},
     {{1, 4, 4}}},
    {"2d k4 s2 256->128 8x8",
     {256, 128, 1, {1, 4, 4}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 8, 8}, {1, 16, 16}},
     {{1, 4, 4}, {1, 2, 4}}},
    {"1d k4 s2 64->64 2048",
     {64, 64, 1, {1, 1, 4}, {1, 1, 2}, {1, 1, 1}, {0, 0, 1}, {1, 1, 2048}, {1, 1, 4096}},
     {{1, 1, 4}}},
};

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
    std::vector<double> weights(s.c_in * s.c_out * s.kernel[0] * s.kernel[1] * s.kernel[2]);
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

  double flop() const {
    const ConvShape& s = case_.shape;
    double taps = 1;
    for (int i = 0; i < 3; ++i)
      taps *= static_cast<double>(s.kernel[i] * s.out[i]) / static_cast<double>(s.stride[i]);
    return 2 * taps * static_cast<double>(s.c_in * s.c_out) * samples_;
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
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (argc > 5 && hwy::TargetName(target) == std::string(argv[5])) hwy::SetSupportedTargetsForTest(target);
  }
  for (const Case& c : kCases) {
    if (std::string(c.name).find(want) == std::string::npos) continue;
    const int samples = c.shape.out[0] == 1 ? 16 : 1;
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
    add([&] { return make_conv_kernel(c.shape, Dtype::kF32, Algorithm::kAuto); });
    for (int threads = 1; threads <= 2; ++threads) {
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
            "{} | {} threads | {:.3f} ms | {:.3f} of the direct peak, at best {:.3f} | boxes {}x{}x{} | {}\n",
            c.name, threads, median(times[i]), median(ratios[i]),
            *std::max_element(ratios[i].begin(), ratios[i].end()), runners[i]->box()[0], runners[i]->box()[1],
            runners[i]->box()[2], runners[i]->kernel().describe());
      }
    }
  }
}
