#include "base/threads.h"

#include <dirent.h>
#include <pthread.h>

namespace upweave {
namespace {

bool parent_had_threads = false;  // written while there is one thread, in the child
bool have_threads = false;        // written and read around one fork at a time

void before_fork() {
  have_threads = true;  // unless the kernel says otherwise: ".", ".." and one entry a thread
  if (DIR* tasks = opendir("/proc/self/task")) {
    int entries = 0;
    while (readdir(tasks)) ++entries;
    closedir(tasks);
    have_threads = entries != 3;
  }
}

void in_child() { parent_had_threads = parent_had_threads || have_threads; }

const int registered = pthread_atfork(before_fork, nullptr, in_child);

}  // namespace

int usable_threads(int wanted) { return registered == 0 && parent_had_threads ? 1 : wanted; }

}  // namespace upweave
