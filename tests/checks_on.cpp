// Linked to every test: the road checks each stage's result, in the test and in the commands that it starts.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kOn = setenv("UPWEAVE_CHECK", "1", 1);
}
