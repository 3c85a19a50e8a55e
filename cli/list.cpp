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
  std::vector<std::vector<std::string>> rows = {{"name", "input", "pipeline"}};
  for (const auto& entry : catalog())
    rows.push_back({entry.slug, to_string(entry.shapes.at("input")), entry.text});
  print_table(rows);
  fmt::print("\nTry: upweave explain {}\n     upweave list --operations\n",
             catalog().empty() ? "" : catalog()[0].slug);
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
