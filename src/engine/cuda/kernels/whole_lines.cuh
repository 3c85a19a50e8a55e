R"cuda(
// Whole lines: windows of rows of a tile. f(column, line, window) for each of every column.
template <class G, class F> DEVICE void each_window(F f) {
  for (int k = threadIdx.x; k < G::kCombinedWindows; k += G::kThreads) {
    f(k / (G::kWindowsAcross * G::kWindowLines), k / G::kWindowsAcross % G::kWindowLines, k % G::kWindowsAcross);
  }
}
template <class G> DEVICE int window_place(int column, int line, int window) {
  return (column * G::kWindowLines + line) * G::kWindowsAcross + window;
}
// A window's value, from shared memory: a column's rows in a row, columns kCombinedPitch apart.
template <class G, class Combine> DEVICE float window_of_rows(const float* rows, int column, int line, int window, Combine combine) {
  const float* at = rows + column * G::kCombinedPitch + line * G::kCombineH * G::kPitchW + window * G::kCombineW;
  float x = at[0];
#pragma unroll
  for (int e = 1; e < G::kCombineH * G::kCombineW; ++e) x = combine(x, at[e / G::kCombineW * G::kPitchW + e % G::kCombineW]);
  return x;
}
// The same from the parts that the unit's tiles left, one after the other; a tile that the depth does not have left none.
template <class G, class Combine> DEVICE float window_of_parts(const float* parts, const Unit& unit, int k, Combine combine) {
  float x = parts[k];
  for (int p = 1; p < unit.end; ++p) x = combine(x, parts[(i64)p * gridDim.y * G::kCombinedWindows + k]);
  return x;
}
// Reductions over channels: a warp has a window, its lanes every 32nd column.
template <class G, class Value, class Combine, class Put> DEVICE void reduce_windows(float start, Value value, Combine combine, Put put) {
  const int lane = threadIdx.x % 32;
  for (int k = threadIdx.x / 32; k < G::kWindowsAcross * G::kWindowLines; k += G::kThreads / 32) {
    const int line = k / G::kWindowsAcross, window = k % G::kWindowsAcross;
    float x = start;
    for (int column = lane; column < G::kCOut; column += 32) x = combine(x, value(column, line, window));
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) x = combine(x, __shfl_xor_sync(~0u, x, d));
    if (lane == 0) put(line, window, x);
  }
}
)cuda"
