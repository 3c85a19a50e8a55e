// Any bytes either are refused with one sentence or are an array whose size is its shape's; and writing that
// array gives a file that reads back the same.
#include <cstdlib>

#include "base/dtype.h"
#include "graph/graph.h"
#include "io/npy.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace upweave;
  for (const std::optional<Dtype> as_u2 : {std::optional<Dtype>(), std::optional(Dtype::kBF16)}) {
    NpyArray array;
    try {
      array = parse_npy(std::as_bytes(std::span(bytes, size)), "x.npy", as_u2);
    } catch (const Error& error) {
      const std::string_view sentence = error.what();
      check(sentence.starts_with("x.npy: ") && sentence.find('\n') == sentence.npos);
      continue;
    }
    check(array.data.size() == static_cast<size_t>(count(array.shape) * size_of(array.dtype)));
    const std::string header = npy_header(array.shape, array.dtype);
    std::vector<std::byte> file(header.size());
    std::memcpy(file.data(), header.data(), header.size());
    file.insert(file.end(), array.data.begin(), array.data.end());
    const NpyArray again = parse_npy(file, "y.npy");
    check(again.shape == array.shape && again.dtype == array.dtype && again.data == array.data);
  }
  return 0;
}
