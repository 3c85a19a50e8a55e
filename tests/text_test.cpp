// The text form: what can be written, what it means, how it prints, and what a mistake is told.
#include "graph/text.h"

#include <gtest/gtest.h>

#include <set>

#include "graph/operation.h"
#include "random_pipeline.h"

namespace upweave {
namespace {

std::string reprint(std::string_view text, const Settings& settings = {}) {
  return print_text(parse_text(text, settings));
}

const Node& last(const Graph& graph) { return graph[graph.output]; }

// The sentence that a text is refused with.
std::string refusal(std::string_view text, const Settings& settings = {}) {
  try {
    parse_text(text, settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInvalid);
    return error.what();
  }
  return "accepted";
}

TEST(Text, EveryIdHasOneRow) {
  std::set<Op> met;
  for (const Operation* op : operations()) {
    EXPECT_TRUE(met.insert(op->id).second) << op->name << " has the id of another row";
    EXPECT_EQ(&operation(op->id), op);
    EXPECT_EQ(find_operation(op->name), op);
  }
  EXPECT_EQ(met.size(), kOps) << "files of src/graph/ops name an Op that no row has";
}

TEST(Text, EveryExampleParsesAndPrintsItself) {
  for (const Operation* op : operations()) {
    if (op->id == Op::kInput || op->id == Op::kParam) continue;
    std::string text(op->example);
    if (const size_t at = text.find('@'); at != text.npos && text.find("@input") == text.npos)
      text = "relu as " + text.substr(at + 1, 1) + " | " + text;
    if (op->of_weights && op->internal) text += " as k | @input | add @k";
    EXPECT_EQ(reprint(text), text) << op->name;
    EXPECT_FALSE(op->summary.empty()) << op->name;
  }
}

TEST(Text, SpaceMeansNothing) {
  EXPECT_EQ(reprint("  relu|tanh\n |\tgelu   tanh "), "relu | tanh | gelu tanh");
}

TEST(Text, ExtentsArePerAxis) {
  const Graph graph = parse_text("conv_transpose k bias 64 k3x1x2 s2,1,2 p1 op0x1x0 d2 g4 out9x8x7");
  const Attributes& attrs = last(graph).attrs;
  EXPECT_EQ(attrs.ints("channels"), Shape{64});
  EXPECT_EQ(attrs.ints("kernel"), (Shape{3, 1, 2}));
  EXPECT_EQ(attrs.ints("stride"), (Shape{2, 1, 2}));
  EXPECT_EQ(attrs.ints("padding"), Shape{1});
  EXPECT_EQ(attrs.ints("output_padding"), (Shape{0, 1, 0}));
  EXPECT_EQ(attrs.ints("dilation"), Shape{2});
  EXPECT_EQ(attrs.ints("groups"), Shape{4});
  EXPECT_EQ(attrs.ints("out"), (Shape{9, 8, 7}));
  EXPECT_EQ(print_text(graph), "conv_transpose k bias 64 k3x1x2 s2x1x2 p1 op0x1x0 d2 g4 out9x8x7");
  EXPECT_EQ(reprint("avg_pool 2x2x2 s3x3x3"), "avg_pool 2 s3") << "equal extents are one";
}

TEST(Text, AnArgumentMayHaveSeveralValues) {
  const Graph graph = parse_text("relu as a | tanh as b | cat @a @input @a");
  EXPECT_EQ(last(graph).in.size(), 4u);
  EXPECT_EQ(print_text(graph), "relu as a | tanh as b | cat @a @input @a");
  EXPECT_EQ(reprint("input x y | cat @y"), "input x y | cat @y");
  EXPECT_EQ(refusal("cat"), "column 1: cat needs values, as in 'cat @input'");
  EXPECT_EQ(refusal("cat 3"), "column 5: cat does not take '3'; it is written as in 'cat @input'");
  EXPECT_EQ(refusal("cat values=@input"),
            "column 5: cat does not take 'values=@input'; it is written as in 'cat @input'");
  std::string many = "cat";
  for (int i = 0; i < 10000; ++i) many += " @input";
  EXPECT_EQ(refusal(many), "column 1797: cat takes at most 256 values");
}

TEST(Text, SlicesAreWrittenAsInPython) {
  for (const char* text : {"crop 1:-1", "crop :x2:", "crop 1:-1x:x-3: channels=0:32", "crop channels=-4:"})
    EXPECT_EQ(reprint(text), text);
  EXPECT_EQ(reprint("crop channels=:3 space=1:"), "crop 1: channels=:3");
  for (const char* word : {"1", "1:2:3", "1:x", "1:2y3:", ":x:x:x:", "a:b", "--1:", "1x2"})
    EXPECT_EQ(refusal(fmt::format("crop space={}", word)),
              fmt::format("column 12: '{}' is not a slice, or several as in 1:-1x2:", word));
  EXPECT_EQ(refusal("crop 3"),
            "column 6: crop does not take '3'; it is written as in 'crop 1:-1x2: channels=0:32'");
}

TEST(Text, OrderOfArgumentsIsFree) {
  EXPECT_EQ(reprint("conv reflect g2 s2 kernel pe1x0 p1 bias"), "conv kernel bias s2 p1 pe1x0 g2 reflect");
  EXPECT_EQ(reprint("pad value=2 e0 1x2"), "pad 1x2 e0 value=2");
  EXPECT_EQ(reprint("upsample corners linear 2"), "upsample 2 linear corners");
  EXPECT_EQ(reprint("conv_transpose g2 s2 kernel p1 bias"), "conv_transpose kernel bias s2 p1 g2");
  EXPECT_EQ(reprint("conv_transpose stride=2 padding=1x0 bias=b weights=k"), "conv_transpose k b s2 p1x0");
  EXPECT_EQ(reprint("layer_norm eps=1e-3 w b last 2"), "layer_norm last 2 w b eps=0.001");
}

TEST(Text, AnAbsentTensorBeforeAGivenOneIsNamed) {
  EXPECT_EQ(reprint("batch_norm bias=b"), "batch_norm bias=b");
  const Graph graph = parse_text("batch_norm bias=b");
  EXPECT_EQ(last(graph).in[1], kNone);
  EXPECT_EQ(graph[last(graph).in[2]].name, "b");
}

TEST(Text, ATensorThatReadsAsASettingIsNamed) {
  for (const char* text : {"conv_transpose kernel bias=d1 g2", "layer_norm channel weight=channel bias=last"})
    EXPECT_EQ(reprint(text), text);
}

TEST(Text, NumbersPrintWithAllTheirDigits) {
  EXPECT_EQ(reprint("add 0.1"), "add 0.1");
  EXPECT_EQ(reprint("add +1e-5"), "add 1e-05");
  EXPECT_EQ(reprint("mul -3.1415926535897931"), "mul -3.141592653589793");
  EXPECT_EQ(reprint("clamp -inf inf"), "clamp -inf inf");
  EXPECT_EQ(reprint("clamp -1 infinity | add Infinity | mul -INF"), "clamp -1 inf | add inf | mul -inf");
  EXPECT_EQ(reprint("clamp nan 1 | add NaN"), "clamp nan 1 | add nan");
  EXPECT_EQ(refusal("add 0x1p2"), "column 5: '0x1p2' is not a number");
}

TEST(Text, OperandsAreNumbersTensorsOrValues) {
  const Graph graph = parse_text(
      "relu as y | add 2 | mul s:scalar | sub c:channel | div t:full | maximum @y | minimum @input");
  EXPECT_EQ(parameter_names(graph), (std::vector<std::string>{"s", "c", "t"}));
  std::map<std::string, std::string> kinds;
  for (const Node& node : graph.nodes) {
    if (is(node, Op::kParam)) kinds[node.name] = node.attrs.word("kind");
  }
  EXPECT_EQ(kinds, (std::map<std::string, std::string>{{"c", "channel"}, {"s", "scalar"}, {"t", "full"}}));
  EXPECT_EQ(last(graph).in[1], 0) << "@input is the input";
  EXPECT_EQ(graph[graph[last(graph).in[0]].in[1]].name, "y");
  EXPECT_EQ(reprint("add t:full | mul t"), "add t:full | mul t:full") << "one tensor, one kind";
}

TEST(Text, LabelsReuseValues) {
  EXPECT_EQ(reprint("relu as y | tanh | mul @y"), "relu as y | tanh | mul @y");
  EXPECT_EQ(reprint("relu as a | @input | sigmoid as b | @a | add @b"),
            "relu as a | @input | sigmoid as b | @a | add @b");
  EXPECT_EQ(reprint("relu as y | gelu | @y | tanh"), "relu as y | tanh") << "what nobody reads goes";
  EXPECT_EQ(reprint("relu as y | tanh as z | @y"), "relu as y");
  // Values that need a name and have none get one that nobody uses.
  Graph graph = parse_text("relu as v1 | tanh as t | @v1 | sigmoid | mul @t");
  for (Node& node : graph.nodes) {
    if (node.name == "t") node.name.clear();
  }
  EXPECT_EQ(print_text(graph), "relu as v1 | sigmoid as v2 | @v1 | tanh as v3 | @v2 | mul @v3");
}

TEST(Text, OutNamesAValueAndGivesItOut) {
  const std::string text = "relu as c | moments batch out stats | @c | tanh out y | mul @c";
  const Graph graph = parse_text(text);
  EXPECT_EQ(print_text(graph), text);
  ASSERT_EQ(graph.extra_outputs.size(), 2u);
  EXPECT_EQ(graph.extra_outputs[0].name, "stats");
  EXPECT_TRUE(is(graph[graph.extra_outputs[0].value], Op::kMoments));
  EXPECT_TRUE(is(graph[graph.extra_outputs[1].value], Op::kTanh));
  EXPECT_TRUE(is(last(graph), Op::kMul));
  for (const char* const same : {"relu out a | @a out b | tanh", "@input out x | relu", "relu out y"}) {
    EXPECT_EQ(reprint(same), same);
  }
  EXPECT_EQ(reprint("relu out a | sigmoid"), "relu out a | sigmoid") << "nobody else reads it, yet it stays";
  EXPECT_EQ(refusal("relu out output"), "column 10: the name 'output' is taken");
  EXPECT_EQ(refusal("relu out a | tanh out a"), "column 23: the name 'a' is taken");
  EXPECT_EQ(refusal("relu out 2"), "column 10: '2' is not a name");
  EXPECT_EQ(refusal("out y"), "column 1: an operation is missing before 'out y'");
  EXPECT_EQ(refusal("param k | center out c | @input | add @c"),
            "column 22: the output 'c' does not depend on the pipeline's input");
  EXPECT_EQ(refusal("batch_norm out b | relu"), "accepted") << "b is an output here, not a parameter";
  EXPECT_EQ(refusal("mul out"), "column 5: 'out' cannot be a parameter's name");
}

TEST(Text, SettingsReplaceNames) {
  const Settings settings = {{"stride", "2x1"}, {"padding", "1"}, {"hi", "inf"}, {"op", "gelu"}};
  EXPECT_EQ(reprint("conv_transpose kernel s$stride p$padding | clamp 0 $hi | $op", settings),
            "conv_transpose kernel s2x1 p1 | clamp 0 inf | gelu");
  EXPECT_EQ(refusal("relu | add $value"), "column 12: $value has no value; set value=...");
  EXPECT_EQ(refusal("add $x", {{"x", "1 | relu"}}), "column 5: the value '1 | relu' is not one word");
  EXPECT_EQ(refusal("add $x", {{"x", ""}}), "column 5: the value '' is not one word");
  EXPECT_EQ(refusal("mul 1 | add $x", {{"x", "1.5.2"}}), "column 13: '1.5.2' is not a number");
}

TEST(Text, ParametersAreInOrderOfFirstUse) {
  EXPECT_EQ(parameter_names(parse_text("conv_transpose k b | batch_norm w c | mul w | add z")),
            (std::vector<std::string>{"k", "b", "w", "c", "z"}));
}

TEST(Text, InputsAreNamed) {
  const Graph graph = parse_text("input x skip | conv_transpose k | add @skip");
  EXPECT_EQ(input_names(graph), (std::vector<std::string>{"x", "skip"}));
  EXPECT_EQ(parameter_names(graph), std::vector<std::string>{"k"});
  EXPECT_EQ(graph[last(graph).in[0]].in[0], 0) << "the first flows on";
  EXPECT_EQ(last(graph).in[1], 1);
  EXPECT_EQ(input_names(parse_text("relu")), std::vector<std::string>{"input"});
  for (const char* text :
       {"input x skip | conv_transpose k | add @skip", "input x | relu",
        "input x skip | @skip | relu | add @x", "input x skip | @skip out y | @x | relu",
        "input x skip | @skip out y | relu", "input x unread | tanh", "input x y | conv_transpose input"})
    EXPECT_EQ(reprint(text), text);
  EXPECT_EQ(reprint("input input | relu"), "relu");
  EXPECT_EQ(reprint("input input skip | add @skip"), "input input skip | add @skip");
  std::string many = "input";
  for (int i = 0; i < 65; ++i) many += fmt::format(" x{}", i);
  EXPECT_EQ(refusal(many + " | relu"), "column 1: the pipeline has 65 inputs; it can have at most 64");
}

TEST(Text, MistakesArePointedAt) {
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"", "column 1: an operation is missing"},
      {"relu | | tanh", "column 7: an operation is missing"},
      {"relu |", "column 7: an operation is missing"},
      {"relux", "column 1: no operation is called 'relux'; did you mean 'relu'?"},
      {"tanh | maxpool 2", "column 8: no operation is called 'maxpool'; did you mean 'max_pool'?"},
      {"frobnicate", "column 1: no operation is called 'frobnicate'"},
      {"input", "column 1: input needs names, as in 'input x skip'"},
      {"relu | input x", "column 8: 'input' names the inputs, in the first stage only"},
      {"input x | input y", "column 11: 'input' names the inputs, in the first stage only"},
      {"input x 2y", "column 9: '2y' is not a name"},
      {"input x as y", "column 9: 'as' cannot be an input's name"},
      {"input nan", "column 7: 'nan' cannot be an input's name"},
      {"input x y x", "column 11: the name 'x' is taken"},
      {"input x skip | add skip", "column 20: 'skip' is a value of this pipeline; write @skip"},
      {"input x skip | relu as skip", "column 24: the name 'skip' is taken"},
      {"input x skip | relu out x", "column 25: the name 'x' is taken"},
      {"input x skip | @input", "column 16: no value is called 'input'; name one with 'as'"},
      {"input x skip | batch_norm @skip",
       "column 27: weight of batch_norm must be a parameter; '@skip' depends on the input"},
      {"input x skip", "the pipeline does nothing: its result is its input"},
      {"input x skip | @skip", "the pipeline does nothing: its result is its input"},
      {"relu 3", "column 6: relu does not take '3'; it is written as in 'relu'"},
      {"max_pool", "column 1: max_pool needs window, as in 'max_pool 2x2x1 s2'"},
      {"max_pool 2 3", "column 12: max_pool does not take '3'; it is written as in 'max_pool 2x2x1 s2'"},
      {"max_pool 2 s1 s2", "column 15: max_pool does not take 's2'; it is written as in 'max_pool 2x2x1 s2'"},
      {"max_pool 2x", "column 10: '2x' is not a whole number, or several as in 2x1x2"},
      {"max_pool 2.5", "column 10: '2.5' is not a whole number, or several as in 2x1x2"},
      {"max_pool 1x2x3x4", "column 10: '1x2x3x4' has more than three extents"},
      {"conv_transpose k s2x", "column 19: '2x' is not a whole number, or several as in 2x1x2"},
      {"conv_transpose k stride=2 stride=3", "column 27: stride is given twice"},
      {"conv_transpose k stride=", "column 18: stride has no value"},
      {"conv_transpose k g2x2", "column 19: groups is one number, not '2x2'"},
      {"group_norm 8x8", "column 12: groups is one number, not '8x8'"},
      {"conv_transpose",
       "column 1: conv_transpose needs weights, as in 'conv_transpose kernel bias s2 p1 op1'"},
      {"clamp 0", "column 1: clamp needs hi, as in 'clamp 0 1'"},
      {"leaky_relu x", "column 12: leaky_relu does not take 'x'; it is written as in 'leaky_relu 0.2'"},
      {"add 1e999", "column 5: '1e999' is not a number"},
      {"add -x", "column 5: '-x' is not a number"},
      {"add", "column 1: add needs value, as in 'add 1'"},
      {"layer_norm", "column 1: layer_norm needs axes, as in 'layer_norm channel'"},
      {"sum axes=spatial", "column 10: 'spatial' is none of channel, space, depth, height, width"},
      {"add b:vector", "column 7: 'vector' is none of scalar, channel, full"},
      {"add b:scalar | mul b:full", "column 20: b is scalar elsewhere"},
      {"add @y", "column 5: no value is called 'y'; name one with 'as'"},
      {"@y | relu", "column 1: no value is called 'y'; name one with 'as'"},
      {"add b | mul @b", "column 13: no value is called 'b'; name one with 'as'"},
      {"relu as y | add y", "column 17: 'y' is a value of this pipeline; write @y"},
      {"relu as y | tanh as y", "column 21: the name 'y' is taken"},
      {"relu as input", "column 9: the name 'input' is taken"},
      {"add b | relu as b", "column 17: the name 'b' is taken"},
      {"relu as 2y", "column 9: '2y' is not a name"},
      {"as y", "column 1: an operation is missing before 'as y'"},
      {"relu as y | @y as z", "column 19: the value is called 'y' already"},
      {"relu as y | @y 3", "column 16: '@y' stands alone in its stage"},
      {"add b$", "column 6: $ has no value; set =..."},
      {"add inf:scalar", "column 5: 'inf' cannot be a parameter's name"},
      {"conv_transpose infinity",
       "column 16: conv_transpose does not take 'infinity'; it is written as in "
       "'conv_transpose kernel bias s2 p1 op1'"},
      {"add nan:scalar", "column 5: 'nan' cannot be a parameter's name"},
      {"add ü", "column 5: 'ü' is not a name"},
      {"conv_transpose @input",
       "column 16: weights of conv_transpose must be a parameter; '@input' depends on the input"},
      {"relu as y | batch_norm @y b",
       "column 24: weight of batch_norm must be a parameter; '@y' depends on the input"},
      {"max_pool 2 sign=@input",
       "column 17: sign of max_pool must be a parameter; '@input' depends on the input"},
      {"param k", "the pipeline's result does not depend on its input"},
      {"param k | relu", "the pipeline's result does not depend on its input"},
      {"@input", "the pipeline does nothing: its result is its input"},
      {"param", "column 1: param takes one name"},
  };
  for (const auto& [text, sentence] : mistakes) EXPECT_EQ(refusal(text), sentence) << text;
}

