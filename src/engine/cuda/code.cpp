#include "engine/cuda/code.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/error.h"

namespace upweave::cuda {

std::string code(std::string_view pattern, std::initializer_list<Named> values) {
  std::string text;
  std::vector<bool> used(values.size(), false);
  for (size_t at = 0; at < pattern.size();) {
    const size_t place = std::min(pattern.find('$', at), pattern.size());
    text += pattern.substr(at, place - at);
    if (place == pattern.size()) break;
    size_t end = place + 1;
    while (end < pattern.size() && std::isalnum(static_cast<unsigned char>(pattern[end]))) ++end;
    const std::string_view name = pattern.substr(place + 1, end - place - 1);
    const auto value = std::ranges::find(values, name, &Named::name);
    if (value == values.end()) throw fail(Status::kInternal, "kernel text: ${} has no value", name);
    used[static_cast<size_t>(value - values.begin())] = true;
    text += value->text;
    at = end < pattern.size() && pattern[end] == '$' ? end + 1 : end;
  }
  if (const auto unused = std::ranges::find(used, false); unused != used.end())
    throw fail(Status::kInternal, "kernel text: ${} has no place",
               values.begin()[unused - used.begin()].name);
  return text;
}

}  // namespace upweave::cuda
