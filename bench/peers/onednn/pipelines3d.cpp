// The four pipelines around a stride-2 convolution in three dimensions.
#include "../worker.h"
#include "contender.h"
#include "tails.h"

namespace peers {
namespace {

// For each sample: lays its input, then runs tiles and their tails on both threads, once or twice.
template <class T>
struct Pipeline3d {
  using Tail = std::function<void(const Tiles<T>&, const View&, int n, int tile, int thread)>;
  Geometry g;
  std::function<void(Tiles<T>&, int n, int d, int h)> lay;  // one input row
  std::vector<Tail> sweeps;                                 // over all tiles
  std::function<void(int n)> between = [](int) {};          // behind the first sweep
  std::unique_ptr<Tiles<T>> tiles;
  double best = 1e30;

  void run(int samples) {
    const int rows = g.jh == 30 ? 31 : g.height, planes = g.jd == 30 ? 31 : g.depth;
    for (int n = 0; n < samples; ++n) {
#pragma omp parallel for collapse(2) schedule(static)
      for (int d = 0; d < planes; ++d) {
        for (int h = 0; h < rows; ++h) lay(*tiles, n, d, h);
      }
      for (size_t s = 0; s < sweeps.size(); ++s) {
#pragma omp parallel for schedule(dynamic)
        for (int i = 0; i < tiles->count(); ++i) {
          const int thread = omp_get_thread_num();
          sweeps[s](*tiles, tiles->run(i, thread), n, i, thread);
        }
        if (s == 0) between(n);
      }
    }
  }

