#pragma once
// Stride-2 transposed convolutions, 32 -> 64 channels, on oneDNN's primitives over tiles: each thread has
// primitives of its own, made for one thread, that read a tile of channels-last input in T (float or Bf16)
// and leave its float32 outputs in a buffer that stays in the thread's cache.
#include <omp.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "vectors.h"

namespace peers {

using dnnl::memory;
using Tag = memory::format_tag;
using Args = std::unordered_map<int, memory>;

constexpr auto kF32 = memory::data_type::f32;
template <class T>
constexpr auto kType = std::is_same_v<T, float> ? memory::data_type::f32 : memory::data_type::bf16;

inline const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

template <class T>
struct Buffer {
  explicit Buffer(size_t count) : bytes((count * sizeof(T) + (2u << 20) - 1) & ~size_t((2u << 20) - 1)) {
    data = static_cast<T*>(std::aligned_alloc(2u << 20, bytes));
    madvise(data, bytes, MADV_HUGEPAGE);
    std::memset(static_cast<void*>(data), 0, bytes);
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  size_t bytes;
  T* data;
};

// A primitive with its arguments, its weights in the layout it prefers.
struct Call {
  template <class Primitive, class Desc>
  static Call make(const Desc& pd, memory& weights, const memory::desc& xm, void* x, const memory::desc& ym,
                   void* y) {
    dnnl::stream stream(cpu());
    memory packed(pd.weights_desc(), cpu());
    dnnl::reorder(weights, packed).execute(stream, weights, packed);
    stream.wait();
    Call call{Primitive(pd),
              {{DNNL_ARG_SRC, memory(xm, cpu(), x)},
               {DNNL_ARG_WEIGHTS, packed},
               {DNNL_ARG_DST, memory(ym, cpu(), y)}}};
    if (pd.scratchpad_desc().get_size())
      call.args.insert({DNNL_ARG_SCRATCHPAD, memory(pd.scratchpad_desc(), cpu())});
    return call;
  }
  dnnl::primitive primitive;
  Args args;
};

inline dnnl::primitive_attr own_scratch() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// Output o = 2j + r of an axis reads input j + shift[i] through kernel tap[i].
struct Parity {
  std::vector<int> tap, shift;
  Parity(int kernel, int padding, int r) {
    for (int k = kernel - 1; k >= 0; --k) {
      if ((r + padding - k) % 2 == 0) {
        tap.push_back(k);
        shift.push_back((r + padding - k) / 2);
      }
    }
  }
};

struct Geometry {
  int batch, depth, height, width;  // input
  int kernel, padding;
  int jd, jh, jw;  // outputs of one parity along each axis
};
constexpr int kIn = 32, kOut = 64;

// Where a tile's results lie: channels of output (2*d + zd, 2*h + zh, 2*w + zw) of the tile.
struct View {
  const float* base[8];
  size_t d_stride, h_stride, w_stride;
  const float* at(int parity, int d, int h) const { return base[parity] + d * d_stride + h * h_stride; }
};

template <class T>
class Tiles {
 public:
  // split: one convolution per output parity instead of the deconvolution. Tiles are td x th rows of a
  // parity.
  Tiles(const Geometry& g, const T* weights, bool split, int td, int th)
      : g_(g), split_(split), td_(td), th_(th), lo_(g.kernel == 3 ? 0 : 1), cols_(g.jw == 30 ? 31 : g.width) {
    rows_ = g.jh + lo_ + 1;
    padded_ = std::make_unique<Buffer<T>>(size_t(g.depth + 2) * rows_ * cols_ * kIn + 4096);
    omp_set_num_threads(1);  // primitives are made, and run, by one thread each
    for (int t = 0; t < 2; ++t) threads_.push_back(std::make_unique<Thread>(*this, weights));
    omp_set_num_threads(2);
  }
  int count() const { return (g_.jd / td_) * (g_.jh / th_); }
  int td() const { return td_; }
  int th() const { return th_; }
  // First output row and plane of tile i, in units of one parity.
  int d0(int i) const { return i / (g_.jh / th_) * td_; }
  int h0(int i) const { return i % (g_.jh / th_) * th_; }
  int cols() const { return cols_; }
  // Where the caller puts row (d, h) of a sample, channels last; borders stay zero.
  T* row(int d, int h) { return padded_->data + (size_t(1 + d) * rows_ + lo_ + h) * cols_ * kIn; }
  const View& run(int tile, int thread) { return threads_[thread]->run(d0(tile), h0(tile)); }

 private:
  struct Thread {
    Thread(Tiles& tiles, const T* weights) : t(tiles), stream(cpu()) {
      const size_t row = size_t(kOut) * t.g_.jw;
      out = std::make_unique<Buffer<float>>(8 * row * t.td_ * t.th_);
      if (t.split_)
        make_convolutions(weights, row);
      else
        make_deconvolution(weights, row);
    }

