#pragma once
#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "upweave/upweave.hpp"  // Status, Error: the public exception is the one thrown everywhere

namespace upweave {

// A stranger's text as a sentence may repeat it: 200 bytes at most, on one line. Control characters, and
// bytes that are no UTF-8, become \n, \t, \x1b.
std::string excerpt(std::string_view text);
// Names in a sentence: "a, b, c", and beyond a few of them "and 7 more".
std::string listed(const std::vector<std::string>& names);

// An argument of a sentence: texts are excerpts, whoever wrote them; all else stays as it is.
template <class T>
decltype(auto) told(T&& value) {
  if constexpr (std::convertible_to<T, std::string_view>) {
    return excerpt(std::string_view(value));
  } else {
    return std::forward<T>(value);
  }
}

// throw fail(Status::kInvalid, "stride is {}", s): one sentence that names the parameter and its value.
template <class... Args>
Error fail(Status status, fmt::format_string<Args...> format, Args&&... args) {
  return Error(status, fmt::vformat(format, fmt::make_format_args(told(std::forward<Args>(args))...)));
}

template <class... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return fail<Args...>(Status::kInvalid, format, std::forward<Args>(args)...);
}

}  // namespace upweave
