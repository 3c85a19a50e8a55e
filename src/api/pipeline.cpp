#include "api/plan_impl.h"
#include "api/road.h"
#include "api/settings.h"
#include "graph/text.h"

namespace upweave {
namespace {

Pipeline parse_with(std::string_view text, const Settings& settings) {
  return Pipeline(std::make_shared<const Graph>(parse_text(text, settings)));
}

}  // namespace

Pipeline Pipeline::parse(std::string_view text, const Settings& settings) {
  return with_memory("parse", [&] {
    Settings known;  // every $name of the text; one that is not given is the parser's to complain about
    for (const auto& name : setting_names(text)) known[name] = "";
    Settings merged = merge_settings(known, settings, 0);
    std::erase_if(merged, [](const auto& setting) { return setting.second.empty(); });
    return parse_with(text, merged);
  });
}

Pipeline Pipeline::named(std::string_view slug, const Settings& settings) {
  return with_memory("parse", [&] {
    for (const CatalogEntry& entry : catalog()) {
      if (entry.slug != slug) continue;
      const Settings merged = merge_settings(entry.settings, settings, entry.shapes.at("input").size() - 2);
      check_unused(entry.text, merged);
      return parse_with(entry.text, merged);
    }
    throw invalid("pipeline '{}' is none that comes with the library (`upweave list` shows them)", slug);
  });
}

std::string Pipeline::text() const { return print_text(*graph_); }

std::vector<std::string> Pipeline::inputs() const { return input_names(*graph_); }
std::vector<std::string> Pipeline::parameters() const { return parameter_names(*graph_); }

Plan Pipeline::compile(const Shapes& shapes, const Options& options) const {
  return with_memory("compile", [&] {
    auto plan = std::make_shared<const FusedPlan>(lower_to_plan(*graph_, shapes, options));
    return Plan(std::make_shared<const PlanImpl>(std::move(plan), options));
  });
}

double Pipeline::predicted_seconds(const Shapes& shapes, const Options& options) const {
  return with_memory("predicted_seconds", [&] {
    return predict(std::make_shared<const FusedPlan>(lower_to_plan(*graph_, shapes, options)), options);
  });
}

}  // namespace upweave
