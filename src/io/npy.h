#pragma once
// NumPy's .npy files, versions 1 to 3: little-endian, C order, f2, f4, f8, and bfloat16 as ml_dtypes writes
// it (V2). Files come from strangers: whatever a header claims is checked before it is believed.
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "upweave/upweave.hpp"

namespace upweave {

struct NpyArray {
  Shape shape;
  Dtype dtype = Dtype::kF32;
  std::vector<std::byte> data;
};

// `as_u2` says what two-byte unsigned integers hold (kF16 or kBF16); without it they are an error.
// Throws Error with one sentence that names the file and what is wrong with it.
NpyArray read_npy(const std::string& path, std::optional<Dtype> as_u2 = {});
NpyArray parse_npy(std::span<const std::byte> bytes, std::string_view name, std::optional<Dtype> as_u2 = {});

// The file appears whole or not at all, with the mode of the one that it replaces. `confirm` is called when
// all is written and nothing has appeared; if it throws, nothing will.
void write_npy(const std::string& path, const Shape& shape, Dtype dtype, const void* data,
               const std::function<void()>& confirm = {});

// What comes before the data: magic, version, length and the padded dictionary, as NumPy writes them.
std::string npy_header(const Shape& shape, Dtype dtype);

}  // namespace upweave
