// The strongest contender that a user could compose today: the five pipelines on oneDNN's primitives, tile by
// tile. Each thread runs its own single-threaded primitive on a tile that stays in its cache, then a
// hand-written AVX-512 tail on the tile. It drops what algebra drops (the +1 before the norm, the second
// pool, outputs that no window reads, the softmax's maximum), but its variances are E[x^2] - m^2.
//
//   onednn SLUG FOLDER BATCH f32|bf16    reads FOLDER/<tensor>.bin, writes FOLDER/onednn-<type>.bin, then
//                                        serves (worker.h)
//
// bf16: inputs, weights and outputs are bfloat16, products are the machine's dot products, sums and
// everything behind them float32. At the start it times its ways to make a tile (the deconvolution itself, or
// one convolution per output parity) at a few tile sizes and keeps the fastest.
#include "../worker.h"
#include "contender.h"

namespace {

using namespace peers;

template <class T>
int serve_pipeline(const std::string& slug, const std::string& folder, int batch, const std::string& type) {
  Contender<T> c = slug == "conv-transpose3d-sum-layernorm-avgpool-gelu" ? layernorm<T>(folder, batch, true)
                   : slug == "conv-transpose3d-layernorm-gelu-scaling"   ? layernorm<T>(folder, batch, false)
                   : slug == "conv-transpose3d-max-max-sum"              ? max_max_sum<T>(folder, batch)
                   : slug == "conv-transpose3d-avgpool-clamp-softmax-multiply" ? softmax<T>(folder, batch)
                                                                               : batchnorm<T>(folder, batch);
  std::fprintf(stderr, "oneDNN: %s\n", c.chosen.c_str());
  std::memset(static_cast<void*>(c.out->data), 0xff, c.out->bytes);
  c.run();
  std::ofstream(folder + "/onednn-" + type + ".bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(c.out->data),
             static_cast<std::streamsize>(c.elements * sizeof(T)));
  serve(c.run);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::fprintf(stderr, "usage: onednn SLUG FOLDER BATCH f32|bf16\n");
    return 2;
  }
  const std::string slug = argv[1], folder = argv[2], type = argv[4];
  const int batch = std::atoi(argv[3]);
  omp_set_num_threads(2);
  omp_set_dynamic(0);
  if (type == "f32") return serve_pipeline<float>(slug, folder, batch, type);
#ifdef __AVX512BF16__
  return serve_pipeline<Bf16>(slug, folder, batch, type);
#else
  throw std::runtime_error("this machine has no bf16 dot products");
#endif
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
