#include <nlohmann/json.hpp>

#include "commands.h"
#include "graph/graph.h"
#include "print.h"
#include "upweave/upweave.hpp"

namespace upweave::cli {
namespace {

struct ListOptions {
  bool operations = false, json = false;
};

void list_operations(bool json) {
  if (json) {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& op : vocabulary()) {
      all.push_back({{"name", op.name}, {"summary", op.summary}, {"example", op.example}});
    }
    fmt::print("{}\n", all.dump(2));
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"operation", "example", "what it does"}};
  for (const auto& op : vocabulary()) rows.push_back({op.name, op.example, op.summary});
  print_table(rows);
  fmt::print(
      "\nStages are separated by |. `... as y` names a value, `@y` uses it again, `@input` is the input;\n"
      "b:scalar, b:channel, t:full say what a parameter looks like; $name is replaced by --set name=...\n");
}

void list_pipelines(bool json) {
  if (json) {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& entry : catalog()) {
      all.push_back({{"name", entry.slug},
                     {"title", entry.title},
                     {"text", entry.text},
                     {"settings", entry.settings},
                     {"shapes", entry.shapes}});
    }
    fmt::print("{}\n", all.dump(2));
    return;
  }
  for (const auto& entry : catalog()) {
    fmt::print("{}\n    {}\n    input {}", entry.slug, entry.text, to_string(entry.shapes.at("input")));
    for (const auto& [name, value] : entry.settings) fmt::print(", {} {}", name, value);
    fmt::print("\n");
  }
  fmt::print("\nTry: upweave explain max-max-sum\n     upweave list --operations\n");
}

}  // namespace

void add_list(CLI::App& app) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command =
      app.add_subcommand("list", "Shows the pipelines that come with the library, or all operations");
  command->add_flag("--operations", options->operations, "Show the operations that a text may use");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  upweave list\n"
      "  upweave list --operations\n"
      "  upweave list --json | jq -r '.[].name'");
  command->callback(
      [options] { options->operations ? list_operations(options->json) : list_pipelines(options->json); });
}

}  // namespace upweave::cli
