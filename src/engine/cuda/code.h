#pragma once
// Puts kernels' texts together: code with named places.
#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace upweave::cuda {

struct Named {
  template <class T>
  Named(std::string_view n, const T& value) : name(n), text(fmt::format("{}", value)) {}

  std::string_view name;
  std::string text;
};

// `pattern` with $name replaced by its value; $name$ where a letter, a digit or the next place follows. Every
// place must have a value, and every value a place.
std::string code(std::string_view pattern, std::initializer_list<Named> values);

}  // namespace upweave::cuda
