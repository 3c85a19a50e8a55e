#pragma once

namespace upweave {

// How many of `wanted` threads can work here: all of them, but for a child of fork() whose parent had
// threads. They are gone in the child, GNU's OpenMP would wait for them forever, and so the child works
// alone.
int usable_threads(int wanted);

}  // namespace upweave
