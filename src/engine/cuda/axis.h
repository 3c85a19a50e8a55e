#pragma once
// One axis of a convolution: which taps reach which outputs, and how far.
#include <algorithm>

#include "base/error.h"
#include "engine/cuda/convolution.h"

namespace upweave::cuda {

inline int floor_div(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline int round_up(int a, int b) { return ceil_div(a, b) * b; }
inline int modulo(int a, int b) { return a - floor_div(a, b) * b; }

// Channels of a row of the copy: as many as a swizzle's pattern has, in blocks of 64 if there are more.
inline int row_channels(int c_in) { return c_in <= 16 ? 16 : c_in <= 32 ? 32 : 64; }

// What the geometry says of its axis `a`.
inline bool read_axis(const ConvGeometry& g, size_t a, Axis& x, std::string& why) {
  if (g.in[a] > 1 << 20 || g.out[a] > 1 << 20) return why = "an extent is beyond a million", false;
  x.in = static_cast<int>(g.in[a]);
  x.kernel = static_cast<int>(g.kernel[a]);
  x.stride = static_cast<int>(g.stride[a]);
  x.padding = static_cast<int>(g.padding[a]);
  x.dilation = static_cast<int>(g.dilation[a]);
  x.out = static_cast<int>(g.out[a]);
  return true;
}

// (e + padding - k dilation) / stride, if it is whole.
inline bool reaches(const Axis& x, int e, int k, int& delta) {
  const int at = e + x.padding - k * x.dilation;
  if (modulo(at, x.stride) != 0) return false;
  delta = floor_div(at, x.stride);
  return true;
}

// A gap of zeros that serves as this line's right border and the next line's left one.
inline void set_pitch(Axis& x) {
  x.stored = ceil_div(x.in, x.f);
  const int gap = std::max({0, -x.lo, x.windows - 1 + x.hi - (x.stored - 1)});
  x.pitch = std::max(x.stored + gap, x.windows);
}

// Without inputs that no window needs.
inline void crop(Axis& x) {
  x.in = std::min(x.in, (x.windows + x.hi) * x.f);
  set_pitch(x);
}

inline bool make_axis(Axis& x, int pool, bool all_outputs, std::string& why) {
  const bool pooled = pool > 1;
  x.window = pooled ? pool : x.stride;
  if (x.window % x.stride != 0) {
    why = fmt::format("the pool's window {} is no multiple of the stride {}", x.window, x.stride);
    return false;
  }
  x.f = x.window / x.stride;
  x.windows = pooled && !all_outputs ? x.out / pool : ceil_div(x.out, x.window);
  x.once = x.f;
  x.phases = x.stride;
  bool any = false;
  for (int e = 0; e < x.stride; ++e) {
    for (int k = 0; k < x.kernel; ++k) {
      int delta = 0;
      if (!reaches(x, e, k, delta)) continue;
      for (int u = 0; u < x.f; ++u) {
        const int a = floor_div(delta + u, x.f);
        x.lo = any ? std::min(x.lo, a) : a;
        x.hi = any ? std::max(x.hi, a) : a;
        any = true;
      }
    }
  }
  set_pitch(x);
  return true;
}

}  // namespace upweave::cuda
