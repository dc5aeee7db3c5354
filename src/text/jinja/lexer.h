// Tokens of a template, after jinja2's lexer with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain::jinja {

struct Token {
  enum class Kind {
    Data,
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name,
    String,
    Integer,
    Float,
    Operator,
    End
  };
  Kind kind;
  int line;
  std::string text;  // data, name, operator, or the value of a string literal
  int64_t integer = 0;
  double number = 0;
};

/// Splits a template. Errors begin with `name`:line.
std::vector<Token> tokenize(std::string_view source, std::string_view name);

}  // namespace quatrain::jinja
