#include "engine/cuda/conv_kernels.h"

#include <algorithm>
#include <utility>

#include "engine/cuda/schedule/tile_text.h"
#include "engine/cuda/work.h"
#include "graph/operation.h"

namespace upweave::cuda {
namespace {

// A kernel of convolution `k`, and its launch.
struct ConvLaunch {
  const char* name;
  int resident, blocks, block, shared;
  const char *parameters = "", *begin = "await_previous();";
};
Launch conv_launch(Lowering& l, const ConvKernel& k, const ConvLaunch& c, const std::string& text) {
  const std::string full = fmt::format("{}_{}", c.name, k.index);
  const auto threads = static_cast<unsigned>(c.block);
  l.write_kernel(full, threads, static_cast<unsigned>(c.resident), text, c.parameters, c.begin);
  return {full,
          {static_cast<unsigned>(c.blocks), static_cast<unsigned>(k.schedule->conv.column_blocks)},
          threads,
          static_cast<unsigned>(c.shared)};
}

}  // namespace

Conversion convert_and_pack(Lowering& l, const ConvKernel& k, Id x, Id kernel) {
  const Schedule& t = *k.schedule;
  const std::string g = k.name();
  const Convolution& conv = t.conv;
  const bool by_line = t.copy_order() == CopyOrder::kByLine;
  auto kernel_of = [&](const char* name, int64_t blocks, unsigned block, const std::string& body) {
    return l.kernel(fmt::format("{}_{}", name, k.index), body, blocks, block, 1);
  };
  const std::string value = input_value(l, x, by_line ? Mapped::kInput : Mapped::kNo),
                    weight = input_value(l, kernel, by_line ? Mapped::kKernel : Mapped::kNo);
  const unsigned blocks = t.convert_blocks();
  const unsigned few = static_cast<unsigned>(l.chip.multiprocessors) * 4;  // usually they find nothing to do
  const int chunks_of_warp =
      std::min(l.options.dtype == Dtype::kF32 ? 4 : 2, conv.ck / 8);  // rows fill sectors
  auto convert_rows = [&](bool first) {
    return fmt::format("convert_rows<{}, {}>(a, {}, {});", g, chunks_of_warp, value, first);
  };
  Conversion result;
  Launch convert = kernel_of("convert", blocks, 256, convert_rows(true));
  convert.work = convert_work(l, x, t);
  result.run.push_back(std::move(convert));
  result.run.push_back(kernel_of(
      "choose", 1, 1024,
      fmt::format("choose_scale((const uint2*)(a.ws + {0}::kExtremes), {1}, (Scale*)(a.ws + {0}::kScale), "
                  "{0}::kGuess, true, {0}::kLo);",
                  g, blocks)));
  result.run.push_back(kernel_of("rescale", std::min(few, blocks), 256, convert_rows(false)));
  const int64_t columns = conv.weight_columns();
  const int64_t chunks =
      static_cast<int64_t>(conv.steps.size()) * conv.column_blocks * conv.n * (conv.ck / 8);
  result.pack.push_back(kernel_of("weight_extremes", (columns + 255) / 256, 256,
                                  fmt::format("weight_extremes<{}>(a, {});", g, weight)));
  result.pack.push_back(
      kernel_of("weight_choose", 1, 1024,
                fmt::format("choose_scale((const uint2*)(a.packed + {0}::kWeightExtremes), {1}, "
                            "(Scale*)(a.packed + {0}::kWeightScale), 0, false, {2});",
                            g, columns, t.one_scale() ? 0 : 11)));
  result.pack.push_back(
      kernel_of("pack", (chunks + 255) / 256, 256,
                fmt::format("pack_weights<{0}>(a, (const int(*)[3]){0}_stream, {1});", g, weight)));
  return result;
}

std::vector<Launch> tensor_launches(Lowering& l, const ConvKernel& k) {
  const Schedule& t = *k.schedule;
  const KernelForm form = t.kernel_form();
  const Launch one = conv_launch(l, k,
                                 {"conv", t.resident, form.blocks, (t.warpgroups + form.producer) * 128,
                                  t.shared_bytes(), form.parameters, form.begin},
                                 t.kernel_text(l, k.fusion, k.text, k.name(), false));
  return t.launches(one, conv_work(l, k.fusion, t), k.prepared);
}

// Float32 products have no TMA at hand.
Launch fma_launch(Lowering& l, const ConvKernel& k) {
  const Schedule& t = *k.schedule;
  EpilogueForm form = t.epilogue_form();
  const bool staged = std::exchange(form.staged, false);
  return conv_launch(
      l, k, {"conv_fma", 1, t.fma_blocks(l.chip.multiprocessors), t.warpgroups * 128, t.fma_shared()},
      t.kernel_text(l, k.fusion, staged ? epilogue(l, k.fusion, t.conv, form, k.partials) : k.text, k.name(),
                    true));
}

Launch combine_windows(Lowering& l, const ConvKernel& k) {
  return conv_launch(
      l, k, {"combine_windows", 0, k.text.combine_blocks, k.schedule->warpgroups * 128, 0},
      fmt::format("  typedef {} G;\n  if (((const Scale*)(a.ws + G::kScale))->other_path | ((const "
                  "Scale*)(a.packed + G::kWeightScale))->other_path) return;\n{}",
                  k.name(), k.text.combine));
}

std::string conv_note(const Lowering& l, const ConvKernel& k) {
  const Schedule& t = *k.schedule;
  std::vector<std::string> names;
  for (const Id id : k.fusion.nodes) names.emplace_back(l.graph[id].op->name);
  return fmt::format(
      "kernel conv_{}: {} | {} rows x {} columns, {} warpgroups, {} products{}, {} KB of shared memory, {} "
      "tiles, {:.0f}% of rows useful{}",
      k.index, fmt::join(names, " | "), t.m, t.conv.n, t.warpgroups, t.conv.products(),
      l.chip.wgmma ? " by wgmma" : " by mma.sync", t.shared_bytes() >> 10, t.tiles, 100 * t.efficiency(),
      t.note());
}

}  // namespace upweave::cuda
