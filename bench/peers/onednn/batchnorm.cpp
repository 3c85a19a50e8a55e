// convolution 64 -> 128, k5 p1, 32x32 -> 34x34; batch norm with its own statistics, tanh, max pool 2, group
// norm 8. Two ways, of which the faster is kept: the whole batch by one primitive on two threads, as a
// framework would; or each thread its own samples, pooled while they are in its cache by what the sign of the
// norm's weight makes of the maximum.
#include <cmath>

#include "../worker.h"
#include "contender.h"

namespace peers {
namespace {

constexpr int kC = 128, kX = 32, kY = 34, kVoxels = kY * kY, kP = 17, kPooled = kP * kP, kCIn = 64;

template <class T>
class BatchNorm {
 public:
  BatchNorm(const std::string& folder, int batch, T* out, bool whole)
      : batch_(batch),
        whole_(whole),
        out_(out),
        input_(load_tensor<T>(folder, "input")),
        x_(size_t(whole ? batch : 2) * kX * kX * kCIn),
        y_(size_t(whole ? batch : 2) * kVoxels * kC),
        pooled_(whole ? 1 : size_t(batch) * kPooled * kC),
        sums_(2 * 2 * kC),
        group_(2 * kPooled * 16 + 64) {
    for (const char* name : {"bn_weight", "bn_bias", "gn_weight", "gn_bias"}) {
      const auto tensor = load_tensor<T>(folder, name);
      std::vector<float> values;
      for (int i = 0; i < kC; ++i) values.push_back(number(tensor->data[i]));
      affine_.push_back(values);
    }
    const auto weights = load_tensor<T>(folder, "kernel");
    if (!whole) omp_set_num_threads(1);  // primitives are made, and run, by one thread each
    for (int t = 0; t < (whole ? 1 : 2); ++t) {
      const int n = whole ? batch : 1;
      const memory::desc xm({n, kCIn, kX, kX}, kType<T>, Tag::nhwc), ym({n, kC, kY, kY}, kF32, Tag::nhwc),
          wm({kC, kCIn, 5, 5}, kType<T>, Tag::any);
      const dnnl::deconvolution_forward::primitive_desc pd(cpu(), dnnl::prop_kind::forward_inference,
                                                           dnnl::algorithm::deconvolution_direct, xm, wm, ym,
                                                           {1, 1}, {1, 1}, {1, 1}, own_scratch());
      memory user({{kC, kCIn, 5, 5}, kType<T>, Tag::iohw}, cpu());
      std::memcpy(user.get_data_handle(), weights->data, user.get_desc().get_size());
      calls_.push_back(Call::make<dnnl::deconvolution_forward>(pd, user, xm, x_.data + t * kX * kX * kCIn, ym,
                                                               y_.data + t * kVoxels * kC));
      streams_.emplace_back(cpu());
    }
    omp_set_num_threads(2);
  }

  void run() {
    std::memset(sums_.data, 0, 2 * 2 * kC * 4);
    if (whole_)
      convolve_batch();
    else
      convolve_samples();
    alignas(64) float scale[kC], shift[kC];
    const double count = double(batch_) * kVoxels;
    for (int c = 0; c < kC; ++c) {
      const double mean = (double(sums_.data[c]) + sums_.data[2 * kC + c]) / count;
      const double var = (double(sums_.data[kC + c]) + sums_.data[3 * kC + c]) / count - mean * mean;
      scale[c] = float(affine_[0][c] / std::sqrt(var + 1e-5));
      shift[c] = float(affine_[1][c] - mean * scale[c]);
    }
#pragma omp parallel for schedule(static)
    for (int n = 0; n < batch_; ++n) {
      for (int c = 0; c < kC; c += 16) finish_group(n, c, load(scale + c), load(shift + c));
    }
  }

 private:
  void lay(int n, int h, T* x) {
    const T* base = input_->data + size_t(n) * kCIn * kX * kX + h * kX;
    lay_row(x + h * kX * kCIn, kX, kX, kCIn, [&](int c, int w) { return load(base + c * kX * kX + w); });
  }

  void convolve_batch() {
#pragma omp parallel for collapse(2) schedule(static)
    for (int n = 0; n < batch_; ++n) {
      for (int h = 0; h < kX; ++h) lay(n, h, x_.data + size_t(n) * kX * kX * kCIn);
    }
    calls_[0].primitive.execute(streams_[0], calls_[0].args);
    streams_[0].wait();
#pragma omp parallel for schedule(static)
    for (int half = 0; half < 2; ++half) {
      const size_t rows = size_t(batch_) * kVoxels / 2;
      add_sums(y_.data + half * rows * kC, rows, half);
    }
  }

