// Upweave as a contender.
//   upweave SLUG FOLDER BATCH DTYPE ALGORITHM THREADS once|each    reads FOLDER/<tensor>.bin, writes
//   FOLDER/<name>.bin, serves
// Weights are packed once, or at each run, as a caller of the five C functions would have it.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <upweave/upweave.hpp>
#include <vector>

#include "worker.h"

namespace {

std::vector<char> load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 8) {
    std::fprintf(stderr, "usage: upweave SLUG FOLDER BATCH f32|f16|bf16 auto|direct THREADS once|each\n");
    return 2;
  }
  const std::string slug = argv[1], folder = argv[2], dtype = argv[4], algorithm = argv[5];
  upweave::Options options;
  options.dtype = dtype == "f32"   ? upweave::Dtype::kF32
                  : dtype == "f16" ? upweave::Dtype::kF16
                                   : upweave::Dtype::kBF16;
  options.algorithm = algorithm == "direct" ? upweave::Algorithm::kDirect : upweave::Algorithm::kAuto;
  options.threads = std::atoi(argv[6]);

  const double start = peers::now_ms();
  const upweave::Pipeline pipeline = upweave::Pipeline::named(slug);
  upweave::Shapes shapes;
  for (const auto& entry : upweave::catalog()) {
    if (entry.slug == slug) shapes = entry.shapes;
  }
  shapes.at("input")[0] = std::atoi(argv[3]);
  const upweave::Plan plan = pipeline.compile(shapes, options);
  const double planned = peers::now_ms();

  std::map<std::string, std::vector<char>> data;
  upweave::Tensors tensors;
  for (const std::string& name : pipeline.parameters()) data[name] = load(folder + "/" + name + ".bin");
  for (const auto& [name, bytes] : data) tensors[name] = bytes.data();
  const double loaded = peers::now_ms();
  const upweave::Weights weights = plan.pack(tensors);
  const double packed = peers::now_ms();

  data["input"] = load(folder + "/input.bin");
  tensors["input"] = data["input"].data();
  size_t elements = 1;
  for (const int64_t extent : plan.output_shape()) elements *= static_cast<size_t>(extent);
  const size_t bytes = elements * (dtype == "f32" ? 4 : 2);
  void* output = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(output, 0x7f, bytes);
  const bool once = std::string(argv[7]) == "once";
  auto run = [&] { once ? plan.run(weights, tensors["input"], output) : plan.run(tensors, output); };
  run();
  std::ofstream(folder + "/upweave-" + dtype + "-" + algorithm + ".bin", std::ios::binary)
      .write(static_cast<char*>(output), bytes);
  peers::serve(run, {planned - start, packed - loaded});
} catch (const upweave::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
