// The strongest contender that a user could compose today: the five pipelines on oneDNN's primitives, tile by
// tile. Each thread runs its own single-threaded primitive on a tile that stays in its cache, then a
// hand-written AVX-512 tail on the tile. It drops what algebra drops (the +1 before the norm, the second
// pool, outputs that no window reads, the softmax's maximum), but its variances are E[x^2] - m^2.
//
//   onednn SLUG FOLDER BATCH     reads FOLDER/<tensor>.bin, writes FOLDER/onednn.bin, then serves (worker.h)
//
// At the start it times its two ways to make a tile (the deconvolution itself, or one convolution per output
// parity) at a few tile sizes and keeps the fastest.
#include <omp.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <fstream>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "vectors.h"
#include "worker.h"

using dnnl::memory;
using Tag = memory::format_tag;
using Args = std::unordered_map<int, memory>;
using peers::V;

namespace {

constexpr auto kF32 = memory::data_type::f32;
const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Buffer {
  explicit Buffer(size_t floats) : bytes((floats * 4 + (2u << 20) - 1) & ~size_t((2u << 20) - 1)) {
    data = static_cast<float*>(std::aligned_alloc(2u << 20, bytes));
    madvise(data, bytes, MADV_HUGEPAGE);
    std::memset(data, 0, bytes);
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  size_t bytes;
  float* data;
};

std::string g_folder;
std::unique_ptr<Buffer> load(const std::string& name) {
  std::ifstream file(g_folder + "/" + name + ".bin", std::ios::binary | std::ios::ate);
  const size_t bytes = static_cast<size_t>(file.tellg());
  auto buffer = std::make_unique<Buffer>(bytes / 4);
  file.seekg(0).read(reinterpret_cast<char*>(buffer->data), static_cast<std::streamsize>(bytes));
  return buffer;
}

// ---- Stride-2 transposed convolutions, 32 -> 64 channels, over tiles
// ------------------------------------------

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

class Tiles {
 public:
  Tiles(const Geometry& g, const float* weights, bool split, int td, int th)
      : g_(g), split_(split), td_(td), th_(th), lo_(g.kernel == 3 ? 0 : 1), cols_(g.jw == 30 ? 31 : g.width) {
    rows_ = g.jh + lo_ + 1;
    padded_ = std::make_unique<Buffer>(size_t(g.batch) * (g.depth + 2) * rows_ * cols_ * kIn + 4096);
    omp_set_num_threads(1);  // primitives are made, and run, by one thread each
    for (int t = 0; t < 2; ++t) threads_.push_back(std::make_unique<Thread>(*this, weights));
    omp_set_num_threads(2);
  }
  int per_sample() const { return (g_.jd / td_) * (g_.jh / th_); }
  int td() const { return td_; }
  int th() const { return th_; }
  // First output row and plane of tile i, in units of one parity.
  int d0(int i) const { return i / (g_.jh / th_) * td_; }
  int h0(int i) const { return i % (g_.jh / th_) * th_; }
  int cols() const { return cols_; }
  // Where the caller puts row (d, h) of sample n, channels last; borders stay zero.
  float* row(int n, int d, int h) {
    return padded_->data + ((size_t(n) * (g_.depth + 2) + 1 + d) * rows_ + lo_ + h) * cols_ * kIn;
  }
  const View& run(int n, int tile, int thread) { return threads_[thread]->run(n, d0(tile), h0(tile)); }

 private:
  struct Thread {
    Thread(Tiles& tiles, const float* weights) : t(tiles), stream(cpu()) {
      const size_t row = size_t(kOut) * t.g_.jw;
      out = std::make_unique<Buffer>(8 * row * t.td_ * t.th_);
      if (t.split_)
        make_convolutions(weights, row);
      else
        make_deconvolution(weights, row);
    }

    void make_deconvolution(const float* weights, size_t row) {
      const Geometry& g = t.g_;
      const int xi = t.td_ + t.lo_ + 1, yi = t.th_ + t.lo_ + 1, before = g.padding + 2 * t.lo_;
      auto after = [&](int n, int left, int o) { return (n - 1) * 2 + g.kernel - left - o; };
      in[0] = std::make_unique<Buffer>(size_t(xi) * yi * t.cols_ * kIn);
      const memory::desc x({1, kIn, xi, yi, t.cols_}, kF32, Tag::ndhwc),
          y({1, kOut, 2 * t.td_, 2 * t.th_, 2 * g.jw}, kF32, Tag::ndhwc);
      const memory::desc w({kOut, kIn, g.kernel, g.kernel, g.kernel}, kF32, Tag::any);
      dnnl::primitive_attr attr;
      attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const dnnl::deconvolution_forward::primitive_desc pd(
          cpu(), dnnl::prop_kind::forward_inference, dnnl::algorithm::deconvolution_direct, x, w, y,
          {2, 2, 2}, {before, before, g.padding},
          {after(xi, before, 2 * t.td_), after(yi, before, 2 * t.th_), after(t.cols_, g.padding, 2 * g.jw)},
          attr);
      memory user({{kOut, kIn, g.kernel, g.kernel, g.kernel}, kF32, Tag::iodhw}, cpu());
      std::memcpy(user.get_data_handle(), weights, user.get_desc().get_size());
      add(dnnl::deconvolution_forward(pd), pd, user, x, in[0]->data, y, out->data);
      for (int q = 0; q < 8; ++q) {
        view.base[q] = out->data + (q >> 2) * 4 * t.th_ * row + (q >> 1 & 1) * 2 * row + (q & 1) * kOut;
      }
      view.d_stride = 8 * t.th_ * row, view.h_stride = 4 * row, view.w_stride = 2 * kOut;
    }

    void make_convolutions(const float* weights, size_t row) {
      const Geometry& g = t.g_;
      const int xi = t.td_ + t.lo_ + 1;
      const Parity parity[2] = {{g.kernel, g.padding, 0}, {g.kernel, g.padding, 1}};
      for (int y = 0; y < 2; ++y)
        in[y] = std::make_unique<Buffer>(size_t(xi) * (t.th_ + parity[y].tap.size() - 1) * t.cols_ * kIn);
      for (int q = 0; q < 8; ++q) {
        const Parity &z = parity[q >> 2], &y = parity[q >> 1 & 1], &x = parity[q & 1];
        const int nz = int(z.tap.size()), ny = int(y.tap.size()), nx = int(x.tap.size()), left = -x.shift[0];
        const memory::desc xm({1, kIn, t.td_ + nz - 1, t.th_ + ny - 1, t.cols_}, kF32, Tag::ndhwc),
            ym({1, kOut, t.td_, t.th_, g.jw}, kF32, Tag::ndhwc);
        const memory::desc wm({kOut, kIn, nz, ny, nx}, kF32, Tag::any);
        dnnl::primitive_attr attr;
        attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        const dnnl::convolution_forward::primitive_desc pd(
            cpu(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, xm, wm, ym,
            {1, 1, 1}, {0, 0, left}, {0, 0, g.jw - t.cols_ - left + nx - 1}, attr);
        memory user({{kOut, kIn, nz, ny, nx}, kF32, Tag::oidhw}, cpu());
        float* u = static_cast<float*>(user.get_data_handle());
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
        float* source = in[q >> 1 & 1]->data + size_t(t.lo_ + z.shift[0]) * (t.th_ + ny - 1) * t.cols_ * kIn;
        float* target = out->data + size_t(q) * t.td_ * t.th_ * row;
        add(dnnl::convolution_forward(pd), pd, user, xm, source, ym, target);
        view.base[q] = target;
      }
      view.d_stride = t.th_ * row, view.h_stride = row, view.w_stride = kOut;
    }

    template <class Primitive, class Desc>
    void add(const Primitive& primitive, const Desc& pd, memory& user, const memory::desc& xm, float* x,
             const memory::desc& ym, float* y) {
      memory packed(pd.weights_desc(), cpu());
      dnnl::reorder(user, packed).execute(stream, user, packed);
      stream.wait();
      Args a = {{DNNL_ARG_SRC, memory(xm, cpu(), x)},
                {DNNL_ARG_WEIGHTS, packed},
                {DNNL_ARG_DST, memory(ym, cpu(), y)}};
      if (pd.scratchpad_desc().get_size())
        a.insert({DNNL_ARG_SCRATCHPAD, memory(pd.scratchpad_desc(), cpu())});
      primitives.push_back(primitive);
      args.push_back(a);
    }

    const View& run(int n, int d, int h) {
      const Geometry& g = t.g_;
      const int xi = t.td_ + t.lo_ + 1;
      const size_t row = size_t(t.cols_) * kIn;
      for (int y = 0; y < (t.split_ ? 2 : 1); ++y) {
        const Parity parity(g.kernel, g.padding, y);
        const int rows = t.split_ ? t.th_ + int(parity.tap.size()) - 1 : t.th_ + t.lo_ + 1;
        const int first = t.split_ ? parity.shift[0] : -t.lo_;
        for (int z = 0; z < xi; ++z) {
          std::memcpy(in[y]->data + size_t(z) * rows * row, t.row(n, d - t.lo_ + z, h + first),
                      rows * row * 4);
        }
      }
      for (size_t i = 0; i < primitives.size(); ++i) primitives[i].execute(stream, args[i]);
      stream.wait();
      return view;
    }

    Tiles& t;
    dnnl::stream stream;
    std::unique_ptr<Buffer> in[2], out;
    std::vector<dnnl::primitive> primitives;
    std::vector<Args> args;
    View view;
  };

  const Geometry g_;
  const bool split_;
  const int td_, th_, lo_, cols_;
  int rows_;
  std::unique_ptr<Buffer> padded_;
  std::vector<std::unique_ptr<Thread>> threads_;
};

// A row of NCDHW input as channels-last columns, through `value(channel, column)` vectors of 16 columns.
template <class Value>
void lay_row(float* out, int width, int keep, int channels, Value value) {
  for (int c = 0; c < channels; c += 16) {
    for (int w = 0; w < width; w += 16) {
      V r[16];
      for (int i = 0; i < 16; ++i) r[i] = value(c + i, w);
      peers::transpose(r);
      for (int i = 0; i < 16 && w + i < keep; ++i) _mm512_storeu_ps(out + size_t(w + i) * channels + c, r[i]);
    }
  }
}

// A pipeline around Tiles: lays the input, then for each sample runs tiles and their tails on both threads.
struct Pipeline3d {
  Geometry g;
  std::function<void(Tiles&, int n, int d, int h)> lay;                              // one input row
  std::function<void(const Tiles&, const View&, int n, int tile, int thread)> tail;  // one tile
  std::function<void(int n)> finish = [](int) {};
  std::unique_ptr<Tiles> tiles;

  void run() {
    const int rows = g.jh == 30 ? 31 : g.height, planes = g.jd == 30 ? 31 : g.depth;
#pragma omp parallel for collapse(3) schedule(static)
    for (int n = 0; n < g.batch; ++n) {
      for (int d = 0; d < planes; ++d) {
        for (int h = 0; h < rows; ++h) lay(*tiles, n, d, h);
      }
    }
    for (int n = 0; n < g.batch; ++n) {
#pragma omp parallel for schedule(dynamic)
      for (int i = 0; i < tiles->per_sample(); ++i) {
        const int thread = omp_get_thread_num();
        tail(*tiles, tiles->run(n, i, thread), n, i, thread);
      }
      finish(n);
    }
  }

  void choose(const float* weights, const std::vector<std::pair<int, int>>& sizes) {
    double best = 1e30;
    std::unique_ptr<Tiles> winner;
    std::string name;
    for (const bool split : {false, true}) {
      for (const auto& [td, th] : sizes) {
        tiles = std::make_unique<Tiles>(g, weights, split, td, th);
        run();
        double least = 1e30;
        for (int i = 0; i < 3; ++i) {
          const double start = peers::now_ms();
          run();
          least = std::min(least, peers::now_ms() - start);
        }
        if (least < best) {
          best = least;
          winner = std::move(tiles);
          name = std::string(split ? "8 convolutions" : "deconvolution") + ", tiles of " +
                 std::to_string(td) + "x" + std::to_string(th) + " rows";
        }
      }
    }
    tiles = std::move(winner);
    std::fprintf(stderr, "oneDNN: %s\n", name.c_str());
  }
};

// ---- Tails: each works on vectors of 64 channels found through a View
// ----------------------------------------

// Lane i becomes the sum of all lanes of r[i].
V sums_of(V r[16]) {
  peers::transpose(r);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) r[i] = _mm512_add_ps(r[i], r[i + step]);
  }
  return r[0];
}

// layer norm, average of 2x2x2, gelu: one pooled row of 32, two pooled columns (16 voxels) at a time.
void tail_layernorm_pool(const View& v, int d, int h, float* out, size_t channel_stride) {
  for (int w0 = 0; w0 < 32; w0 += 16) {
    alignas(64) float pooled[16 * 64];
    for (int w = 0; w < 16; w += 2) {
      const float* p[16];
      V s[16], q[16];
      for (int i = 0; i < 16; ++i) {
        p[i] = v.at(i % 8, d, h) + (w0 + w + i / 8) * v.w_stride;
        const V x0 = _mm512_load_ps(p[i]), x1 = _mm512_load_ps(p[i] + 16), x2 = _mm512_load_ps(p[i] + 32),
                x3 = _mm512_load_ps(p[i] + 48);
        s[i] = _mm512_add_ps(_mm512_add_ps(x0, x1), _mm512_add_ps(x2, x3));
        q[i] = peers::fma(x0, x0, peers::fma(x1, x1, peers::fma(x2, x2, _mm512_mul_ps(x3, x3))));
      }
      const V mean = _mm512_mul_ps(sums_of(s), peers::set(1.f / 64));
      const V var = _mm512_fnmadd_ps(mean, mean, _mm512_mul_ps(sums_of(q), peers::set(1.f / 64)));
      const V rstd =
          _mm512_mul_ps(peers::inverse_sqrt(_mm512_add_ps(var, peers::set(1e-5f))), peers::set(0.125f));
      alignas(64) float scale[16], shift[16];
      _mm512_store_ps(scale, rstd);
      _mm512_store_ps(shift, _mm512_mul_ps(mean, rstd));
      for (int u = 0; u < 2; ++u) {
        V z[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        float offset = 0;
        for (int i = u * 8; i < u * 8 + 8; ++i) {
          offset += shift[i];
          for (int c = 0; c < 4; ++c)
            z[c] = peers::fma(_mm512_load_ps(p[i] + 16 * c), peers::set(scale[i]), z[c]);
        }
        for (int c = 0; c < 4; ++c)
          _mm512_store_ps(pooled + (w + u) * 64 + 16 * c, _mm512_sub_ps(z[c], peers::set(offset)));
      }
    }
    for (int c = 0; c < 64; c += 16) {
      V r[16];
      for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(pooled + i * 64 + c);
      peers::transpose(r);
      for (int i = 0; i < 16; ++i) _mm512_stream_ps(out + (c + i) * channel_stride + w0, peers::gelu(r[i]));
    }
  }
}

// 16 columns of an output row, both width parities interleaved, channel c..c+15 in r.
void columns(const float* even, const float* odd, size_t w_stride, int c, V r[16]) {
  for (int i = 0; i < 8; ++i) {
    r[2 * i] = _mm512_load_ps(even + i * w_stride + c);
    r[2 * i + 1] = _mm512_load_ps(odd + i * w_stride + c);
  }
}

// layer norm, gelu: one output row of 64.
void tail_layernorm(const float* even, const float* odd, size_t ws, float* out, size_t channel_stride) {
  for (int w0 = 0; w0 < 64; w0 += 16, even += 8 * ws, odd += 8 * ws) {
    alignas(64) float block[64 * 16];
    V s = _mm512_setzero_ps(), q = s;
    for (int c = 0; c < 64; c += 16) {
      V r[16];
      columns(even, odd, ws, c, r);
      peers::transpose(r);
      for (int i = 0; i < 16; ++i) {
        _mm512_store_ps(block + (c + i) * 16, r[i]);
        s = _mm512_add_ps(s, r[i]);
        q = peers::fma(r[i], r[i], q);
      }
    }
    const V mean = _mm512_mul_ps(s, peers::set(1.f / 64));
    const V var = _mm512_fnmadd_ps(mean, mean, _mm512_mul_ps(q, peers::set(1.f / 64)));
    const V rstd = peers::inverse_sqrt(_mm512_add_ps(var, peers::set(1e-5f)));
    const V shift = _mm512_mul_ps(mean, rstd);
    for (int c = 0; c < 64; ++c) {
      _mm512_stream_ps(out + c * channel_stride + w0,
                       peers::gelu(_mm512_fmsub_ps(_mm512_load_ps(block + c * 16), rstd, shift)));
    }
  }
}

// max over 6x6x6, sum over channels: one row of 10.
void tail_max(const View& v, int d, int h, float* out, float bias) {
  for (int w = 0; w < 10; ++w) {
    V m[4] = {peers::set(-3e38f), peers::set(-3e38f), peers::set(-3e38f), peers::set(-3e38f)};
    for (int z = 0; z < 3; ++z) {
      for (int y = 0; y < 3; ++y) {
        for (int q = 0; q < 8; ++q) {
          const float* p = v.at(q, d + z, h + y) + 3 * w * v.w_stride;
          for (int i = 0; i < 3; ++i, p += v.w_stride) {
            for (int c = 0; c < 4; ++c) m[c] = _mm512_max_ps(m[c], _mm512_load_ps(p + 16 * c));
          }
        }
      }
    }
    out[w] = bias + _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(m[0], m[1]), _mm512_add_ps(m[2], m[3])));
  }
}