  // Keeps the fastest of both ways to make a tile at a few tile sizes.
  std::string choose(const T* weights, const std::vector<std::pair<int, int>>& sizes) {
    std::unique_ptr<Tiles<T>> winner;
    std::string name;
    const int samples = std::min(g.batch, 2);
    for (const bool split : {false, true}) {
      for (const auto& [td, th] : sizes) {
        tiles = std::make_unique<Tiles<T>>(g, weights, split, td, th);
        run(samples);
        double least = 1e30;
        for (int i = 0; i < 4; ++i) {
          const double start = now_ms();
          run(samples);
          least = std::min(least, now_ms() - start);
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
    return name;
  }
};

const std::vector<std::pair<int, int>> kTileSizes = {{1, 4}, {1, 8}, {1, 16}, {2, 8}};

template <class T>
auto lay_plain(std::shared_ptr<Buffer<T>> x, const Geometry& g) {
  const size_t volume = size_t(g.depth) * g.height * g.width;
  return [=](Tiles<T>& tiles, int n, int d, int h) {
    const T* base = x->data + n * kIn * volume + (size_t(d) * g.height + h) * g.width;
    lay_row(tiles.row(d, h), g.width, tiles.cols(), kIn,
            [&](int c, int w) { return load(base + c * volume + w); });
  };
}

// For each of a tile's output rows of 64, 64 x 32 to a channel: f(even columns, odd columns, their stride,
// offset of the row in the sample's output).
template <class T, class F>
void for_each_row(const Tiles<T>& tiles, const View& v, int tile, F f) {
  for (int z = 0; z < 2 * tiles.td(); ++z) {
    for (int y = 0; y < 2 * tiles.th(); ++y) {
      const int parity = (z & 1) * 4 + (y & 1) * 2;
      const size_t d = 2 * tiles.d0(tile) + z, h = 2 * tiles.h0(tile) + y;
      f(v.at(parity, z / 2, y / 2), v.at(parity + 1, z / 2, y / 2), v.w_stride, (d * 64 + h) * 64);
    }
  }
}

template <class T>
Contender<T> start(size_t elements) {
  Contender<T> c;
  c.elements = elements;
  c.out = std::make_unique<Buffer<T>>(elements);
  return c;
}

// The mean of 2x2x2 inputs, rounded to T: what a bf16 primitive reads.
template <class T>
auto lay_pooled(std::shared_ptr<Buffer<T>> x) {
  return [=](Tiles<T>& tiles, int n, int d, int h) {
    constexpr size_t kRow = 64, kPlane = 64 * 64, kVolume = 32 * kPlane;
    const T* base = x->data + n * kIn * kVolume + 2 * d * kPlane + 2 * h * kRow;
    lay_row(tiles.row(d, h), 32, 32, kIn, [&](int channel, int w) {
      const T* q = base + channel * kVolume + 2 * w;
      const auto sum = [&](int at) {
        return _mm512_add_ps(_mm512_add_ps(load(q + at), load(q + at + kRow)),
                             _mm512_add_ps(load(q + at + kPlane), load(q + at + kPlane + kRow)));
      };
      const V a = sum(0), b = sum(16);
      return _mm512_mul_ps(_mm512_add_ps(evens(a, b), odds(a, b)), set(0.125f));
    });
  };
}

}  // namespace

template <class T>
Contender<T> layernorm(const std::string& folder, int batch, bool pooled) {
  const size_t volume = pooled ? 16 * 32 * 32 : 32 * 64 * 64;
  Contender<T> c = start<T>(size_t(batch) * kOut * volume);
  T* out = c.out->data;
  auto p = std::make_shared<Pipeline3d<T>>();
  p->g = {batch, 16, 32, 32, pooled ? 3 : 4, 1, 16, 32, 32};
  p->lay = lay_plain(load_tensor<T>(folder, "input"), p->g);
  if (pooled) {
    p->sweeps = {[=](const Tiles<T>& t, const View& v, int n, int tile, int) {
      for (int z = 0; z < t.td(); ++z) {
        for (int y = 0; y < t.th(); ++y) {
          const size_t row = (size_t(t.d0(tile) + z) * 32 + t.h0(tile) + y) * 32;
          tail_layernorm_pool(v, z, y, out + size_t(n) * kOut * volume + row, volume);
        }
      }
    }};
  } else {
    p->sweeps = {[=](const Tiles<T>& t, const View& v, int n, int tile, int) {
      for_each_row(t, v, tile, [&](const float* even, const float* odd, size_t ws, size_t at) {
        tail_layernorm(even, odd, ws, out + size_t(n) * kOut * volume + at, volume);
      });
    }};
  }
  c.chosen = p->choose(load_tensor<T>(folder, "kernel")->data, kTileSizes);
  c.run = [p] { p->run(p->g.batch); };
  return c;
}

template <class T>
Contender<T> max_max_sum(const std::string& folder, int batch) {
  Contender<T> c = start<T>(size_t(batch) * 1000);
  T* out = c.out->data;
  const auto biases = load_tensor<T>(folder, "conv_bias");
  float bias = 0;  // a bias per channel commutes with max: one number behind the sum
  for (int i = 0; i < kOut; ++i) bias += number(biases->data[i]);
  auto p = std::make_shared<Pipeline3d<T>>();
  p->g = {batch, 32, 32, 32, 5, 2, 30, 30, 30};  // 60^3 of 63^3 outputs lie in whole windows
  p->lay = lay_plain(load_tensor<T>(folder, "input"), p->g);
  p->sweeps = {[=](const Tiles<T>& t, const View& v, int n, int tile, int) {
    for (int z = 0; z < t.td(); z += 3) {
      for (int y = 0; y < t.th(); y += 3) {
        const int d = (t.d0(tile) + z) / 3, h = (t.h0(tile) + y) / 3;
        tail_max(v, z, y, out + ((size_t(n) * 10 + d) * 10 + h) * 10, bias);
      }
    }
  }};
  c.chosen = p->choose(load_tensor<T>(folder, "kernel")->data, {{3, 3}, {3, 6}, {3, 15}});
  c.run = [p] { p->run(p->g.batch); };
  return c;
}

// No maximum is needed: the clamp bounds the exponents. float32 stores the exponentials in the output and
// scales them in a second sweep over it. A 16-bit output would round them, so that one either keeps a
// sample's exponentials in float32 beside it, or computes the convolution again; the faster is kept.
template <class T>
Contender<T> softmax(const std::string& folder, int batch) {
  constexpr size_t kVolume = 32 * 64 * 64;
  constexpr bool kOwnStash = !std::is_same_v<T, float>;
  Contender<T> c = start<T>(size_t(batch) * kOut * kVolume);
  T* out = c.out->data;
  const auto weights = load_tensor<T>(folder, "kernel"), scale = load_tensor<T>(folder, "scale"),
             input = load_tensor<T>(folder, "input");
  auto sums = std::make_shared<Buffer<float>>(3 * kOut);  // of both threads; then factors
  float* factor = sums->data + 2 * kOut;
  const auto make_factors = [=] {
    for (int i = 0; i < kOut; ++i)
      factor[i] = number(scale->data[i]) / (sums->data[i] + sums->data[kOut + i]);
    std::memset(sums->data, 0, 2 * kOut * 4);
  };

  auto stored = std::make_shared<Pipeline3d<T>>();
  stored->g = {batch, 16, 32, 32, 3, 1, 16, 32, 32};
  stored->lay = lay_pooled(input);
  auto stash = std::make_shared<Buffer<float>>(kOwnStash ? kOut * kVolume : 1);
  const auto stash_of = [=](int n) {
    if constexpr (kOwnStash)
      return stash->data + 0 * n;
    else
      return out + size_t(n) * kOut * kVolume;
  };
  stored->sweeps = {[=](const Tiles<T>& t, const View& v, int n, int tile, int thread) {
    for_each_row(t, v, tile, [&](const float* even, const float* odd, size_t ws, size_t at) {
      tail_exp(even, odd, ws, stash_of(n) + at, kVolume, nullptr, sums->data + thread * kOut);
    });
  }};
  stored->between = [=](int n) {
    make_factors();
#pragma omp parallel for schedule(static)
    for (int i = 0; i < kOut * 8; ++i) {
      const size_t at = i * (kVolume / 8);
      const V f = set(factor[i / 8]);
      const float* from = stash_of(n) + at;
      T* to = out + size_t(n) * kOut * kVolume + at;
      for (size_t k = 0; k < kVolume / 8; k += 32)
        stream(to + k, _mm512_mul_ps(load(from + k), f), _mm512_mul_ps(load(from + k + 16), f));
    }
  };
  c.chosen = stored->choose(weights->data, kTileSizes);
  auto best = stored;

  if constexpr (kOwnStash) {
    auto twice = std::make_shared<Pipeline3d<T>>();
    twice->g = stored->g;
    twice->lay = stored->lay;
    twice->sweeps = {
        [=](const Tiles<T>& t, const View& v, int, int tile, int thread) {
          for_each_row(t, v, tile, [&](const float* even, const float* odd, size_t ws, size_t) {
            tail_exp_sums(even, odd, ws, sums->data + thread * kOut);
          });
        },
        [=](const Tiles<T>& t, const View& v, int n, int tile, int) {
          for_each_row(t, v, tile, [&](const float* even, const float* odd, size_t ws, size_t at) {
            tail_exp(even, odd, ws, out + size_t(n) * kOut * kVolume + at, kVolume, factor, nullptr);
          });
        }};
    twice->between = [=](int) { make_factors(); };
    const std::string chosen = twice->choose(weights->data, kTileSizes);
    if (twice->best < stored->best) {
      best = twice;
      c.chosen = chosen + ", computed twice";
    } else {
      c.chosen += ", exponentials kept in float32";
    }
  }
  c.run = [best] { best->run(best->g.batch); };
  return c;
}

template Contender<float> layernorm(const std::string&, int, bool);
template Contender<float> max_max_sum(const std::string&, int);
template Contender<float> softmax(const std::string&, int);
#ifdef __AVX512BF16__
template Contender<Bf16> layernorm(const std::string&, int, bool);
template Contender<Bf16> max_max_sum(const std::string&, int);
template Contender<Bf16> softmax(const std::string&, int);
#endif

}  // namespace peers
