// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/filters.h"
#include "text/jinja/tests.h"
#include "text/jinja/value.h"

namespace quatrain::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// What stands between the parentheses of a call, filter or test.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr spread;        // *list
  ExpressionPtr spread_named;  // **dict
};

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
  Sequence::Kind kind;  // List or Tuple
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Unary {
  enum class Op { Not, Negate, Plus };
  Op op;
  ExpressionPtr operand;
};
struct Binary {
  enum class Op { And, Or, Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Power };
  Op op;
  ExpressionPtr left, right;
};
struct Concatenation {  // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
struct Comparison {  // a < b < c
  enum class Op { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };
  ExpressionPtr first;
  std::vector<std::pair<Op, ExpressionPtr>> rest;
};
struct Conditional {  // then if test else otherwise; without else: undefined
  ExpressionPtr test, then, otherwise;
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object, index;
};
struct Slice {  // only as the index of an Item
  ExpressionPtr start, stop, step;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterCall {
  ExpressionPtr input;  // empty at the start of {% filter %} and {% set x | f %}: the block's text
  std::string name;
  Filter function;  // empty: unknown, an error when it runs
  CallArguments arguments;
};
struct TestCall {
  ExpressionPtr input;
  std::string name;
  Test function;  // empty: unknown, an error when it runs
  CallArguments arguments;
};

struct Expression {
  int line;
  int height;  // levels of the tree
  std::variant<Literal, Name, ListDisplay, DictDisplay, Unary, Binary, Concatenation, Comparison, Conditional,
               Attribute, Item, Slice, Call, FilterCall, TestCall>
      node;
};

/// Where {% set %}, {% for %} and {% with %} put values.
struct Target {
  std::string name;           // empty for a tuple
  std::string field;          // of a namespace; empty otherwise
  std::vector<Target> items;  // of a tuple
};

struct Statement;
using Body = std::vector<Statement>;

struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Output {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr filter;  // may be empty
  Body body;
  Body otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // may be empty
  Body body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Body body;
};
struct Macro {
  std::shared_ptr<const MacroDefinition> definition;
};
struct CallBlock {
  std::shared_ptr<const MacroDefinition> caller;
  ExpressionPtr call;
};
struct FilterBlock {
  ExpressionPtr filter;
  Body body;
};
struct Generation {  // {% generation %}: marks the assistant's tokens for training; here only a scope
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Output, If, For, Set, SetBlock, With, Macro, CallBlock, FilterBlock, Generation, Break,
               Continue>
      node;
};

}  // namespace quatrain::jinja