// However long or strange: one sentence.
TEST(Text, NothingCrashes) {
  std::string text;
  testing::Random rng(testing::first_seed());
  const std::string_view alphabet = "relu tanh conv_transpose k3 s2 | as @y $:= -1e5 x.,\n\t";
  for (int n = 0; n < testing::cases(20000); ++n) {
    text.clear();
    for (int64_t i = rng.integer(0, 40); i > 0; --i) {
      text += alphabet[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(alphabet.size()) - 1))];
    }
    EXPECT_NE(refusal(text, {{"y", "2"}}), "");
  }
}

TEST(Text, RandomPipelinesPrintAsAFixedPoint) {
  for (int i = 0; i < testing::cases(1000); ++i) {
    const uint64_t seed = testing::first_seed() + static_cast<uint64_t>(i);
    const testing::RandomPipeline pipeline = testing::random_pipeline(seed, {.stages = 9, .convolutions = 2});
    const std::string once = reprint(pipeline.text);
    EXPECT_EQ(reprint(once), once) << "UPWEAVE_SEED=" << seed << "\n" << pipeline.text;
    EXPECT_EQ(parameter_names(parse_text(once)), parameter_names(pipeline.graph)) << "UPWEAVE_SEED=" << seed;
    testing::Random rng(seed);
    const std::string more = reprint(testing::with_outputs(pipeline.graph, rng));
    EXPECT_EQ(reprint(more), more) << "UPWEAVE_SEED=" << seed;
  }
}

}  // namespace
}  // namespace upweave