// exp(clamp(x, 0, 1)) stored, its sums by channel: one output row of 64.
void tail_exp(const float* even, const float* odd, size_t ws, float* out, size_t channel_stride,
              float* sums) {
  for (int w0 = 0; w0 < 64; w0 += 16, even += 8 * ws, odd += 8 * ws) {
    for (int c = 0; c < 64; c += 16) {
      V r[16], s = _mm512_load_ps(sums + c);
      columns(even, odd, ws, c, r);
      for (V& x : r) {
        x = peers::exp(_mm512_min_ps(_mm512_max_ps(x, _mm512_setzero_ps()), peers::set(1)));
        s = _mm512_add_ps(s, x);
      }
      _mm512_store_ps(sums + c, s);
      peers::transpose(r);
      for (int i = 0; i < 16; ++i) _mm512_stream_ps(out + (c + i) * channel_stride + w0, r[i]);
    }
  }
}

// ---- The pipelines
// --------------------------------------------------------------------------------------------

using Run = std::function<void()>;

auto lay_plain(const float* x, const Geometry& g) {
  const size_t volume = size_t(g.depth) * g.height * g.width;
  return [=](Tiles& tiles, int n, int d, int h) {
    const float* base = x + n * kIn * volume + (size_t(d) * g.height + h) * g.width;
    lay_row(tiles.row(n, d, h), g.width, tiles.cols(), kIn,
            [&](int c, int w) { return _mm512_loadu_ps(base + c * volume + w); });
  };
}

