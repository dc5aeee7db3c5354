#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <optional>

namespace quatrain::jinja {
namespace {

using Kind = Token::Kind;

int height_of(const ExpressionPtr& node) {
  return node ? node->height : 0;
}

}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (parser_.depth_ >= kMaxSourceDepth)
    parser_.error(parser_.current().line, "the template is nested deeper than {} levels", kMaxSourceDepth);
  ++parser_.depth_;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  next();
  return true;
}

std::string ExpressionParser::describe(const Token& token) {
  switch (token.kind) {
    case Kind::Data:
      return "text";
    case Kind::VariableBegin:
      return "'{{'";
    case Kind::VariableEnd:
      return "'}}'";
    case Kind::BlockBegin:
      return "'{%'";
    case Kind::BlockEnd:
      return "'%}'";
    case Kind::Integer:
    case Kind::Float:
      return "a number";
    case Kind::String:
      return "a string";
    case Kind::Name:
    case Kind::Operator:
      return "'" + token.text + "'";
    case Kind::End:
      break;
  }
  return "the end of the template";
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) error(current().line, "expected '{}', got {}", text, describe(current()));
}

void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) error(current().line, "expected '{}', got {}", text, describe(current()));
}

std::string ExpressionParser::expect_identifier() {
  if (current().kind != Kind::Name) error(current().line, "expected a name, got {}", describe(current()));
  std::string text = current().text;
  next();
  return text;
}

template <typename Node>
ExpressionPtr ExpressionParser::make_over(int line, Node node, int height) {
  if (height >= kMaxSourceDepth)
    error(line, "an expression is nested deeper than {} levels", kMaxSourceDepth);
  return std::make_unique<Expression>(Expression{line, height + 1, std::move(node)});
}

template <typename Node>
ExpressionPtr ExpressionParser::make(int line, Node node, std::initializer_list<Expression*> children) {
  int height = 0;
  for (const Expression* child : children)
    if (child != nullptr) height = std::max(height, child->height);
  return make_over(line, std::move(node), height);
}

int ExpressionParser::height(const CallArguments& arguments) {
  int height = std::max(height_of(arguments.spread), height_of(arguments.spread_named));
  for (const auto& argument : arguments.positional) height = std::max(height, argument->height);
  for (const auto& argument : arguments.named) height = std::max(height, argument.second->height);
  return height;
}

