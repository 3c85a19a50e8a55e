#pragma once

namespace upweave {

constexpr int kMaxThreads = 1024;

// How many of `wanted` threads can work here, for a parallel region that the calling thread begins next; 0
// wants as many as OpenMP would take. GNU's OpenMP ends the process when a thread cannot be had, so that what
// it does not have yet is tried first, and the answer may be fewer. A child of fork() whose parent had
// threads works alone: they are gone there, and OpenMP would wait for them forever.
int usable_threads(int wanted);

}  // namespace upweave