// For each output row of a tile: f(even columns, odd columns, w stride, offset of the row in an NCDHW
// output).
template <class F>
void for_each_row(const Tiles& tiles, const View& v, int n, int tile, int out_d, int out_h, int out_w, F f) {
  for (int z = 0; z < 2 * tiles.td(); ++z) {
    for (int y = 0; y < 2 * tiles.th(); ++y) {
      const int parity = (z & 1) * 4 + (y & 1) * 2;
      const size_t d = 2 * tiles.d0(tile) + z, h = 2 * tiles.h0(tile) + y;
      f(v.at(parity, z / 2, y / 2), v.at(parity + 1, z / 2, y / 2), v.w_stride,
        size_t(n) * kOut * out_d * out_h * out_w + (d * out_h + h) * out_w);
    }
  }
}

const std::vector<std::pair<int, int>> kTileSizes = {{1, 4}, {1, 8}, {1, 16}, {2, 8}};

struct Contender {
  std::vector<std::unique_ptr<Buffer>> tensors;
  std::unique_ptr<Buffer> out;
  size_t out_floats = 0;
  Run run;
};

Contender layernorm(int batch, bool pooled) {
  Contender c;
  c.tensors.push_back(load("input"));
  c.tensors.push_back(load("kernel"));
  const size_t os = pooled ? 16 * 32 * 32 : 32 * 64 * 64;
  c.out_floats = size_t(batch) * kOut * os;
  c.out = std::make_unique<Buffer>(c.out_floats);
  float* out = c.out->data;
  auto p = std::make_shared<Pipeline3d>();
  p->g = {batch, 16, 32, 32, pooled ? 3 : 4, 1, 16, 32, 32};
  p->lay = lay_plain(c.tensors[0]->data, p->g);
  if (pooled) {
    p->tail = [=](const Tiles& t, const View& v, int n, int tile, int) {
      for (int z = 0; z < t.td(); ++z) {
        for (int y = 0; y < t.th(); ++y) {
          tail_layernorm_pool(
              v, z, y, out + size_t(n) * kOut * os + (size_t(t.d0(tile) + z) * 32 + t.h0(tile) + y) * 32, os);
        }
      }
    };
  } else {
    p->tail = [=](const Tiles& t, const View& v, int n, int tile, int) {
      for_each_row(t, v, n, tile, 32, 64, 64, [&](const float* e, const float* o, size_t ws, size_t at) {
        tail_layernorm(e, o, ws, out + at, os);
      });
    };
  }
  p->choose(c.tensors[1]->data, kTileSizes);
  c.run = [p] { p->run(); };
  return c;
}

