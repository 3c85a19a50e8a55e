#pragma once
// A pipeline that is ready to run, and what the files of this folder share to make one.
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>

#include "tiles.h"

namespace peers {

template <class T>
struct Contender {
  std::unique_ptr<Buffer<T>> out;
  size_t elements = 0;
  std::function<void()> run;
  std::string chosen;  // the fastest of the ways that were tried
};

// A tensor of the folder, alive as long as somebody holds it.
template <class T>
std::shared_ptr<Buffer<T>> load_tensor(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/" + name + ".bin", std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + folder + "/" + name + ".bin");
  const size_t bytes = static_cast<size_t>(file.tellg());
  auto buffer = std::make_shared<Buffer<T>>(bytes / sizeof(T));
  file.seekg(0).read(reinterpret_cast<char*>(buffer->data), static_cast<std::streamsize>(bytes));
  return buffer;
}

// A row of NCDHW input as channels-last columns, through `value(channel, column)` vectors of 16 columns.
template <class T, class Value>
void lay_row(T* out, int width, int keep, int channels, Value value) {
  for (int c = 0; c < channels; c += 16) {
    for (int w = 0; w < width; w += 16) {
      V r[16];
      for (int i = 0; i < 16; ++i) r[i] = value(c + i, w);
      transpose(r);
      for (int i = 0; i < 16 && w + i < keep; ++i) store(out + size_t(w + i) * channels + c, r[i]);
    }
  }
}

template <class T>
Contender<T> layernorm(const std::string& folder, int batch, bool pooled);
template <class T>
Contender<T> max_max_sum(const std::string& folder, int batch);
template <class T>
Contender<T> softmax(const std::string& folder, int batch);
template <class T>
Contender<T> batchnorm(const std::string& folder, int batch);

}  // namespace peers
