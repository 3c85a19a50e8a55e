#pragma once
// How partial statistics become whole ones. Tiles, threads, blocks and ranks all combine through these, in a
// fixed order, so that results repeat bit for bit and a mean far larger than the spread does no harm.
#include <cmath>
#include <limits>

namespace upweave {

// Mean and summed squared differences of `count` values (Chan, Golub and LeVeque 1979).
struct Moments {
  double count = 0, mean = 0, m2 = 0;

  void add(const Moments& other) {
    if (other.count == 0) return;
    const double n = count + other.count, delta = other.mean - mean;
    mean += delta * (other.count / n);
    m2 += other.m2 + delta * delta * (count * other.count / n);
    count = n;
  }
  double variance() const { return m2 / count; }
};

// The largest value so far and sum exp(x - top): log-sum-exp and softmax without overflow.
struct ExpSum {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;

  void add(const ExpSum& other) {
    if (std::isnan(other.top) || std::isnan(top)) {
      top = sum = std::numeric_limits<double>::quiet_NaN();
    } else if (other.top == top) {
      sum += other.sum;
    } else if (other.top > top) {
      sum = (sum == 0 ? 0 : sum * std::exp(top - other.top)) + other.sum;
      top = other.top;
    } else {
      sum += other.sum == 0 ? 0 : other.sum * std::exp(other.top - top);
    }
  }
};

}  // namespace upweave
