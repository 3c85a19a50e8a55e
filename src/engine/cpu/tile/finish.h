#pragma once
// Statistics of a tile program: local ones, the factors that norms make of them, and the combination of the
// tiles' shares into whole reductions.
#include "engine/cpu/tile/tile.h"

namespace upweave::cpu {

// Mean and variance of each channel's set (itself, or its group's channels) over rows of `positions`.
void local_moments(const Step& step, const float* x, int64_t ld, int64_t channels, int64_t positions,
                   double* mean, double* variance);

// normalize as (x - center) * scale + shift. `stats` are local (mean, then variance from `stats_ld` on), or
// null: then step.memory has them for the whole tensor.
void norm_factors(const Step& step, const Bases& bases, const double* stats, int64_t stats_ld, int64_t n,
                  int64_t c0, int64_t channels, const Dims& dims, float* center, float* scale, float* shift);
// softmax_apply as exp(x - top) * scale.
void softmax_factors(const Step& step, const Bases& bases, int64_t n, int64_t c0, int64_t channels,
                     const Dims& dims, float* top, float* scale);

// (x - mean) / sqrt(var + eps) down the columns of `rows` rows; `scratch` holds 8 * padded(cols).
void norm_columns(const float* x, int64_t ld, int64_t rows, int64_t cols, bool rms, double eps,
                  float* scratch, float* out);

int64_t finish_sets(const Reduction& reduction, const Dims& dims);
// Combines the shares of set `s` in the order of samples, channels and tiles. Each (sample, tile) has left
// two float64 a channel: all firsts, then all seconds; `counts` are the positions behind each tile's share.
void finish_set(const Reduction& reduction, const Dims& dims, int64_t s, const double* shares,
                const std::vector<int64_t>& counts, const Bases& bases);

}  // namespace upweave::cpu
