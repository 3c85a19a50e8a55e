#include <algorithm>
#include <charconv>
#include <map>

#include "graph/limits.h"
#include "graph/operation.h"
#include "graph/text.h"

namespace upweave {
namespace {

struct Token {
  std::string text;  // with settings put in
  size_t column;     // 1-based, of its first character in the pipeline
};

template <class... Args>
Error at(size_t column, fmt::format_string<Args...> format, Args&&... args) {
  const Error error = invalid<Args...>(format, std::forward<Args>(args)...);
  return Error(Status::kInvalid, fmt::format("column {}: {}", column, error.what()));
}

bool name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool name_char(char c) { return name_start(c) || digit(c) || c == '.'; }
bool is_name(std::string_view s) {
  return !s.empty() && s.size() <= kMaxName && name_start(s[0]) && std::ranges::all_of(s, name_char);
}

// A number, or one of its words: inf, infinity, nan.
bool to_real(std::string_view s, double& value) {
  if (s.starts_with('+')) s.remove_prefix(1);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  return error == std::errc() && end == s.data() + s.size();
}
bool is_real(std::string_view s) {
  double value;
  return to_real(s, value);
}
// Words that mean something else where a tensor's name may stand.
bool is_reserved(std::string_view s) { return s == "as" || s == "out" || is_real(s); }
// Whether it begins as a number does: then it is one, or a mistake, but no name.
bool starts_number(std::string_view s) { return digit(s[0]) || s[0] == '-' || s[0] == '+' || s[0] == '.'; }

// 2, 2x1x2 or 2,1,2.
bool to_ints(std::string_view s, Shape& values) {
  values.clear();
  const char* p = s.data();
  const char* const end = p + s.size();
  while (true) {
    int64_t v;
    const auto [next, error] = std::from_chars(p, end, v);
    if (error != std::errc()) return false;
    values.push_back(v);
    if (next == end) return true;
    if (*next != 'x' && *next != ',') return false;
    p = next + 1;
  }
}

// :, 1:, :-1 or 2:8 for each axis, x between them.
bool is_slices(std::string_view s) {
  const char* p = s.data();
  const char* const end = p + s.size();
  const auto bound = [&] {  // true: there is none, or a whole number
    int64_t v;
    if (p == end || (*p != '-' && !digit(*p))) return true;
    const auto [next, error] = std::from_chars(p, end, v);
    p = next;
    return error == std::errc();
  };
  for (int axes = 1; axes <= 3; ++axes) {
    if (!bound() || p == end || *p++ != ':' || !bound()) return false;
    if (p == end) return true;
    if (*p++ != 'x') return false;
  }
  return false;
}

// The operation whose name is nearest, for "did you mean".
std::string nearest(std::string_view word) {
  auto distance = [](std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 1; j <= b.size(); ++j) {
        const size_t old = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
        diagonal = old;
      }
    }
    return row[b.size()];
  };
  std::string_view best;
  size_t least = 3;
  for (const Operation* op : operations()) {
    if (word.size() > 40) break;
    if (const size_t d = distance(word, op->name); !op->internal && d < least) {
      least = d;
      best = op->name;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

// A prefixed extent: s2, op1x2, p-1.
bool is_extent(const Arg& arg, std::string_view text) {
  return !arg.prefix.empty() && text.starts_with(arg.prefix) && text.size() > arg.prefix.size() &&
         (digit(text[arg.prefix.size()]) || text[arg.prefix.size()] == '-');
}

class Parser {
 public:
  Parser(std::string_view text, const Settings& settings) : text_(text), settings_(settings) {}

  Graph parse() {
    if (text_.size() > kMaxText)
      throw invalid("the pipeline's text has {} bytes; it must have at most {}", text_.size(), kMaxText);
    size_t start = 0;
    while (true) {
      const size_t bar = text_.find('|', start);
      std::vector<Token> words = tokens(start, bar == std::string_view::npos ? text_.size() : bar);
      if (!words.empty() && words[0].text == "input") {
        inputs(words);
      } else {
        if (start == 0) input("input");
        stage(std::move(words), start + 1);
      }
      if (graph_.size() > kMaxNodes)
        throw at(start + 1, "the pipeline has more than {} stages and parameters", kMaxNodes);
      if (bar == std::string_view::npos) break;
      start = bar + 1;
    }
    graph_.output = current_;
    if (is_input(graph_, current_))
      throw Error(Status::kInvalid, "the pipeline does nothing: its result is its input");
    if (is_param(graph_, current_) || weight_side(graph_)[current_]) {
      throw Error(Status::kInvalid, "the pipeline's result does not depend on its input");
    }
    return prune(std::move(graph_));
  }

 private:
  std::vector<Token> tokens(size_t begin, size_t end) const {
    std::vector<Token> result;
    for (size_t i = begin; i < end;) {
      if (std::isspace(static_cast<unsigned char>(text_[i]))) {
        ++i;
        continue;
      }
      Token token{{}, i + 1};
      while (i < end && !std::isspace(static_cast<unsigned char>(text_[i]))) {
        if (text_[i] != '$') {
          token.text += text_[i++];
          continue;
        }
        const size_t dollar = i++;
        std::string name;
        while (i < end && name_char(text_[i]) && text_[i] != '.') name += text_[i++];
        const auto it = settings_.find(name);
        if (it == settings_.end()) throw at(dollar + 1, "${} has no value; set {}=...", name, name);
        token.text += it->second;
      }
      if (token.text.empty() || token.text.find_first_of("| \t\n") != std::string::npos) {
        throw at(token.column, "the value '{}' is not one word", token.text);
      }
      result.push_back(std::move(token));
    }
    return result;
  }

  void input(const std::string& name) {
    Node node;
    node.op = &operation(Op::kInput);
    node.name = name;
    values_[name] = graph_.add(std::move(node));
  }

  // input x skip
  void inputs(const std::vector<Token>& words) {
    if (graph_.size() > 0) throw at(words[0].column, "'input' names the inputs, in the first stage only");
    if (words.size() == 1) throw at(words[0].column, "input needs names, as in 'input x skip'");
    if (words.size() > kMaxInputs + 1)
      throw at(words[0].column, "the pipeline has {} inputs; it can have at most {}", words.size() - 1,
               kMaxInputs);
    for (size_t w = 1; w < words.size(); ++w) {
      const std::string& name = words[w].text;
      if (!is_name(name)) throw at(words[w].column, "'{}' is not a name", name);
      if (is_reserved(name)) throw at(words[w].column, "'{}' cannot be an input's name", name);
      if (values_.contains(name)) throw at(words[w].column, "the name '{}' is taken", name);
      input(name);
    }
  }

  void stage(std::vector<Token> words, size_t column) {
    if (words.empty()) throw at(column, "an operation is missing");
    std::string label;
    size_t label_column = 0;
    bool out = false;
    if (words.size() >= 2 &&
        (words[words.size() - 2].text == "as" || words[words.size() - 2].text == "out")) {
      out = words[words.size() - 2].text == "out";
      label = words.back().text;
      label_column = words.back().column;
      if (!is_name(label)) throw at(label_column, "'{}' is not a name", label);
      if (values_.contains(label) || (out && label == "output"))
        throw at(label_column, "the name '{}' is taken", label);
      words.resize(words.size() - 2);
      if (words.empty())
        throw at(column, "an operation is missing before '{} {}'", out ? "out" : "as", label);
    }
    const Token& head = words[0];
    if (head.text.starts_with('@')) {
      if (words.size() > 1) throw at(words[1].column, "'{}' stands alone in its stage", head.text);
      current_ = value(head);
    } else if (head.text == "param") {
      if (words.size() != 2) throw at(head.column, "param takes one name");
      current_ = parameter(words[1]);
    } else {
      current_ = apply(words);
    }
    if (label.empty()) return;
    if (out) {
      if (weight_side(graph_)[current_])
        throw at(label_column, "the output '{}' does not depend on the pipeline's input", label);
      graph_.extra_outputs.push_back({label, current_});
      values_[label] = current_;
      if (graph_[current_].name.empty()) graph_[current_].name = label;
      return;
    }
    // A second name for a value, or a name for a parameter, would not survive printing.
    if (!graph_[current_].name.empty())
      throw at(label_column, "the value is called '{}' already", graph_[current_].name);
    graph_[current_].name = label;
    values_[label] = current_;
  }

  Id value(const Token& token) const {
    const auto it = values_.find(token.text.substr(1));
    if (it == values_.end() || is_param(graph_, it->second)) {
      throw at(token.column, "no value is called '{}'; name one with 'as'", token.text.substr(1));
    }
    return it->second;
  }

  Id parameter(const Token& token) {
    const size_t colon = token.text.find(':');
    const std::string name = token.text.substr(0, colon);
    if (!is_name(name)) throw at(token.column, "'{}' is not a name", name);
    if (is_reserved(name)) throw at(token.column, "'{}' cannot be a parameter's name", name);
    auto it = values_.find(name);
    if (it != values_.end() && !is_param(graph_, it->second)) {
      throw at(token.column, "'{}' is a value of this pipeline; write @{}", name, name);
    }
    if (it == values_.end()) {
      Node node;
      node.op = &operation(Op::kParam);
      node.name = name;
      it = values_.emplace(name, graph_.add(node)).first;
    }
    if (colon != std::string::npos) {
      const std::string kind = token.text.substr(colon + 1);
      if (kind != "scalar" && kind != "channel" && kind != "full") {
        throw at(token.column + colon + 1, "'{}' is none of scalar, channel, full", kind);
      }
      Attributes& attrs = graph_[it->second].attrs;
      if (attrs.has("kind") && attrs.word("kind") != kind) {
        throw at(token.column, "{} is {} elsewhere", name, attrs.word("kind"));
      }
      attrs.set("kind", kind);
    }
    return it->second;
  }

  Id tensor(const Token& token) { return token.text.starts_with('@') ? value(token) : parameter(token); }

  Id apply(const std::vector<Token>& words) {
    const Operation* op = find_operation(words[0].text);
    if (!op) {
      throw at(words[0].column, "no operation is called '{}'{}", words[0].text, nearest(words[0].text));
    }
    Node node;
    node.op = op;
    node.in = {current_};
    for (const Arg& arg : op->args) {
      if (arg.kind == Arg::Kind::kTensor || arg.kind == Arg::Kind::kOperand) node.in.push_back(kNone);
    }
    std::vector<bool> given(op->args.size(), false);
    for (size_t w = 1; w < words.size(); ++w) argument(*op, node, given, words[w]);
    for (size_t a = 0; a < op->args.size(); ++a) {
      if (op->args[a].required && !given[a]) {
        throw at(words[0].column, "{} needs {}, as in '{}'", op->name, op->args[a].name, op->example);
      }
    }
    return graph_.add(std::move(node));
  }

  // Finds the argument that a word is meant for, in this order: name=value, a flag or one of an argument's
  // words, a prefixed extent (s2), then the next open place for a number or for a tensor.
  void argument(const Operation& op, Node& node, std::vector<bool>& given, const Token& word) {
    size_t slot = 0;  // of the argument among the operands
    const size_t equals = word.text.find('=');
    const bool number = starts_number(word.text) || is_real(word.text);
    for (size_t a = 0; a < op.args.size(); ++a) {
      const Arg& arg = op.args[a];
      const bool operand = arg.kind == Arg::Kind::kTensor || arg.kind == Arg::Kind::kOperand;
      slot += operand;
      Token rest = word;
      bool match = false;
      if (equals != std::string::npos) {
        match = word.text.compare(0, equals, arg.name) == 0 && arg.kind != Arg::Kind::kFlag &&
                arg.kind != Arg::Kind::kValues;
        rest = {word.text.substr(equals + 1), word.column + equals + 1};
        if (match && given[a]) throw at(word.column, "{} is given twice", arg.name);
        if (match && rest.text.empty()) throw at(word.column, "{} has no value", arg.name);
      } else if (!given[a] || arg.kind == Arg::Kind::kValues) {
        match = accepts(op, arg, word.text, number);
        if (match) rest = {word.text.substr(arg.prefix.size()), word.column + arg.prefix.size()};
      }
      if (!match) continue;
      given[a] = true;
      assign(op, node, arg, slot, rest);
      return;
    }
    throw at(word.column, "{} does not take '{}'; it is written as in '{}'", op.name, word.text, op.example);
  }

  static bool accepts(const Operation& op, const Arg& arg, const std::string& text, bool number) {
    switch (arg.kind) {
      case Arg::Kind::kFlag:
        return text == arg.name;
      case Arg::Kind::kWord:
        return std::ranges::find(arg.words, text) != arg.words.end();
      case Arg::Kind::kInts:
        return arg.prefix.empty() ? starts_number(text) : is_extent(arg, text);
      case Arg::Kind::kReal:
        return number && !arg.named;
      case Arg::Kind::kOperand:
        return true;
      case Arg::Kind::kValues:
        return !number;
      case Arg::Kind::kSlices:
        return !arg.named && is_slices(text);
      case Arg::Kind::kTensor:
        return !number && !arg.named && !reads_as_setting(op, text);
    }
    return false;
  }

  void assign(const Operation& op, Node& node, const Arg& arg, size_t slot, const Token& word) {
    switch (arg.kind) {
      case Arg::Kind::kFlag:
        node.attrs.set(arg.name, true);
        return;
      case Arg::Kind::kWord:
        if (std::ranges::find(arg.words, word.text) == arg.words.end()) {
          throw at(word.column, "'{}' is none of {}", word.text, fmt::join(arg.words, ", "));
        }
        node.attrs.set(arg.name, word.text);
        return;
      case Arg::Kind::kInts: {
        Shape values;
        if (!to_ints(word.text, values))
          throw at(word.column, "'{}' is not a whole number, or several as in 2x1x2", word.text);
        if (values.size() > 3) throw at(word.column, "'{}' has more than three extents", word.text);
        if (arg.single && values.size() > 1)
          throw at(word.column, "{} is one number, not '{}'", arg.name, word.text);
        node.attrs.set(arg.name, values);
        return;
      }
      case Arg::Kind::kSlices:
        if (!is_slices(word.text))
          throw at(word.column, "'{}' is not a slice, or several as in 1:-1x2:", word.text);
        node.attrs.set(arg.name, word.text);
        return;
      case Arg::Kind::kValues:
        if (node.in.size() > kMaxOperands)
          throw at(word.column, "{} takes at most {} values", op.name, kMaxOperands);
        node.in.push_back(tensor(word));
        return;
      case Arg::Kind::kReal:
      case Arg::Kind::kOperand: {
        double v;
        if (to_real(word.text, v)) {
          node.attrs.set(arg.name, v);
          return;
        }
        if (arg.kind == Arg::Kind::kReal || starts_number(word.text)) {
          throw at(word.column, "'{}' is not a number", word.text);
        }
        [[fallthrough]];
      }
      case Arg::Kind::kTensor:
        node.in[slot] = tensor(word);
        // Kernels and affine weights are packed before a run: they cannot depend on the input.
        if (arg.kind == Arg::Kind::kTensor && !op.internal && !weight_side(graph_)[node.in[slot]])
          throw at(word.column, "{} of {} must be a parameter; '{}' depends on the input", arg.name, op.name,
                   word.text);
        return;
    }
    throw at(word.column, "{} does not take '{}'", op.name, word.text);
  }

  std::string_view text_;
  const Settings& settings_;
  Graph graph_;
  Id current_ = 0;
  std::map<std::string, Id> values_;
};

}  // namespace

bool reads_as_setting(const Operation& op, std::string_view text) {
  return std::ranges::any_of(op.args, [&](const Arg& arg) {
    return is_extent(arg, text) || (arg.kind == Arg::Kind::kFlag && text == arg.name) ||
           std::ranges::find(arg.words, text) != arg.words.end();
  });
}

Graph parse_text(std::string_view text, const Settings& settings) { return Parser(text, settings).parse(); }

}  // namespace upweave