Contender max_max_sum(int batch) {
  Contender c;
  for (const char* name : {"input", "kernel", "conv_bias"}) c.tensors.push_back(load(name));
  c.out_floats = size_t(batch) * 1000;
  c.out = std::make_unique<Buffer>(c.out_floats);
  float* out = c.out->data;
  float bias = 0;  // a bias per channel commutes with max: one number behind the sum
  for (int i = 0; i < kOut; ++i) bias += c.tensors[2]->data[i];
  auto p = std::make_shared<Pipeline3d>();
  p->g = {batch, 32, 32, 32, 5, 2, 30, 30, 30};  // 60^3 of 63^3 outputs lie in whole windows
  p->lay = lay_plain(c.tensors[0]->data, p->g);
  p->tail = [=](const Tiles& t, const View& v, int n, int tile, int) {
    for (int z = 0; z < t.td(); z += 3) {
      for (int y = 0; y < t.th(); y += 3) {
        tail_max(v, z, y, out + ((size_t(n) * 10 + (t.d0(tile) + z) / 3) * 10 + (t.h0(tile) + y) / 3) * 10,
                 bias);
      }
    }
  };
  p->choose(c.tensors[1]->data, {{3, 3}, {3, 6}, {3, 15}});
  c.run = [p] { p->run(); };
  return c;
}

