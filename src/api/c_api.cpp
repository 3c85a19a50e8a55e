#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "api/c_status.h"
#include "base/words.h"
#include "upweave/upweave.hpp"

using namespace upweave;

struct upweave_pipeline {
  Pipeline pipeline;
  std::string text;
};

struct upweave_plan {
  Plan plan;
  mutable std::once_flag explained, explained_json;
  mutable std::string explanation, explanation_json;
  explicit upweave_plan(Plan p) : plan(std::move(p)) {}
};

struct upweave_weights {
  Weights weights;
};

namespace upweave {
namespace {

// A fixed buffer, so that reporting "no memory" needs none.
thread_local char last_error[2048] = "";

template <class T>
const T& given(const T* pointer, const char* name) {
  if (!pointer) throw invalid("{} is a null pointer", name);
  return *pointer;
}

// The caller's struct, which may be of a later version of the header: what is behind the members known here
// must not say anything.
template <class T>
T sized(const T* pointer, const char* name) {
  constexpr size_t kMost = 4096;  // more is no struct's size, but was never set
  const size_t size = given(pointer, name).size;
  if (size < sizeof(T) || size > kMost)
    throw invalid("{0}.size is {1}; it must be sizeof(upweave_{0}), {2}", name, size, sizeof(T));
  const char* bytes = reinterpret_cast<const char*>(pointer);
  if (std::any_of(bytes + sizeof(T), bytes + size, [](char byte) { return byte != 0; }))
    throw invalid(
        "{0} uses members that this version of the library does not have: {0}.size is {1}, here {2}", name,
        size, sizeof(T));
  return *pointer;
}

std::string text_of(const char* text, const char* name) { return &given(text, name); }

template <class Item, class F>
void for_each(const Item* items, size_t n, const char* name, F&& f) {
  if (n > 0) given(items, name);
  for (size_t i = 0; i < n; ++i) {
    if (!items[i].name) throw invalid("{}[{}].name is a null pointer", name, i);
    f(items[i], fmt::format("{}[{}]", name, i));
  }
}

Settings settings_of(const upweave_setting* settings, size_t n) {
  Settings result;
  for_each(settings, n, "settings", [&](const upweave_setting& s, const std::string& where) {
    if (!s.value) throw invalid("{}.value ({}) is a null pointer", where, s.name);
    if (!result.emplace(s.name, s.value).second)
      throw invalid("{}: setting {} is given twice", where, s.name);
  });
  return result;
}

Shapes shapes_of(const upweave_shape* shapes, size_t n) {
  Shapes result;
  for_each(shapes, n, "shapes", [&](const upweave_shape& s, const std::string& where) {
    if (!s.extents && s.rank > 0) throw invalid("{}.extents ({}) is a null pointer", where, s.name);
    if (s.rank > 8) throw invalid("{}.rank ({}) is {}; it must be at most 8", where, s.name, s.rank);
    const Shape shape(s.extents, s.extents + s.rank);
    if (!result.emplace(s.name, shape).second)
      throw invalid("{}: the shape of {} is given twice", where, s.name);
  });
  return result;
}

Tensors tensors_of(const upweave_tensor* tensors, size_t n, const char* name) {
  Tensors result;
  for_each(tensors, n, name, [&](const upweave_tensor& t, const std::string& where) {
    if (!result.emplace(t.name, t.data).second) throw invalid("{}: tensor {} is given twice", where, t.name);
  });
  return result;
}

// A caller's enumeration may hold any number: it is read as one.
template <class Option, class From>
Option choice(const char* name, const From& value) {
  int number;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  return numbered<Option>(name, number);
}

Options options_of(const upweave_options* options) {
  Options result;
  if (!options) return result;
  const upweave_options o = sized(options, "options");
  result.dtype = choice<Dtype>("dtype", o.dtype);
  result.engine = choice<Engine>("engine", o.engine);
  result.precision = choice<Precision>("precision", o.precision);
  result.algorithm = choice<Algorithm>("algorithm", o.algorithm);
  result.threads = o.threads;
  return result;
}

const OutputInfo* extra_output(const upweave_plan* plan, size_t index) {
  return plan && index < plan->plan.extra_outputs().size() ? &plan->plan.extra_outputs()[index] : nullptr;
}

upweave_pipeline* handle_of(Pipeline pipeline) {
  std::string text = pipeline.text();
  return new upweave_pipeline{std::move(pipeline), std::move(text)};
}

template <class F>
const char* text_once(std::once_flag& once, std::string& text, F&& make) noexcept {
  const upweave_status status = guarded([&] { std::call_once(once, [&] { text = make(); }); });
  return status == UPWEAVE_OK ? text.c_str() : nullptr;
}

}  // namespace

upweave_status set_error(Status status, const char* sentence) noexcept {
  size_t n = 0;
  while (sentence[n] && n + 1 < sizeof last_error) ++n;
  std::char_traits<char>::copy(last_error, sentence, n);
  last_error[n] = 0;
  return static_cast<upweave_status>(status);
}

}  // namespace upweave

const char* upweave_last_error(void) { return last_error; }
const char* upweave_version(void) { return version(); }

