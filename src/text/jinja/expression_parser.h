// The expression half of the parser; parser.cpp adds the statements.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace quatrain::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, std::string_view name)
      : tokens_(std::move(tokens)), name_(name) {}

 protected:
  // --- tokens
  const Token& current() const { return tokens_[position_]; }
  const Token& ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  bool at_operator(std::string_view text) const { return is_operator(current(), text); }
  bool at_name(std::string_view text) const {
    return current().kind == Token::Kind::Name && current().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_identifier();
  static bool is_operator(const Token& token, std::string_view text) {
    return token.kind == Token::Kind::Operator && token.text == text;
  }
  static std::string describe(const Token& token);

  template <typename... Args>
  [[noreturn]] void error(int line, fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}:{}: {}", name_, line, fmt::format(format, std::forward<Args>(args)...));
  }

  // --- expressions
  ExpressionPtr parse_expression(bool with_conditional = true);
  /// One expression, or several with commas as a tuple. `end_name`: a name that ends it ("in", "recursive").
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end_name = {},
                            bool explicit_parentheses = false);
  bool at_tuple_end(std::string_view end_name) const;
  /// `|f(x)|g`. Without input, the first name follows at once when `start_inline`.
  ExpressionPtr parse_filters(ExpressionPtr input, bool start_inline = false);
  /// Adds one level for as long as it lives.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // Names that the macro bodies around this point mention.
  struct MacroUse {
    bool caller = false, varargs = false, kwargs = false;
  };
  std::vector<MacroUse> macro_uses_;
  int soft_ = 0;  // inside a condition: unknown filters and tests wait until they run

 private:
  template <typename Node>
  ExpressionPtr make(int line, Node node, std::initializer_list<Expression*> children);
  template <typename Node>
  ExpressionPtr make_over(int line, Node node, int height);

  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_attribute(ExpressionPtr object);
  ExpressionPtr parse_item(ExpressionPtr object);
  ExpressionPtr parse_index();
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_test(ExpressionPtr input);
  CallArguments parse_arguments();
  static int height(const CallArguments& arguments);

  std::vector<Token> tokens_;
  std::string name_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace quatrain::jinja