Contender softmax(int batch) {
  Contender c;
  for (const char* name : {"input", "kernel", "scale"}) c.tensors.push_back(load(name));
  const size_t is = 32 * 64 * 64, os = 32 * 64 * 64;
  c.out_floats = size_t(batch) * kOut * os;
  c.out = std::make_unique<Buffer>(c.out_floats);
  float* out = c.out->data;
  const float *x = c.tensors[0]->data, *scale = c.tensors[2]->data;
  auto sums = std::make_shared<Buffer>(2 * kOut);
  auto p = std::make_shared<Pipeline3d>();
  p->g = {batch, 16, 32, 32, 3, 1, 16, 32, 32};
  p->lay = [=](Tiles& tiles, int n, int d, int h) {  // the mean of 2x2x2 inputs
    const float* base = x + n * kIn * is + (size_t(2 * d) * 64 + 2 * h) * 64;
    lay_row(tiles.row(n, d, h), 32, 32, kIn, [&](int ch, int w) {
      const float* q = base + ch * is + 2 * w;
      auto sum = [&](int at) {
        return _mm512_add_ps(_mm512_add_ps(_mm512_loadu_ps(q + at), _mm512_loadu_ps(q + at + 64)),
                             _mm512_add_ps(_mm512_loadu_ps(q + at + 4096), _mm512_loadu_ps(q + at + 4160)));
      };
      const V a = sum(0), b = sum(16);
      const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
      return _mm512_mul_ps(
          _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)),
          peers::set(0.125f));
    });
  };
  p->tail = [=](const Tiles& t, const View& v, int n, int tile, int thread) {
    for_each_row(t, v, n, tile, 32, 64, 64, [&](const float* e, const float* o, size_t ws, size_t at) {
      tail_exp(e, o, ws, out + at, os, sums->data + thread * kOut);
    });
  };
  p->finish = [=](int n) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < kOut * 8; ++i) {
      const int ch = i / 8;
      const V factor = peers::set(scale[ch] / (sums->data[ch] + sums->data[kOut + ch]));
      float* o = out + size_t(n * kOut + ch) * os + (i % 8) * (os / 8);
      for (size_t k = 0; k < os / 8; k += 16)
        _mm512_stream_ps(o + k, _mm512_mul_ps(_mm512_load_ps(o + k), factor));
    }
    std::memset(sums->data, 0, 2 * kOut * 4);
  };
  p->choose(c.tensors[1]->data, kTileSizes);
  c.run = [p] { p->run(); };
  return c;
}

