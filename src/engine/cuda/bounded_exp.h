#pragma once
// exp on a short interval as a polynomial: multiply-adds on the pipe that has most of them, instead of the
// special function unit, which takes eight times as long.
#include <vector>

namespace upweave::cuda {

// Coefficients of P, highest first, with |P(t) / exp(slope t + offset) - 1| <= `error` for 0 <= t <= length
// and the least degree that does so with float32 coefficients; empty if degree 8 does not. slope > 0, so that
// all coefficients are positive and Horner's rule in float32 loses no more than an ulp or two.
std::vector<float> exp_polynomial(double slope, double offset, double length, double error);

}  // namespace upweave::cuda