upweave_status upweave_parse(const char* text, const upweave_setting* settings, size_t setting_count,
                             upweave_pipeline** pipeline) {
  return guarded([&] {
    given(pipeline, "pipeline");
    *pipeline = handle_of(Pipeline::parse(text_of(text, "text"), settings_of(settings, setting_count)));
  });
}

upweave_status upweave_named(const char* slug, const upweave_setting* settings, size_t setting_count,
                             upweave_pipeline** pipeline) {
  return guarded([&] {
    given(pipeline, "pipeline");
    *pipeline = handle_of(Pipeline::named(text_of(slug, "slug"), settings_of(settings, setting_count)));
  });
}

size_t upweave_catalog_size(void) {
  size_t n = 0;
  guarded([&] { n = catalog().size(); });
  return n;
}

const char* upweave_catalog_slug(size_t index) {
  return index < upweave_catalog_size() ? catalog()[index].slug.c_str() : nullptr;
}

const char* upweave_pipeline_text(const upweave_pipeline* pipeline) {
  return pipeline ? pipeline->text.c_str() : nullptr;
}

void upweave_pipeline_free(upweave_pipeline* pipeline) { delete pipeline; }

upweave_status upweave_compile(const upweave_pipeline* pipeline, const upweave_shape* shapes,
                               size_t shape_count, const upweave_options* options, upweave_plan** plan) {
  return guarded([&] {
    given(plan, "plan");
    const Pipeline& source = given(pipeline, "pipeline").pipeline;
    *plan = new upweave_plan(source.compile(shapes_of(shapes, shape_count), options_of(options)));
  });
}

const int64_t* upweave_output_extents(const upweave_plan* plan) {
  return plan ? plan->plan.output_shape().data() : nullptr;
}

size_t upweave_output_rank(const upweave_plan* plan) { return plan ? plan->plan.output_shape().size() : 0; }

size_t upweave_workspace_bytes(const upweave_plan* plan) { return plan ? plan->plan.workspace_bytes() : 0; }

double upweave_predicted_seconds(const upweave_plan* plan) {
  return plan ? plan->plan.predicted_seconds() : 0;
}

const char* upweave_explain(const upweave_plan* plan) {
  if (!plan) return nullptr;
  return text_once(plan->explained, plan->explanation, [&] { return plan->plan.explain(); });
}

const char* upweave_explain_json(const upweave_plan* plan) {
  if (!plan) return nullptr;
  return text_once(plan->explained_json, plan->explanation_json, [&] { return plan->plan.explain_json(); });
}

void upweave_plan_free(upweave_plan* plan) { delete plan; }

size_t upweave_extra_output_count(const upweave_plan* plan) {
  return plan ? plan->plan.extra_outputs().size() : 0;
}

const char* upweave_extra_output_name(const upweave_plan* plan, size_t index) {
  const OutputInfo* info = extra_output(plan, index);
  return info ? info->name.c_str() : nullptr;
}

const int64_t* upweave_extra_output_extents(const upweave_plan* plan, size_t index) {
  const OutputInfo* info = extra_output(plan, index);
  return info ? info->shape.data() : nullptr;
}

size_t upweave_extra_output_rank(const upweave_plan* plan, size_t index) {
  const OutputInfo* info = extra_output(plan, index);
  return info ? info->shape.size() : 0;
}

upweave_dtype upweave_extra_output_dtype(const upweave_plan* plan, size_t index) {
  static constexpr upweave_dtype kTypes[] = {UPWEAVE_F32, UPWEAVE_F16, UPWEAVE_BF16, UPWEAVE_F64};
  const OutputInfo* info = extra_output(plan, index);
  return info ? kTypes[static_cast<int>(info->dtype)] : UPWEAVE_F32;
}

upweave_status upweave_run(const upweave_plan* plan, const upweave_call* call) {
  return upweave_run_extra(plan, call, nullptr, 0);
}

upweave_status upweave_run_extra(const upweave_plan* plan, const upweave_call* call,
                                 const upweave_output* extra, size_t extra_count) {
  return guarded([&] {
    const Plan& p = given(plan, "plan").plan;
    const upweave_call c = sized(call, "call");
    const Tensors tensors = tensors_of(c.tensors, c.tensor_count, "tensors");
    Outputs outputs;
    for_each(extra, extra_count, "extra", [&](const upweave_output& o, const std::string& where) {
      if (!outputs.emplace(o.name, o.data).second)
        throw invalid("{}: output {} is given twice", where, o.name);
    });
    if (!c.weights) return p.run(tensors, c.output, outputs, c.workspace, c.stream);
    if (tensors.size() != p.inputs().size() ||
        !std::ranges::all_of(p.inputs(), [&](const auto& name) { return tensors.contains(name); })) {
      throw invalid("tensors must hold '{}' alone, because weights are given", fmt::join(p.inputs(), "', '"));
    }
    p.run(c.weights->weights, tensors, c.output, outputs, c.workspace, c.stream);
  });
}

upweave_status upweave_pack(const upweave_plan* plan, const upweave_tensor* parameters,
                            size_t parameter_count, void* stream, upweave_weights** weights) {
  return guarded([&] {
    given(weights, "weights");
    const Plan& p = given(plan, "plan").plan;
    *weights = new upweave_weights{p.pack(tensors_of(parameters, parameter_count, "parameters"), stream)};
  });
}

void upweave_weights_free(upweave_weights* weights) { delete weights; }
