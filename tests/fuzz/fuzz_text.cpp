// Any text either is refused with one sentence or is a pipeline; then what is printed of it parses to the
// same print again, and inferring shapes gives an answer or a sentence too.
#include <cstdlib>

#include "graph/text.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace upweave;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  Graph graph;
  try {
    graph = parse_text(text, {{"stride", "2x1"}, {"padding", "1"}});
  } catch (const Error& error) {
    check(*error.what() != '\0');
    return 0;
  }
  const std::string printed = print_text(graph);
  check(print_text(parse_text(printed)) == printed);
  for (const Shape& input : {Shape{2, 6, 7}, Shape{2, 4, 5, 6}, Shape{1, 8, 3, 4, 5}}) {
    try {
      infer(graph, {{"input", input}});
    } catch (const Error& error) {
      check(*error.what() != '\0');
    }
  }
  return 0;
}