ExpressionPtr ExpressionParser::parse_expression(bool with_conditional) {
  const Level level(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr ExpressionParser::parse_conditional() {
  const int line = current().line;
  // Whether "if" follows is not known yet, so a filter before it is judged strictly; jinja2 is lenient there.
  ExpressionPtr value = parse_or();
  while (skip_name("if")) {
    ++soft_;
    ExpressionPtr test = parse_or();
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      const Level level(*this);
      otherwise = parse_conditional();
    }
    --soft_;
    const auto children = {test.get(), value.get(), otherwise.get()};
    value = make(line, Conditional{std::move(test), std::move(value), std::move(otherwise)}, children);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (at_name("or")) {
    const int line = current().line;
    next();
    ExpressionPtr right = parse_and();
    const auto children = {left.get(), right.get()};
    left = make(line, Binary{Binary::Op::Or, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (at_name("and")) {
    const int line = current().line;
    next();
    ExpressionPtr right = parse_not();
    const auto children = {left.get(), right.get()};
    left = make(line, Binary{Binary::Op::And, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_comparison();
  const Level level(*this);
  const int line = current().line;
  next();
  ExpressionPtr operand = parse_not();
  const auto children = {operand.get()};
  return make(line, Unary{Unary::Op::Not, std::move(operand)}, children);
}

ExpressionPtr ExpressionParser::parse_comparison() {
  using Op = Comparison::Op;
  static constexpr std::pair<std::string_view, Op> kOperators[] = {
      {"==", Op::Equal},     {"!=", Op::NotEqual}, {"<", Op::Less},
      {"<=", Op::LessEqual}, {">", Op::Greater},   {">=", Op::GreaterEqual}};
  const int line = current().line;
  ExpressionPtr first = parse_sum();
  int height = first->height;
  std::vector<std::pair<Op, ExpressionPtr>> rest;
  for (;;) {
    std::optional<Op> op;
    for (const auto& [text, candidate] : kOperators)
      if (at_operator(text)) op = candidate;
    if (at_name("in")) op = Op::In;
    if (at_name("not") && ahead().kind == Kind::Name && ahead().text == "in") {
      next();
      op = Op::NotIn;
    }
    if (!op) break;
    next();
    rest.emplace_back(*op, parse_sum());
    height = std::max(height, rest.back().second->height);
  }
  if (rest.empty()) return first;
  return make_over(line, Comparison{std::move(first), std::move(rest)}, height);
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    const int line = current().line;
    const auto op = at_operator("+") ? Binary::Op::Add : Binary::Op::Subtract;
    next();
    ExpressionPtr right = parse_concatenation();
    const auto children = {left.get(), right.get()};
    left = make(line, Binary{op, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = current().line;
  ExpressionPtr first = parse_product();
  if (!at_operator("~")) return first;
  int height = first->height;
  Concatenation node;
  node.parts.push_back(std::move(first));
  while (skip_operator("~")) {
    node.parts.push_back(parse_product());
    height = std::max(height, node.parts.back()->height);
  }
  return make_over(line, std::move(node), height);
}

ExpressionPtr ExpressionParser::parse_product() {
  static constexpr std::pair<std::string_view, Binary::Op> kOperators[] = {{"*", Binary::Op::Multiply},
                                                                           {"/", Binary::Op::Divide},
                                                                           {"//", Binary::Op::FloorDivide},
                                                                           {"%", Binary::Op::Modulo}};
  ExpressionPtr left = parse_power();
  for (;;) {
    std::optional<Binary::Op> op;
    for (const auto& [text, candidate] : kOperators)
      if (at_operator(text)) op = candidate;
    if (!op) return left;
    const int line = current().line;
    next();
    ExpressionPtr right = parse_power();
    const auto children = {left.get(), right.get()};
    left = make(line, Binary{*op, std::move(left), std::move(right)}, children);
  }
}

// Left-associative, and unary minus binds tighter: jinja2's grammar, not Python's.
ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (at_operator("**")) {
    const int line = current().line;
    next();
    ExpressionPtr right = parse_unary();
    const auto children = {left.get(), right.get()};
    left = make(line, Binary{Binary::Op::Power, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  ExpressionPtr node;
  if (at_operator("-") || at_operator("+")) {
    const Level level(*this);
    const int line = current().line;
    const auto op = at_operator("-") ? Unary::Op::Negate : Unary::Op::Plus;
    next();
    ExpressionPtr operand = parse_unary(false);
    const auto children = {operand.get()};
    node = make(line, Unary{op, std::move(operand)}, children);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  const int line = token.line;
  switch (token.kind) {
    case Kind::Name:
      return parse_name();
    case Kind::String: {
      std::string text;
      for (; current().kind == Kind::String; next()) text += current().text;
      return make(line, Literal{Value(std::move(text))}, {});
    }
    case Kind::Integer: {
      Value value(token.integer);
      next();
      return make(line, Literal{std::move(value)}, {});
    }
    case Kind::Float: {
      Value value(token.number);
      next();
      return make(line, Literal{std::move(value)}, {});
    }
    default:
      break;
  }
  if (skip_operator("(")) {
    const Level level(*this);
    ExpressionPtr node = parse_tuple(true, {}, true);
    expect_operator(")");
    return node;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  error(line, "unexpected {}", describe(token));
}

ExpressionPtr ExpressionParser::parse_name() {
  const int line = current().line;
  std::string name = expect_identifier();
  if (name == "true" || name == "True") return make(line, Literal{Value(true)}, {});
  if (name == "false" || name == "False") return make(line, Literal{Value(false)}, {});
  if (name == "none" || name == "None") return make(line, Literal{Value()}, {});
  for (MacroUse& use : macro_uses_) {
    use.caller |= name == "caller";
    use.varargs |= name == "varargs";
    use.kwargs |= name == "kwargs";
  }
  return make(line, Name{std::move(name)}, {});
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return current().kind == Kind::VariableEnd || current().kind == Kind::BlockEnd || at_operator(")") ||
         (!end_name.empty() && at_name(end_name));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end_name,
                                            bool explicit_parentheses) {
  const int line = current().line;
  ListDisplay tuple{{}, Sequence::Kind::Tuple};
  bool is_tuple = false;
  int height = 0;
  while (!at_tuple_end(end_name)) {
    tuple.items.push_back(parse_expression(with_conditional));
    height = std::max(height, tuple.items.back()->height);
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple.items.empty()) return std::move(tuple.items[0]);
  if (!is_tuple && !explicit_parentheses) error(line, "expected an expression, got {}", describe(current()));
  return make_over(line, std::move(tuple), height);
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = current().line;
  expect_operator("[");
  ListDisplay list{{}, Sequence::Kind::List};
  int height = 0;
  while (!at_operator("]")) {
    list.items.push_back(parse_expression());
    height = std::max(height, list.items.back()->height);
    if (!skip_operator(",")) break;
  }
  expect_operator("]");
  return make_over(line, std::move(list), height);
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = current().line;
  expect_operator("{");
  DictDisplay dict;
  int height = 0;
  while (!at_operator("}")) {
    ExpressionPtr key = parse_expression();
    expect_operator(":");
    ExpressionPtr value = parse_expression();
    height = std::max({height, key->height, value->height});
    dict.items.emplace_back(std::move(key), std::move(value));
    if (!skip_operator(",")) break;
  }
  expect_operator("}");
  return make_over(line, std::move(dict), height);
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  for (;;) {
    if (at_operator(".")) {
      node = parse_attribute(std::move(node));
    } else if (at_operator("[")) {
      node = parse_item(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr node) {
  for (;;) {
    if (at_operator("|")) {
      node = parse_filters(std::move(node));
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr object) {
  const int line = current().line;
  expect_operator(".");
  const auto children = {object.get()};
  if (current().kind == Kind::Integer) {
    ExpressionPtr index = make(line, Literal{Value(current().integer)}, {});
    next();
    return make(line, Item{std::move(object), std::move(index)}, children);
  }
  std::string name = expect_identifier();
  return make(line, Attribute{std::move(object), std::move(name)}, children);
}

ExpressionPtr ExpressionParser::parse_item(ExpressionPtr object) {
  const int line = current().line;
  expect_operator("[");
  ExpressionPtr index = parse_index();
  if (at_operator(",")) error(line, "several subscripts in one [] are not supported");
  expect_operator("]");
  const auto children = {object.get(), index.get()};
  return make(line, Item{std::move(object), std::move(index)}, children);
}

ExpressionPtr ExpressionParser::parse_index() {
  const int line = current().line;
  const auto at_end = [&] { return at_operator(":") || at_operator("]") || at_operator(","); };
  ExpressionPtr start, stop, step;
  if (!at_operator(":")) start = parse_expression();
  if (!skip_operator(":")) return start;
  if (!at_end()) stop = parse_expression();
  if (skip_operator(":") && !at_end()) step = parse_expression();
  const auto children = {start.get(), stop.get(), step.get()};
  return make(line, Slice{std::move(start), std::move(stop), std::move(step)}, children);
}

CallArguments ExpressionParser::parse_arguments() {
  const int line = current().line;
  expect_operator("(");
  CallArguments arguments;
  const auto ensure = [&](bool condition) {
    if (!condition) error(line, "invalid order of arguments in a call");
  };
  while (!at_operator(")")) {
    if (skip_operator("*")) {
      ensure(!arguments.spread && !arguments.spread_named);
      arguments.spread = parse_expression();
    } else if (skip_operator("**")) {
      ensure(!arguments.spread_named);
      arguments.spread_named = parse_expression();
    } else if (current().kind == Kind::Name && is_operator(ahead(), "=")) {
      ensure(!arguments.spread_named);
      std::string name = expect_identifier();
      next();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!arguments.spread && !arguments.spread_named && arguments.named.empty());
      arguments.positional.push_back(parse_expression());
    }
    if (!skip_operator(",")) break;
  }
  expect_operator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = current().line;
  CallArguments arguments = parse_arguments();
  const int tallest = std::max(callee->height, height(arguments));
  return make_over(line, Call{std::move(callee), std::move(arguments)}, tallest);
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input, bool start_inline) {
  while (start_inline || at_operator("|")) {
    if (!start_inline) next();
    start_inline = false;
    const int line = current().line;
    FilterCall filter{std::move(input), expect_identifier(), nullptr, {}};
    filter.function = find_filter(filter.name);
    if (filter.function == nullptr && soft_ == 0) error(line, "the filter '{}' is not known", filter.name);
    if (at_operator("(")) filter.arguments = parse_arguments();
    const int tallest = std::max(height_of(filter.input), height(filter.arguments));
    input = make_over(line, std::move(filter), tallest);
  }
  return input;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  const int line = current().line;
  expect_name("is");
  const bool negated = skip_name("not");
  TestCall test{std::move(input), expect_identifier(), nullptr, {}};
  test.function = find_test(test.name);
  if (test.function == nullptr && soft_ == 0) error(line, "the test '{}' is not known", test.name);
  const Kind kind = current().kind;
  if (at_operator("(")) {
    test.arguments = parse_arguments();
  } else if (kind == Kind::String || kind == Kind::Integer || kind == Kind::Float || at_operator("[") ||
             at_operator("{") ||
             (kind == Kind::Name && !at_name("else") && !at_name("or") && !at_name("and"))) {
    if (at_name("is")) error(line, "tests cannot be chained with is");
    test.arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const int tallest = std::max(test.input->height, height(test.arguments));
  ExpressionPtr node = make_over(line, std::move(test), tallest);
  if (!negated) return node;
  const auto children = {node.get()};
  return make(line, Unary{Unary::Op::Not, std::move(node)}, children);
}

}  // namespace quatrain::jinja
