#pragma once
#include <fmt/format.h>

#include "upweave/upweave.hpp"  // Status, Error: the public exception is the one thrown everywhere

namespace upweave {

// throw fail(Status::kInvalid, "stride is {}", s): one sentence that names the parameter and its value.
template <class... Args>
Error fail(Status status, fmt::format_string<Args...> format, Args&&... args) {
  return Error(status, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(Status::kInvalid, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace upweave