  void convolve_samples() {
#pragma omp parallel for schedule(dynamic)
    for (int n = 0; n < batch_; ++n) {
      const int t = omp_get_thread_num();
      for (int h = 0; h < kX; ++h) lay(n, h, x_.data + t * kX * kX * kCIn);
      calls_[t].primitive.execute(streams_[t], calls_[t].args);
      streams_[t].wait();
      const float* y = y_.data + t * kVoxels * kC;
      add_sums(y, kVoxels, t);
      float* p = pooled_.data + size_t(n) * kPooled * kC;
      const __m512i minus = _mm512_set1_epi32(int(0x80000000u));
      for (int c = 0; c < kC; c += 16) {  // the maximum of +-y, then +- that
        const __m512i sign = _mm512_and_si512(_mm512_castps_si512(load(&affine_[0][c])), minus);
        const auto signed_of = [&](V v) {
          return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), sign));
        };
        for (int h = 0; h < kP; ++h) {
          for (int w = 0; w < kP; ++w) {
            const float* q = y + (2 * h * kY + 2 * w) * kC + c;
            const V a = _mm512_max_ps(signed_of(load(q)), signed_of(load(q + kC)));
            const V b = _mm512_max_ps(signed_of(load(q + kY * kC)), signed_of(load(q + (kY + 1) * kC)));
            store(p + (c / 16 * kPooled + h * kP + w) * 16, signed_of(_mm512_max_ps(a, b)));
          }
        }
      }
    }
  }

  void add_sums(const float* y, size_t rows, int thread) {
    for (int c = 0; c < kC; c += 32) {
      V a[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
      const float* p = y + c;
      for (size_t r = 0; r < rows; ++r, p += kC) {
        const V u = load(p), v = load(p + 16);
        a[0] = _mm512_add_ps(a[0], u), a[1] = _mm512_add_ps(a[1], v);
        a[2] = fma(u, u, a[2]), a[3] = fma(v, v, a[3]);
      }
      for (int i = 0; i < 4; ++i) {
        float* s = sums_.data + thread * 2 * kC + (i / 2) * kC + c + (i % 2) * 16;
        store(s, _mm512_add_ps(load(s), a[i]));
      }
    }
  }

  // 16 channels of a sample are one group.
  void finish_group(int n, int c, V a, V b) {
    float* q = group_.data + omp_get_thread_num() * kPooled * 16;
    V sum = _mm512_setzero_ps(), squares = sum;
    const auto value = [&](int i) {
      if (!whole_) return fma(load(pooled_.data + ((size_t(n) * kC + c) * kPooled + i * 16)), a, b);
      const float* p = y_.data + (size_t(n) * kVoxels + 2 * (i / kP) * kY + 2 * (i % kP)) * kC + c;
      V m = fma(load(p), a, b);
      for (const int at : {kC, kY * kC, (kY + 1) * kC}) m = _mm512_max_ps(m, fma(load(p + at), a, b));
      return m;
    };
    for (int i = 0; i < kPooled; ++i) {
      const V m = tanh(value(i));
      store(q + i * 16, m);
      sum = _mm512_add_ps(sum, m);
      squares = fma(m, m, squares);
    }
    const float mean = _mm512_reduce_add_ps(sum) / (kPooled * 16);
    const float var = _mm512_reduce_add_ps(squares) / (kPooled * 16) - mean * mean;
    const V G = _mm512_mul_ps(load(&affine_[2][c]), set(1 / std::sqrt(var + 1e-5f)));
    const V H = _mm512_fnmadd_ps(set(mean), G, load(&affine_[3][c]));
    T* o = out_ + (size_t(n) * kC + c) * kPooled;
    for (int k = 0; k < kPooled; k += 16) {
      V r[16];
      for (int i = 0; i < 16; ++i) r[i] = fma(load(q + std::min(k + i, kPooled - 1) * 16), G, H);
      transpose(r);
      const __mmask16 mask = k + 16 <= kPooled ? 0xffff : __mmask16((1u << (kPooled - k)) - 1);
      for (int i = 0; i < 16; ++i) store(o + i * kPooled + k, r[i], mask);
    }
  }

  const int batch_;
  const bool whole_;
  T* out_;
  std::shared_ptr<Buffer<T>> input_;
  Buffer<T> x_;
  Buffer<float> y_, pooled_, sums_, group_;  // sums: (sum, squares) by thread
  std::vector<std::vector<float>> affine_;
  std::vector<Call> calls_;
  std::vector<dnnl::stream> streams_;
};

}  // namespace

template <class T>
Contender<T> batchnorm(const std::string& folder, int batch) {
  Contender<T> c;
  c.elements = size_t(batch) * kC * kPooled;
  c.out = std::make_unique<Buffer<T>>(c.elements);
  double best = 1e30;
  for (const bool whole : {true, false}) {
    auto way = std::make_shared<BatchNorm<T>>(folder, batch, c.out->data, whole);
    way->run();
    for (int i = 0; i < 4; ++i) {
      const double start = now_ms();
      way->run();
      const double time = now_ms() - start;
      if (time >= best) continue;
      best = time;
      c.run = [way] { way->run(); };
      c.chosen = whole ? "deconvolution of the batch" : "deconvolution, sample by sample";
    }
  }
  return c;
}

template Contender<float> batchnorm(const std::string&, int);
#ifdef __AVX512BF16__
template Contender<Bf16> batchnorm(const std::string&, int);
#endif

}  // namespace peers
