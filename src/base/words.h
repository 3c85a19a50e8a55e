#pragma once
// The words for what a plan is asked to be: the command, Python, `explain` and errors read them here. A row's
// place is its number in upweave.h.
#include <iterator>
#include <type_traits>

#include "base/error.h"

namespace upweave {

template <class Option>
struct Word {
  const char* name;
  Option value;
};

template <class Option>
inline constexpr bool kWords = false;  // an array for those that have words
template <>
inline constexpr Word<Dtype> kWords<Dtype>[] = {
    {"f32", Dtype::kF32}, {"f16", Dtype::kF16}, {"bf16", Dtype::kBF16}, {"f64", Dtype::kF64}};
template <>
inline constexpr Word<Engine> kWords<Engine>[] = {
#define UPWEAVE_ENGINE(name, value) {#name, value},
#include "base/engines.inc"
#undef UPWEAVE_ENGINE
};
template <>
inline constexpr Word<Precision> kWords<Precision>[] = {{"strict", Precision::kStrict},
                                                        {"fast", Precision::kFast}};
template <>
inline constexpr Word<Algorithm> kWords<Algorithm>[] = {{"auto", Algorithm::kAuto},
                                                        {"direct", Algorithm::kDirect}};

template <class Option>
concept HasWords = std::is_array_v<decltype(kWords<Option>)>;

template <HasWords Option>
const char* name_of(Option value) {
  for (const auto& word : kWords<Option>) {
    if (word.value == value) return word.name;
  }
  return "?";
}

template <HasWords Option>
std::string words() {  // "strict, fast"
  std::vector<std::string> names;
  for (const auto& word : kWords<Option>) names.emplace_back(word.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The value of `word`, which a sentence calls `what`.
template <HasWords Option>
Option named(std::string_view what, std::string_view word) {
  for (const auto& known : kWords<Option>) {
    if (word == known.name) return known.value;
  }
  throw invalid("{} is '{}'; it must be one of {}", what, word, words<Option>());
}

// The value of a number of upweave.h.
template <HasWords Option>
Option numbered(std::string_view what, int number) {
  if (number < 0 || number >= std::ssize(kWords<Option>))
    throw invalid("{} is {}, which is none that exists", what, number);
  return kWords<Option>[number].value;
}

}  // namespace upweave
