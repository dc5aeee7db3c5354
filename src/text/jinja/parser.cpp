#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/expression_parser.h"

namespace quatrain::jinja {
namespace {

using Kind = Token::Kind;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() {
    Body body = parse_body({});
    if (current().kind != Kind::End) error(current().line, "unexpected {}", describe(current()));
    return body;
  }

 private:
  // Statements up to {% NAME with NAME among `ends`, which stays the current token; with no ends, all.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Body body;
    while (current().kind != Kind::End) {
      const int line = current().line;
      if (current().kind == Kind::Data) {
        auto text = std::make_unique<Expression>(Expression{line, 1, Literal{Value(current().text)}});
        body.push_back({line, Output{std::move(text)}});
        next();
      } else if (current().kind == Kind::VariableBegin) {
        next();
        body.push_back({line, Output{parse_tuple()}});
        expect_end(Kind::VariableEnd, "}}");
      } else {
        next();  // the lexer gives only {% here
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); }))
          return body;
        parse_statement(body, ends);
        expect_end(Kind::BlockEnd, "%}");
      }
    }
    if (ends.size() != 0)
      error(current().line, "the template ends where {{% {} %}} was expected", *std::prev(ends.end()));
    return body;
  }

  // The body of a statement whose head ends here; takes the end tag's name unless it may be one of several.
  Body parse_block(std::initializer_list<std::string_view> ends) {
    skip_operator(":");
    expect_end(Kind::BlockEnd, "%}");
    Body body = parse_body(ends);
    if (ends.size() == 1) next();
    return body;
  }

  void expect_end(Kind kind, std::string_view text) {
    if (current().kind != kind) error(current().line, "expected '{}', got {}", text, describe(current()));
    next();
  }

  void parse_statement(Body& body, std::initializer_list<std::string_view> ends) {
    const int line = current().line;
    const std::string tag = expect_identifier();
    const auto add = [&](auto node) { body.push_back({line, std::move(node)}); };
    if (tag == "if") return add(parse_if());
    if (tag == "for") return add(parse_for());
    if (tag == "set") return parse_set(body, line);
    if (tag == "macro") return add(parse_macro());
    if (tag == "call") return add(parse_call_block());
    if (tag == "filter") return add(parse_filter_block());
    if (tag == "with") return add(parse_with());
    if (tag == "generation") return add(Generation{function_body({"endgeneration"})});
    if (tag == "print") return parse_print(body, line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) error(line, "{} outside of a loop", tag);
      if (tag == "break") return add(Break{});
      return add(Continue{});
    }
    for (const std::string_view known : {"extends", "include", "import", "from", "block"})
      if (tag == known) error(line, "{{% {} %}} is not supported: a chat template is one file", tag);
    if (ends.size() != 0)
      error(line, "unknown tag '{}' ({{% {} %}} is still open)", tag, *std::prev(ends.end()));
    error(line, "unknown tag '{}'", tag);
  }

  // A body that runs as a function of its own: break and continue do not reach loops around it.
  Body function_body(std::initializer_list<std::string_view> ends) {
    const int outer = std::exchange(loops_, 0);
    Body body = parse_block(ends);
    loops_ = outer;
    return body;
  }

  If parse_if() {
    If node;
    for (;;) {
      ExpressionPtr test = parse_tuple(false);
      ++soft_;
      node.branches.emplace_back(std::move(test), parse_block({"elif", "else", "endif"}));
      --soft_;
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        ++soft_;
        node.otherwise = parse_block({"endif"});
        --soft_;
      } else {
        expect_name("endif");
      }
      return node;
    }
  }

  For parse_for() {
    For node;
    node.target = parse_target("in");
    check_no_loop(node.target, current().line);
    expect_name("in");
    node.iterable = parse_tuple(false, "recursive");
    if (skip_name("if")) node.filter = parse_expression();
    if (at_name("recursive")) error(current().line, "recursive loops are not supported: use a macro");
    ++loops_;
    node.body = parse_block({"endfor", "else"});
    --loops_;
    if (skip_name("else"))
      node.otherwise = parse_block({"endfor"});
    else
      expect_name("endfor");
    return node;
  }

  void parse_set(Body& body, int line) {
    Target target = parse_target({}, true);
    if (loops_ > 0) check_no_loop(target, line);
    if (skip_operator("=")) {
      body.push_back({line, Set{std::move(target), parse_tuple()}});
      return;
    }
    ExpressionPtr filter = at_operator("|") ? parse_filters(nullptr) : nullptr;
    Body inner = parse_block({"endset"});
    body.push_back({line, SetBlock{std::move(target), std::move(filter), std::move(inner)}});
  }

  With parse_with() {
    With node;
    while (current().kind != Kind::BlockEnd && !at_operator(":")) {
      if (!node.variables.empty()) expect_operator(",");
      Target target = parse_target({});
      expect_operator("=");
      node.variables.emplace_back(std::move(target), parse_expression());
    }
    node.body = parse_block({"endwith"});
    return node;
  }

  void parse_print(Body& body, int line) {
    if (current().kind == Kind::BlockEnd) return;
    do body.push_back({line, Output{parse_expression()}});
    while (skip_operator(","));
  }

  void parse_signature(MacroDefinition& definition) {
    expect_operator("(");
    while (!at_operator(")")) {
      const int line = current().line;
      std::string name = expect_identifier();
      if (std::find(definition.parameters.begin(), definition.parameters.end(), name) !=
          definition.parameters.end())
        error(line, "the parameter '{}' appears twice", name);
      if (skip_operator("="))
        definition.defaults.push_back(parse_expression());
      else if (!definition.defaults.empty())
        error(line, "the parameter '{}' without a default follows one with a default", name);
      definition.parameters.push_back(std::move(name));
      if (!skip_operator(",")) break;
    }
    expect_operator(")");
  }

  void parse_macro_body(MacroDefinition& definition, std::initializer_list<std::string_view> ends) {
    macro_uses_.emplace_back();
    definition.body = function_body(ends);
    definition.uses_caller = macro_uses_.back().caller;
    definition.uses_varargs = macro_uses_.back().varargs;
    definition.uses_kwargs = macro_uses_.back().kwargs;
    macro_uses_.pop_back();
  }

  Macro parse_macro() {
    auto definition = std::make_shared<MacroDefinition>();
    definition->name = expect_identifier();
    parse_signature(*definition);
    parse_macro_body(*definition, {"endmacro"});
    return {std::move(definition)};
  }

  CallBlock parse_call_block() {
    auto definition = std::make_shared<MacroDefinition>();
    definition->name = "caller";
    if (at_operator("(")) parse_signature(*definition);
    const int line = current().line;
    ExpressionPtr call = parse_expression();
    if (!std::holds_alternative<Call>(call->node)) error(line, "expected a call of a macro after {{% call");
    parse_macro_body(*definition, {"endcall"});
    return {std::move(definition), std::move(call)};
  }

  FilterBlock parse_filter_block() {
    ExpressionPtr filter = parse_filters(nullptr, true);
    return {std::move(filter), parse_block({"endfilter"})};
  }

  // A name, a namespace's field where allowed, or a tuple of targets.
  Target parse_target(std::string_view end_name, bool with_field = false) {
    Target first = parse_single_target(with_field);
    if (!at_operator(",")) return first;
    Target tuple;
    tuple.items.push_back(std::move(first));
    while (skip_operator(",")) {
      if (at_tuple_end(end_name) || at_operator("=")) break;
      tuple.items.push_back(parse_single_target(with_field));
    }
    return tuple;
  }

  Target parse_single_target(bool with_field) {
    const Level level(*this);
    if (skip_operator("(")) {
      Target inner = parse_target({}, with_field);
      expect_operator(")");
      return inner;
    }
    const int line = current().line;
    Target target;
    target.name = expect_identifier();
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
      if (target.name == constant) error(line, "cannot assign to '{}'", constant);
    if (with_field && skip_operator(".")) target.field = expect_identifier();
    return target;
  }

  void check_no_loop(const Target& target, int line) const {
    if (target.name == "loop" && target.field.empty())
      error(line, "cannot assign to the special variable 'loop'");
    for (const Target& item : target.items) check_no_loop(item, line);
  }

  int loops_ = 0;
};

}  // namespace

Body parse_template(std::string_view source, std::string_view name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace quatrain::jinja