    void make_deconvolution(const T* weights, size_t row) {
      const Geometry& g = t.g_;
      const int xi = t.td_ + t.lo_ + 1, yi = t.th_ + t.lo_ + 1, before = g.padding + 2 * t.lo_;
      auto after = [&](int n, int left, int o) { return (n - 1) * 2 + g.kernel - left - o; };
      in[0] = std::make_unique<Buffer<T>>(size_t(xi) * yi * t.cols_ * kIn);
      const memory::desc x({1, kIn, xi, yi, t.cols_}, kType<T>, Tag::ndhwc),
          y({1, kOut, 2 * t.td_, 2 * t.th_, 2 * g.jw}, kF32, Tag::ndhwc),
          w({kOut, kIn, g.kernel, g.kernel, g.kernel}, kType<T>, Tag::any);
      const dnnl::deconvolution_forward::primitive_desc pd(
          cpu(), dnnl::prop_kind::forward_inference, dnnl::algorithm::deconvolution_direct, x, w, y,
          {2, 2, 2}, {before, before, g.padding},
          {after(xi, before, 2 * t.td_), after(yi, before, 2 * t.th_), after(t.cols_, g.padding, 2 * g.jw)},
          own_scratch());
      memory user({{kOut, kIn, g.kernel, g.kernel, g.kernel}, kType<T>, Tag::iodhw}, cpu());
      std::memcpy(user.get_data_handle(), weights, user.get_desc().get_size());
      calls.push_back(Call::make<dnnl::deconvolution_forward>(pd, user, x, in[0]->data, y, out->data));
      for (int q = 0; q < 8; ++q) {
        view.base[q] = out->data + (q >> 2) * 4 * t.th_ * row + (q >> 1 & 1) * 2 * row + (q & 1) * kOut;
      }
      view.d_stride = 8 * t.th_ * row, view.h_stride = 4 * row, view.w_stride = 2 * kOut;
    }

    void make_convolutions(const T* weights, size_t row) {
      const Geometry& g = t.g_;
      const int xi = t.td_ + t.lo_ + 1;
      const Parity parity[2] = {{g.kernel, g.padding, 0}, {g.kernel, g.padding, 1}};
      for (int y = 0; y < 2; ++y) {
        in[y] = std::make_unique<Buffer<T>>(size_t(xi) * (t.th_ + parity[y].tap.size() - 1) * t.cols_ * kIn);
      }
      for (int q = 0; q < 8; ++q) {
        const Parity &z = parity[q >> 2], &y = parity[q >> 1 & 1], &x = parity[q & 1];
        const int nz = int(z.tap.size()), ny = int(y.tap.size()), nx = int(x.tap.size()), left = -x.shift[0];
        const memory::desc xm({1, kIn, t.td_ + nz - 1, t.th_ + ny - 1, t.cols_}, kType<T>, Tag::ndhwc),
            ym({1, kOut, t.td_, t.th_, g.jw}, kF32, Tag::ndhwc),
            wm({kOut, kIn, nz, ny, nx}, kType<T>, Tag::any);
        const dnnl::convolution_forward::primitive_desc pd(
            cpu(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, xm, wm, ym,
            {1, 1, 1}, {0, 0, left}, {0, 0, g.jw - t.cols_ - left + nx - 1}, own_scratch());
        memory user({{kOut, kIn, nz, ny, nx}, kType<T>, Tag::oidhw}, cpu());
        T* u = static_cast<T*>(user.get_data_handle());
        for (int co = 0; co < kOut; ++co) {
          for (int ci = 0; ci < kIn; ++ci) {
            for (const int a : z.tap) {
              for (const int b : y.tap) {
                for (const int c : x.tap)
                  *u++ = weights[(((size_t(ci) * kOut + co) * g.kernel + a) * g.kernel + b) * g.kernel + c];
              }
            }
          }
        }
        T* source = in[q >> 1 & 1]->data + size_t(t.lo_ + z.shift[0]) * (t.th_ + ny - 1) * t.cols_ * kIn;
        float* target = out->data + size_t(q) * t.td_ * t.th_ * row;
        calls.push_back(Call::make<dnnl::convolution_forward>(pd, user, xm, source, ym, target));
        view.base[q] = target;
      }
      view.d_stride = t.th_ * row, view.h_stride = row, view.w_stride = kOut;
    }

    const View& run(int d, int h) {
      const Geometry& g = t.g_;
      const int xi = t.td_ + t.lo_ + 1;
      const size_t row = size_t(t.cols_) * kIn;
      for (int y = 0; y < (t.split_ ? 2 : 1); ++y) {
        const Parity parity(g.kernel, g.padding, y);
        const int rows = t.split_ ? t.th_ + int(parity.tap.size()) - 1 : t.th_ + t.lo_ + 1;
        const int first = t.split_ ? parity.shift[0] : -t.lo_;
        for (int z = 0; z < xi; ++z) {
          std::memcpy(in[y]->data + size_t(z) * rows * row, t.row(d - t.lo_ + z, h + first),
                      rows * row * sizeof(T));
        }
      }
      for (const Call& call : calls) call.primitive.execute(stream, call.args);
      stream.wait();
      return view;
    }

    Tiles& t;
    dnnl::stream stream;
    std::unique_ptr<Buffer<T>> in[2];
    std::unique_ptr<Buffer<float>> out;
    std::vector<Call> calls;
    View view;
  };

  const Geometry g_;
  const bool split_;
  const int td_, th_, lo_, cols_;
  int rows_;
  std::unique_ptr<Buffer<T>> padded_;  // one sample
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace peers
