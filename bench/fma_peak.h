#pragma once
namespace upweave::bench {
// Multiply-adds of float32 a second, times 2, that `threads` cores sustain just now in registers alone.
double fma_peak(int threads);

// Time that this thread has spent on a core: unlike the wall's, it does not run while another program has the
// core.
double thread_seconds();
}  // namespace upweave::bench
