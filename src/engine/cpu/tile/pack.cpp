#include "engine/cpu/tile/pack.h"

#include <algorithm>
#include <cstring>

#include "engine/cpu/tile/move.h"

namespace upweave::cpu {
namespace {

int64_t own_scratch_floats(const ConvStage& conv) {
  int64_t most = kStageFloats;
  for (const ConvSource& source : conv.sources) most = std::max(most, head_scratch_floats(source));
  return round_up(most, kLane);
}

}  // namespace

int64_t pack_scratch_floats(const ConvStage& conv) {
  int64_t floats = own_scratch_floats(conv);
  for (const ConvSource& source : conv.sources) floats += head_vectors(source) * padded(source.dims.c);
  return floats;
}

// The steps behind the convolution use the first kStageFloats too; vectors stay from wave to wave.
Packer::Packer(const ConvStage& conv, const Bases& bases, float* scratch)
    : conv_(conv), bases_(bases), vectors_(scratch + own_scratch_floats(conv)), scratch_(scratch) {}

void Packer::pack_rows(const Box& box, int64_t n, int64_t d, int64_t h, int64_t count, char* dst) {
  PackedRows rows;
  rows.dst = dst;
  rows.type = conv_.kernel->input_type();
  rows.ld = conv_.kernel->channels_in();
  const int64_t size = size_of(rows.type), width = box.extent[2], position = rows.ld * size;
  const Extents& space = conv_.in.space;
  rows.row_bytes = width * position;
  rows.n = n;
  rows.d = box.lo[0] + d;
  rows.h = box.lo[1] + h;
  rows.w = box.lo[2];
  rows.from = std::clamp<int64_t>(-rows.w, 0, width);
  rows.to = std::clamp<int64_t>(space[2] - rows.w, rows.from, width);
  const bool outside = rows.d < 0 || rows.d >= space[0] || rows.from == rows.to;
  rows.first = std::clamp<int64_t>(-rows.h, 0, count);
  rows.end = outside ? rows.first : std::clamp<int64_t>(space[1] - rows.h, rows.first, count);
  for (int64_t r = 0; r < count; ++r) {
    char* row = dst + r * rows.row_bytes;
    if (r < rows.first || r >= rows.end || rows.ld != conv_.in.c) {
      std::memset(row, 0, static_cast<size_t>(rows.row_bytes));
    } else {
      std::memset(row, 0, static_cast<size_t>(rows.from * position));
      std::memset(row + rows.to * position, 0, static_cast<size_t>((width - rows.to) * position));
    }
  }
  const bool prepared = sample_ == n;
  float* vectors = vectors_;
  for (const ConvSource& source : conv_.sources) {
    if (!prepared) load_head_vectors(source, bases_, n, vectors);
    PackedRows share = rows;
    share.dst += source.c0 * size;
    pack_source(source, bases_, share, vectors, scratch_);
    vectors += head_vectors(source) * padded(source.dims.c);
  }
  sample_ = n;
}

}  // namespace upweave::cpu
