#include "engine/cuda/lower.h"

#include <algorithm>

#include "base/checked.h"
#include "base/dtype.h"
#include "engine/cuda/code.h"
#include "engine/cuda/generic.h"
#include "engine/cuda/kernels/index.h"
#include "engine/cuda/lower_conv.h"
#include "engine/cuda/norm.h"
#include "graph/operation.h"

namespace upweave::cuda {
namespace {

constexpr int64_t kAlign = 1024;  // bulk copies and swizzles start on such addresses

const char kPrelude[] =
#include "engine/cuda/kernels/prelude.cuh"
    ;
const char kGeneric[] =
#include "engine/cuda/kernels/generic.cuh"
    ;
const char kConv[] =
#include "engine/cuda/kernels/conv.cuh"
    ;
const char kEpilogue[] =
#include "engine/cuda/kernels/epilogue.cuh"
    ;
const char kWholeLines[] =
#include "engine/cuda/kernels/whole_lines.cuh"
    ;
const char kBoxesSm80[] =
#include "engine/cuda/kernels/boxes_sm80.cuh"
    ;
const char kBoxesSm90[] =
#include "engine/cuda/kernels/boxes_sm90.cuh"
    ;
const char kWeightStationarySm90[] =
#include "engine/cuda/kernels/weight_stationary_sm90.cuh"
    ;
const char kLineByLineSm90[] =
#include "engine/cuda/kernels/line_by_line_sm90.cuh"
    ;
const char kDepthStreamingSm90[] =
#include "engine/cuda/kernels/depth_streaming_sm90.cuh"
    ;

// The arguments of a pipeline with several inputs have the others behind all else.
std::string prelude(size_t inputs) {
  std::string text = kPrelude;
  constexpr std::string_view kLast = "  u8* packed;\n";
  if (inputs > 1)
    text.insert(text.find(kLast) + kLast.size(), fmt::format("  const u8* more[{}];\n", inputs - 1));
  return text;
}

// d += A B for one warpgroup: 64 rows, `n` columns, 16 terms.
std::string wgmma_text(int n) {
  std::string registers, operands;
  for (int i = 0; i < n / 2; ++i) {
    registers += fmt::format("{}%{}", i ? ", " : "", i);
    operands += fmt::format("{}\"+f\"(d[{}])", i ? ", " : "", i);
  }
  return code(
      "template <> DEVICE void wgmma<$n>(float (&d)[$rows], u64 x, u64 w, int add) {\n"
      "  asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, %$add, 0;\\n\"\n"
      "    \"wgmma.mma_async.sync.aligned.m64n$n$k16.f32.f16.f16 {$registers}, %$rows, %$weights, p, 1, 1, "
      "0, "
      "0;\\n}\\n\"\n"
      "    : $operands : \"l\"(x), \"l\"(w), \"r\"(add));\n}\n",
      {{"n", n},
       {"rows", n / 2},
       {"registers", registers},
       {"weights", n / 2 + 1},
       {"add", n / 2 + 2},
       {"operands", operands}});
}

}  // namespace

std::string Chip::arch() const { return wgmma ? "sm_90a" : fmt::format("sm_{}{}", major, minor); }

Lowering::Lowering(const FusedPlan& p, const Options& o, const Chip& c)
    : plan(p),
      options(o),
      chip(c),
      graph(p.graph),
      weights(p.weights),
      passes(p.passes),
      source(graph, weights, o.dtype) {}

int64_t Lowering::reserve(int64_t bytes) {
  const int64_t at = out.workspace_bytes;
  out.workspace_bytes = checked_add(at, (bytes + kAlign - 1) / kAlign * kAlign, "the workspace");
  return at;
}

int64_t Lowering::reserve_packed(int64_t bytes) {
  const int64_t at = out.packed_bytes;
  out.packed_bytes = checked_add(at, (bytes + kAlign - 1) / kAlign * kAlign, "the packed weights");
  return at;
}

bool Lowering::stored(Id id) const {
  const Location::Kind kind = source.places[id].kind;
  return kind != Location::Kind::kNone && kind != Location::Kind::kInline;
}

void Lowering::keep(Id id) {
  if (stored(id)) return;
  Location& place = source.places[id];
  const int64_t elements = count(graph[id].shape);
  if (weights[id]) {
    place = {Location::Kind::kPacked, reserve_packed(checked_mul(elements, 4, "the packed weights")), false};
  } else if (id == graph.output) {
    place = {Location::Kind::kOutput, 0, true};
  } else if (is_extra_output(graph, id)) {
    const int64_t element = size_of(output_dtype(graph, id, options.dtype));
    place = {Location::Kind::kWorkspace, reserve(checked_mul(elements, element, "the workspace")),
             !is_statistics(graph[id])};
  } else if (id < plan.graph.size() && plan.places[id].kind == Place::Kind::kOutput) {
    // The plan has it alias the output: the last kernel reads each element where it writes it, or holds
    // the whole set in registers before.
    place = {Location::Kind::kOutput, 0, true};
  } else {
    place = {Location::Kind::kWorkspace, reserve(checked_mul(elements, 4, "the workspace")), false};
  }
}

void Lowering::write_kernel(const std::string& name, unsigned block, unsigned resident,
                            const std::string& body, const std::string& parameters,
                            const std::string& begin) {
  kernels +=
      fmt::format("extern \"C\" __global__ void __launch_bounds__({}{}) {}(const Args a{}) {{\n{}\n{}\n}}\n",
                  block, resident ? fmt::format(", {}", resident) : "", name, parameters, begin, body);
}

Launch Lowering::kernel(const std::string& name, const std::string& body, int64_t blocks, unsigned block,
                        unsigned resident) {
  if (blocks > INT32_MAX)
    throw fail(Status::kUnsupported, "{} needs {} blocks, more than a launch can have", name, blocks);
  write_kernel(name, block, resident, body);
  return {name, {static_cast<unsigned>(blocks), 1}, block};
}

LaunchId Lowering::run(Launch launch) {
  out.run.push_back(std::move(launch));
  return out.run.size() - 1;
}

namespace {

// What of a pass no convolution's kernel has taken along: kernels of its own, or computed where it is read.
void lower_rest(Lowering& l, const Pass& pass, std::vector<bool>& done) {
  // Statistics are given out as they lie.
  auto copies_statistics = [&](Id id) {
    const Node& node = l.graph[id];
    return is_statistics(node) && is(node, Op::kMul) &&
           l.source.places[node.in[0]].kind == Location::Kind::kWorkspace;
  };
  for (const Id id : pass.nodes) {
    if (done[id] || l.stored(id)) continue;
    if (const Id norm = lower_norm(l, id); norm != kNone) {
      done[id] = done[norm] = true;
      continue;
    }
    if (copies_statistics(id)) {
      l.source.places[id] = l.source.places[l.graph[id].in[0]];
      continue;
    }
    const bool wanted = id == l.graph.output || std::ranges::find(pass.writes, id) != pass.writes.end();
    if (wanted || must_store(l, id)) {
      lower_alone(l, id);
    } else {
      l.source.places[id].kind = Location::Kind::kInline;
    }
  }
}

}  // namespace

Lowered lower(const FusedPlan& plan, const Options& options, const Chip& chip) {
  Lowering l(plan, options, chip);
  l.out.inputs = input_names(plan.graph);
  for (Id id = 0; is_input(l.graph, id); ++id) l.source.places[id] = {Location::Kind::kInput, 0, true};
  // Parameters as they are; then what is computed from them alone.
  const std::vector<std::string> names = parameter_names(plan.source);
  for (Id id = 0; id < l.graph.size(); ++id) {
    if (!is_param(l.graph, id)) continue;
    const int64_t bytes = count(l.graph[id].shape) * size_of(options.dtype);
    l.source.places[id] = {Location::Kind::kPacked, l.reserve_packed(bytes), true};
    const auto at = std::ranges::find(names, l.graph[id].name);
    if (at == names.end())
      throw fail(Status::kInternal, "the parameter {} is not in the pipeline", l.graph[id].name);
    l.out.copies.push_back({static_cast<size_t>(at - names.begin()), l.source.places[id].offset, bytes});
  }
  for (Id id = 0; id < l.graph.size(); ++id) {
    if (l.weights[id] && !is_param(l.graph, id)) lower_alone(l, id, true);
  }

  for (size_t p = 0; p < l.passes.size();) {
    std::vector<bool> done(l.graph.nodes.size(), false);
    size_t taken = 0;
    if (l.passes[p].conv != kNone) {
      std::string why;
      taken = lower_conv(l, p, done, why);
      if (taken == 0) l.out.notes.push_back(fmt::format("pass {}: the general way, for {}", p + 1, why));
    }
    done.resize(l.graph.nodes.size(), false);  // a pool may have been split
    for (const size_t end = p + std::max<size_t>(1, taken); p < end; ++p) lower_rest(l, l.passes[p], done);
  }

  for (const Output& output : l.graph.extra_outputs) {
    if (!l.stored(output.value)) throw fail(Status::kInternal, "output {} is not computed", output.name);
    const int64_t element = size_of(output_dtype(l.graph, output.value, options.dtype));
    l.out.extra.push_back(
        {l.source.places[output.value].offset, count(l.graph[output.value].shape) * element});
  }

  std::string text = options.precision == Precision::kFast ? "#define UPWEAVE_FAST\n" : "";
  text += prelude(l.out.inputs.size()) + kGeneric;
  if (l.convs > 0) {
    text += std::string(index::kText) + kConv + kEpilogue + kWholeLines;
    if (chip.wgmma) {
      text += "template <int N> DEVICE void wgmma(float (&d)[N / 2], u64 x, u64 w, int add);\n";
      for (const int n : {16, 32, 48, 64, 80, 96, 112, 128}) text += wgmma_text(n);
      text += std::string(kBoxesSm90) + kWeightStationarySm90 + kLineByLineSm90 + kDepthStreamingSm90;
    } else {
      text += kBoxesSm80;
    }
  }
  l.out.source = text + l.source.functions() + l.kernels;
  return std::move(l.out);
}

}  // namespace upweave::cuda