// conv 64 -> 128, k5 p1, 32x32 -> 34x34; batch norm with its own statistics, tanh, max pool 2, group norm 8.
Contender batchnorm(int batch) {
  Contender c;
  for (const char* name : {"input", "kernel", "bn_weight", "bn_bias", "gn_weight", "gn_bias"})
    c.tensors.push_back(load(name));
  constexpr int kC = 128, kOutSide = 34, kVoxels = kOutSide * kOutSide, kPooled = 17 * 17;
  c.out_floats = size_t(batch) * kC * kPooled;
  c.out = std::make_unique<Buffer>(c.out_floats);
  struct State {
    State(int n)
        : x(size_t(n) * 1024 * 64),
          y(size_t(n) * kVoxels * kC),
          sums(4 * kC),
          pooled(2 * kPooled * 16 + 64),
          stream(cpu()) {}
    Buffer x, y, sums, pooled;
    dnnl::stream stream;
    dnnl::deconvolution_forward primitive;
    Args args;
  };
  auto s = std::make_shared<State>(batch);
  const memory::desc xm({batch, 64, 32, 32}, kF32, Tag::nhwc),
      ym({batch, kC, kOutSide, kOutSide}, kF32, Tag::nhwc), wm({kC, 64, 5, 5}, kF32, Tag::any);
  const dnnl::deconvolution_forward::primitive_desc pd(cpu(), dnnl::prop_kind::forward_inference,
                                                       dnnl::algorithm::deconvolution_direct, xm, wm, ym,
                                                       {1, 1}, {1, 1}, {1, 1});
  memory user({{kC, 64, 5, 5}, kF32, Tag::iohw}, cpu()), packed(pd.weights_desc(), cpu());
  std::memcpy(user.get_data_handle(), c.tensors[1]->data, user.get_desc().get_size());
  dnnl::reorder(user, packed).execute(s->stream, user, packed);
  s->primitive = dnnl::deconvolution_forward(pd);
  s->args = {{DNNL_ARG_SRC, memory(xm, cpu(), s->x.data)},
             {DNNL_ARG_WEIGHTS, packed},
             {DNNL_ARG_DST, memory(ym, cpu(), s->y.data)}};
  const float *x = c.tensors[0]->data, *bw = c.tensors[2]->data, *bb = c.tensors[3]->data,
              *gw = c.tensors[4]->data, *gb = c.tensors[5]->data;
  float* out = c.out->data;
  c.run = [=] {
    std::memset(s->sums.data, 0, 4 * kC * 4);
#pragma omp parallel for collapse(2) schedule(static)
    for (int n = 0; n < batch; ++n) {
      for (int h = 0; h < 32; ++h) {
        const float* base = x + size_t(n) * 65536 + h * 32;
        lay_row(s->x.data + (size_t(n) * 1024 + h * 32) * 64, 32, 32, 64,
                [&](int ch, int w) { return _mm512_loadu_ps(base + ch * 1024 + w); });
      }
    }
    s->primitive.execute(s->stream, s->args);
    s->stream.wait();
#pragma omp parallel for schedule(static)
    for (int half = 0; half < 2; ++half) {
      const size_t rows = size_t(batch) * kVoxels / 2;
      for (int ch = 0; ch < kC; ch += 32) {
        V a[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        const float* p = s->y.data + half * rows * kC + ch;
        for (size_t r = 0; r < rows; ++r, p += kC) {
          const V u = _mm512_load_ps(p), v = _mm512_load_ps(p + 16);
          a[0] = _mm512_add_ps(a[0], u), a[1] = _mm512_add_ps(a[1], v);
          a[2] = peers::fma(u, u, a[2]), a[3] = peers::fma(v, v, a[3]);
        }
        for (int i = 0; i < 4; ++i)
          _mm512_store_ps(s->sums.data + half * 2 * kC + (i / 2) * kC + ch + (i % 2) * 16, a[i]);
      }
    }
    alignas(64) float scale[kC], shift[kC];
    const double count = double(batch) * kVoxels;
    for (int ch = 0; ch < kC; ++ch) {
      const double mean = (double(s->sums.data[ch]) + s->sums.data[2 * kC + ch]) / count;
      const double var = (double(s->sums.data[kC + ch]) + s->sums.data[3 * kC + ch]) / count - mean * mean;
      scale[ch] = float(bw[ch] / std::sqrt(var + 1e-5));
      shift[ch] = float(bb[ch] - mean * scale[ch]);
    }
#pragma omp parallel for schedule(static)
    for (int n = 0; n < batch; ++n) {
      float* q = s->pooled.data + omp_get_thread_num() * kPooled * 16;
      for (int g = 0; g < 8; ++g) {
        const V a = _mm512_load_ps(scale + 16 * g), b = _mm512_load_ps(shift + 16 * g);
        V sum = _mm512_setzero_ps(), squares = sum;
        for (int h = 0; h < 17; ++h) {
          for (int w = 0; w < 17; ++w) {
            const float* p = s->y.data + (size_t(n) * kVoxels + 2 * h * kOutSide + 2 * w) * kC + 16 * g;
            V m = peers::fma(_mm512_load_ps(p), a, b);
            for (const int at : {kC, kOutSide * kC, (kOutSide + 1) * kC})
              m = _mm512_max_ps(m, peers::fma(_mm512_load_ps(p + at), a, b));
            m = peers::tanh(m);
            _mm512_store_ps(q + (h * 17 + w) * 16, m);
            sum = _mm512_add_ps(sum, m);
            squares = peers::fma(m, m, squares);
          }
        }
        const float mean = _mm512_reduce_add_ps(sum) / (kPooled * 16);
        const float rstd =
            1 / std::sqrt(_mm512_reduce_add_ps(squares) / (kPooled * 16) - mean * mean + 1e-5f);
        const V G = _mm512_mul_ps(_mm512_loadu_ps(gw + 16 * g), peers::set(rstd));
        const V H = _mm512_fnmadd_ps(peers::set(mean), G, _mm512_loadu_ps(gb + 16 * g));
        float* o = out + (size_t(n) * kC + 16 * g) * kPooled;
        for (int k = 0; k < kPooled; k += 16) {
          V r[16];
          for (int i = 0; i < 16; ++i)
            r[i] = peers::fma(_mm512_load_ps(q + std::min(k + i, kPooled - 1) * 16), G, H);
          peers::transpose(r);
          const __mmask16 mask = k + 16 <= kPooled ? 0xffff : __mmask16((1u << (kPooled - k)) - 1);
          for (int i = 0; i < 16; ++i) _mm512_mask_storeu_ps(o + i * kPooled + k, mask, r[i]);
        }
      }
    }
  };
  return c;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: onednn SLUG FOLDER BATCH\n");
    return 2;
  }
  const std::string slug = argv[1];
  g_folder = argv[2];
  const int batch = std::atoi(argv[3]);
  omp_set_num_threads(2);
  omp_set_dynamic(0);
  Contender c = slug == "conv-transpose3d-sum-layernorm-avgpool-gelu"       ? layernorm(batch, true)
                : slug == "conv-transpose3d-layernorm-gelu-scaling"         ? layernorm(batch, false)
                : slug == "conv-transpose3d-max-max-sum"                    ? max_max_sum(batch)
                : slug == "conv-transpose3d-avgpool-clamp-softmax-multiply" ? softmax(batch)
                                                                            : batchnorm(batch);
  c.run();
  std::ofstream(g_folder + "/onednn.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(c.out->data), static_cast<std::streamsize>(c.out_floats * 4));
  peers::serve(c.run);
}
